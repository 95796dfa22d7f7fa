package e2e

import (
	"fmt"
	"slices"
	"testing"
)

func TestAck_Completed(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	eachBehaviour(
		t, f,
		behaviour{"B81_all", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "", "m-0", "m-1", "m-2")
			acked(b, "", pick(p, "0", "1", "2"), "ok+released", "ok+released", "ok+released")
			deliversNothing(b, q, "")
			if pending, processing := depthOf(b, q, ""); pending != 0 || processing != 0 {
				t.Errorf("still pending: %d, processing: %d", pending, processing)
			}
		}},
		behaviour{"B82_last_completes_all", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 5)
			p := delivers(b, q, as("g")+"leaseSeconds=1", "m-0", "m-1", "m-2", "m-3", "m-4")
			acked(b, "g", pick(p, "4"), "ok+released")
			deliversNothing(b, q, as("g")+"wait=true&timeout=1300")
		}},
		behaviour{"B83_middle", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "leaseSeconds=1", "m-0", "m-1", "m-2")
			acked(b, "", pick(p, "1"), "ok")
			p = delivers(b, q, "wait=true&timeout=5000", "m-2")
			if got := p.Messages[0].DeliveryAttempt; got != 2 { // B77
				t.Errorf("attempt %d", got)
			}
		}},
		behaviour{"B84_partial_keeps_the_lease", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 4)
			p := delivers(b, q, "", "m-0", "m-1", "m-2", "m-3")
			acked(b, "", pick(p, "1"), "ok")
			deliversNothing(b, q, "")
			acked(b, "", pick(p, "2", "3"), "ok+released", "ok+released")
			deliversNothing(b, q, "")
		}},
		behaviour{"B85_B89_below_is_a_noop", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, as("g"), "m-0", "m-1", "m-2")
			acked(b, "g", pick(p, "1"), "ok")
			acked(b, "g", pick(p, "0"), "ok+noop")
			acked(b, "g", pick(p, "0", "2"), "ok+noop", "ok+released")
		}},
		behaviour{"B97_a_completed_batch_gives_the_budget_back", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"retryLimit": 1})
			for i := range 2 {
				id := fmt.Sprintf("m%d-0", i)
				b.PushN(q, "p", fmt.Sprintf("m%d", i), 1)
				acked(b, "", pick(delivers(b, q, "", id), "0 failed"), "ok+released")
				acked(b, "", pick(delivers(b, q, "", id), "0"), "ok+released")
			}
			// The slow way of single messages gives it back too.
			b.PushN(q, "p", "s", 2)
			acked(b, "", pick(delivers(b, q, "", "s-0", "s-1"), "0 failed"), "ok+released")
			acked(b, "", pick(delivers(b, q, "", "s-0", "s-1"), "1"), "ok+released")
			b.PushN(q, "p", "z", 1)
			acked(b, "", pick(delivers(b, q, "", "z-0"), "0 failed"), "ok+released")
			delivers(b, q, "", "z-0")
		}},
		behaviour{"B101_repeat", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			p := delivers(b, q, "", "m-0", "m-1")
			acked(b, "", pick(p, "0", "1"), "ok+released", "ok+released")
			acked(b, "", pick(p, "0", "1"), "ok+noop", "ok+noop")
			acked(b, "", pick(p, "1"), "ok+noop")
			// Repeated after the group went on: still done, still harmless.
			b.PushN(q, "p", "n", 1)
			next := delivers(b, q, "", "n-0")
			acked(b, "", pick(p, "0", "1"), "ok+noop", "ok+noop")
			acked(b, "", pick(next, "0"), "ok+released")
		}},
		behaviour{"B110_without_dedup", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"dedupWindowSeconds": 0})
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "", "m-0", "m-1", "m-2")
			acked(b, "", pick(p, "0"), "ok")
			acked(b, "", pick(p, "1", "2"), "ok+released", "ok+released")
		}},
		behaviour{"B111_one_id_twice", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"dedupWindowSeconds": 0})
			twice := func() {
				b.PushN(q, "p", "x", 1)
				b.PushN(q, "p", "m", 1)
				b.PushN(q, "p", "x", 1)
			}
			twice()
			p := delivers(b, q, as("once")+"leaseSeconds=1", "x-0", "m-0", "x-0")
			acked(b, "once", pick(p, "0"), "ok")
			delivers(b, q, as("once")+"wait=true&timeout=5000", "m-0", "x-0")

			p = delivers(b, q, as("all"), "x-0", "m-0", "x-0")
			acked(b, "all", pick(p, "0", "1"), "ok+released", "ok+released")
			deliversNothing(b, q, as("all"))
			twice()
			p = delivers(b, q, as("all"), "x-0", "m-0", "x-0")
			acked(b, "all", pick(p, "0", "1", "2"), "ok+released", "ok+released", "ok+released")
			deliversNothing(b, q, as("all"))
		}},
	)
}

func TestAck_Signals(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	eachBehaviour(
		t, f,
		behaviour{"B86_failed_redelivers_from_it_on", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 5)
			p := delivers(b, q, "", "m-0", "m-1", "m-2", "m-3", "m-4")
			acked(b, "", pick(p, "0", "1 failed", "2", "3", "4"), slices.Repeat([]string{"ok+released"}, 5)...)
			p = delivers(b, q, "", "m-1", "m-2", "m-3", "m-4")
			for _, m := range p.Messages {
				if m.DeliveryAttempt != 2 {
					t.Errorf("%s: attempt %d", m.TransactionID, m.DeliveryAttempt)
				}
			}
		}},
		behaviour{"B87_retry", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"retryLimit": 0})
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "", "m-0", "m-1", "m-2")
			acked(b, "", pick(p, "0", "1 retry", "2"), "ok+released", "ok+released", "ok+released")
			delivers(b, q, "", "m-1", "m-2")
			if n := len(b.DeadLetters(q)); n != 0 {
				t.Errorf("%d dead letters", n)
			}
		}},
		behaviour{"B88_failed_after_it_was_passed", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "", "m-0", "m-1", "m-2")
			acked(b, "", pick(p, "1"), "ok")
			for _, status := range []string{"failed", "retry", "dlq"} {
				acked(b, "", pick(p, "0 "+status), committed)
			}
			acked(b, "", pick(p, "2"), "ok+released")
		}},
		behaviour{"B90_fourth_failed_dead_letters", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			for i := range 4 {
				p := delivers(b, q, as("g"), "m-0")
				if got := p.Messages[0].DeliveryAttempt; got != i+1 {
					t.Errorf("attempt %d, want %d", got, i+1)
				}
				want := "ok+released"
				if i == 3 {
					want += "+dlq"
				}
				acked(b, "g", pick(p, fmt.Sprintf("0 failed smtp 55%d", i)), want)
			}
			deliversNothing(b, q, as("g"))
			letters := b.DeadLetters(q)
			if len(letters) != 1 || *letters[0].ErrorMessage != "smtp 553" || letters[0].RetryCount != 3 || letters[0].ConsumerGroup != "g" {
				t.Errorf("letters: %+v", letters)
			}
		}},
		behaviour{"B91_retry_never_dead_letters", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"retryLimit": 1})
			b.PushN(q, "p", "m", 1)
			for range 6 {
				acked(b, "", pick(delivers(b, q, "", "m-0"), "0 retry again"), "ok+released")
			}
			if p := delivers(b, q, "", "m-0"); p.Messages[0].DeliveryAttempt != 7 {
				t.Errorf("attempt %d", p.Messages[0].DeliveryAttempt)
			}
			if n := len(b.DeadLetters(q)); n != 0 {
				t.Errorf("%d dead letters", n)
			}
		}},
		behaviour{"B92_dlq_at_once", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			acked(b, "", pick(delivers(b, q, "", "m-0"), "0 dlq"), "ok+released+dlq")
			deliversNothing(b, q, "")
			letters := b.DeadLetters(q)
			if len(letters) != 1 || *letters[0].ErrorMessage != "Retries exhausted" || letters[0].RetryCount != 0 {
				t.Errorf("letters: %+v", letters)
			}
		}},
		behaviour{"B93_dlq_in_the_middle", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, as("prefix"), "m-0", "m-1", "m-2")
			acked(b, "prefix", pick(p, "0", "1 dlq"), "ok+released", "ok+released+dlq")
			if p = delivers(b, q, as("prefix"), "m-2"); p.Messages[0].DeliveryAttempt != 1 {
				t.Errorf("attempt %d", p.Messages[0].DeliveryAttempt)
			}
			p = delivers(b, q, as("alone"), "m-0", "m-1", "m-2")
			acked(b, "alone", pick(p, "1 dlq"), "ok+released+dlq")
			delivers(b, q, as("alone"), "m-2")
		}},
		behaviour{"B94_switches", func(t *testing.T, b *Broker, q string) {
			for _, tt := range []struct {
				options map[string]any
				filed   bool
			}{
				{map[string]any{"deadLetterQueue": false}, true},
				{map[string]any{"dlqAfterMaxRetries": false}, true},
				{map[string]any{"deadLetterQueue": false, "dlqAfterMaxRetries": false}, false},
			} {
				queue := fmt.Sprint(q, tt.options)
				tt.options["retryLimit"] = 0
				b.Configure(queue, tt.options)
				b.PushN(queue, "p", "m", 2)
				want, letters := "ok+released", 0
				if tt.filed {
					want, letters = "ok+released+dlq", 1
				}
				acked(b, "", pick(delivers(b, queue, "", "m-0", "m-1"), "0 failed"), want)
				delivers(b, queue, "", "m-1")
				if got := b.DeadLetters(queue); len(got) != letters {
					t.Errorf("%v: letters %+v", tt.options, got)
				}
			}
		}},
		behaviour{"B95_B96_limit_holds_at_once", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"retryLimit": 5})
			b.PushN(q, "p", "m", 3)
			for range 2 {
				acked(b, "", pick(delivers(b, q, "", "m-0", "m-1", "m-2"), "0 failed"), "ok+released")
			}
			b.Configure(q, map[string]any{"retryLimit": 1})
			acked(b, "", pick(delivers(b, q, "", "m-0", "m-1", "m-2"), "0 failed"), "ok+released+dlq")
			if got := b.DeadLetters(q)[0].RetryCount; got != 2 {
				t.Errorf("retryCount %d", got)
			}
			// With the budget given back the second failed is one too many.
			acked(b, "", pick(delivers(b, q, "", "m-1", "m-2"), "0 failed"), "ok+released")
			acked(b, "", pick(delivers(b, q, "", "m-1", "m-2"), "0 failed"), "ok+released+dlq")
			b.Configure(q, map[string]any{"retryLimit": 0})
			acked(b, "", pick(delivers(b, q, "", "m-2"), "0 failed"), "ok+released+dlq")
		}},
		behaviour{"several_dlq_in_one_call_file_one", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "", "m-0", "m-1", "m-2")
			acked(b, "", pick(p, "2 dlq c", "1 dlq b", "0"), "ok+released", "ok+released+dlq", "ok+released")
			delivers(b, q, "", "m-2")
			if got := b.DeadLetters(q); len(got) != 1 || got[0].TransactionID != "m-1" || *got[0].ErrorMessage != "b" {
				t.Errorf("letters: %+v", got)
			}
		}},
		behaviour{"dlq_is_said_of_the_partition_that_filed", func(t *testing.T, b *Broker, q string) {
			// The same id at the same offset of two partitions.
			b.PushN(q, "p1", "m", 1)
			b.PushN(q, "p2", "m", 1)
			p := b.Pop(q, "partitions=2")
			if len(p.IDs()) != 2 {
				t.Fatalf("got %q", p.IDs())
			}
			acked(b, "", pick(p, "0 dlq", "1 failed"), "ok+released+dlq", "ok+released")
			if got := b.DeadLetters(q); len(got) != 1 {
				t.Errorf("letters: %+v", got)
			}
		}},
	)
}
