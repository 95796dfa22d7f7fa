package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func TestAck_Leases(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	eachBehaviour(
		t, f,
		behaviour{"B98_wrong_lease", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			p := delivers(b, q, "leaseSeconds=1", "m-0", "m-1")
			for _, lease := range []string{mq.NewID().String(), "nonsense", "00000000-0000-0000-0000-000000000000"} {
				for _, status := range []string{"completed", "failed", "dlq"} {
					items := pick(p, "0 "+status, "1")
					items[0].LeaseID, items[1].LeaseID = lease, lease
					acked(b, "", items, noLease, noLease)
				}
			}
			delivers(b, q, "wait=true&timeout=5000", "m-0", "m-1")
		}},
		behaviour{"B99_B100_expired", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, as("g")+"leaseSeconds=1", "m-0", "m-1", "m-2")
			lapse()
			acked(b, "g", pick(p, "0"), noLease)
			acked(b, "g", pick(p, "0", "1", "2"), noLease, noLease, noLease)
			acked(b, "g", without(pick(p, "1")), "ok")
			p = delivers(b, q, as("g")+"leaseSeconds=1", "m-2")
			lapse()
			acked(b, "g", without(pick(p, "0")), "ok+released")
			deliversNothing(b, q, as("g"))
		}},
		behaviour{"without_a_lease_another_workers_batch", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			first := delivers(b, q, "leaseSeconds=1", "m-0", "m-1")
			second := delivers(b, q, "wait=true&timeout=5000", "m-0", "m-1")
			acked(b, "", without(pick(first, "0")), "ok")
			acked(b, "", without(pick(first, "1")), "ok+released")
			acked(b, "", pick(second, "0", "1"), "ok+noop", "ok+noop")
		}},
		behaviour{"U8_nack_when_nothing_is_leased", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			p := delivers(b, q, "batch=1", "m-0")
			acked(b, "", pick(p, "0"), "ok+released")
			item := p.Messages[0].Ack("failed", "")
			item.LeaseID = ""
			acked(b, "", []AckItem{item}, committed)
			item.TransactionID = "m-1"
			for _, item.Status = range []string{"failed", "retry", "dlq"} {
				acked(b, "", []AckItem{item}, noLease)
			}
			if n := len(b.DeadLetters(q)); n != 0 {
				t.Errorf("%d dead letters", n)
			}
			// A completed one moves the cursor, lease or not.
			item.Status = "completed"
			acked(b, "", []AckItem{item}, "ok")
			deliversNothing(b, q, "")
		}},
		behaviour{"B102_wrong_group", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			p := delivers(b, q, as("right"), "m-0", "m-1")
			acked(b, "stranger", pick(p, "1"), noConsumer)
			acked(b, "", pick(p, "1 failed"), noConsumer)
			delivers(b, q, as("other"), "m-0", "m-1")
			acked(b, "other", pick(p, "1"), noLease)
			acked(b, "other", without(pick(p, "1")), "ok+released")
			acked(b, "right", pick(p, "0", "1"), "ok+released", "ok+released")
		}},
		behaviour{"B103_B104_out_of_reach", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "batch=2&leaseSeconds=1", "m-0", "m-1")
			beyond, unknown, empty := p.Messages[0].Ack("", ""), p.Messages[0].Ack("", ""), p.Messages[0].Ack("", "")
			beyond.TransactionID, unknown.TransactionID, empty.TransactionID = "m-2", "never pushed", ""
			acked(b, "", []AckItem{beyond, unknown, empty}, unresolvable, unresolvable, unresolvable)
			acked(b, "", []AckItem{unknown, p.Messages[0].Ack("", "")}, unresolvable, "ok")
			delivers(b, q, "wait=true&timeout=5000", "m-1", "m-2")
		}},
		behaviour{"B105_one_stale_of_three", func(_ *testing.T, b *Broker, q string) {
			var items []AckItem
			for _, part := range []string{"a", "b", "c"} {
				b.PushN(q, part, part, 2)
				p := b.PopPinned(q, part, "")
				items = append(items, pick(p, "0", "1")...)
			}
			items[2].LeaseID, items[3].LeaseID = mq.NewID().String(), mq.NewID().String()
			acked(b, "", items, "ok+released", "ok+released", noLease, noLease, "ok+released", "ok+released")
		}},
		behaviour{"B107_malformed_partition", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "", "m-0")
			good := p.Messages[0].Ack("", "")
			items := []AckItem{good}
			want := []string{"ok+released"}
			for _, id := range []string{"", "17", "nonsense", mq.NewID().String(), "5f0c2a9e-1d3b-4a77-9c10-6b1f0e2d3c4b", "' OR 1=1", good.PartitionID + "0"} {
				bad := good
				bad.PartitionID = id
				items, want = append(items, bad), append(want, notOwned)
			}
			acked(b, "", items, want...)
		}},
		behaviour{"B109_order", func(t *testing.T, b *Broker, q string) {
			var items []AckItem
			for i := range 9 {
				part := fmt.Sprintf("p%d", i%3)
				b.Push(Item{Queue: q, Partition: part, TransactionID: fmt.Sprintf("m-%d", i)})
			}
			p := b.Pop(q, "partitions=3")
			at := map[string]Message{}
			for _, m := range p.Messages {
				at[m.TransactionID] = m
			}
			for i := range 9 { // the partitions take turns
				items = append(items, at[fmt.Sprintf("m-%d", i)].Ack("", ""))
			}
			items[4].TransactionID = "unknown"
			results := b.Ack("", items...)
			for i, r := range results {
				if r.Index != i || r.TransactionID != items[i].TransactionID || r.Success == (i == 4) {
					t.Errorf("%d: %+v", i, r)
				}
			}
		}},
	)
}

func TestAck_B112_IDsThatRanOut(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.PushN("q", "p", "m", 3)
	p := delivers(b, "q", as("g")+"leaseSeconds=1", "m-0", "m-1", "m-2")
	// What the janitor does once the longest window of the slices has passed.
	if _, err := f.DB.Pool(t).Exec(t.Context(), "TRUNCATE queen.message_ids"); err != nil {
		t.Fatal(err)
	}
	acked(b, "g", pick(p, "1"), unresolvable)
	acked(b, "g", pick(p, "0 failed"), unresolvable)
	p = delivers(b, "q", as("g")+"wait=true&timeout=5000", "m-0", "m-1", "m-2")
	// A whole batch needs no index, so a group that acknowledges what it got
	// goes on, however late.
	acked(b, "g", pick(p, "0", "1", "2"), "ok+released", "ok+released", "ok+released")
	deliversNothing(b, "q", as("g"))
}

// slowRecheck leaves waiting pops to wakes alone.
var slowRecheck = []string{"POP_WAIT_INITIAL_INTERVAL_MS=60000", "POP_WAIT_MAX_INTERVAL_MS=60000"}

func TestAck_B114_NacksWakeWaiters(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: slowRecheck})
	for _, status := range []string{"failed", "retry", "dlq"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			b, other := f.Brokers[0].In(t), f.Brokers[1].In(t)
			b.PushN(status, "p", "m", 2)
			p := delivers(b, status, "", "m-0", "m-1")
			want := "m-0"
			if status == "dlq" {
				want = "m-1"
			}
			for _, waiting := range []*Broker{b, other} {
				answer := make(chan *PopAnswer, 1)
				go func() { answer <- waiting.Pop(status, "batch=1&wait=true&timeout=20000") }()
				time.Sleep(200 * time.Millisecond) // long enough to be parked; if not, it is served at once
				start := time.Now()
				acked(b, "", pick(p, "0 "+status)[:1], map[bool]string{true: "ok+released+dlq", false: "ok+released"}[status == "dlq"])
				got := <-answer
				if ids := got.IDs(); len(ids) != 1 || ids[0] != want {
					t.Fatalf("got %q", ids)
				}
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("woken after %v", took)
				}
				if status == "dlq" {
					return // m-1 is the last
				}
				p = got
			}
		})
	}
}

func TestAck_B115_PushesDoNotWaitForAcks(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.PushN("q", "p", "m", 2)
	p := delivers(b, "q", "", "m-0", "m-1")
	// An ack that is stuck in the middle: it waits for this lock on its cursor.
	tx, err := f.DB.Pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM queen.cursors FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan []AckResult, 1)
	go func() { done <- b.Ack("", pick(p, "0", "1")...) }()
	time.Sleep(100 * time.Millisecond)
	start := time.Now()
	for i := range 5 {
		b.PushN("q", "p", fmt.Sprint("n", i), 1)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("five pushes took %v", took)
	}
	select {
	case r := <-done:
		t.Fatalf("the ack was not stuck: %+v", r)
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-done; !r[0].Success || !r[1].Success {
		t.Errorf("ack: %+v", r)
	}
	delivers(b, "q", "", "n0-0", "n1-0", "n2-0", "n3-0", "n4-0")
}

func TestAck_17_1_WorkedExample(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Configure("q", map[string]any{"retryLimit": 1})
	b.PushN("q", "p", "m", 5)
	attempt := func(p *PopAnswer, want int) *PopAnswer {
		t.Helper()
		for _, m := range p.Messages {
			if m.DeliveryAttempt != want {
				t.Errorf("%s: attempt %d, want %d", m.TransactionID, m.DeliveryAttempt, want)
			}
		}
		return p
	}
	const query = "batch=5"
	l1 := attempt(delivers(b, "q", query, "m-0", "m-1", "m-2", "m-3", "m-4"), 1)
	acked(b, "", pick(l1, "1"), "ok")
	acked(b, "", pick(l1, "0"), "ok+noop")
	acked(b, "", pick(l1, "2", "3 failed", "4"), "ok+released", "ok+released", "ok+released")
	attempt(delivers(b, "q", query+"&leaseSeconds=1", "m-3", "m-4"), 2)
	l3 := attempt(delivers(b, "q", query+"&wait=true&timeout=5000", "m-3", "m-4"), 3)
	acked(b, "", pick(l3, "0 failed boom"), "ok+released+dlq")
	l4 := attempt(delivers(b, "q", query, "m-4"), 1)
	acked(b, "", pick(l3, "1"), noLease)
	acked(b, "", without(pick(l4, "0")), "ok+released")
	acked(b, "", pick(l4, "0"), "ok+noop")
	acked(b, "", without(pick(l3, "0 failed")), committed)
}

func TestAck_A6_PoisonIsIsolated(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b := f.One()
	b.Configure("q", map[string]any{"retryLimit": 2})
	b.PushN("q", "p", "m", 3)
	p := delivers(b, "q", "", "m-0", "m-1", "m-2")
	text, err := json.Marshal("bad\x00thing " + strings.Repeat("x", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	nack := func(poison Message, rest string) []AckResult {
		t.Helper()
		body := fmt.Sprintf(`{"acknowledgments":[%s{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"failed","error":%s}]}`,
			rest, poison.TransactionID, poison.PartitionID, poison.LeaseID, text)
		var results []AckResult
		b.MustInto(&results, http.StatusOK, "POST", "/api/v1/ack/batch", body)
		return results
	}
	m := p.Messages[0]
	done := fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"},`, m.TransactionID, m.PartitionID, m.LeaseID)
	for attempt := 1; attempt <= 3; attempt++ {
		poison := p.Messages[len(p.Messages)-2]
		if poison.TransactionID != "m-1" || poison.DeliveryAttempt != attempt {
			t.Fatalf("attempt %d: %+v", attempt, poison)
		}
		results := nack(poison, done)
		done = ""
		if last := results[len(results)-1]; !last.Success || last.DLQ != (attempt == 3) {
			t.Fatalf("attempt %d: %+v", attempt, results)
		}
		if attempt < 3 {
			p = delivers(b, "q", "", "m-1", "m-2")
		}
	}
	p = delivers(b, "q", "", "m-2")
	if p.Messages[0].DeliveryAttempt != 1 {
		t.Errorf("m-2 was charged: attempt %d", p.Messages[0].DeliveryAttempt)
	}
	b.AckAll(p)
	deliversNothing(b, "q", "")
	letters := b.DeadLetters("q")
	if len(letters) != 1 || letters[0].TransactionID != "m-1" || letters[0].RetryCount != 2 {
		t.Fatalf("letters: %+v", letters)
	}
	want := ("badthing " + strings.Repeat("x", mq.MaxErrorBytes))[:mq.MaxErrorBytes]
	if got := *letters[0].ErrorMessage; got != want {
		t.Errorf("error text of %d bytes: %.40q…", len(got), got)
	}
	replayedOnce(t, f, letters[0].ID)
	delivers(b, "q", "", "dlq:"+letters[0].ID)
}
