package history

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// delivery is what one pop brought of one partition.
type delivery struct {
	op       *Op
	messages []*Message
}

func (d *delivery) last() *Message { return d.messages[len(d.messages)-1] }

// passed is an instant from which on a cursor has passed an offset.
type passed struct {
	at     int64
	offset int64
	op     *Op
}

// deliveries splits the pops by who read what.
func (c *checker) deliveries() (all map[reader][]delivery, readers []reader) {
	all = map[reader][]delivery{}
	for _, op := range c.h.Ops {
		parts := map[reader]int{}
		for i := range op.Popped {
			m := &op.Popped[i]
			r := reader{place{op.queueOf(m), m.Partition}, op.Group}
			at, known := parts[r]
			if !known {
				if all[r] == nil {
					readers = append(readers, r)
				}
				at = len(all[r])
				parts[r] = at
				all[r] = append(all[r], delivery{op: op})
			}
			all[r][at].messages = append(all[r][at].messages, m)
		}
	}
	return all, readers
}

// checkReaders holds deliveries to the order of the log, and to what was acknowledged before.
func (c *checker) checkReaders() {
	all, readers := c.deliveries()
	for _, r := range readers {
		list := slices.Clone(all[r])
		slices.SortStableFunc(list, func(a, b delivery) int { return cmp.Compare(a.op.End, b.op.End) })
		c.checkFirsts(r, list)
		c.checkCursor(r, list, c.cursors[r])
	}
}

// checkFirsts: a group receives what it had not received before at the end of what it had, without a gap. Deliveries
// are in the order of their arrival. An answer that arrives late repeats what others had meanwhile, because the cursor
// stays until somebody who received the messages acknowledges them.
func (c *checker) checkFirsts(r reader, list []delivery) {
	next := int64(0)
	for i := range list {
		for j, m := range list[i].messages {
			if j > 0 && m.Offset != list[i].messages[j-1].Offset+1 {
				c.report(Order, c.named(name{r.queue, m.ID}), r.group, nil,
					"operation %d delivered it right after offset %d", list[i].op.ID, list[i].messages[j-1].Offset)
			}
			if m.Offset > next {
				c.report(Order, c.named(name{r.queue, m.ID}), r.group, nil,
					"operation %d delivered it to %s, which had not had offset %d before", list[i].op.ID, r.group, next)
			}
			next = max(next, m.Offset+1)
		}
	}
}

// checkCursor: a pop that starts after an acknowledgement was answered brings nothing up to what that completed.
func (c *checker) checkCursor(r reader, list []delivery, cursor []passed) {
	for i := range list {
		first := list[i].messages[0]
		n := sort.Search(len(cursor), func(k int) bool { return cursor[k].at >= list[i].op.Start })
		if n == 0 || cursor[n-1].offset < first.Offset {
			continue
		}
		c.report(Cursor, c.named(name{r.queue, first.ID}), r.group, []*Op{cursor[n-1].op},
			"operation %d delivered it to %s, but operation %d had completed everything up to offset %d",
			list[i].op.ID, r.group, cursor[n-1].op.ID, cursor[n-1].offset)
	}
}

// passes collects how far each cursor certainly was, rising in time and offset.
func passes(h *History) map[reader][]passed {
	out := map[reader][]passed{}
	for _, op := range h.Ops {
		for r, items := range op.ackedBy() {
			if top := completed(op, items); top >= 0 {
				out[r] = append(out[r], passed{op.End, top, op})
			}
		}
	}
	for r, list := range out {
		slices.SortStableFunc(list, func(a, b passed) int { return cmp.Compare(a.at, b.at) })
		rising := list[:1]
		for _, p := range list[1:] {
			if p.offset > rising[len(rising)-1].offset {
				rising = append(rising, p)
			}
		}
		out[r] = rising
	}
	return out
}

func (op *Op) ackedBy() map[reader][]*Message {
	if len(op.Acked) == 0 {
		return nil
	}
	out := map[reader][]*Message{}
	for i := range op.Acked {
		m := &op.Acked[i]
		r := reader{place{op.queueOf(m), m.Partition}, op.Group}
		out[r] = append(out[r], m)
	}
	return out
}

// completed is the highest offset that an answered acknowledgement completed, -1 for none. What stands above a failed
// or retried message in the same call is accepted and comes again.
func completed(op *Op, items []*Message) int64 {
	if op.Outcome != OK {
		return -1
	}
	signal := int64(math.MaxInt64)
	for _, m := range items {
		if m.Status != "completed" && m.Refused == "" && m.Offset >= 0 {
			signal = min(signal, m.Offset)
		}
	}
	top := int64(-1)
	for _, m := range items {
		if m.Status == "completed" && m.Refused == "" && (m.Noop || m.Offset < signal) {
			top = max(top, m.Offset)
		}
	}
	return top
}
