package history

import (
	"cmp"
	"math"
	"slices"
)

// grant is a lease on one partition. It was given at some instant of its pop.
type grant struct {
	delivery
	until int64 // it does not end by itself before
	freed int64 // it was not handed back before
}

type leaseKey struct {
	reader
	lease string
}

// checkLeases: no two leases of one group on one partition are live at once, and a lease that was replaced can
// neither acknowledge nor be extended.
func (c *checker) checkLeases() {
	all, readers := c.deliveries()
	grants := map[leaseKey]*grant{}
	parts := map[string]int{} // partitions of a lease
	for _, r := range readers {
		for _, d := range all[r] {
			if d.op.Lease == "" {
				continue
			}
			key := leaseKey{r, d.op.Lease}
			if grants[key] != nil {
				c.report(Exclusive, c.named(name{r.queue, d.messages[0].ID}), r.group, []*Op{grants[key].op},
					"lease %s was granted by operations %d and %d", d.op.Lease, grants[key].op.ID, d.op.ID)
				continue
			}
			grants[key] = &grant{delivery: d, until: d.op.Start + d.op.Length, freed: math.MaxInt64}
			parts[d.op.Lease]++
		}
	}
	c.noteReturns(grants)
	longer := c.extensions(parts)
	for _, r := range readers {
		var list []*grant
		for _, d := range all[r] {
			if g := grants[leaseKey{r, d.op.Lease}]; g != nil && g.op == d.op {
				list = append(list, g)
			}
		}
		c.checkOverlaps(r, list, longer)
		c.checkFence(r, list)
	}
}

// noteReturns finds for each lease the earliest moment at which it can have been handed back.
func (c *checker) noteReturns(grants map[leaseKey]*grant) {
	for _, op := range c.h.Ops {
		if op.Lease == "" {
			continue
		}
		for r, items := range op.ackedBy() {
			g := grants[leaseKey{r, op.Lease}]
			if g != nil && mayRelease(op, items, g) {
				g.freed = min(g.freed, op.Start)
			}
		}
	}
}

func mayRelease(op *Op, items []*Message, g *grant) bool {
	switch op.Outcome {
	case Fail:
		return false
	case Unknown:
		return true
	case OK:
	}
	return slices.ContainsFunc(items, func(m *Message) bool {
		if op.Kind == Ack {
			return m.Released
		}
		return m.Refused == "" && (m.Status != "completed" || m.Offset >= g.last().Offset)
	})
}

// extension is a renewal of a lease that certainly held for all its partitions.
type extension struct {
	end   int64 // when it was answered
	until int64
}

func (c *checker) extensions(parts map[string]int) map[string][]extension {
	out := map[string][]extension{}
	for _, op := range c.h.Ops {
		if op.Kind == Extend && op.Outcome == OK && op.Count > 0 && op.Count >= int64(parts[op.Lease]) {
			out[op.Lease] = append(out[op.Lease], extension{op.End, op.Start + op.Length})
		}
	}
	return out
}

// checkOverlaps compares each grant with those before it that may still have been live.
func (c *checker) checkOverlaps(r reader, list []*grant, longer map[string][]extension) {
	slices.SortStableFunc(list, func(a, b *grant) int { return cmp.Compare(a.op.Start, b.op.Start) })
	var live []*grant
	for _, b := range list {
		live = slices.DeleteFunc(live, func(a *grant) bool {
			limit := a.until
			for _, x := range longer[a.op.Lease] {
				limit = max(limit, x.until)
			}
			return limit < b.op.Start
		})
		for _, a := range live {
			if c.follows(a, b, longer) || c.follows(b, a, longer) {
				continue
			}
			first := b.messages[0]
			c.report(Exclusive, c.named(name{r.queue, first.ID}), r.group, []*Op{a.op},
				"operation %d got %s while operation %d held it under lease %s, for at least another %d ms",
				b.op.ID, r.partition, a.op.ID, a.op.Lease, (a.until-b.op.End)/1000)
		}
		live = append(live, b)
	}
}

// follows tells whether b can have been granted after a, at a moment at which a had ended or was handed back.
func (c *checker) follows(a, b *grant, longer map[string][]extension) bool {
	if a.op.Start > b.op.End {
		return false
	}
	until := a.until
	for _, x := range longer[a.op.Lease] {
		if x.end < b.op.Start {
			until = max(until, x.until)
		}
	}
	return b.op.End+c.h.Run.Tolerance >= until || a.freed <= b.op.End
}

// checkFence: once another lease was granted, the former one is refused.
func (c *checker) checkFence(r reader, list []*grant) {
	if len(list) < 2 {
		return
	}
	next := map[string]*grant{} // the first grant that certainly came after the lease
	for i, a := range list {
		for _, b := range list[i+1:] {
			if b.op.Start > a.op.End && (next[a.op.Lease] == nil || b.op.End < next[a.op.Lease].op.End) {
				next[a.op.Lease] = b
			}
			if n := next[a.op.Lease]; n != nil && b.op.Start > n.op.End {
				break // list rises by start: none that follows ends earlier
			}
		}
	}
	for _, a := range list {
		b := next[a.op.Lease]
		if b == nil {
			continue
		}
		for _, m := range a.messages {
			for _, ack := range c.named(name{r.queue, m.ID}).acks {
				if ack.op.Lease != a.op.Lease || ack.op.Group != r.group || ack.op.Outcome != OK || ack.op.Start <= b.op.End ||
					ack.m.Refused != "" || ack.m.Noop {
					continue
				}
				c.report(Exclusive, c.named(name{r.queue, m.ID}), r.group, []*Op{a.op, b.op},
					"operation %d acknowledged it with lease %s, which operation %d had replaced", ack.op.ID, a.op.Lease, b.op.ID)
			}
		}
	}
}
