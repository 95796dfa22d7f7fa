package e2e

import (
	"fmt"
	"testing"
	"time"
)

// bounds are the first offset that a partition holds and the next it will get.
func bounds(b *Broker, queue, part string) (start, next int64) {
	b.t.Helper()
	var out struct{ Entries []fetched }
	b.MustInto(&out, 200, "POST", offsetsPath, fmt.Sprintf(`{"entries":[{"queue":%q,"partition":%q,"timestamp":0}]}`, queue, part))
	return out.Entries[0].LogStart, out.Entries[0].HighWatermark
}

// trimmed waits until the front of a partition is gone.
func trimmed(b *Broker, queue, part string, start int64) {
	b.t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		got, _ := bounds(b, queue, part)
		if got == start {
			return
		}
		if got > start || time.Now().After(end) {
			b.t.Fatalf("%s/%s starts at %d, want %d", queue, part, got, start)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// pass waits until the janitor has removed what is more than a second old by
// now: a queue that keeps nothing shows it.
func pass(b *Broker, queue string) {
	b.t.Helper()
	control := queue + "-control"
	b.Configure(control, bag{"maxWaitTimeSeconds": 1})
	b.PushN(control, "p", fmt.Sprint("m", time.Now().UnixNano()), 1)
	_, next := bounds(b, control, "p")
	trimmed(b, control, "p", next)
}

func holds(b *Broker, queue, part string, start int64) {
	b.t.Helper()
	if got, _ := bounds(b, queue, part); got != start {
		b.t.Errorf("%s/%s starts at %d, want %d", queue, part, got, start)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: []string{"RETENTION_INTERVAL=200"}})
	eachBehaviour(
		t, f,
		behaviour{"B176_age_removes_what_nobody_read", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q+"1", bag{"retentionEnabled": true, "retentionSeconds": 1})
			b.Configure(q+"2", bag{"retentionEnabled": true, "completedRetentionSeconds": 1})
			for _, rule := range []string{"1", "2"} {
				b.PushN(q+rule, "p", "m", 3)
			}
			deliversNothing(b, q+"1", "consumerGroup=late")
			trimmed(b, q+"1", "p", 3)
			pass(b, q)
			holds(b, q+"2", "p", 0)
			delivers(b, q+"2", "", "m-0", "m-1", "m-2")
			// What was removed is not owed to anybody.
			if pending, _ := depthOf(b, q+"1", ""); pending != 0 {
				b.t.Errorf("%d pending", pending)
			}
			deliversNothing(b, q+"1", "")
			b.PushN(q+"1", "p", "n", 1)
			if p := delivers(b, q+"1", "", "n-0"); p.Messages[0].Offset != 3 {
				b.t.Errorf("offset %d", p.Messages[0].Offset)
			}
		}},
		behaviour{"B177_completed_waits_for_the_slowest", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q, bag{"retentionEnabled": true, "completedRetentionSeconds": 1})
			b.PushN(q, "p", "m", 1)
			b.PushN(q, "p", "n", 1)
			b.AckAll(delivers(b, q, as("fast"), "m-0", "n-0"))
			slow := delivers(b, q, as("slow")+"batch=1", "m-0")
			pass(b, q)
			holds(b, q, "p", 0)
			b.AckAll(slow)
			trimmed(b, q, "p", 1)
			pass(b, q)
			holds(b, q, "p", 1)
			b.AckAll(delivers(b, q, as("slow"), "n-0"))
			trimmed(b, q, "p", 2)
		}},
		behaviour{"B178_switches", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q+"off", bag{"retentionSeconds": 1, "completedRetentionSeconds": 1})
			b.Configure(q+"age", bag{"maxWaitTimeSeconds": 1})
			for _, queue := range []string{q + "off", q + "age"} {
				b.PushN(queue, "p", "m", 2)
				b.AckAll(delivers(b, queue, "", "m-0", "m-1"))
			}
			trimmed(b, q+"age", "p", 2)
			pass(b, q)
			holds(b, q+"off", "p", 0)
			b.Configure(q+"off", bag{"retentionEnabled": true})
			trimmed(b, q+"off", "p", 2)
		}},
		behaviour{"B179_a_leased_batch_removed", func(t *testing.T, b *Broker, q string) {
			for i, specs := range [][]string{{"0", "1"}, {"0"}, {"0 failed"}, {"0", "1 retry"}} {
				queue := fmt.Sprint(q, i)
				b.Configure(queue, bag{"maxWaitTimeSeconds": 1})
				b.PushN(queue, "p", "m", 2)
				p := delivers(b, queue, "", "m-0", "m-1")
				trimmed(b, queue, "p", 2)
				for _, r := range b.Ack("", pick(p, specs...)...) {
					if !r.Success && r.Error == nil {
						t.Errorf("%v: %+v", specs, r)
					}
				}
				if e := extend(b, p.LeaseID, `{}`); i == 0 && e.Renewed > 0 {
					t.Errorf("still leased: %+v", e)
				}
				b.Configure(queue, bag{"maxWaitTimeSeconds": 0})
				b.PushN(queue, "p", "n", 1)
				if i == 1 { // partly acknowledged: the lease goes on
					deliversNothing(b, queue, "")
					acked(b, "", pick(p, "1"), "ok+released")
				}
				delivers(b, queue, "", "n-0")
			}
		}},
		behaviour{"a_poison_message_removed", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, bag{"maxWaitTimeSeconds": 1})
			b.PushN(q, "p", "m", 2)
			p := delivers(b, q, "", "m-0", "m-1")
			trimmed(b, q, "p", 2)
			b.Configure(q, bag{"maxWaitTimeSeconds": 0})
			acked(b, "", pick(p, "0", "1 dlq"), "ok+released", "dlq rejected")
			if n := len(b.DeadLetters(q)); n != 0 {
				t.Errorf("%d dead letters", n)
			}
			b.PushN(q, "p", "n", 1)
			delivers(b, q, "", "n-0")
		}},
		behaviour{"B78_a_cursor_in_the_removed_part", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q, bag{"retentionEnabled": true, "retentionSeconds": 1})
			b.PushN(q, "p", "m", 2)
			acked(b, "g", pick(delivers(b, q, as("g")+"batch=1", "m-0"), "0"), "ok+released")
			trimmed(b, q, "p", 2)
			b.Configure(q, bag{"retentionEnabled": false})
			b.PushN(q, "p", "n", 2)
			b.AckAll(delivers(b, q, as("g"), "n-0", "n-1"))
			b.AckAll(delivers(b, q, as("fresh"), "n-0", "n-1"))
			b.Must(200, "POST", seekPath("g", q), toBeginning)
			delivers(b, q, as("g"), "n-0", "n-1")
			if e := read(b, fetchPath, `{"queue":%q,"partition":"p","offset":1}`, q); e.Error != "OFFSET_OUT_OF_RANGE" || e.LogStart != 2 {
				b.t.Errorf("fetch: %+v", e)
			}
		}},
		behaviour{"dead_letters_stay", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, bag{"maxWaitTimeSeconds": 1})
			b.Push(Item{Queue: q, Partition: "p", TransactionID: "m", Payload: []byte(`{ "a": 1 }`)})
			p := delivers(b, q, "", "m")
			acked(b, "", pick(p, "0 dlq bad"), "ok+released+dlq")
			trimmed(b, q, "p", 1)
			letters := b.DeadLetters(q)
			if len(letters) != 1 || string(letters[0].Data) != `{ "a": 1 }` {
				t.Fatalf("letters: %+v", letters)
			}
			var d struct{ Status, ErrorMessage string }
			b.MustInto(&d, 200, "GET", "/api/v1/messages/"+p.PartitionID+"/m", nil)
			if d.Status != "dead_letter" || d.ErrorMessage != "bad" {
				t.Errorf("detail: %+v", d)
			}
			b.Configure(q, bag{"maxWaitTimeSeconds": 0})
			b.Must(200, "POST", "/api/v1/dlq/"+letters[0].ID+"/replay", nil)
			delivers(b, q, "", "dlq:"+letters[0].ID)
		}},
	)
}
