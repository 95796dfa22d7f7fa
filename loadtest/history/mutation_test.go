package history

import (
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// recorded is a history of a real fleet of two brokers, one of which was killed every few seconds.
func recorded(t testing.TB) *History {
	t.Helper()
	file, err := os.Open("testdata/good.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	text, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	h, err := Read(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestRecordedHistoryPasses(t *testing.T) {
	t.Parallel()
	h := recorded(t)
	if res := Check(h); len(res.Violations) > 0 || len(res.Undecided) > 0 {
		t.Fatalf("%d violations, undecided %v%s", len(res.Violations), res.Undecided, all(res, &h.Run))
	}
}

// mutation spoils a history at a random place. It returns what must be found, or false when the place does not do.
type mutation func(h *History, r *rand.Rand) (g Guarantee, id string, ok bool)

// TestMutationsAreFound: whatever a broken fleet might have done to a real history is found, wherever it is done.
func TestMutationsAreFound(t *testing.T) {
	t.Parallel()
	good := recorded(t)
	for _, c := range []struct {
		name   string
		mutate mutation
	}{
		{"a lost message", loseMessage},
		{"a duplicate after its ack", repeatAfterAck},
		{"a swapped order", swapOrder},
		{"an overlapping lease", overlapLease},
		{"a doubled output", doubleOutput},
		{"a doubled count", doubleCount},
		{"a lost output", loseOutput},
		{"an early timer", earlyTimer},
		{"a timer fired twice", fireTwice},
		{"a cancelled timer fired", fireCancelled},
		{"a message twice in the log", storeTwice},
		{"a stale read", readStale},
		{"a refused ack that was accepted", acceptStaleAck},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const want = 10
			tried, done := 0, 0
			for r := rand.New(rand.NewPCG(1, 2)); done < want && tried < 4000; tried++ {
				h := clone(good)
				g, id, ok := c.mutate(h, r)
				if !ok {
					continue
				}
				done++
				h.sort()
				if res := Check(h); !slices.ContainsFunc(res.Violations, func(v Violation) bool {
					return v.Guarantee == g && (id == "" || v.ID == id)
				}) {
					t.Errorf("not found: %s %s (%d other violations)", g, id, len(res.Violations))
				}
			}
			t.Logf("%d mutations", done)
			if done == 0 {
				t.Error("the recorded history has no place for this mutation")
			}
		})
	}
}

func (h *History) role(queue string) Role {
	for _, q := range h.Run.Queues {
		if q.Name == queue {
			return q.Role
		}
	}
	return ""
}

// pick returns a random operation that fits.
func pick(h *History, r *rand.Rand, fits func(*Op) bool) *Op {
	var all []*Op
	for _, op := range h.Ops {
		if fits(op) {
			all = append(all, op)
		}
	}
	if len(all) == 0 {
		panic("the recorded history has no such operation")
	}
	return all[r.IntN(len(all))]
}

func pickPop(h *History, r *rand.Rand, role Role) *Op {
	return pick(h, r, func(op *Op) bool {
		return op.Kind == Pop && op.Outcome == OK && len(op.Popped) > 0 && h.role(op.Queue) == role
	})
}

// insert adds an operation that nobody else has the number of.
func (h *History) insert(op Op) {
	for _, other := range h.Ops {
		op.ID = max(op.ID, other.ID+1)
	}
	h.Ops = append(h.Ops, &op)
}

func (h *History) remove(group, id string) {
	drop := func(m Message) bool { return m.ID == id }
	for _, op := range h.Ops {
		if op.Group == group {
			op.Popped, op.Acked = slices.DeleteFunc(op.Popped, drop), slices.DeleteFunc(op.Acked, drop)
		}
	}
}

func loseMessage(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pickPop(h, r, Input)
	id := op.Popped[r.IntN(len(op.Popped))].ID
	h.remove(op.Group, id)
	return NoLoss, id, true
}

func loseOutput(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pickPop(h, r, Output)
	id := op.Popped[r.IntN(len(op.Popped))].ID
	h.remove(op.Group, id)
	return Effect, id, true
}

func repeatAfterAck(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := *pickPop(h, r, Input)
	op.Lease = "again"
	op.Start, op.End = h.End.At-10, h.End.At-5 // everything is acknowledged by then
	op.Popped = op.Popped[:1]
	h.insert(op)
	return Cursor, op.Popped[0].ID, true
}

func swapOrder(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pickPop(h, r, Input)
	i := r.IntN(len(op.Popped))
	if i == 0 || op.Popped[i].Partition != op.Popped[i-1].Partition {
		return "", "", false
	}
	op.Popped[i], op.Popped[i-1] = op.Popped[i-1], op.Popped[i]
	return Order, "", true
}

func overlapLease(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pickPop(h, r, Input)
	freed := op.Start + op.Length
	for _, other := range h.Ops {
		if other.Lease == op.Lease && other != op && other.Kind != Extend {
			freed = min(freed, other.Start)
		}
	}
	if freed <= op.End+2000 {
		return "", "", false
	}
	second := *op
	second.Lease, second.Start, second.End = "overlap", op.End+100, op.End+1000
	h.insert(second)
	return Exclusive, op.Popped[0].ID, true
}

// next is an offset that nothing has.
func (h *History) next(queue, partition string) int64 {
	offset := int64(0)
	for _, op := range h.Ops {
		for _, m := range op.Popped {
			if op.Queue == queue && m.Partition == partition {
				offset = max(offset, m.Offset+1)
			}
		}
	}
	return offset
}

// deliverAgain delivers a message at one more offset.
func (h *History) deliverAgain(op *Op, m Message) {
	again := *op
	m.Offset = h.next(op.Queue, m.Partition)
	again.Lease, again.Popped = "extra", []Message{m}
	again.Start, again.End = h.End.At-10, h.End.At-5
	h.insert(again)
}

func doubleOutput(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pickPop(h, r, Output)
	m := op.Popped[r.IntN(len(op.Popped))]
	h.deliverAgain(op, m)
	return Dedup, m.ID, true
}

func fireTwice(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pickPop(h, r, Timed)
	m := op.Popped[r.IntN(len(op.Popped))]
	h.deliverAgain(op, m)
	return Timer, m.ID, true
}

func fireCancelled(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pick(h, r, func(op *Op) bool {
		return op.Kind == Timers && op.Outcome == OK && op.Timers[0].Status == "cancelled"
	})
	pop := pickPop(h, r, Timed)
	id := op.Timers[0].Gone
	m := pop.Popped[0]
	m.ID, m.By = id, id[slices.Index([]byte(id), '@')+1:]
	h.deliverAgain(pop, m)
	return Timer, "", true
}

func earlyTimer(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pickPop(h, r, Timed)
	m := &op.Popped[r.IntN(len(op.Popped))]
	for _, other := range h.Ops {
		for _, timer := range other.Timers {
			if timer.ID == m.ID && timer.Due > 0 {
				m.Created = timer.Due - 1 - r.Int64N(1000)
				return Timer, m.ID, true
			}
		}
	}
	return "", "", false
}

func doubleCount(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pick(h, r, func(op *Op) bool { return op.Kind == Tx && op.Outcome == OK })
	for _, k := range op.Keys {
		if k.Op != "incr" {
			continue
		}
		for _, final := range h.Ops {
			for i := range final.Keys {
				if f := &final.Keys[i]; final.Final && f.Key == k.Key {
					var n int64
					if _, err := fmt.Sscan(f.Value, &n); err != nil {
						return "", "", false
					}
					f.Value = fmt.Sprint(n + k.Delta)
					return Effect, k.Key, true
				}
			}
		}
	}
	return "", "", false
}

func storeTwice(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pick(h, r, func(op *Op) bool { return op.Kind == Push && op.Outcome == OK && op.Pushed[0].Status == "queued" })
	again := *op
	again.Start, again.End = h.End.At-10, h.End.At-5
	again.Pushed = slices.Clone(op.Pushed[:1])
	again.Pushed[0].Offset = h.next(op.Queue, op.Pushed[0].Partition)
	h.insert(again)
	return Dedup, op.Pushed[0].ID, true
}

// readStale lets a read find a value that was certainly replaced before.
func readStale(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pick(h, r, func(op *Op) bool {
		return op.Kind == KV && !op.Final && op.Outcome == OK && op.Keys[0].Op == "put" && op.Keys[0].Applied
	})
	key := op.Keys[0]
	var later *Op
	for _, other := range h.Ops {
		k := other.Keys
		if other.Kind == KV && other.Outcome == OK && len(k) == 1 && k[0].Key == key.Key && k[0].Op != "get" && k[0].Applied &&
			other.Start > op.End {
			later = other
		}
	}
	if later == nil {
		return "", "", false
	}
	h.insert(Op{
		Kind: KV, Worker: "stale", Outcome: OK, Start: later.End + 1, End: later.End + 2,
		Keys: []KeyOp{{Op: "get", Key: key.Key, Found: true, Value: key.Value, Version: key.Version}},
	})
	return Linear, key.Key, true
}

// acceptStaleAck lets a lease acknowledge after another one had been granted for the same messages.
func acceptStaleAck(h *History, r *rand.Rand) (Guarantee, string, bool) {
	op := pickPop(h, r, Input)
	m := op.Popped[0]
	for _, other := range h.Ops {
		if other.Kind == Pop && other.Outcome == OK && other.Queue == op.Queue && other.Group == op.Group && other.Start > op.End &&
			slices.ContainsFunc(other.Popped, func(o Message) bool { return o.Partition == m.Partition }) {
			m.Status, m.Attempt, m.Created = "completed", 0, 0
			h.insert(Op{
				Kind: Ack, Worker: "stale", Outcome: OK, Queue: op.Queue, Group: op.Group, Lease: op.Lease,
				Start: other.End + 1, End: other.End + 2, Acked: []Message{m},
			})
			return Exclusive, m.ID, true
		}
	}
	return "", "", false
}
