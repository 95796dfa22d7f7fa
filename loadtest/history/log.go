package history

import (
	"cmp"
	"math"
	"slices"
)

// checkMessages holds what is said of each message against what else is said of it.
func (c *checker) checkMessages() {
	for _, n := range c.names {
		m := c.messages[n]
		c.checkOnePlace(m)
		c.checkVerdicts(m)
		c.checkOrigin(m)
		c.checkLoss(m)
	}
}

// checkOnePlace: everybody who was told the place of a message was told the same one.
func (c *checker) checkOnePlace(m *message) {
	for _, list := range [][]mention{m.pushes, m.pops} {
		for _, one := range list {
			if one.m.Partition == m.partition && (one.m.Offset < 0 || one.m.Offset == m.offset) {
				continue
			}
			g := Dedup
			if len(m.timers) > 0 {
				g = Timer
			}
			c.report(g, m, "", nil, "it is at offset %d of %s, and again at offset %d of %s",
				m.offset, m.partition, one.m.Offset, one.m.Partition)
			return
		}
	}
}

// refused is the verdict on a message that was not stored, in a call that went well otherwise.
const refused = "error"

// mayHaveStored tells whether the push can be where the message comes from.
func (push *mention) mayHaveStored() bool { return push.op.Outcome != Fail && push.m.Status != refused }

// checkVerdicts: a message is queued once, and a duplicate only of something that was sent before.
func (c *checker) checkVerdicts(m *message) {
	var queued *Op
	for _, one := range m.pushes {
		if one.op.Outcome != OK || one.op.Kind != Push {
			continue
		}
		switch one.m.Status {
		case "queued":
			if queued != nil {
				c.report(Dedup, m, "", nil, "operations %d and %d were both told that it was queued", queued.ID, one.op.ID)
				return
			}
			queued = one.op
		case "duplicate":
			if !slices.ContainsFunc(m.pushes, func(other mention) bool {
				return other.op != one.op && other.mayHaveStored() && other.op.Start <= one.op.End
			}) {
				c.report(Dedup, m, "", nil, "operation %d was told that it is a duplicate, but nobody had sent it", one.op.ID)
				return
			}
		case refused:
		default:
			c.report(Protocol, m, "", nil, "operation %d got the verdict %q", one.op.ID, one.m.Status)
			return
		}
	}
}

// checkOrigin: what is delivered was sent before, with this payload.
func (c *checker) checkOrigin(m *message) {
	for _, pop := range m.pops {
		if slices.ContainsFunc(m.timers, func(op *Op) bool { return op.Outcome != Fail && op.Start <= pop.op.End }) {
			continue
		}
		if !slices.ContainsFunc(m.pushes, func(push mention) bool { return push.mayHaveStored() && push.op.Start <= pop.op.End }) {
			c.report(NoInvention, m, pop.op.Group, nil, "operation %d delivered it, but nobody had sent it", pop.op.ID)
			return
		}
		if pop.m.Sum != "" && !slices.ContainsFunc(m.pushes, func(push mention) bool { return push.m.Sum == pop.m.Sum }) {
			c.report(NoInvention, m, pop.op.Group, nil, "operation %d delivered it with another payload", pop.op.ID)
			return
		}
	}
}

// confirmed tells whether the fleet took responsibility for the message.
func (m *message) confirmed() bool {
	return slices.ContainsFunc(m.pushes, func(push mention) bool {
		return push.op.Outcome == OK && (push.op.Kind == Tx || push.m.Status == "queued" || push.m.Status == "duplicate")
	})
}

// checkLoss: what was confirmed, or reached one group, reaches every group.
func (c *checker) checkLoss(m *message) {
	queue := c.queues[m.queue]
	if queue == nil || !c.h.End.Reached || !m.confirmed() && len(m.pops) == 0 {
		return
	}
	for _, group := range queue.Groups {
		if slices.ContainsFunc(m.pops, func(pop mention) bool { return pop.op.Group == group }) {
			continue
		}
		cursor := c.cursors[reader{place{m.queue, m.partition}, group}]
		over := slices.IndexFunc(cursor, func(p passed) bool { return m.offset >= 0 && p.offset >= m.offset })
		if over < 0 {
			c.report(NoLoss, m, group, nil, "it was never delivered to %s", group)
			continue
		}
		c.report(NoLoss, m, group, []*Op{cursor[over].op}, "it was never delivered to %s, whose operation %d passed over it, to offset %d",
			group, cursor[over].op.ID, cursor[over].offset)
	}
}

// stored is the time within which a message got its offset.
type stored struct {
	m        *message
	from, to int64
}

func (m *message) stored() stored {
	s := stored{m: m, from: math.MaxInt64, to: math.MaxInt64}
	for _, push := range m.pushes {
		switch {
		case !push.mayHaveStored():
		case push.op.Outcome == OK && (push.op.Kind == Tx || push.m.Status == "queued"):
			return stored{m: m, from: push.op.Start, to: push.op.End}
		case push.op.Outcome == OK:
			s.to = min(s.to, push.op.End)
			fallthrough
		default:
			s.from = min(s.from, push.op.Start)
		}
	}
	for _, pop := range m.pops {
		s.to = min(s.to, pop.op.End)
	}
	return s
}

// checkLogs holds the offsets of each partition against each other and against real time.
func (c *checker) checkLogs() {
	logs := map[place][]stored{}
	var places []place
	for _, n := range c.names {
		m := c.messages[n]
		if m.offset < 0 {
			continue
		}
		at := place{m.queue, m.partition}
		if logs[at] == nil {
			places = append(places, at)
		}
		logs[at] = append(logs[at], m.stored())
	}
	for _, at := range places {
		c.checkLog(logs[at])
	}
	c.checkRequests()
}

func (c *checker) checkLog(log []stored) {
	slices.SortStableFunc(log, func(a, b stored) int { return cmp.Compare(a.m.offset, b.m.offset) })
	latest := stored{from: -1}
	want := int64(0)
	for i, s := range log {
		if i > 0 && log[i-1].m.offset == s.m.offset {
			c.report(Order, s.m, "", log[i-1].m.told(), "offset %d also holds %s", s.m.offset, log[i-1].m.id)
			continue
		}
		if s.m.offset != want && c.h.End.Drained {
			c.report(Order, s.m, "", nil, "no message has offset %d, which comes before it", want)
		}
		want = s.m.offset + 1
		if s.to < latest.from {
			c.report(Order, s.m, "", latest.m.told(),
				"it was stored before %s was sent, yet that has the lower offset %d", latest.m.id, latest.m.offset)
		}
		if s.from > latest.from && s.from != math.MaxInt64 {
			latest = s
		}
	}
}

// checkRequests: what one request stores in one partition has consecutive offsets, in the order sent.
func (c *checker) checkRequests() {
	for _, op := range c.h.Ops {
		if op.Kind != Push || op.Outcome != OK {
			continue
		}
		last := map[place]*Message{}
		for i := range op.Pushed {
			m := &op.Pushed[i]
			if m.Status != "queued" {
				continue
			}
			at := place{op.queueOf(m), m.Partition}
			if before := last[at]; before != nil && m.Offset != before.Offset+1 {
				c.report(Order, c.message(op, m), "", nil, "operation %d stored %s at offset %d right before it",
					op.ID, before.ID, before.Offset)
			}
			last[at] = m
		}
	}
}
