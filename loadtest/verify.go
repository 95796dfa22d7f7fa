package main

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
)

// A lane is one partition of one queue. Exactly one producer at a time writes it and numbers its messages 0, 1,
// 2, …, so the order of a lane is defined and every consumer group must see exactly that.
type lane struct {
	queue     string
	partition string
	index     int64
	quoted    []byte // the two names as a push item starts with them

	// The fields below belong to the producer that holds the lane.
	next       int64
	lastOffset int64
	// uncertain holds numbers whose push never got a verdict or was refused: they may be missing or present.
	uncertain map[int64]struct{}
}

// laneView is what one group has seen of one lane.
type laneView struct {
	seen      []uint64
	maxSeq    int64
	maxOffset int64
}

type verifier struct {
	run   int64
	lanes []*lane
	views [][]laneView // [group][lane]
	locks [256]sync.Mutex
	// exclusive: the broker lets one consumer of a group at a time into a partition, so arrival order counts too.
	// Messages committed at delivery have no lease, and two answers of one partition may overtake each other.
	exclusive bool
	groups    []groupCounts
	push      pushCounts
	problems  problemLog
}

type groupCounts struct {
	unique      atomic.Int64
	deliveries  atomic.Int64
	redelivered atomic.Int64
	duplicates  atomic.Int64
	disorder    atomic.Int64
	misrouted   atomic.Int64
	foreign     atomic.Int64
	// vanished counts hand-outs that reached nobody: a partition's first message in an answer is new to the group,
	// yet comes as a later attempt, so an earlier answer with it was made and never arrived.
	vanished atomic.Int64
}

type pushCounts struct {
	confirmed atomic.Int64
	uncertain atomic.Int64
	refused   atomic.Int64
	badStatus atomic.Int64
	badOffset atomic.Int64
}

// problemLog keeps the first few findings in words; the counters have them all.
type problemLog struct {
	mu    sync.Mutex
	lines []string
}

const maxProblems = 20

func (p *problemLog) add(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lines) < maxProblems {
		p.lines = append(p.lines, fmt.Sprintf(format, args...))
	}
}

func (p *problemLog) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.lines...)
}

func newVerifier(run int64, lanes []*lane, groups int, exclusive bool) *verifier {
	v := &verifier{run: run, lanes: lanes, exclusive: exclusive, groups: make([]groupCounts, groups)}
	v.views = make([][]laneView, groups)
	for g := range v.views {
		v.views[g] = make([]laneView, len(lanes))
		for l := range v.views[g] {
			v.views[g][l].maxSeq = -1
			v.views[g][l].maxOffset = -1
		}
	}
	return v
}

// pushed checks the verdicts on the count messages from seq first on. The caller holds the lane.
func (v *verifier) pushed(l *lane, first int64, count int, items []stored, retried bool) {
	if len(items) != count {
		v.push.badStatus.Add(1)
		v.problems.add("push to %s/%s: %d items sent, %d answered", l.queue, l.partition, count, len(items))
	}
	for i := range count {
		if i >= len(items) {
			l.doubt(first + int64(i))
			v.push.uncertain.Add(1)
			continue
		}
		v.pushedItem(l, first+int64(i), items[i], retried)
	}
}

func (v *verifier) pushedItem(l *lane, seq int64, item stored, retried bool) {
	switch string(item.status) {
	case "queued", "buffered":
	case "duplicate":
		// Ids are never reused: only a request that was sent twice may find its own first copy.
		if !retried {
			v.push.badStatus.Add(1)
			v.problems.add("push to %s/%s: message %d called a duplicate", l.queue, l.partition, seq)
		}
	case "error", "failed":
		v.push.refused.Add(1)
		l.doubt(seq)
		v.problems.add("push to %s/%s: message %d refused", l.queue, l.partition, seq)
		return
	default:
		v.push.badStatus.Add(1)
		v.problems.add("push to %s/%s: message %d has status %q", l.queue, l.partition, seq, item.status)
	}
	v.push.confirmed.Add(1)
	if item.offset < 0 {
		return // older brokers send none
	}
	if item.offset <= l.lastOffset {
		v.push.badOffset.Add(1)
		v.problems.add("push to %s/%s: message %d stored at offset %d after %d",
			l.queue, l.partition, seq, item.offset, l.lastOffset)
	}
	l.lastOffset = max(l.lastOffset, item.offset)
}

// doubtAll marks messages whose push got no verdict.
func (v *verifier) doubtAll(l *lane, first int64, count int) {
	for i := range count {
		l.doubt(first + int64(i))
	}
	v.push.uncertain.Add(int64(count))
}

func (l *lane) doubt(seq int64) {
	if l.uncertain == nil {
		l.uncertain = make(map[int64]struct{})
	}
	l.uncertain[seq] = struct{}{}
}

// received checks one pop answer of the group and calls fresh for every message seen for the first time.
func (v *verifier) received(group int, batch []delivery, fresh func(*delivery)) {
	counts := &v.groups[group]
	prevLane, prevSeq, prevOffset := int64(-1), int64(0), int64(0)
	for i := range batch {
		d := &batch[i]
		counts.deliveries.Add(1)
		st := d.stamp
		if !st.ok || st.run != v.run || st.lane < 0 || st.lane >= int64(len(v.lanes)) || st.seq < 0 {
			counts.foreign.Add(1)
			continue
		}
		l := v.lanes[st.lane]
		if string(d.partition) != l.partition {
			counts.misrouted.Add(1)
			v.problems.add("group %d: message %d of %s came out of partition %q", group, st.seq, l.partition, d.partition)
		}
		head := st.lane != prevLane
		inOrder := head || st.seq > prevSeq && (d.offset < 0 || d.offset > prevOffset)
		prevLane, prevSeq, prevOffset = st.lane, st.seq, d.offset
		if !v.see(group, l, d, inOrder) {
			continue
		}
		fresh(d)
		if head && d.attempt > 1 {
			counts.vanished.Add(1)
			v.problems.add("group %d: message %d of %s/%s is new but comes as attempt %d",
				group, st.seq, l.queue, l.partition, d.attempt)
		}
	}
}

// see records one delivery and reports whether it is the group's first of this message.
func (v *verifier) see(group int, l *lane, d *delivery, inOrder bool) bool {
	seq := d.stamp.seq
	counts := &v.groups[group]
	view := &v.views[group][d.stamp.lane]
	lock := &v.locks[int(d.stamp.lane)%len(v.locks)]
	lock.Lock()
	first := view.mark(seq)
	if first {
		inOrder = inOrder && view.fits(seq, d.offset, v.exclusive)
		if seq > view.maxSeq {
			view.maxSeq, view.maxOffset = seq, d.offset
		}
	}
	lock.Unlock()

	if !inOrder {
		counts.disorder.Add(1)
		v.problems.add("group %d: message %d of %s/%s out of order (offset %d)", group, seq, l.queue, l.partition, d.offset)
	}
	switch {
	case first:
		counts.unique.Add(1)
	case d.attempt > 1:
		counts.redelivered.Add(1)
	default:
		counts.duplicates.Add(1)
		v.problems.add("group %d: message %d of %s/%s delivered twice as attempt %d",
			group, seq, l.queue, l.partition, d.attempt)
	}
	return first
}

// fits reports whether a message seen for the first time stands where it may.
func (w *laneView) fits(seq, offset int64, exclusive bool) bool {
	if w.maxSeq < 0 {
		return true
	}
	if exclusive && seq < w.maxSeq {
		return false
	}
	if offset < 0 || w.maxOffset < 0 {
		return true
	}
	return (seq < w.maxSeq) == (offset < w.maxOffset)
}

func (w *laneView) mark(seq int64) (first bool) {
	word, bit := int(seq/64), uint64(1)<<(seq%64)
	for len(w.seen) <= word {
		w.seen = append(w.seen, 0)
	}
	first = w.seen[word]&bit == 0
	w.seen[word] |= bit
	return first
}

// missing counts the messages of a lane that were confirmed and that the group has not seen, and returns the
// lowest of them. Call it when no producer runs any more.
func (v *verifier) missing(group, laneIndex int) (count, lowest int64) {
	l := v.lanes[laneIndex]
	lock := &v.locks[laneIndex%len(v.locks)]
	lock.Lock()
	defer lock.Unlock()
	seen := v.views[group][laneIndex].seen
	lowest = -1
	for word := range int((l.next + 63) / 64) {
		want := ^uint64(0)
		if rest := l.next - int64(word)*64; rest < 64 {
			want = 1<<rest - 1
		}
		if word < len(seen) {
			want &^= seen[word]
		}
		for ; want != 0; want &= want - 1 {
			seq := int64(word)*64 + int64(bits.TrailingZeros64(want))
			if _, open := l.uncertain[seq]; open {
				continue
			}
			if count++; lowest < 0 {
				lowest = seq
			}
		}
	}
	return count, lowest
}

// lost counts what each group misses.
func (v *verifier) lost(group int) int64 {
	var total int64
	for i := range v.lanes {
		n, _ := v.missing(group, i)
		total += n
	}
	return total
}

// complete reports whether every group has everything.
func (v *verifier) complete() bool {
	confirmed := v.push.confirmed.Load()
	for g := range v.groups {
		if v.groups[g].unique.Load() < confirmed {
			return false
		}
	}
	for g := range v.groups {
		if v.lost(g) > 0 {
			return false
		}
	}
	return true
}
