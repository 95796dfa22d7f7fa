package e2e

import (
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// TestBundle_Lease is about which lease an ack of a bundle uses: its own, else
// the only one the bundle names, else the one held now if the bundle names it.
func TestBundle_Lease(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	out := func(q string) Item { return Item{Queue: q + ".out", TransactionID: "o"} }
	// undone wants that a bundle left its messages and its target alone.
	undone := func(b *Broker, q, query string, want ...string) *PopAnswer {
		b.t.Helper()
		deliversNothing(b, q+".out", "")
		return delivers(b, q, query, want...)
	}
	eachBehaviour(
		t, f,
		behaviour{"B129_expired", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "leaseSeconds=1", "m-0")
			lapse()
			rollsBack(b, "rejected_ack", ops(pick(p, "0"), out(q)))
			p = undone(b, q, "", "m-0")
			if p.Messages[0].DeliveryAttempt != 2 {
				t.Errorf("attempt %d", p.Messages[0].DeliveryAttempt)
			}
			commits(b, ops(pick(p, "0"), out(q)))
		}},
		behaviour{"of_another_worker", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			stale := delivers(b, q, "leaseSeconds=1", "m-0")
			lapse()
			p := delivers(f.Brokers[1].In(t), q, "", "m-0")
			rollsBack(b, "rejected_ack", ops(pick(stale, "0"), out(q)))
			rollsBack(b, "rejected_ack", ops(without(pick(stale, "0")), out(q)).requires(stale.LeaseID))
			commits(b, ops(pick(p, "0"), out(q)))
		}},
		behaviour{"that_is_none", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "", "m-0")
			for _, lease := range []string{"nonsense", mq.NewID().String(), mq.UUID{}.String()} {
				items := pick(p, "0")
				items[0].LeaseID = lease
				rollsBack(b, "rejected_ack", ops(items, out(q)))
				// The right one beside another ack is no help.
				rollsBack(b, "rejected_ack", ops(pick(p, "0"), items))
				rollsBack(b, "rejected_ack", ops(without(items), out(q)).requires(lease))
			}
			commits(b, ops(pick(p, "0"), out(q)).requires("nonsense"))
		}},
		behaviour{"B130_none_anywhere", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			p := delivers(b, q, "leaseSeconds=1", "m-0", "m-1")
			lapse()
			commits(b, ops(without(pick(p, "0")), out(q)))
			p = delivers(b, q, "leaseSeconds=60", "m-1")
			// Another worker's batch is completed like one's own.
			commits(b, ops(without(pick(p, "0"))))
			deliversNothing(b, q, "")
			if e := extend(b, p.LeaseID, `{}`); e.Renewed != 0 {
				t.Errorf("still leased: %+v", e)
			}
		}},
		behaviour{"only_hint", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			p := delivers(b, q, "leaseSeconds=1", "m-0", "m-1")
			commits(b, ops(without(pick(p, "0")), out(q)).requires(p.LeaseID, p.LeaseID, ""))
			// The lease beside one ack fences the others too.
			commits(b, ops(without(pick(p, "0")), pick(p, "1")))
			b.PushN(q, "p", "n", 1)
			p = delivers(b, q, "leaseSeconds=1", "n-0")
			lapse()
			rollsBack(b, "rejected_ack", ops(without(pick(p, "0"))).requires(p.LeaseID))
			delivers(b, q, "", "n-0")
		}},
		behaviour{"B131_two_partitions_two_pops", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p1", "a", 2)
			b.PushN(q, "p2", "b", 2)
			p1, p2 := b.PopPinned(q, "p1", ""), f.Brokers[1].In(t).PopPinned(q, "p2", "")
			commits(b, ops(without(pick(p1, "1")), out(q), without(pick(p2, "1"))).requires(p1.LeaseID, p2.LeaseID))
			deliversNothing(b, q, "partitions=2")
			delivers(b, q+".out", "", "o")
		}},
		behaviour{"B131_several_hints_one_of_them_stale", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p1", "a", 1)
			b.PushN(q, "p2", "b", 1)
			p1, p2 := b.PopPinned(q, "p1", "leaseSeconds=1"), b.PopPinned(q, "p2", "")
			lapse()
			body := ops(without(pick(p1, "0")), out(q), without(pick(p2, "0"))).requires(p1.LeaseID, p2.LeaseID)
			rollsBack(b, "rejected_ack", body)
			// Held by somebody whom the bundle does not name.
			again := b.PopPinned(q, "p1", "")
			rollsBack(b, "rejected_ack", body)
			commits(b, ops(without(pick(p1, "0")), out(q), without(pick(p2, "0"))).requires(p1.LeaseID, p2.LeaseID, again.LeaseID))
		}},
		behaviour{"stale_requirement_checks_nothing_by_itself", func(_ *testing.T, b *Broker, q string) {
			commits(b, ops(out(q)).requires(mq.NewID().String(), "nonsense"))
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "", "m-0")
			commits(b, ops(pick(p, "0")).requires(mq.NewID().String()))
		}},
		behaviour{"B132_two_queues_one_push", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "a", 2)
			b.PushN(q+".2", "p", "b", 3)
			p1, p2 := b.Pop(q, ""), b.Pop(q+".2", "")
			commits(b, ops(pick(p1, "0", "1"), pick(p2, "0", "1", "2"), out(q)).requires(p1.LeaseID, p2.LeaseID))
			deliversNothing(b, q, "")
			deliversNothing(b, q+".2", "")
			delivers(b, q+".out", "", "o")
			// In groups, of two queues.
			g1, g2 := b.Pop(q, as("g")), b.Pop(q+".2", as("h"))
			commits(b, ops(groupAcks{"g", without(pick(g1, "1"))}, groupAcks{"h", without(pick(g2, "2"))}).requires(g1.LeaseID, g2.LeaseID))
			deliversNothing(b, q, as("g"))
			deliversNothing(b, q+".2", as("h"))
		}},
		behaviour{"B133_below_the_cursor", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "", ids("m", 0, 3)...)
			acked(b, "", pick(p, "1"), "ok")
			commits(b, ops(pick(p, "0"), Item{Queue: q + ".out", TransactionID: "1"}))
			commits(b, ops(without(pick(p, "1")), Item{Queue: q + ".out", TransactionID: "2"}))
			for _, status := range []string{"failed", "retry", "dlq"} {
				if text := rollsBack(b, "rejected_ack", ops(pick(p, "0 "+status), Item{Queue: q + ".out", TransactionID: "3"})); !strings.Contains(text, committed) {
					t.Errorf("%s: %s", status, text)
				}
			}
			acked(b, "", pick(p, "2"), "ok+released")
			// An ack call would answer this as done already.
			rollsBack(b, "rejected_ack", ops(pick(p, "2"), Item{Queue: q + ".out", TransactionID: "3"}))
			rollsBack(b, "rejected_ack", ops(without(pick(p, "2")), Item{Queue: q + ".out", TransactionID: "3"}).requires(p.LeaseID))
			commits(b, ops(without(pick(p, "2")), Item{Queue: q + ".out", TransactionID: "4"}))
			delivers(b, q+".out", "", "1", "2", "4")
		}},
		behaviour{"B133_signals_without_a_batch", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "", "m-0")
			commits(b, ops(pick(p, "0 retry")))
			for _, status := range []string{"failed", "retry", "dlq"} {
				rollsBack(b, "rejected_ack", ops(without(pick(p, "0 "+status)), out(q)))
			}
			undone(b, q, "", "m-0")
		}},
		behaviour{"B140_group_of_the_ack", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			own, g := delivers(b, q, "", "m-0"), delivers(b, q, as("g"), "m-0")
			// Without its group the message of g is not acknowledged.
			rollsBack(b, "rejected_ack", ops(pick(g, "0"), out(q)))
			commits(b, ops(groupAcks{"g", pick(g, "0")}, out(q)))
			deliversNothing(b, q, as("g"))
			if pending, processing := depthOf(b, q, mq.QueueMode); pending != 1 || processing != 1 {
				t.Errorf("queue mode: %d %d", pending, processing)
			}
			commits(b, ops(pick(own, "0")))
			// Both at once.
			b.PushN(q, "p", "n", 1)
			own, g = delivers(b, q, "", "n-0"), delivers(b, q, as("g"), "n-0")
			commits(b, ops(groupAcks{"g", pick(g, "0")}, groupAcks{mq.QueueMode, pick(own, "0")}))
			deliversNothing(b, q, "")
			deliversNothing(b, q, as("g"))
		}},
		behaviour{"B141_partial_ack_keeps_the_lease", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "leaseSeconds=60", ids("m", 0, 3)...)
			commits(b, ops(pick(p, "0", "1"), out(q)))
			deliversNothing(f.Brokers[1].In(t), q, "")
			commits(b, ops(pick(p, "2"), Item{Queue: q + ".out", TransactionID: "o2"}))
			b.PushN(q, "p", "n", 2)
			p = delivers(b, q, "leaseSeconds=1", "n-0", "n-1")
			commits(b, ops(pick(p, "0")))
			p = delivers(b, q, "wait=true&timeout=5000", "n-1")
			if p.Messages[0].DeliveryAttempt != 2 {
				t.Errorf("attempt %d", p.Messages[0].DeliveryAttempt)
			}
		}},
		behaviour{"conflated_lease", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 5)
			p := delivers(b, q, as("g")+"conflation=true", "m-4")
			commits(b, ops(groupAcks{"g", pick(p, "0")}, out(q)))
			if p := b.Pop(q, as("g")+"conflation=true"); len(p.IDs()) != 0 {
				t.Errorf("again: %s", p.Raw)
			}
		}},
		behaviour{"B111_ids_that_occur_twice", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"dedupWindowSeconds": 0})
			for _, id := range []string{"a", "b", "a"} {
				b.Push(Item{Queue: q, Partition: "p", TransactionID: id})
			}
			p := delivers(b, q, "", "a", "b", "a")
			commits(b, ops(pick(p, "0", "1", "2"), out(q)))
			deliversNothing(b, q, "")
			if e := extend(b, p.LeaseID, `{}`); e.Renewed != 0 {
				t.Errorf("still leased: %+v", e)
			}
		}},
	)
}
