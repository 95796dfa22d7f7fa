// Package batch gathers concurrent requests into few transactions.
//
// A request never starts a timer of its own: while one flush of a lane is in
// flight, later requests gather; when it returns, all of them go in the next
// one, up to an item and a byte limit. Idle means no delay, load means large
// transactions. The order of the requests of one key is kept.
package batch

import "time"

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

// Add hands a request to the lane of its key.
func (ls Lanes[T]) Add(item T, key uint64, count, bytes int) {
	ls[key%uint64(len(ls))].Add(item, key, count, bytes)
}

// Wait waits for every lane.
func (ls Lanes[T]) Wait() {
	for _, l := range ls {
		l.Wait()
	}
}
