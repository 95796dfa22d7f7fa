package park_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Every answer reaches one caller or is taken back, whatever happens at once.
func TestRandomInterleavings(t *testing.T) {
	t.Parallel()
	s := newStore(t, func(c *lotConfig) { c.Interval, c.MaxInterval = 3*time.Millisecond, 10*time.Millisecond })
	const keys, callers, rounds = 3, 24, 150
	names := []string{"a", "b", "cc"}
	var answered, wrong atomic.Int64
	seen := sync.Map{}
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			r := uint32(c*7919 + 1)
			for range rounds {
				r = r*1664525 + 1013904223
				ctx, cancel := context.WithCancel(context.Background())
				if r>>16%3 == 0 {
					time.AfterFunc(time.Duration(r>>20%2000)*time.Microsecond, cancel)
				}
				v, found, err := s.lot.Take(ctx, names[r>>8%keys], c, time.Duration(r>>12%4)*time.Millisecond)
				if found {
					answered.Add(1)
					if _, twice := seen.LoadOrStore(v, true); twice || err != nil {
						wrong.Add(1)
					}
				}
				cancel()
			}
		})
	}
	put := 0
	stop := make(chan struct{})
	var putter sync.WaitGroup
	putter.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
				put++
				s.put(names[i%keys], put)
				if i%7 == 0 {
					s.lot.Wake(1, nil)
				}
			}
		}
	})
	wg.Wait()
	close(stop)
	putter.Wait()
	s.lot.Drain()
	left := 0
	for _, p := range s.pile {
		left += len(p)
	}
	if got := int(answered.Load()) + len(s.undone) + left; got != put || wrong.Load() > 0 {
		t.Errorf("%d answered + %d taken back + %d left = %d of %d, %d twice", answered.Load(), len(s.undone), left, got, put, wrong.Load())
	}
	if len(s.lot.Waiting()) != 0 {
		t.Errorf("still waiting: %v", s.lot.Waiting())
	}
}
