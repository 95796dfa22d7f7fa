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
	l.Add(0, 0, 1, 1)
	<-started
	for i := 1; i < 50; i++ {
		l.Add(i, uint64(i), 1, 1)
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
	l.Add(0, 0, 1, 1)
	<-started
	for range 4 {
		l.Add(0, 0, 3, 1) // three fit ten items
	}
	l.Add(0, 0, 1, 500) // alone
	l.Add(0, 0, 1, 1)
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
				ls.Add(g*500+i, uint64(i), 1, 10)
			}
		})
	}
	wg.Wait()
	ls.Wait()
	if len(seen) != 4000 || observed != 4000 {
		t.Fatalf("saw %d of 4000, observed %d", len(seen), observed)
	}
}

func TestLaneIsOvertakenByOtherKeysOnly(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var order []string
	l := batch.NewLane(batch.Limits{Items: 100, Bytes: 1000}, nil, func(items []string) {
		if items[0] == "stuck" {
			close(started)
			<-release
		}
		mu.Lock()
		defer mu.Unlock()
		order = append(order, items...)
	})
	done := func(n int) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			mu.Lock()
			got := len(order)
			mu.Unlock()
			if got == n {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d requests went through, want %d: %v", got, n, order)
			}
		}
	}
	l.Add("stuck", 1, 1, 1)
	<-started
	l.Add("same", 1, 1, 1)
	l.Add("other", 2, 1, 1)
	done(1)
	l.Add("same again", 1, 1, 1)
	l.Add("third", 3, 1, 1)
	done(2)
	close(release)
	l.Wait()
	if want := []string{"other", "third", "stuck", "same", "same again"}; !slices.Equal(order, want) {
		t.Fatalf("order %v, want %v", order, want)
	}
}

func TestLaneKeepsTheOrderOfAKeyWhateverIsSlow(t *testing.T) {
	t.Parallel()
	const keys, each = 6, 150
	var mu sync.Mutex
	last := map[int]int{}
	inFlight := map[int]bool{}
	l := batch.NewLane(batch.Limits{Items: 5, Bytes: 1 << 20}, nil, func(items [][2]int) {
		mu.Lock()
		mine := map[int]bool{}
		for _, it := range items {
			if inFlight[it[0]] && !mine[it[0]] {
				t.Errorf("key %d is in two flushes at a time", it[0])
			}
			mine[it[0]], inFlight[it[0]] = true, true
			if it[1] != last[it[0]]+1 {
				t.Errorf("key %d: %d after %d", it[0], it[1], last[it[0]])
			}
			last[it[0]] = it[1]
		}
		mu.Unlock()
		if items[0][1]%50 == 0 {
			time.Sleep(80 * time.Millisecond) // overdue
		}
		mu.Lock()
		for k := range mine {
			delete(inFlight, k)
		}
		mu.Unlock()
	})
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			for i := range each {
				l.Add([2]int{k, i + 1}, uint64(k), 1, 1)
			}
		})
	}
	wg.Wait()
	l.Wait()
	for k := range keys {
		if last[k] != each {
			t.Errorf("key %d ended at %d", k, last[k])
		}
	}
}
