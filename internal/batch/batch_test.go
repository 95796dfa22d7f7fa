package batch_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/batch"
)

func TestLaneGathersWhileBusyAndKeepsOrder(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	var flushes [][]int
	l := batch.NewLane(batch.Limits{Items: 100, Bytes: 1000}, nil, func(items []int) {
		if len(flushes) == 0 {
			close(started)
			<-release
		}
		flushes = append(flushes, slices.Clone(items))
	})
	l.Add(0, 1, 1)
	<-started
	for i := 1; i < 50; i++ {
		l.Add(i, 1, 1)
	}
	close(release)
	l.Wait()
	if len(flushes) != 2 || len(flushes[1]) != 49 || !slices.IsSorted(flushes[1]) {
		t.Fatalf("want one flush of 1 and one of 49 in order, got %v", flushes)
	}
}

func TestLaneHoldsItsLimitsButPassesWhatExceedsThemAlone(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	var sizes []int
	first := true
	l := batch.NewLane(batch.Limits{Items: 10, Bytes: 100}, nil, func(items []int) {
		if first {
			first = false
			close(started)
			<-release
			return
		}
		sizes = append(sizes, len(items))
	})
	l.Add(0, 1, 1)
	<-started
	for range 4 {
		l.Add(0, 3, 1) // three fit ten items
	}
	l.Add(0, 1, 500) // alone
	l.Add(0, 1, 1)
	close(release)
	l.Wait()
	if want := []int{3, 1, 1, 1}; !slices.Equal(sizes, want) {
		t.Fatalf("flush sizes %v, want %v", sizes, want)
	}
}

func TestLanesLoseNothingUnderLoad(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[int]int{}
	observed := 0
	ls := batch.NewLanes(4, batch.Limits{Items: 7, Bytes: 1 << 20},
		func(items int, _ time.Duration) { mu.Lock(); observed += items; mu.Unlock() },
		func(items []int) {
			mu.Lock()
			defer mu.Unlock()
			for _, i := range items {
				seen[i]++
			}
		})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				ls.Of(uint64(i)).Add(g*500+i, 1, 10)
			}
		})
	}
	wg.Wait()
	ls.Wait()
	if len(seen) != 4000 || observed != 4000 {
		t.Fatalf("saw %d of 4000, observed %d", len(seen), observed)
	}
}
