package batch

import (
	"sync"
	"time"
)

// overdue is when a flush counts as slow: longer than a commit takes, and short
// against what those behind it would have to wait for.
const overdue = 50 * time.Millisecond

// maxSlow bounds the slow flushes of a lane that may be overtaken, because each
// of them occupies a connection.
const maxSlow = 8

// Lane is one line of requests. At most one flush is in flight, except that one
// that is slow, because somebody holds what it needs, is overtaken by requests
// of other keys.
type Lane[T any] struct {
	flush   Flush[T]
	observe Observe
	limits  Limits

	mu      sync.Mutex
	waiting []entry[T]
	working bool           // somebody takes from the line
	workers int            // the one that does, and those in a slow flush
	slow    map[uint64]int // the keys of the slow flushes; these wait
	slowN   int
	idle    sync.Cond // signalled when there are no workers
}

type entry[T any] struct {
	item  T
	key   uint64
	count int
	bytes int
}

// NewLane returns an idle lane. observe may be nil.
func NewLane[T any](limits Limits, observe Observe, flush Flush[T]) *Lane[T] {
	l := &Lane[T]{flush: flush, observe: observe, limits: limits, slow: map[uint64]int{}}
	l.idle.L = &l.mu
	return l
}

// Add hands a request to the lane. Requests of one key are flushed in order;
// count and bytes are its share of the limits.
func (l *Lane[T]) Add(item T, key uint64, count, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, entry[T]{item, key, count, bytes})
	if l.slow[key] == 0 {
		l.start()
	}
}

// start has somebody take from the line. The lock is held.
func (l *Lane[T]) start() {
	if !l.working {
		l.working = true
		l.workers++
		go l.work()
	}
}

// Wait returns once everything added before has been flushed and nothing is in
// flight.
func (l *Lane[T]) Wait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.workers > 0 {
		l.idle.Wait()
	}
}

// flight is a flush under way.
type flight[T any] struct {
	entries  []entry[T]
	done     bool
	overtook bool // others have gone past
}

func (l *Lane[T]) work() {
	var items []T
	for f := l.take(nil); f != nil; f = l.take(f) {
		items = items[:0]
		count := 0
		for _, e := range f.entries {
			items, count = append(items, e.item), count+e.count
		}
		late := time.AfterFunc(overdue, func() { l.overtake(f) })
		start := time.Now()
		l.flush(items)
		late.Stop()
		if l.observe != nil {
			l.observe(count, time.Since(start))
		}
		clear(items)
	}
}

// take ends a flight and begins the next; nil when there is nothing to do, or
// somebody else does it.
func (l *Lane[T]) take(last *flight[T]) *flight[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last != nil {
		last.done = true
		if last.overtook {
			l.slowN--
			for _, e := range last.entries {
				if l.slow[e.key]--; l.slow[e.key] == 0 {
					delete(l.slow, e.key)
				}
			}
			if l.working {
				return l.leave()
			}
			l.working = true
		}
	}
	f := &flight[T]{entries: l.next()}
	if len(f.entries) == 0 {
		l.working = false
		return l.leave()
	}
	return f
}

func (l *Lane[T]) leave() *flight[T] {
	if l.workers--; l.workers == 0 {
		l.idle.Broadcast()
	}
	return nil
}

// overtake lets the others go past a flight that is still under way.
func (l *Lane[T]) overtake(f *flight[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.done || l.slowN >= maxSlow {
		return
	}
	f.overtook = true
	l.slowN++
	for _, e := range f.entries {
		l.slow[e.key]++
	}
	l.working = false
	if len(l.waiting) > 0 {
		l.start()
	}
}

// next takes from the line what goes in the next flush.
func (l *Lane[T]) next() []entry[T] {
	var taken []entry[T]
	kept := l.waiting[:0]
	count, bytes := 0, 0
	full := false
	for _, e := range l.waiting {
		full = full || len(taken) > 0 && (count+e.count > l.limits.Items || bytes+e.bytes > l.limits.Bytes)
		if full || l.slow[e.key] > 0 {
			kept = append(kept, e)
			continue
		}
		taken = append(taken, e)
		count, bytes = count+e.count, bytes+e.bytes
	}
	clear(l.waiting[len(kept):]) // let go of what was taken
	if l.waiting = kept; len(kept) == 0 && cap(kept) > 1024 {
		l.waiting = nil
	}
	return taken
}
