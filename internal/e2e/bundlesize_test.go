package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestBundle_B148_Large(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.PushN("in", "p", "m", 1000)
	p := b.Pop("in", "batch=1000")
	mega := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	items := make([]Item, 1000)
	for i := range items {
		items[i] = Item{Queue: fmt.Sprint("out", i%3), Partition: fmt.Sprint("p", i%50), TransactionID: fmt.Sprint("o-", i)}
		if i%20 == 0 {
			items[i].Payload = mega
		}
	}
	acks := make([]AckItem, len(p.Messages))
	for i, m := range p.Messages {
		acks[i] = m.Ack("completed", "")
	}
	from := time.Now()
	r := commits(b, ops(items, acks))
	t.Logf("1,000 pushes with 50 MiB and 1,000 acks in %v", time.Since(from))
	if len(r) != 2000 || r[999].TransactionID != "o-999" || r[1999].TransactionID != "m-999" {
		t.Fatalf("%d results", len(r))
	}
	deliversNothing(b, "in", "")
	n, large := 0, 0
	for q := range 3 {
		for _, m := range stored(b, fmt.Sprint("out", q)) {
			n++
			if len(m.Data) == len(mega) {
				large++
			}
		}
	}
	if n != 1000 || large != 50 {
		t.Errorf("%d messages, %d large ones", n, large)
	}
	// The last of a thousand is known: nothing of the others is kept.
	items[999] = Item{Queue: "out0", Partition: "p48", TransactionID: "o-498"}
	for i := range items[:999] {
		items[i].TransactionID = fmt.Sprint("n-", i)
	}
	leavesNothing(t, f, func() { rollsBack(b, "duplicate", ops(items)) })
	// Over the limit of a body.
	if r := mustRefuse(b, http.StatusRequestEntityTooLarge, "POST", transactionPath, strings.Repeat(" ", 64<<20+1)); r.Code != "payload_too_large" {
		t.Errorf("%+v", r)
	}
}

// A body may name very many cursors that do not exist. It has to be refused in
// little time.
func TestBundle_B148_ManyAcksOfNothing(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.PushN("in", "p", "m", 1)
	p := b.Pop("in", "")
	own := p.Messages[0].PartitionID
	var body strings.Builder
	body.WriteString(`{"operations":[`)
	for i := range 100_000 {
		// A partition of the same queue each: only the end of the id differs.
		fmt.Fprintf(&body, `{"type":"ack","transactionId":"m-%d","partitionId":"%s%06x"},`, i, own[:len(own)-6], 0x100000+i)
	}
	fmt.Fprintf(&body, `{"type":"ack","transactionId":"m-0","partitionId":%q}]}`, own)
	from := time.Now()
	rollsBack(b, "rejected_ack", body.String())
	took := time.Since(from)
	t.Logf("100,001 acks refused in %v", took)
	if took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	commits(b, ops(pick(p, "0")))
}
