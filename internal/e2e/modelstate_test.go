package e2e

import (
	"slices"
	"time"
)

// What the contract says one queue looks like after a sequence of calls, kept
// in memory. It knows nothing of how the broker does it.

type modelMessage struct {
	id, transactionID, payload string
	createdAt                  time.Time // zero until it was shown
}

type modelCursor struct {
	committed     int64
	batchEnd      int64 // -1: no batch
	leaseID       string
	conflated     bool
	live          [2]time.Time // the lease ends between these instants
	attemptOffset int64
	attempts      int
	retries       int
}

type modelGroup struct {
	name       string
	all        bool // starts at the oldest message, else after the newest
	conflating bool
	registered bool
	cursors    map[string]*modelCursor
	letters    int
}

type modelQueue struct {
	name       string
	dedup      bool
	retryLimit int
	letters    bool
	logs       map[string][]modelMessage
	ids        map[string]string // partition → partitionId
	groups     []*modelGroup
}

func newModelCursor(committed int64) *modelCursor {
	return &modelCursor{committed: committed, batchEnd: -1, attemptOffset: -1}
}

// append stores a message and gives every registered group its cursor.
func (q *modelQueue) append(partition string, m modelMessage) int64 {
	q.logs[partition] = append(q.logs[partition], m)
	for _, g := range q.groups {
		if g.registered && g.cursors[partition] == nil {
			g.cursors[partition] = newModelCursor(-1)
		}
	}
	return int64(len(q.logs[partition]) - 1)
}

// find returns the oldest stored message with an id, -1 when there is none.
func (q *modelQueue) find(partition, transactionID string) int64 {
	return int64(slices.IndexFunc(q.logs[partition], func(m modelMessage) bool { return m.transactionID == transactionID }))
}

func (q *modelQueue) register(g *modelGroup) {
	if g.registered {
		return
	}
	g.registered = true
	for p, log := range q.logs {
		g.cursors[p] = newModelCursor(-1)
		if !g.all {
			g.cursors[p].committed = int64(len(log) - 1)
		}
	}
}

func (c *modelCursor) leased(now time.Time) bool { return c.leaseID != "" && c.live[0].After(now) }

func (q *modelQueue) pending(g *modelGroup, partition string) int64 {
	return int64(len(q.logs[partition])) - 1 - g.cursors[partition].committed
}

// claimable lists the partitions a pop may take now.
func (q *modelQueue) claimable(g *modelGroup, now time.Time) []string {
	var out []string
	for p, c := range g.cursors {
		if q.pending(g, p) > 0 && !c.leased(now) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// claim hands out (cursor, end] and returns the attempt it counts as.
func (c *modelCursor) claim(end int64, leaseID string, conflated bool, until [2]time.Time) int {
	start := c.committed + 1
	if c.attemptOffset == start {
		c.attempts++
	} else {
		c.attemptOffset, c.attempts = start, 1
	}
	c.batchEnd, c.leaseID, c.conflated, c.live = end, leaseID, conflated, until
	return c.attempts
}

// release ends the lease.
func (c *modelCursor) release() { c.batchEnd, c.leaseID, c.conflated = -1, "", false }

func (c *modelCursor) reset() { c.attemptOffset, c.attempts, c.retries = -1, 0, 0 }

type modelAck struct {
	transactionID string
	status        string
}

type modelVerdict struct {
	success, released, dlq, noop bool
	errorPrefix                  string
	conflated                    int64
}

// signals in the order in which they win at one offset; 0 is completed.
func modelSignal(status string) int {
	switch status {
	case "", "completed", "success", "acked", "ok":
		return 0
	case "retry":
		return 1
	case "dlq":
		return 3
	default:
		return 2
	}
}

// ack is one (partition, lease) group of a call: section 7.4 step by step.
func (q *modelQueue) ack(g *modelGroup, partition, lease string, items []modelAck, now time.Time) []modelVerdict {
	out := make([]modelVerdict, len(items))
	c := g.cursors[partition]
	if c == nil {
		return fill(out, modelVerdict{errorPrefix: "consumer not found"})
	}
	type place struct {
		offset int64
		where  int // 1 in the span, 2 below, 0 nowhere
	}
	places := make([]place, len(items))
	for i, it := range items {
		for off, m := range q.logs[partition] {
			off := int64(off)
			if m.transactionID != it.transactionID {
				continue
			}
			switch {
			case off <= c.committed && places[i].where == 0:
				places[i].where = 2
			case off > c.committed && (c.batchEnd < 0 || off <= c.batchEnd) && places[i].where != 1:
				places[i] = place{off, 1}
			}
		}
	}
	if lease != "" && (lease != c.leaseID || !c.leased(now)) {
		for i, it := range items {
			if places[i].where != 2 || modelSignal(it.status) != 0 {
				return fill(out, modelVerdict{errorPrefix: "invalid or expired lease"})
			}
		}
		return fill(out, modelVerdict{success: true, noop: true})
	}
	batch := c.batchEnd >= 0
	poison := -1
	for i, it := range items {
		s := modelSignal(it.status)
		if places[i].where != 1 || s == 0 || !batch {
			continue
		}
		if poison < 0 || places[i].offset < places[poison].offset ||
			places[i].offset == places[poison].offset && s > modelSignal(items[poison].status) {
			poison = i
		}
	}
	to, clean := c.committed, 0
	for i, it := range items {
		if places[i].where == 1 && modelSignal(it.status) == 0 && (poison < 0 || places[i].offset < places[poison].offset) {
			to = max(to, places[i].offset)
			clean++
		}
	}
	verdict := modelVerdict{success: true}
	if poison < 0 {
		if batch && (c.conflated && clean > 0 || q.coversSpan(c, partition, items)) {
			if c.conflated && clean > 0 {
				verdict.conflated = c.batchEnd - c.committed - 1
			}
			to = c.batchEnd
		}
		verdict.released = q.complete(c, to)
	} else {
		verdict.released = true
		out[poison].dlq = q.nack(g, c, items[poison].status, places[poison].offset, to)
	}
	for i, it := range items {
		completed := modelSignal(it.status) == 0
		switch {
		case places[i].where == 1 && !completed && !batch:
			out[i] = modelVerdict{errorPrefix: "invalid or expired lease"}
		case places[i].where == 1:
			dlq := out[i].dlq
			out[i] = verdict
			out[i].dlq = dlq
		case places[i].where == 2 && completed:
			out[i] = modelVerdict{success: true, noop: true}
		case places[i].where == 2:
			out[i] = modelVerdict{errorPrefix: "already committed"}
		default:
			out[i] = modelVerdict{errorPrefix: "unresolvable:"}
		}
	}
	return out
}

func fill(out []modelVerdict, v modelVerdict) []modelVerdict {
	for i := range out {
		out[i] = v
	}
	return out
}

func (q *modelQueue) coversSpan(c *modelCursor, partition string, items []modelAck) bool {
	acked := map[string]bool{}
	for _, it := range items {
		if modelSignal(it.status) != 0 {
			return false
		}
		acked[it.transactionID] = true
	}
	for off := c.committed + 1; off <= c.batchEnd; off++ {
		if !acked[q.logs[partition][off].transactionID] {
			return false
		}
	}
	return true
}

// complete moves the cursor without a signal; true when that ended the lease.
func (q *modelQueue) complete(c *modelCursor, to int64) bool {
	if to <= c.committed {
		return false
	}
	c.committed = to
	switch {
	case c.batchEnd < 0:
		return false
	case to >= c.batchEnd:
		c.release()
		c.reset()
		return true
	default:
		if c.attempts > 0 {
			c.attemptOffset = to + 1
		}
		return false
	}
}

// nack acts on the poison; true when it was filed as a dead letter.
func (q *modelQueue) nack(g *modelGroup, c *modelCursor, status string, poison, prefix int64) bool {
	c.release()
	s := modelSignal(status)
	if s == 1 || s == 2 && c.retries < q.retryLimit {
		c.committed, c.attemptOffset = prefix, prefix+1
		if s == 2 {
			c.retries++
		}
		return false
	}
	c.committed = poison
	c.reset()
	if s == 3 || q.letters {
		g.letters++
		return true
	}
	return false
}

// seek moves a cursor and forgets whatever was under way.
func (c *modelCursor) seek(committed int64) {
	c.release()
	c.reset()
	c.committed = committed
}
