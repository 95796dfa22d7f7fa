package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// ledger plays the store for the state machine: partitions of ids by offset,
// and cursors. What it does to a cursor is what the statements do.
type ledger struct {
	logs    map[int64][]string
	cursors map[mq.CursorKey]*mq.Cursor
	rules   mq.AckRules
	gone    map[int64]bool // offsets that retention removed
	leases  int
	letters []mq.DeadLetter
}

const judgedGroup = 7

var judgeNow = time.Date(2026, 11, 3, 8, 0, 0, 0, time.UTC)

// newLedger has one partition, 1, with the ids given, and a cursor before it.
func newLedger(retryLimit int32, ids ...string) *ledger {
	l := &ledger{
		logs: map[int64][]string{}, cursors: map[mq.CursorKey]*mq.Cursor{}, gone: map[int64]bool{},
		rules: mq.AckRules{RetryLimit: retryLimit, DeadLetters: true, Now: judgeNow},
	}
	l.partition(1, ids...)
	return l
}

func (l *ledger) partition(id int64, ids ...string) {
	key := mq.CursorKey{Partition: id, Group: judgedGroup}
	l.logs[id] = ids
	l.cursors[key] = &mq.Cursor{CursorKey: key, Committed: -1, BatchEnd: -1, AttemptOffset: -1}
}

func (l *ledger) at(partition int64) *mq.Cursor {
	return l.cursors[mq.CursorKey{Partition: partition, Group: judgedGroup}]
}

// lease hands out up to n messages and returns the lease.
func (l *ledger) lease(partition int64, n int) string {
	c := l.at(partition)
	first := c.Committed + 1
	l.leases++
	c.LeaseID, c.LeaseExpires = mq.UUID{0: byte(l.leases)}, l.rules.Now.Add(time.Minute)
	c.BatchEnd = min(c.Committed+int64(n), int64(len(l.logs[partition]))-1)
	if c.AttemptCount > 0 && c.AttemptOffset == first {
		c.AttemptCount++
	} else {
		c.AttemptOffset, c.AttemptCount = first, 1
	}
	return c.LeaseID.String()
}

// leaseNewest hands out the last message for the whole span before it.
func (l *ledger) leaseNewest(partition int64) string {
	lease := l.lease(partition, len(l.logs[partition]))
	l.at(partition).Conflated = true
	return lease
}

func (l *ledger) expire() { l.rules.Now = l.rules.Now.Add(time.Hour) }

// call is the acknowledgements of one (partition, lease), written
// "id" or "id status" or "id status error text".
func call(partition int64, lease string, items ...string) *ackUnit {
	u := &ackUnit{
		id:    mq.PartitionID{Queue: 1, Partition: partition},
		key:   mq.CursorKey{Partition: partition, Group: judgedGroup},
		group: "g", lease: lease,
	}
	u.leaseID, _ = mq.ParseUUID(lease)
	for _, text := range items {
		part := strings.SplitN(text, " ", 3)
		it := &mq.AckItem{TransactionID: part[0]}
		if len(part) > 1 {
			it.Status = mq.ParseAckStatus(part[1])
		}
		if len(part) > 2 {
			it.Error = part[2]
		}
		u.items = append(u.items, ackItem{AckItem: it, hash: mq.HashID(it.TransactionID), result: &mq.AckResult{}})
	}
	return u
}

// locked is what a store hands to the state machine: every cursor and every id.
func (l *ledger) locked() *mq.LockedAcks {
	locked := &mq.LockedAcks{Cursors: map[mq.CursorKey]*mq.Cursor{}, Rules: l.rules, Offsets: map[mq.AckID][]int64{}}
	for key, c := range l.cursors {
		locked.Cursors[key] = c
		for offset, id := range l.logs[key.Partition] {
			at := mq.AckID{Partition: key.Partition, Key: mq.HashID(id).Key}
			locked.Offsets[at] = append(locked.Offsets[at], int64(offset))
		}
	}
	return locked
}

// flush judges units as one transaction and writes what was decided.
func (l *ledger) flush(units ...*ackUnit) {
	locked := l.locked()
	spans := map[mq.CursorKey]*mq.Span{}
	d := judge(units, locked, spans).decision()
	if len(d.Spans) > 0 {
		for _, sp := range d.Spans {
			sp.Read, sp.IDs = true, l.logs[sp.Partition][sp.After+1:sp.Through+1]
		}
		d = judge(units, locked, spans).decision()
	}
	for i, letter := range d.Letters {
		if l.gone[letter.Offset] {
			d.Reject(i)
		} else {
			l.letters = append(l.letters, *letter)
		}
	}
	for _, ch := range d.Changes() {
		c := l.cursors[ch.CursorKey]
		c.Committed, c.RetryCount, c.AttemptCount, c.AttemptOffset = ch.Committed, ch.RetryCount, ch.AttemptCount, -1
		if ch.AttemptCount > 0 {
			c.AttemptOffset = ch.AttemptOffset
		}
		if ch.Release {
			c.BatchEnd, c.LeaseID, c.LeaseExpires, c.Conflated = -1, mq.UUID{}, time.Time{}, false
		}
	}
}

// verdicts writes results short: "ok", with what else is true of it, or the
// beginning of the refusal.
func verdicts(u *ackUnit) string {
	var out []string
	for _, it := range u.items {
		r := it.result
		s := "ok"
		if !r.Success {
			s, _, _ = strings.Cut(r.Error, ":")
		}
		if r.Success == (r.Error != "") {
			s = "success with an error, or neither"
		}
		for _, flag := range []struct {
			set  bool
			name string
		}{{r.LeaseReleased, "released"}, {r.DLQ, "dlq"}, {r.Noop, "noop"}} {
			if flag.set {
				s += "+" + flag.name
			}
		}
		if r.Conflated > 0 {
			s += fmt.Sprintf("+conflated%d", r.Conflated)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

// state writes a cursor short: committed, leased end, retries, tracked attempt.
func (l *ledger) state(partition int64) string {
	c := l.at(partition)
	s := fmt.Sprintf("at %d", c.Committed)
	if c.BatchEnd >= 0 {
		s += fmt.Sprintf(" leased to %d", c.BatchEnd)
	}
	if c.RetryCount > 0 {
		s += fmt.Sprintf(" retries %d", c.RetryCount)
	}
	if c.AttemptCount > 0 {
		s += fmt.Sprintf(" attempt %d of %d", c.AttemptCount, c.AttemptOffset)
	}
	return s
}

func (l *ledger) filed() string {
	var out []string
	for _, d := range l.letters {
		out = append(out, fmt.Sprintf("%s@%d:%d after %d: %s", d.TransactionID, d.PartitionID.Partition, d.Offset, d.RetryCount, d.Error))
	}
	return strings.Join(out, "; ")
}

func (l *ledger) want(t *testing.T, u *ackUnit, verdict, state string) {
	t.Helper()
	if got := verdicts(u); got != verdict {
		t.Errorf("verdicts: %s\nwant:     %s", got, verdict)
	}
	if got := l.state(u.key.Partition); got != state {
		t.Errorf("cursor: %s\nwant:   %s", got, state)
	}
}
