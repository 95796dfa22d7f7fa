// Package batch gathers concurrent requests into few transactions.
//
// A request never starts a timer of its own: while one flush of a lane is in
// flight, later requests gather; when it returns, all of them go in the next
// one, up to an item and a byte limit. Idle means no delay, load means large
// transactions. The order of requests is kept inside a lane.
package batch

import (
	"sync"
	"time"
)

// Limits bound one flush. A single request over a limit goes alone.
type Limits struct {
	Items int
	Bytes int
}

// Flush runs one gathered batch. It answers every request by itself, must not
// keep the slice, and must not panic.
type Flush[T any] func(items []T)

// Observe is told of every flush.
type Observe func(items int, took time.Duration)

// Lane is one line of requests with at most one flush in flight.
type Lane[T any] struct {
	flush   Flush[T]
	observe Observe
	limits  Limits

	mu      sync.Mutex
	waiting []entry[T]
	busy    bool
	idle    sync.Cond // signalled when busy becomes false
}

type entry[T any] struct {
	item  T
	count int
	bytes int
}

// NewLane returns an idle lane. observe may be nil.
func NewLane[T any](limits Limits, observe Observe, flush Flush[T]) *Lane[T] {
	l := &Lane[T]{flush: flush, observe: observe, limits: limits}
	l.idle.L = &l.mu
	return l
}

// Add hands a request to the lane. count and bytes are its share of the limits.
func (l *Lane[T]) Add(item T, count, bytes int) {
	l.mu.Lock()
	l.waiting = append(l.waiting, entry[T]{item, count, bytes})
	if l.busy {
		l.mu.Unlock()
		return
	}
	l.busy = true
	l.mu.Unlock()
	go l.work()
}

// Wait returns once everything added before has been flushed and nothing is in
// flight.
func (l *Lane[T]) Wait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.busy {
		l.idle.Wait()
	}
}

func (l *Lane[T]) work() {
	var items []T
	for {
		l.mu.Lock()
		n, count := l.next()
		if n == 0 {
			l.waiting = nil
			l.busy = false
			l.idle.Broadcast()
			l.mu.Unlock()
			return
		}
		items = items[:0]
		for _, e := range l.waiting[:n] {
			items = append(items, e.item)
		}
		clear(l.waiting[:n]) // let go of what was taken
		l.waiting = l.waiting[n:]
		l.mu.Unlock()

		start := time.Now()
		l.flush(items)
		if l.observe != nil {
			l.observe(count, time.Since(start))
		}
		clear(items)
	}
}

// next says how many requests go in the next flush, and their items.
func (l *Lane[T]) next() (n, count int) {
	bytes := 0
	for _, e := range l.waiting {
		if n > 0 && (count+e.count > l.limits.Items || bytes+e.bytes > l.limits.Bytes) {
			break
		}
		n, count, bytes = n+1, count+e.count, bytes+e.bytes
	}
	return n, count
}

// Lanes is a fixed set of lanes among which requests are spread by a hash, so
// that those of one key stay in one line.
type Lanes[T any] []*Lane[T]

// NewLanes returns n idle lanes.
func NewLanes[T any](n int, limits Limits, observe Observe, flush Flush[T]) Lanes[T] {
	ls := make(Lanes[T], n)
	for i := range ls {
		ls[i] = NewLane(limits, observe, flush)
	}
	return ls
}

// Of returns the lane of a hash.
func (ls Lanes[T]) Of(hash uint64) *Lane[T] { return ls[hash%uint64(len(ls))] }

// Wait waits for every lane.
func (ls Lanes[T]) Wait() {
	for _, l := range ls {
		l.Wait()
	}
}
