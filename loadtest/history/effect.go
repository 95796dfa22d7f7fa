package history

import (
	"encoding/json"
	"slices"
	"strings"
)

// checkEffects holds every transaction against the state that was read in the end. A transaction writes a marker for
// each input it answers, with its own name for a value. So the markers tell which of all the attempts took effect,
// and all the rest of an attempt has to be there, or not, as its markers are.
func (c *checker) checkEffects() {
	c.committed = map[string]bool{}
	if !c.h.End.Reached {
		return
	}
	markers, final := c.finalKeys()
	attempts := map[string]*Op{}
	for _, op := range c.h.Ops {
		if op.Kind == Tx {
			attempts[op.By] = op
			c.checkAttempt(op, markers)
		}
	}
	c.checkMarkers(attempts, markers)
	c.checkAuthors(attempts)
	c.checkCounters(final)
}

// finalKeys are the keys as they were read in the end; a marker's name is that of its input.
func (c *checker) finalKeys() (markers map[string]string, final map[string]KeyOp) {
	markers, final = map[string]string{}, map[string]KeyOp{}
	for _, op := range c.h.Ops {
		if !op.Final || op.Kind != KV || op.Outcome != OK {
			continue
		}
		for _, k := range op.Keys {
			final[k.Key] = k
			if id, is := strings.CutPrefix(k.Key, c.h.Run.Marker); is && k.Found {
				markers[id] = text(k.Value)
			}
		}
	}
	return markers, final
}

// text is a JSON string's text, or the JSON itself when it is no string.
func text(value string) string {
	var s string
	if json.Unmarshal([]byte(value), &s) != nil {
		return value
	}
	return s
}

// checkAttempt: a transaction took effect entirely or not at all, and as it was answered.
func (c *checker) checkAttempt(op *Op, markers map[string]string) {
	written := 0
	for i := range op.Acked {
		if markers[op.Acked[i].ID] == op.By {
			written++
		}
	}
	if len(op.Acked) == 0 {
		return
	}
	input := c.message(op, &op.Acked[0])
	switch {
	case op.Outcome == OK && written < len(op.Acked):
		c.report(Effect, input, op.Group, nil, "transaction %s was committed, but only %d of its %d markers are there (%s)",
			op.By, written, len(op.Acked), c.instead(op, markers))
	case op.Outcome == Fail && written > 0:
		c.report(Effect, input, op.Group, nil, "transaction %s was refused (%s), yet %d of its markers are there",
			op.By, op.Reason, written)
	case written > 0 && written < len(op.Acked):
		c.report(Effect, input, op.Group, nil, "of transaction %s, whose answer was lost, %d of %d markers are there",
			op.By, written, len(op.Acked))
	}
	if op.Outcome == OK || written > 0 {
		c.committed[op.By] = true
	}
	c.checkOutputs(op, input)
}

func (c *checker) instead(op *Op, markers map[string]string) string {
	for i := range op.Acked {
		if id := op.Acked[i].ID; markers[id] != op.By {
			if markers[id] == "" {
				return id + " has none"
			}
			return id + " has that of " + markers[id]
		}
	}
	return "none is missing"
}

// checkOutputs: what a transaction pushed is there exactly if the transaction took effect.
func (c *checker) checkOutputs(op *Op, input *message) {
	for i := range op.Pushed {
		out := c.message(op, &op.Pushed[i])
		there := slices.ContainsFunc(out.pops, func(pop mention) bool { return pop.m.By == op.By })
		switch {
		case there && !c.committed[op.By]:
			c.report(Effect, out, "", input.told(), "it was written by transaction %s, of which nothing else took effect (%s %s)",
				op.By, op.Outcome, op.Reason)
		case !there && c.committed[op.By]:
			c.report(Effect, out, "", input.told(), "transaction %s took effect, but what it pushed was never delivered", op.By)
		}
	}
}

// checkMarkers: every input has one, by a transaction that was about it.
func (c *checker) checkMarkers(attempts map[string]*Op, markers map[string]string) {
	for _, n := range c.names {
		m := c.messages[n]
		queue := c.queues[m.queue]
		if queue == nil || queue.Role != Input {
			continue
		}
		by, marked := markers[m.id]
		switch {
		case !marked && (m.confirmed() || len(m.pops) > 0):
			c.report(Effect, m, c.h.Run.Pipeline, nil, "no transaction left a marker for it")
		case marked && attempts[by] == nil:
			c.report(Effect, m, c.h.Run.Pipeline, nil, "its marker is that of %q, which nobody sent", by)
		case marked && !slices.ContainsFunc(m.acks, func(ack mention) bool { return ack.op.By == by }):
			c.report(Effect, m, c.h.Run.Pipeline, []*Op{attempts[by]}, "its marker is that of %s, which was not about it", by)
		}
	}
}

// checkAuthors: every output names the transaction that wrote it.
func (c *checker) checkAuthors(attempts map[string]*Op) {
	for _, n := range c.names {
		m := c.messages[n]
		if queue := c.queues[m.queue]; queue == nil || queue.Role != Output {
			continue
		}
		for _, pop := range m.pops {
			if attempts[pop.m.By] == nil {
				c.report(NoInvention, m, pop.op.Group, nil, "it names %q for its transaction, which nobody sent", pop.m.By)
				break
			}
		}
	}
}

// checkCounters: a counter is the sum of what committed transactions added to it.
func (c *checker) checkCounters(final map[string]KeyOp) {
	sums := map[string]int64{}
	story := map[string][]*Op{}
	var keys []string
	for _, op := range c.h.Ops {
		for _, k := range op.Keys {
			if k.Op != "incr" {
				continue
			}
			if story[k.Key] == nil {
				keys = append(keys, k.Key)
			}
			story[k.Key] = append(story[k.Key], op)
			if c.committed[op.By] {
				sums[k.Key] += k.Delta
			}
		}
	}
	for _, key := range keys {
		var counted int64
		if k := final[key]; k.Found {
			if err := json.Unmarshal([]byte(k.Value), &counted); err != nil {
				counted = -1
			}
		}
		if counted != sums[key] {
			c.keyViolation(Effect, key, story[key], "counter %s is %s, but transactions that took effect added %d",
				key, final[key].Value, sums[key])
		}
	}
}
