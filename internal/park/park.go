// Package park holds the consumers that wait for messages, and shares probes
// of the store among those that wait for the same thing.
//
// A waiting request is a list entry and a channel; it holds no connection and
// no transaction. Requests of one key stand in one line. A probe asks the store
// for the first few of them at once; when it comes back with less than was
// asked for, everybody who stood in the line when it started has been answered:
// there is nothing. They are looked at again when the key is woken, when the
// store said something becomes due, and at a slow interval, so that losing
// every wake-up costs latency only.
package park

import (
	"container/list"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Result is what a probe found.
type Result[A any] struct {
	// Answers are those of the requests, in order, and Found says which there
	// are. One that is missing means that the store has no more. Both are nil
	// when nothing was found.
	Answers []A
	Found   []bool
	// Next is when to look again without being woken; negative: not known.
	Next time.Duration
	// Err fails the requests. With Retry set, those that were waiting already
	// go on waiting.
	Err   error
	Retry bool
}

// Config makes a Lot. K is what is waited for, T a topic many keys share.
type Config[K, T comparable, R, A any] struct {
	Topic func(K) T
	Probe func(key K, reqs []R) Result[A]
	// Undo takes back an answer whose request is gone.
	Undo func(A)
	// The slow re-check: Interval, after Threshold empty probes growing by
	// Factor up to MaxInterval.
	Interval    time.Duration
	MaxInterval time.Duration
	Threshold   int
	Factor      float64
	// MaxProbe is how many requests one probe serves at the most.
	MaxProbe int
	// Look, when set, tells for many lines at once which of those whose
	// interval has passed are worth a probe. An error leaves them as they are.
	Look func(keys []K) ([]Glance, error)
	// LookRate is how many lines a second are looked at: with more of them than
	// that times the interval, each waits longer for its turn. 0: no limit.
	LookRate int
}

// Lot is a set of lines.
type Lot[K, T comparable, R, A any] struct {
	cfg Config[K, T, R, A]

	mu     sync.Mutex
	lines  map[K]*line[K, R, A]
	topics map[T]map[*line[K, R, A]]struct{}
	seq    uint64
	closed bool
	probes sync.WaitGroup

	overdue []*line[K, R, A] // whose interval has passed
	looking bool             // somebody takes from overdue
	drained chan struct{}    // closed by Drain
}

type line[K comparable, R, A any] struct {
	key   K
	queue list.List // of *waiter[R, A]
	// fresh are those that no empty probe has answered yet, and some that are
	// answered: a probe must not look at all that are parked.
	fresh []*waiter[R, A]
	busy  bool // a probe is in flight
	dirty bool // woken since the last probe started
	size  int  // requests of the next probe
	empty int  // empty probes in a row
	timer *time.Timer
}

type waiter[R, A any] struct {
	req      R
	seq      uint64
	at       *list.Element
	wait     bool // may be parked
	probed   bool // was in line during a probe that came back empty
	inFlight bool
	gone     bool
	answer   chan outcome[A]
}

type outcome[A any] struct {
	answer A
	found  bool
	err    error
}

// New returns an empty lot.
func New[K, T comparable, R, A any](cfg Config[K, T, R, A]) *Lot[K, T, R, A] {
	return &Lot[K, T, R, A]{
		cfg: cfg, lines: map[K]*line[K, R, A]{}, topics: map[T]map[*line[K, R, A]]struct{}{},
		drained: make(chan struct{}),
	}
}

// Take asks for key and waits up to wait for an answer. found is false when
// there was nothing in time, or when the lot was drained.
func (l *Lot[K, T, R, A]) Take(ctx context.Context, key K, req R, wait time.Duration) (answer A, found bool, err error) {
	var deadline <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		deadline = t.C
	}
	w := &waiter[R, A]{req: req, wait: wait > 0, answer: make(chan outcome[A], 1)}
	ln := l.enter(key, w)
	for {
		select {
		case o := <-w.answer:
			return o.answer, o.found, o.err
		case <-ctx.Done():
			l.leave(ln, w)
			return answer, false, ctx.Err()
		case <-deadline:
			deadline = nil
			if l.expire(ln, w) {
				return answer, false, nil
			}
			// A probe for it is in flight: its answer comes now, or none.
		}
	}
}

func (l *Lot[K, T, R, A]) enter(key K, w *waiter[R, A]) *line[K, R, A] {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lines[key]
	if ln == nil {
		ln = &line[K, R, A]{key: key, size: 1}
		l.lines[key] = ln
		topic := l.cfg.Topic(key)
		if l.topics[topic] == nil {
			l.topics[topic] = map[*line[K, R, A]]struct{}{}
		}
		l.topics[topic][ln] = struct{}{}
	}
	l.seq++
	w.seq = l.seq
	w.wait = w.wait && !l.closed
	w.at = ln.queue.PushBack(w)
	if len(ln.fresh) > 16 && len(ln.fresh) > 2*ln.queue.Len() {
		ln.fresh = slices.DeleteFunc(ln.fresh, func(w *waiter[R, A]) bool { return w.at == nil })
	}
	ln.fresh = append(ln.fresh, w)
	l.start(ln)
	return ln
}

// start begins to probe unless that is under way. The lock is held.
func (l *Lot[K, T, R, A]) start(ln *line[K, R, A]) {
	if ln.timer != nil {
		ln.timer.Stop()
		ln.timer = nil
	}
	if !ln.busy {
		ln.busy = true
		l.probes.Add(1)
		go l.work(ln)
	}
}

// leave takes a request out whose caller is gone.
func (l *Lot[K, T, R, A]) leave(ln *line[K, R, A], w *waiter[R, A]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.gone = true
	select {
	case o := <-w.answer:
		// Answered in the same moment.
		if o.found {
			l.undo(o.answer)
		}
	default:
		if !w.inFlight && w.at != nil {
			l.remove(ln, w)
			l.forget(ln)
		}
	}
}

// expire ends the wait of a request; false when a probe for it is in flight.
func (l *Lot[K, T, R, A]) expire(ln *line[K, R, A], w *waiter[R, A]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.wait = false
	if w.at == nil || w.inFlight {
		return false
	}
	l.remove(ln, w)
	l.forget(ln)
	return true
}

func (l *Lot[K, T, R, A]) remove(ln *line[K, R, A], w *waiter[R, A]) {
	ln.queue.Remove(w.at)
	w.at = nil
}

// forget drops a line nobody stands in. The lock is held.
func (l *Lot[K, T, R, A]) forget(ln *line[K, R, A]) {
	if ln.busy || ln.queue.Len() > 0 {
		return
	}
	if ln.timer != nil {
		ln.timer.Stop()
		ln.timer = nil
	}
	delete(l.lines, ln.key)
	topic := l.cfg.Topic(ln.key)
	delete(l.topics[topic], ln)
	if len(l.topics[topic]) == 0 {
		delete(l.topics, topic)
	}
}

func (l *Lot[K, T, R, A]) undo(a A) {
	l.probes.Add(1)
	go func() {
		defer l.probes.Done()
		l.cfg.Undo(a)
	}()
}

// Wake makes the lines of a topic that match look again; a nil match is all.
func (l *Lot[K, T, R, A]) Wake(topic T, match func(K) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ln := range l.topics[topic] {
		if match == nil || match(ln.key) {
			ln.dirty, ln.empty = true, 0
			l.start(ln)
		}
	}
}

// work probes until there is nothing more to find out.
func (l *Lot[K, T, R, A]) work(ln *line[K, R, A]) {
	defer l.probes.Done()
	for {
		ws, reqs, upTo := l.pick(ln)
		if len(ws) == 0 {
			return
		}
		res := l.cfg.Probe(ln.key, reqs)
		if l.settle(ln, ws, upTo, res) {
			return
		}
	}
}

// pick takes the requests of the next probe. With none it ends the work.
func (l *Lot[K, T, R, A]) pick(ln *line[K, R, A]) (ws []*waiter[R, A], reqs []R, upTo uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.dirty = false
	for e := ln.queue.Front(); e != nil && len(ws) < ln.size; e = e.Next() {
		w := e.Value.(*waiter[R, A])
		w.inFlight = true
		ws, reqs = append(ws, w), append(reqs, w.req)
	}
	if len(ws) == 0 {
		ln.busy = false
		l.forget(ln)
	}
	return ws, reqs, l.seq
}

// settle hands out what a probe found. True means that the line rests.
func (l *Lot[K, T, R, A]) settle(ln *line[K, R, A], ws []*waiter[R, A], upTo uint64, res Result[A]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := 0
	for i, w := range ws {
		w.inFlight = false
		switch {
		case i < len(res.Found) && res.Found[i]:
			found++
			l.remove(ln, w)
			if w.gone {
				l.undo(res.Answers[i])
			} else {
				w.answer <- outcome[A]{answer: res.Answers[i], found: true}
			}
		case w.gone:
			l.remove(ln, w)
		}
	}
	if found > 0 {
		ln.empty = 0
	}
	if res.Err == nil && found == len(ws) {
		ln.size = min(2*ln.size, l.cfg.MaxProbe)
		return false
	}
	ln.size = 1
	unprobed := l.settleEmpty(ln, ws, upTo, res)
	if ln.dirty || unprobed {
		return false
	}
	ln.busy = false
	l.rest(ln, res.Next)
	return true
}

// settleEmpty tells everybody who was in line that there is nothing. It reports
// whether somebody came later.
func (l *Lot[K, T, R, A]) settleEmpty(ln *line[K, R, A], ws []*waiter[R, A], upTo uint64, res Result[A]) (unprobed bool) {
	// Those asked for, whose wait may have ended meanwhile, and the new ones.
	for _, w := range ws {
		l.turnAway(ln, w, res)
	}
	if res.Err != nil && !res.Retry {
		var next *list.Element
		for e := ln.queue.Front(); e != nil; e = next {
			next = e.Next()
			if w := e.Value.(*waiter[R, A]); w.seq <= upTo {
				l.turnAway(ln, w, res)
			}
		}
	}
	later := ln.fresh[:0]
	for _, w := range ln.fresh {
		switch {
		case w.at == nil:
		case w.seq > upTo:
			later = append(later, w)
		default:
			l.turnAway(ln, w, res)
		}
	}
	clear(ln.fresh[len(later):])
	ln.fresh = later
	return len(later) > 0
}

// turnAway parks a request for which there was nothing, or answers it.
func (l *Lot[K, T, R, A]) turnAway(ln *line[K, R, A], w *waiter[R, A], res Result[A]) {
	switch {
	case w.at == nil:
	case res.Err != nil && (!res.Retry || !w.wait || !w.probed):
		l.remove(ln, w)
		w.answer <- outcome[A]{err: res.Err}
	case !w.wait || l.closed:
		l.remove(ln, w)
		w.answer <- outcome[A]{}
	default:
		w.probed = true
	}
}

// heldPause is when to look again for what is due but was not given out, because
// somebody else has a hand on it. That may be for long, so not without a pause.
const heldPause = 10 * time.Millisecond

// rest sets the alarm of a line whose requests are parked.
func (l *Lot[K, T, R, A]) rest(ln *line[K, R, A], next time.Duration) {
	if ln.queue.Len() == 0 {
		l.forget(ln)
		return
	}
	d := l.cfg.Interval
	for range min(ln.empty-l.cfg.Threshold, 30) {
		d = time.Duration(float64(d) * l.cfg.Factor)
	}
	d = max(min(d, l.cfg.MaxInterval), l.turn())
	ln.empty++
	// Many lines must not look at the same instant.
	d -= time.Duration(rand.Int64N(int64(d)/8 + 1))
	known := false // that something is due then
	switch {
	case next > 0 && next < d:
		// The instant itself is not due yet: a little later it is.
		d, known = next+time.Millisecond, true
	case next == 0:
		d, known = min(d, heldPause), true
	}
	ln.timer = time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.lines[ln.key] != ln || ln.queue.Len() == 0 {
			return
		}
		if known || l.cfg.Look == nil {
			l.start(ln)
			return
		}
		l.ask(ln)
	})
}

// turn is how long it takes to look at every line once. The lock is held.
func (l *Lot[K, T, R, A]) turn() time.Duration {
	if l.cfg.LookRate <= 0 {
		return 0
	}
	return time.Duration(len(l.lines)) * time.Second / time.Duration(l.cfg.LookRate)
}

// Pace is how long a line rests at the most when nothing wakes it.
func (l *Lot[K, T, R, A]) Pace() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.cfg.MaxInterval, l.turn())
}

// Waiting counts the parked and asking requests per topic.
func (l *Lot[K, T, R, A]) Waiting() map[T]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[T]int, len(l.topics))
	for t, lines := range l.topics {
		for ln := range lines {
			out[t] += ln.queue.Len()
		}
	}
	return out
}

// Drain answers every parked request with nothing, lets no new one wait, and
// returns when no probe is in flight.
func (l *Lot[K, T, R, A]) Drain() {
	l.mu.Lock()
	if !l.closed {
		close(l.drained)
	}
	l.closed = true
	for _, ln := range l.lines {
		var next *list.Element
		for e := ln.queue.Front(); e != nil; e = next {
			next = e.Next()
			w := e.Value.(*waiter[R, A])
			w.wait = false
			if !w.inFlight && w.probed {
				l.remove(ln, w)
				w.answer <- outcome[A]{}
			}
		}
		l.forget(ln)
	}
	l.mu.Unlock()
	l.probes.Wait()
}
