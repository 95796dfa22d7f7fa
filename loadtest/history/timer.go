package history

import (
	"slices"

	"github.com/anishathalye/porcupine"
)

type timerKey struct{ queue, key string }

// timing is one thing that was done to a timer: scheduled, cancelled, fired, or found gone in the end.
type timing struct {
	does   string
	id     string
	status string // as answered, empty if it was not
}

// checkTimers: what fires was scheduled, is not early, and an order of schedules, cancels and fires explains all the
// answers. Firing is what the fleet does by itself, at some moment between the schedule and the first delivery.
func (c *checker) checkTimers() {
	type use struct {
		op *Op
		t  *TimerOp
	}
	uses := map[timerKey][]use{}
	var keys []timerKey
	for _, op := range c.h.Ops {
		for i := range op.Timers {
			t := &op.Timers[i]
			k := timerKey{t.Queue, t.Key}
			if uses[k] == nil {
				keys = append(keys, k)
			}
			uses[k] = append(uses[k], use{op, t})
		}
	}
	var objects []object
	for _, k := range keys {
		o := object{guarantee: Timer, name: "timer " + k.key, model: timerModel()}
		for _, u := range uses[k] {
			o.story = append(o.story, u.op)
			if t, end, happened := c.timing(u.op, u.t); happened {
				o.ops = append(o.ops, porcupine.Operation{Input: t, Call: u.op.Start, Return: end})
			}
			if u.t.Op == "schedule" {
				m := c.named(name{u.t.Queue, u.t.ID})
				if o.about == nil || len(m.pops) > 0 {
					o.about = m
				}
				o.story = append(o.story, m.told()...)
				c.checkEarly(u.op, u.t, m)
				o.ops = append(o.ops, c.fires(u.op, m)...)
			}
		}
		if c.h.End.Reached && c.h.End.Drained {
			o.ops = append(o.ops, porcupine.Operation{Input: timing{does: "gone"}, Call: c.h.End.At, Return: c.h.End.At})
		}
		objects = append(objects, o)
	}
	c.decide(objects)
	c.checkForgotten()
}

// timing says what a request did to a timer, and until when.
func (c *checker) timing(op *Op, t *TimerOp) (done timing, end int64, happened bool) {
	done = timing{does: t.Op, id: t.ID, status: t.Status}
	if t.Op == "cancel" && t.Gone != "" {
		done.id = t.Gone
	}
	switch op.Outcome {
	case OK:
		return done, op.End, true
	case Fail:
		return done, 0, false
	}
	done.status = ""
	return done, never, op.Kind != Tx || c.committed[op.By]
}

// fires lists the fires of one schedule: one for each offset at which its message was delivered. While something is
// left, a timer may also have fired without anybody having seen the message.
func (c *checker) fires(op *Op, m *message) []porcupine.Operation {
	type spot struct {
		partition string
		offset    int64
	}
	var seen []spot
	var out []porcupine.Operation
	for _, pop := range m.pops {
		at := spot{pop.m.Partition, pop.m.Offset}
		if slices.Contains(seen, at) {
			continue
		}
		seen = append(seen, at)
		out = append(out, porcupine.Operation{
			Input: timing{does: "fire", id: m.id}, Call: min(op.Start, pop.op.End), Return: pop.op.End,
		})
	}
	if len(out) == 0 && !c.h.End.Drained {
		out = append(out, porcupine.Operation{Input: timing{does: "may fire", id: m.id}, Call: op.Start, Return: never})
	}
	return out
}

func timerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" }, // the id that waits
		Step: func(state, input, _ any) (bool, any) {
			waits, in := state.(string), input.(timing)
			switch in.does {
			case "fire":
				return waits == in.id, ""
			case "may fire":
				if waits == in.id {
					return true, ""
				}
				return true, waits
			case "gone":
				return waits == "", ""
			case "schedule":
				legal := in.status == "" || (in.status == "rescheduled") == (waits != "")
				return legal, in.id
			}
			switch in.status {
			case "cancelled":
				return waits != "" && (in.id == "" || in.id == waits), ""
			case "absent":
				return waits == "", ""
			}
			return true, "" // the answer was lost
		},
	}
}

// checkEarly: no message of a timer exists before its time, by the fleet's clock and by ours.
func (c *checker) checkEarly(op *Op, t *TimerOp, m *message) {
	for _, pop := range m.pops {
		if t.Due > 0 && pop.m.Created > 0 && pop.m.Created < t.Due {
			c.report(Timer, m, pop.op.Group, nil, "it was stored %d µs before it was due", t.Due-pop.m.Created)
			return
		}
		if early := op.Start + t.Delay - c.h.Run.Tolerance - pop.op.End; early > 0 {
			c.report(Timer, m, pop.op.Group, nil, "operation %d delivered it %d µs before its delay was over", pop.op.ID, early)
			return
		}
	}
}

// checkForgotten: what a timed queue delivers, somebody scheduled, and it names who did.
func (c *checker) checkForgotten() {
	for _, n := range c.names {
		m := c.messages[n]
		if queue := c.queues[m.queue]; queue == nil || queue.Role != Timed {
			continue
		}
		for _, pop := range m.pops {
			if !slices.ContainsFunc(m.timers, func(op *Op) bool { return op.Outcome != Fail && op.By == pop.m.By }) {
				c.report(NoInvention, m, pop.op.Group, nil, "it names %q for what scheduled it, which nobody sent", pop.m.By)
				break
			}
		}
	}
}
