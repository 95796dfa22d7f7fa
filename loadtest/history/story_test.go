package history

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// story is a small history in which everything went well. Its operations have names, so that a test can spoil one.
type story struct {
	History
	named map[string]*Op
	clock int64
}

const second = 1_000_000

func (s *story) add(name string, op Op) *Op {
	s.clock += 10_000
	op.ID = int64(len(s.Ops) + 1)
	op.Worker, op.Request, op.Try = "w", name, 1
	op.Start, op.End = s.clock, s.clock+5_000
	if op.Outcome == "" {
		op.Outcome, op.Status = OK, 200
	}
	s.Ops = append(s.Ops, &op)
	s.named[name] = &op
	return &op
}

func msg(id string, offset int64) Message { return Message{Partition: "p", ID: id, Offset: offset} }

func queued(id string, offset int64) Message {
	m := msg(id, offset)
	m.Status, m.Sum = "queued", "sum"+id
	return m
}

func got(id string, offset int64, by string) Message {
	m := msg(id, offset)
	m.Attempt, m.By, m.Created = 1, by, 1000*second
	return m
}

func done(id string, offset int64, released bool) Message {
	m := msg(id, offset)
	m.Status, m.Released = "completed", released
	return m
}

func put(key, value string) KeyOp { return KeyOp{Op: "put", Key: key, Value: value, Applied: true} }

func incr(delta int64, value string) KeyOp {
	return KeyOp{Op: "incr", Key: "count", Delta: delta, Value: value, Applied: true}
}

func at(version int64) *int64 { return &version }

// newStory: a to d are pushed and read by both groups. a becomes an output, b a timer that fires, c one that is
// replaced and fires, d one that is cancelled.
func newStory() *story {
	s := &story{named: map[string]*Op{}}
	s.Run = Run{
		Seed: 7, Pipeline: "pipeline", Marker: "done:", Tolerance: 1000,
		Queues: []Queue{
			{"in", Input, []string{"leased", "pipeline"}},
			{"out", Output, []string{"sink"}},
			{"timed", Timed, []string{"sink"}},
		},
	}
	s.add("push ab", Op{Kind: Push, Queue: "in", Pushed: []Message{queued("a", 0), queued("b", 1)}})
	s.add("push c", Op{Kind: Push, Queue: "in", Pushed: []Message{queued("c", 2)}})
	s.add("push d", Op{Kind: Push, Queue: "in", Pushed: []Message{queued("d", 3)}})
	duplicate := queued("d", 3)
	duplicate.Status = "duplicate"
	s.add("push d again", Op{Kind: Push, Queue: "in", Pushed: []Message{duplicate}})

	s.add("pop L1", Op{
		Kind: Pop, Queue: "in", Group: "leased", Lease: "L1", Length: 5 * second,
		Popped: []Message{got("a", 0, ""), got("b", 1, "")},
	})
	s.add("ack L1 part", Op{Kind: Ack, Queue: "in", Group: "leased", Lease: "L1", Acked: []Message{done("a", 0, false)}})
	s.add("extend L1", Op{Kind: Extend, Queue: "in", Group: "leased", Lease: "L1", Length: 10 * second, Count: 1})
	s.add("ack L1", Op{Kind: Ack, Queue: "in", Group: "leased", Lease: "L1", Acked: []Message{done("b", 1, true)}})
	s.add("pop L2", Op{
		Kind: Pop, Queue: "in", Group: "leased", Lease: "L2", Length: 5 * second,
		Popped: []Message{got("c", 2, ""), got("d", 3, "")},
	})
	s.clock += 6 * second // its holder crashed
	s.add("pop L3", Op{
		Kind: Pop, Queue: "in", Group: "leased", Lease: "L3", Length: 5 * second,
		Popped: []Message{got("c", 2, ""), got("d", 3, "")},
	})
	s.add("ack L3", Op{Kind: Ack, Queue: "in", Group: "leased", Lease: "L3", Acked: []Message{done("d", 3, true)}})

	s.add("pop P1", Op{
		Kind: Pop, Queue: "in", Group: "pipeline", Lease: "P1", Length: 5 * second,
		Popped: []Message{got("a", 0, ""), got("b", 1, ""), got("c", 2, ""), got("d", 3, "")},
	})
	s.add("tx a", Op{
		Kind: Tx, Queue: "in", Group: "pipeline", Lease: "P1", By: "ta", Acked: []Message{done("a", 0, false)},
		Pushed: []Message{{Queue: "out", Partition: "p", ID: "out:a", Offset: -1}},
		Keys:   []KeyOp{put("done:a", `"ta"`), incr(1, "1")},
	})
	s.add("tx bcd", Op{
		Kind: Tx, Queue: "in", Group: "pipeline", Lease: "P1", By: "tb",
		Acked: []Message{done("b", 1, false), done("c", 2, false), done("d", 3, false)},
		Keys:  []KeyOp{put("done:b", `"tb"`), put("done:c", `"tb"`), put("done:d", `"tb"`), incr(3, "4")},
		Timers: []TimerOp{
			{Op: "schedule", Queue: "timed", Key: "b", ID: "b@tb", Delay: 20_000, Due: 999 * second, Status: "scheduled"},
			{Op: "schedule", Queue: "timed", Key: "c", ID: "c@tb", Delay: 900_000, Due: 999 * second, Status: "scheduled"},
			{Op: "schedule", Queue: "timed", Key: "d", ID: "d@tb", Delay: 900_000, Due: 999 * second, Status: "scheduled"},
		},
	})
	s.add("tx a late", Op{
		Kind: Tx, Queue: "in", Group: "pipeline", Lease: "P1", By: "tl", Outcome: Fail, Status: 200, Reason: "rejected_ack",
		Acked:  []Message{done("a", 0, false)},
		Pushed: []Message{{Queue: "out", Partition: "p", ID: "out:a", Offset: -1}},
		Keys:   []KeyOp{put("done:a", `"tl"`), incr(1, "")},
	})
	s.add("read count", Op{Kind: KV, Keys: []KeyOp{{Op: "get", Key: "count", Found: true, Value: "4"}}})
	s.add("replace c", Op{Kind: Timers, By: "rc", Queue: "timed", Timers: []TimerOp{
		{Op: "schedule", Queue: "timed", Key: "c", ID: "c@rc", Delay: 20_000, Due: 999 * second, Status: "rescheduled"},
	}})
	s.add("cancel d", Op{Kind: Timers, Queue: "timed", Timers: []TimerOp{
		{Op: "cancel", Queue: "timed", Key: "d", Status: "cancelled", Gone: "d@tb"},
	}})
	s.clock += second
	s.add("cancel b", Op{Kind: Timers, Queue: "timed", Timers: []TimerOp{{Op: "cancel", Queue: "timed", Key: "b", Status: "absent"}}})
	s.add("pop timed", Op{
		Kind: Pop, Queue: "timed", Group: "sink", Lease: "S1", Length: 5 * second,
		Popped: []Message{got("b@tb", 0, "tb"), got("c@rc", 1, "rc")},
	})
	s.add("pop out", Op{
		Kind: Pop, Queue: "out", Group: "sink", Lease: "S2", Length: 5 * second, Popped: []Message{got("out:a", 0, "ta")},
	})

	s.add("put", Op{Kind: KV, Keys: []KeyOp{{Op: "put", Key: "reg", Value: `"v1"`, Applied: true, Version: 10}}})
	s.add("put if", Op{Kind: KV, Keys: []KeyOp{
		{Op: "put", Key: "reg", Value: `"v2"`, Expect: at(10), Applied: true, Version: 20},
	}})
	s.add("put if old", Op{Kind: KV, Keys: []KeyOp{
		{Op: "put", Key: "reg", Value: `"v3"`, Expect: at(10), Reason: "version", Current: `"v2"`, Version: 20},
	}})
	s.add("put lost", Op{Kind: KV, Outcome: Unknown, Keys: []KeyOp{{Op: "put", Key: "reg", Value: `"v4"`}}})
	s.add("get", Op{Kind: KV, Keys: []KeyOp{{Op: "get", Key: "reg", Found: true, Value: `"v4"`, Version: 30}}})

	s.add("markers", Op{Kind: KV, Final: true, Keys: []KeyOp{
		{Op: "get", Key: "done:a", Found: true, Value: `"ta"`},
		{Op: "get", Key: "done:b", Found: true, Value: `"tb"`},
		{Op: "get", Key: "done:c", Found: true, Value: `"tb"`},
		{Op: "get", Key: "done:d", Found: true, Value: `"tb"`},
	}})
	s.add("final count", Op{Kind: KV, Final: true, Keys: []KeyOp{{Op: "get", Key: "count", Found: true, Value: "4"}}})
	s.add("depth", Op{Kind: Depth, Queue: "in", Group: "leased", Final: true})
	s.add("letters", Op{Kind: Letters, Queue: "in", Final: true})
	s.add("pending", Op{Kind: Pending, Queue: "timed", Final: true})
	s.End = End{Reached: true, Drained: true, At: s.clock + second}
	return s
}

// loaded sends the history through a file, as a run does.
func (s *story) loaded(t *testing.T) *History {
	t.Helper()
	h, err := reload(&s.History)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func reload(h *History) (*History, error) {
	var file bytes.Buffer
	w, err := NewWriter(&file, &h.Run)
	if err != nil {
		return nil, err
	}
	for _, op := range h.Ops {
		if err := w.Add(op); err != nil {
			return nil, err
		}
	}
	if err := w.Close(h.End); err != nil {
		return nil, err
	}
	return Read(&file)
}

// wants fails unless there is a violation of the guarantee about this message or key.
func wants(t *testing.T, res *Result, run *Run, g Guarantee, id string) {
	t.Helper()
	for i := range res.Violations {
		v := &res.Violations[i]
		if v.Guarantee != g || v.ID != id {
			continue
		}
		var text strings.Builder
		v.Print(&text, run)
		if !strings.Contains(text.String(), "seed 7") || !strings.Contains(text.String(), id) || len(v.Ops) == 0 {
			t.Errorf("a violation without its story:\n%s", text.String())
		}
		for k := range v.Ops[1:] {
			if v.Ops[k].Start > v.Ops[k+1].Start {
				t.Errorf("a story that is not in the order of time:\n%s", text.String())
			}
		}
		return
	}
	t.Errorf("no violation of %q about %q among %d:%s", g, id, len(res.Violations), all(res, run))
}

func all(res *Result, run *Run) string {
	var b strings.Builder
	for i := range res.Violations {
		b.WriteByte('\n')
		res.Violations[i].Print(&b, run)
	}
	return b.String()
}

// clone copies all that a test may change.
func clone(h *History) *History {
	out := *h
	out.Run.Queues = slices.Clone(h.Run.Queues)
	out.Ops = make([]*Op, len(h.Ops))
	for i, op := range h.Ops {
		c := *op
		c.Pushed, c.Popped, c.Acked = slices.Clone(op.Pushed), slices.Clone(op.Popped), slices.Clone(op.Acked)
		c.Keys, c.Timers = slices.Clone(op.Keys), slices.Clone(op.Timers)
		out.Ops[i] = &c
	}
	return &out
}
