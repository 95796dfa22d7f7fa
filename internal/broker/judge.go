package broker

import (
	"github.com/queenmq-go/queenmq/internal/mq"
)

// judgement decides what units of acknowledgements do to locked cursors. It is
// the state machine of the contract and does no I/O, so it may run again.
type judgement struct {
	locked   *mq.LockedAcks
	spans    map[mq.CursorKey]*mq.Span
	cursors  map[mq.CursorKey]*mq.Cursor // as changed so far
	changes  map[mq.CursorKey]*mq.CursorChange
	order    []mq.CursorKey
	released map[mq.CursorKey]bool
	missing  map[mq.CursorKey]bool
	wanted   []*mq.Span
	letters  []*mq.DeadLetter
	rejects  []func()
	rejected int
}

func judge(units []*ackUnit, l *mq.LockedAcks, spans map[mq.CursorKey]*mq.Span) *judgement {
	j := &judgement{
		locked: l, spans: spans, cursors: map[mq.CursorKey]*mq.Cursor{},
		changes: map[mq.CursorKey]*mq.CursorChange{}, released: map[mq.CursorKey]bool{}, missing: map[mq.CursorKey]bool{},
	}
	for _, u := range units {
		c := j.cursor(u.key)
		if c == nil {
			j.missing[u.key] = true
			u.fail(mq.AckErrNoConsumer)
			continue
		}
		j.unit(u, c)
	}
	return j
}

// cursor returns a copy of a locked cursor that later units of the same flush
// see as earlier ones left it.
func (j *judgement) cursor(key mq.CursorKey) *mq.Cursor {
	if c := j.cursors[key]; c != nil {
		return c
	}
	src := j.locked.Cursors[key]
	if src == nil {
		return nil
	}
	c := *src
	j.cursors[key] = &c
	return &c
}

// decision hands the store what to do.
func (j *judgement) decision() *mq.AckDecision {
	return &mq.AckDecision{
		Spans: j.wanted, Letters: j.letters,
		Reject: func(i int) { j.rejects[i]() },
		Changes: func() []mq.CursorChange {
			out := make([]mq.CursorChange, len(j.order))
			for i, key := range j.order {
				out[i] = *j.changes[key]
			}
			return out
		},
	}
}

// place is where an item's id was found.
type place struct {
	offset  int64 // in the span
	inSpan  bool
	below   bool // at or below the cursor only
	repeats bool // more than once in the span
}

func (j *judgement) find(u *ackUnit, c *mq.Cursor, it *ackItem) place {
	var p place
	if it.TransactionID == "" {
		return p
	}
	for _, off := range j.locked.Offsets[mq.AckID{Partition: u.key.Partition, Key: it.hash.Key}] {
		switch {
		case off <= c.Committed:
			p.below = true
		case c.BatchEnd >= 0 && off > c.BatchEnd:
		case !p.inSpan:
			p.offset, p.inSpan = off, true
		default:
			p.offset, p.repeats = min(p.offset, off), true
		}
	}
	return p
}

// unit is one atomic step: lease, resolution, signal, effect, verdicts.
func (j *judgement) unit(u *ackUnit, c *mq.Cursor) {
	places := make([]place, len(u.items))
	for i := range u.items {
		places[i] = j.find(u, c, &u.items[i])
	}
	if u.lease != "" && !j.live(c, u.leaseID) {
		refuseLease(u, places)
		return
	}
	hasBatch := c.BatchEnd >= 0
	signal, poison := findSignal(u, places, hasBatch)
	prefix := c.Committed
	for i, p := range places {
		if p.inSpan && u.items[i].Status == mq.AckCompleted && (poison < 0 || p.offset < signal) {
			prefix = max(prefix, p.offset)
		}
	}
	var verdict mq.AckResult // of an item in the span
	filed := false
	if poison >= 0 {
		verdict, filed = j.nack(u, c, poison, signal, prefix)
	} else {
		verdict = j.complete(u, c, places, prefix)
	}
	report(u, places, verdict, hasBatch)
	if filed {
		u.items[poison].result.DLQ = true
	}
}

func (j *judgement) live(c *mq.Cursor, lease mq.UUID) bool {
	return !lease.IsZero() && c.LeaseID == lease && c.LeaseExpires.After(j.locked.Rules.Now)
}

// refuseLease answers a unit whose lease is not live. One that only repeats
// what is done already is a harmless duplicate, which makes a blind retry safe.
func refuseLease(u *ackUnit, places []place) {
	for i, p := range places {
		if u.items[i].Status != mq.AckCompleted || p.inSpan || !p.below {
			u.fail(mq.AckErrLease)
			return
		}
	}
	for i := range u.items {
		*u.items[i].result = mq.AckResult{Success: true, Noop: true}
	}
}

// findSignal returns the lowest offset somebody did not complete, and the item
// that says so; -1 when there is none. Without a leased batch there is nothing
// to hand back, so signals are refused and do not act.
func findSignal(u *ackUnit, places []place, hasBatch bool) (signal int64, poison int) {
	poison = -1
	if !hasBatch {
		return 0, poison
	}
	for i, p := range places {
		status := u.items[i].Status
		if !p.inSpan || status == mq.AckCompleted {
			continue
		}
		if poison < 0 || p.offset < signal || p.offset == signal && status > u.items[poison].Status {
			signal, poison = p.offset, i
		}
	}
	return signal, poison
}

// complete moves the cursor to the highest completed offset, and ends the lease
// when that completes the batch.
func (j *judgement) complete(u *ackUnit, c *mq.Cursor, places []place, to int64) mq.AckResult {
	hasBatch := c.BatchEnd >= 0
	verdict := mq.AckResult{Success: true}
	switch {
	case !hasBatch:
	case c.Conflated && to > c.Committed:
		verdict.Conflated = c.BatchEnd - c.Committed - 1
		to = c.BatchEnd
	case to < c.BatchEnd && j.coversSpan(u, c, places):
		to = c.BatchEnd
	}
	if to <= c.Committed {
		return verdict
	}
	c.Committed = to
	switch {
	case !hasBatch:
		// No lease to end; ready_at is worked out anew.
		j.change(c, true)
	case to >= c.BatchEnd:
		j.release(c)
		c.AttemptCount, c.RetryCount = 0, 0
		j.change(c, true)
		verdict.LeaseReleased = true
	default:
		// The rest of the batch, when it comes again, counts one higher.
		c.AttemptOffset = to + 1
		j.change(c, false)
	}
	return verdict
}

// coversSpan reports whether the acknowledged ids are all ids that were handed
// out, for batches in which an id occurs twice: there the highest match falls
// short of the end. The ids of the span are asked of the store first.
func (j *judgement) coversSpan(u *ackUnit, c *mq.Cursor, places []place) bool {
	repeats := false
	acked := make(map[string]bool, len(u.items))
	for i, p := range places {
		if u.items[i].Status != mq.AckCompleted {
			return false
		}
		repeats = repeats || p.repeats
		acked[u.items[i].TransactionID] = true
	}
	if !repeats {
		return false
	}
	sp := j.spans[u.key]
	if sp == nil {
		sp = &mq.Span{Partition: u.key.Partition, After: c.Committed, Through: c.BatchEnd}
		j.spans[u.key] = sp
		j.wanted = append(j.wanted, sp)
		return false
	}
	if !sp.Read || sp.After != c.Committed || sp.Through != c.BatchEnd {
		return false
	}
	for _, id := range sp.IDs {
		if !acked[id] {
			return false
		}
	}
	return true
}

// nack acts on the lowest message that was not completed. What was completed
// before it stays completed; what follows comes again. filed: the message goes
// to the dead letters.
func (j *judgement) nack(u *ackUnit, c *mq.Cursor, poison int, signal, prefix int64) (verdict mq.AckResult, filed bool) {
	status := u.items[poison].Status
	spent := c.RetryCount >= j.locked.Rules.RetryLimit
	tracked, attempts := c.AttemptCount, c.RetryCount
	j.release(c)
	switch {
	case status == mq.AckRetry, status == mq.AckFailed && !spent:
		if status == mq.AckFailed {
			c.RetryCount++
		}
		c.Committed, c.AttemptOffset = prefix, prefix+1
	default:
		// Given up on: the cursor moves onto the message and past whatever
		// before it nobody mentioned.
		c.Committed, c.AttemptCount, c.RetryCount = signal, 0, 0
		if filed = status == mq.AckDLQ || j.locked.Rules.DeadLetters; filed {
			j.file(u, c, poison, signal, attempts)
			j.rejects = append(j.rejects, func() {
				*u.items[poison].result = mq.AckResult{Error: mq.AckErrDLQRejected}
				j.rejected++
				// A later unit of the flush may have completed what follows.
				if ch := j.changes[u.key]; ch.Committed == signal {
					ch.Committed, ch.AttemptOffset, ch.AttemptCount, ch.RetryCount = prefix, prefix+1, tracked, attempts
				}
			})
		}
	}
	j.change(c, true)
	return mq.AckResult{Success: true, LeaseReleased: true}, filed
}

// file prepares the dead letter of a message; the store adds what it holds.
func (j *judgement) file(u *ackUnit, c *mq.Cursor, poison int, signal int64, retries int32) {
	text := u.items[poison].Error
	for i := 0; text == "" && i < len(u.items); i++ {
		if u.items[i].Status != mq.AckCompleted {
			text = u.items[i].Error
		}
	}
	if text == "" {
		text = "Retries exhausted"
	}
	j.letters = append(j.letters, &mq.DeadLetter{
		PartitionID: mq.PartitionID{Queue: u.id.Queue, Partition: c.Partition}, TransactionID: u.items[poison].TransactionID,
		Group: u.group, Offset: signal, RetryCount: retries, Error: mq.CleanErrorText(text),
	})
}

// report gives every item its verdict.
func report(u *ackUnit, places []place, verdict mq.AckResult, hasBatch bool) {
	for i, p := range places {
		it := &u.items[i]
		switch {
		case p.inSpan && it.Status != mq.AckCompleted && !hasBatch:
			*it.result = mq.AckResult{Error: mq.AckErrLease}
		case p.inSpan:
			*it.result = verdict
		case p.below && it.Status == mq.AckCompleted:
			*it.result = mq.AckResult{Success: true, Noop: true}
		case p.below:
			*it.result = mq.AckResult{Error: mq.AckErrCommitted}
		default:
			*it.result = mq.AckResult{Error: mq.AckErrUnresolvable}
		}
	}
}

// release ends the lease of a cursor.
func (j *judgement) release(c *mq.Cursor) {
	if c.BatchEnd >= 0 {
		j.released[c.CursorKey] = true
	}
	c.BatchEnd, c.LeaseID, c.Conflated = -1, mq.UUID{}, false
}

// change notes what is to be written of a cursor. Once a unit of the flush
// ended its lease, it stays ended.
func (j *judgement) change(c *mq.Cursor, release bool) {
	ch := j.changes[c.CursorKey]
	if ch == nil {
		ch = &mq.CursorChange{CursorKey: c.CursorKey}
		j.changes[c.CursorKey] = ch
		j.order = append(j.order, c.CursorKey)
	}
	ch.Committed, ch.Release = c.Committed, ch.Release || release
	ch.AttemptOffset, ch.AttemptCount, ch.RetryCount = c.AttemptOffset, c.AttemptCount, c.RetryCount
}
