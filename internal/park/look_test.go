package park_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/park"
)

// watcher looks at the pile of a store for many lines at once.
type watcher struct {
	s *store

	mu    sync.Mutex
	looks int
	keys  int
	err   error
	next  time.Duration
}

func (w *watcher) look(keys []string) ([]park.Glance, error) {
	w.mu.Lock()
	w.looks++
	w.keys += len(keys)
	err, next := w.err, w.next
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	out := make([]park.Glance, len(keys))
	for i, k := range keys {
		out[i] = park.Glance{Due: len(w.s.pile[k]) > 0, Next: next}
	}
	return out, nil
}

func watched(t *testing.T, interval time.Duration, rate int) (*store, *watcher) {
	w := &watcher{next: -1}
	w.s = newStore(t, func(c *lotConfig) {
		c.Interval, c.MaxInterval, c.Look, c.LookRate = interval, interval, w.look, rate
	})
	return w.s, w
}

// park parks n requests, each in a line of its own, and returns how to wait for
// their answers.
func (s *store) parkMany(n int, wait time.Duration) func() (found int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for i := range n {
		wg.Go(func() {
			_, found, err := s.lot.Take(s.t.Context(), fmt.Sprintf("k%04d", i), 1, wait)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && found {
				total++
			}
		})
	}
	return func() int { wg.Wait(); return total }
}

func TestManyLinesShareALook(t *testing.T) {
	t.Parallel()
	s, w := watched(t, 50*time.Millisecond, 0)
	answers := s.parkMany(500, 400*time.Millisecond)
	if n := answers(); n != 0 {
		t.Errorf("%d answers out of nothing", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.probes > 500 {
		t.Errorf("%d probes of 500 lines in which there is nothing", s.probes)
	}
	if w.keys < 1000 || w.keys < 3*w.looks {
		t.Errorf("%d looks at %d lines", w.looks, w.keys)
	}
}

func TestALookFindsWhatNobodyTold(t *testing.T) {
	t.Parallel()
	s, _ := watched(t, 50*time.Millisecond, 0)
	answers := s.parkMany(100, 10*time.Second)
	for s.lot.Waiting()[5] < 100 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	s.mu.Lock()
	for i := range 100 {
		s.pile[fmt.Sprintf("k%04d", i)] = []int{i}
	}
	s.mu.Unlock()
	start := time.Now()
	if n := answers(); n != 100 || time.Since(start) > 5*time.Second {
		t.Errorf("%d answers after %v", n, time.Since(start))
	}
}

func TestALookSaysWhenToLookAgain(t *testing.T) {
	t.Parallel()
	s, w := watched(t, 30*time.Millisecond, 1) // the rate makes the interval long
	w.next = 100 * time.Millisecond
	answers := s.parkMany(3, 10*time.Second)
	time.Sleep(20 * time.Millisecond)
	s.mu.Lock()
	for i := range 3 {
		s.pile[fmt.Sprintf("k%04d", i)] = []int{i}
	}
	s.mu.Unlock()
	w.mu.Lock()
	w.next = -1
	w.mu.Unlock()
	if n := answers(); n != 3 {
		t.Errorf("%d answers", n)
	}
}

func TestAFailedLookIsRepeated(t *testing.T) {
	t.Parallel()
	s, w := watched(t, 20*time.Millisecond, 0)
	w.err = errors.New("away")
	answers := s.parkMany(10, 10*time.Second)
	time.Sleep(200 * time.Millisecond)
	w.mu.Lock()
	w.err = nil
	w.mu.Unlock()
	s.mu.Lock()
	for i := range 10 {
		s.pile[fmt.Sprintf("k%04d", i)] = []int{i}
	}
	s.mu.Unlock()
	if n := answers(); n != 10 {
		t.Errorf("%d answers", n)
	}
}

func TestDrainDuringALook(t *testing.T) {
	t.Parallel()
	for range 20 {
		s, _ := watched(t, time.Millisecond, 0)
		answers := s.parkMany(50, 10*time.Second)
		time.Sleep(5 * time.Millisecond)
		s.lot.Drain()
		if n := answers(); n != 0 {
			t.Errorf("%d answers", n)
		}
	}
}
