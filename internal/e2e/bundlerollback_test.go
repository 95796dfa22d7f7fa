package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// What is rolled back must not leave a trace anywhere in the database, so these
// have it to themselves, one after the other.
func TestBundle_B143_RollbackLeavesNothing(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b, other := f.Brokers[0], f.Brokers[1]
	b.Configure("in", map[string]any{"retryLimit": 1})
	b.PushN("in", "p", "m", 3)
	b.PushN("in2", "p", "n", 1)
	b.Push(Item{Queue: "out", Partition: "p", TransactionID: "stored"})
	p, p2 := delivers(b, "in", "", ids("m", 0, 3)...), delivers(b, "in2", "", "n-0")
	g := delivers(b, "in", as("g"), ids("m", 0, 3)...)
	dup := Item{Queue: "out", Partition: "p", TransactionID: "stored"}
	news := []Item{
		{Queue: "out", Partition: "p", TransactionID: "new"},
		{Queue: "out", Partition: "new"},
		{Queue: "a-new-queue", Partition: "x"},
		{Queue: "z-new-queue"},
	}
	unknown := []AckItem{{TransactionID: "never", PartitionID: p.PartitionID, LeaseID: p.LeaseID}}
	nowhere := func(partition string) []AckItem { return []AckItem{{TransactionID: "m-0", PartitionID: partition}} }
	long := strings.Repeat("n", 400)
	for _, tt := range []struct {
		name, reason string
		body         any
	}{
		{"B126 stored duplicate", "duplicate", ops(pick(p, "0"), news, dup)},
		{"B126 one of many", "duplicate", ops(pick(p, "0", "1", "2"), append(news[:2:2], dup, news[3]))},
		{"B126 duplicate alone", "duplicate", ops(dup)},
		{"B128 unknown id", "rejected_ack", ops(pick(p, "0"), news, unknown, pick(p2, "0"))},
		{"B128 unknown id first", "rejected_ack", ops(unknown, pick(p2, "0"), news)},
		{"no id", "rejected_ack", ops(news, []AckItem{{PartitionID: p.PartitionID}})},
		{"id of another partition", "rejected_ack", ops(news, []AckItem{{TransactionID: "n-0", PartitionID: p.PartitionID}})},
		{"unknown group", "rejected_ack", ops(pick(p, "0"), groupAcks{"nobody", pick(p, "0")}, news)},
		{"group that never popped the queue", "rejected_ack", ops(groupAcks{"g", pick(p2, "0")}, news)},
		{"unknown partition", "rejected_ack", ops(pick(p, "0"), news, nowhere(mq.PartitionID{Queue: 1, Partition: 1 << 40}.String()))},
		{"unknown queue", "rejected_ack", ops(pick(p, "0"), news, nowhere(mq.PartitionID{Queue: 1 << 40, Partition: 1}.String()))},
		{"malformed partition", "bad_request", ops(pick(p, "0"), news, nowhere("p"))},
		{"no partition", "bad_request", ops(pick(p, "0"), news, nowhere(""))},
		{"push without a queue", "bad_request", ops(pick(p, "0"), news, Item{})},
		{"wrong lease", "rejected_ack", ops(pick(p2, "0"), groupAcks{"g", pick(p, "0")}, news)},
		{"failed, and a duplicate: no charge", "duplicate", ops(pick(p, "0 failed"), dup)},
		{"dlq, and a duplicate: not filed", "duplicate", ops(pick(p, "0 dlq"), news, dup)},
		{"retry, and an unknown id: still leased", "rejected_ack", ops(groupAcks{"g", pick(g, "0 retry")}, unknown)},
		{"D17 an ack is told before a push", "rejected_ack", ops(news, dup, unknown)},
		{"D17 a malformed step before both", "bad_request", ops(dup, unknown, Item{})},
		{"acks without pushes", "rejected_ack", ops(pick(p, "0", "1"), unknown)},
	} {
		for _, b := range []*Broker{b, other} {
			leavesNothing(t, f, func() {
				text := rollsBack(b, tt.reason, tt.body)
				t.Logf("%s: %s", tt.name, text)
			})
		}
	}
	// Refused before it is looked at, in the plain shape or the transaction's.
	leavesNothing(t, f, func() {
		refusedAs(b, http.StatusBadRequest, "bad_request", `{"operations":[{"type":"push","queue":"a-new-queue"},{"type":"push","queue":"a\u0000"}]}`)
		refusedAs(b, http.StatusBadRequest, "bad_request", ops(Item{Queue: "a-new-queue"}, Item{Queue: "q", TransactionID: strings.Repeat("t", mq.MaxTransactionIDBytes+1)}))
		status, _, answer := b.Do("POST", transactionPath, ops(Item{Queue: "a-new-queue"}, Item{Queue: long, Partition: long}))
		if status != http.StatusRequestEntityTooLarge || !strings.Contains(string(answer), `"code":"name_too_long"`) {
			t.Errorf("long name: %d %s", status, answer)
		}
		b.Must(http.StatusBadRequest, "POST", transactionPath, `{"operations":[{"type":"push","queue":"a-new-queue","payload":`+strings.Repeat("[", 513)+strings.Repeat("]", 513)+`}]}`)
	})
	// Nothing was charged or lost: the same steps, right, all go through.
	commits(b, ops(pick(p, "0 failed"), groupAcks{"g", pick(g, "0", "2")}, pick(p2, "0"), news))
	p = delivers(b, "in", "", ids("m", 0, 3)...)
	if r := commits(b, ops(pick(p, "0 failed"))); !r[0].DLQ {
		t.Errorf("budget of one: %+v", r)
	}
	var offsets []int64
	for _, m := range stored(b, "out") {
		if m.Partition == "p" {
			offsets = append(offsets, m.Offset)
		}
	}
	if fmt.Sprint(offsets) != "[0 1]" {
		t.Errorf("offsets %v", offsets)
	}
}

func TestBundle_B126_DuplicateIsNamed(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Push(Item{Queue: "shop.invoices", Partition: "cust-17", TransactionID: "invoice-order-501"})
	if got, want := rollsBack(b, "duplicate", ops(Item{Queue: "shop.invoices", Partition: "cust-17", TransactionID: "invoice-order-501"})),
		"QDUP shop.invoices/cust-17 already holds invoice-order-501; transaction rolled back"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// What a bundle stored is known to pushes, to bundles and to acks.
	commits(b, ops(Item{Queue: "q", Partition: "p", TransactionID: "a"}))
	if r := b.Push(Item{Queue: "q", Partition: "p", TransactionID: "a"}); r[0].Status != "duplicate" || *r[0].Offset != 0 {
		t.Errorf("pushed again: %+v", r)
	}
	rollsBack(b, "duplicate", ops(Item{Queue: "q", Partition: "p", TransactionID: "a"}))
	commits(b, ops(Item{Queue: "q", Partition: "p2", TransactionID: "a"}))
	// Outside the window it is new.
	b.Configure("short", map[string]any{"dedupWindowSeconds": 1})
	commits(b, ops(Item{Queue: "short", TransactionID: "a"}))
	rollsBack(b, "duplicate", ops(Item{Queue: "short", TransactionID: "a"}))
	lapse()
	commits(b, ops(Item{Queue: "short", TransactionID: "a"}))
	b.Configure("off", map[string]any{"dedupWindowSeconds": 0})
	for range 2 {
		commits(b, ops(Item{Queue: "off", TransactionID: "a"}))
	}
	if n := len(stored(b, "off")); n != 2 {
		t.Errorf("without a window: %d", n)
	}
}

// A bundle that is sent again, through the same broker or another, changes
// nothing.
func TestBundle_B146_RepeatChangesNothing(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b := f.One()
	b.PushN("in", "p", "m", 3)
	p := b.Pop("in", "")
	whole := ops(pick(p, "0", "1", "2"), Item{Queue: "out", TransactionID: "w"})
	b.PushN("part", "p", "m", 3)
	q := b.Pop("part", "")
	part := ops(pick(q, "0", "1"), Item{Queue: "out", TransactionID: "p"})
	pushes := ops([]Item{{Queue: "out", TransactionID: "1"}, {Queue: "new", TransactionID: "2"}})
	leaseless := ops(without(pick(q, "0", "1")), Item{Queue: "out", TransactionID: "l"})
	for _, tt := range []struct {
		body   bundle
		reason string
	}{{whole, "rejected_ack"}, {part, "duplicate"}, {pushes, "duplicate"}, {leaseless, "duplicate"}} {
		commits(b, tt.body)
		leavesNothing(t, f, func() {
			for _, b := range f.Brokers {
				rollsBack(b, tt.reason, tt.body)
			}
		})
	}
	commits(b, ops(pick(q, "2")))
}

// A queue or group that another broker took away and made anew is the one that
// counts, whatever a broker remembers.
func TestBundle_WhatWasMadeAnew(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b, other := f.Brokers[0], f.Brokers[1]
	for i := range 3 {
		b.PushN("in", "p", fmt.Sprint("m", i), 1)
		p := b.Pop("in", as("g"))
		commits(b, ops(groupAcks{"g", pick(p, "0")}, Item{Queue: "out", TransactionID: "o"}))
		other.Must(http.StatusOK, "DELETE", groupPath("g"), nil)
		b.AckAll(other.Pop("in", as("g")))
		other.Must(http.StatusOK, "DELETE", "/api/v1/resources/queues/out", nil)
		other.Must(http.StatusOK, "DELETE", groupPath("g"), nil)
		p = other.Pop("in", as("g"))
		r := commits(b, ops(groupAcks{"g", pick(p, fmt.Sprint(len(p.Messages)-1))}, Item{Queue: "out", TransactionID: "o", Payload: json.RawMessage(`1`)}))
		if m := stored(other, "out"); len(m) != 1 || m[0].ID != r[1].MessageID || m[0].Offset != 0 {
			t.Fatalf("out: %+v", m)
		}
		other.Must(http.StatusOK, "DELETE", "/api/v1/resources/queues/out", nil)
		other.Must(http.StatusOK, "DELETE", "/api/v1/resources/queues/in", nil)
		rollsBack(b, "rejected_ack", ops(groupAcks{"g", pick(p, "0")}))
	}
}

// Ids are kept by class, and the class follows from the options as they are,
// not as a broker remembers them.
func TestBundle_B126_ChangedWindow(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b, pool := f.One(), f.DB.Pool(t)
	commits(b, ops(Item{Queue: "q", TransactionID: "a"}))
	// Behind the broker's back.
	if _, err := pool.Exec(t.Context(), `UPDATE queen.queues SET dedup_window_seconds = 86000, id_class = 1, id_class_before = 0, version = version + 1`); err != nil {
		t.Fatal(err)
	}
	rollsBack(b, "duplicate", ops(Item{Queue: "q", TransactionID: "b"}, Item{Queue: "q", TransactionID: "a"}))
	commits(b, ops(Item{Queue: "q", TransactionID: "b"}))
	var class int
	if err := pool.QueryRow(t.Context(), `SELECT window_class FROM queen.message_ids WHERE message_offset = 1`).Scan(&class); err != nil || class != 1 {
		t.Errorf("the id went to class %d, %v", class, err)
	}
}
