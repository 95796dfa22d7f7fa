package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// rush runs n callers at once, spread over the brokers of a fleet.
func rush(f *Fleet, n int, each func(b *Broker, i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			each(f.Brokers[i%len(f.Brokers)], i)
		})
	}
	close(start)
	wg.Wait()
}

func TestKV_K4_OneOfManyCreates(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	for round := range 5 {
		var mu sync.Mutex
		won := map[string]int{}
		rush(f, 50, func(b *Broker, i int) {
			r := b.KV1(`{"op":"putIfAbsent","ns":"n","key":"k%d","value":%d,"ttlSeconds":60}`, round, i)
			mu.Lock()
			defer mu.Unlock()
			if r.OK() {
				won["applied"]++
			}
			won[string(r.Value)]++
		})
		if won["applied"] != 1 || len(won) != 2 {
			t.Errorf("round %d: %v: one was to win and all to see it", round, won)
		}
	}
}

func TestKV_K15_EveryIncrementCountsOnce(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	type seen struct{ value, version int64 }
	var mu sync.Mutex
	var all []seen
	start := time.Now()
	rush(f, 200, func(b *Broker, _ int) {
		r := b.KV1(`{"op":"incr","ns":"n","key":"k","delta":1,"forever":true}`)
		n, err := strconv.ParseInt(string(r.Value), 10, 64)
		if err != nil || !r.OK() {
			t.Errorf("%+v", r)
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, seen{n, r.Version})
	})
	t.Logf("200 increments of one key by two brokers: %v", time.Since(start))
	slices.SortFunc(all, func(a, b seen) int { return int(a.value - b.value) })
	for i, s := range all {
		if s.value != int64(i+1) {
			t.Fatalf("value %d at place %d", s.value, i)
		}
		if i > 0 && s.version <= all[i-1].version {
			t.Errorf("value %d has version %d, the one before %d", s.value, s.version, all[i-1].version)
		}
	}
}

func TestKV_K16_VersionsRise(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	last := int64(0)
	rises := func(r KVResult) {
		t.Helper()
		if !r.OK() || r.Version <= last {
			t.Fatalf("%+v after version %d", r, last)
		}
		last = r.Version
	}
	put := func(b *Broker, life string) KVResult {
		return b.KV1(`{"op":"put","ns":"n","key":"k","value":1,%s}`, life)
	}
	rises(put(f.Brokers[0], `"forever":true`))
	f.Brokers[1].KV1(`{"op":"delete","ns":"n","key":"k"}`)
	rises(put(f.Brokers[1], `"forever":true`))
	rises(put(f.Brokers[0], `"ttlSeconds":1`))
	time.Sleep(1100 * time.Millisecond)
	rises(put(f.Brokers[1], `"ttlSeconds":1,"expect":0`))
	f.Brokers[0].Stop()
	f.Brokers[0] = f.start([]string{"DATABASE_URL=" + f.DB.URL, "DB_POOL_SIZE=8", fast[0], fast[1]})
	rises(put(f.Brokers[0], `"forever":true`))

	// A watcher sees the commits in their order: what it reads never goes back.
	stop := make(chan struct{})
	var watching sync.WaitGroup
	for _, b := range f.Brokers {
		watching.Go(func() {
			seen := int64(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := b.KV1(`{"op":"get","ns":"n","key":"k"}`)
				if r.OK() && r.Version < seen {
					t.Errorf("read version %d after %d", r.Version, seen)
				}
				seen = max(seen, r.Version)
			}
		})
	}
	rush(f, 100, func(b *Broker, i int) {
		for j := range 3 {
			before := b.KV1(`{"op":"get","ns":"n","key":"k"}`)
			var r KVResult
			if (i+j)%4 == 0 {
				b.KV1(`{"op":"delete","ns":"n","key":"k"}`)
			}
			if r = put(b, `"forever":true`); r.Version <= before.Version {
				t.Errorf("version %d written after %d was read", r.Version, before.Version)
			}
		}
	})
	close(stop)
	watching.Wait()
}

// Batches that name the same keys in opposite orders wait for each other, and
// never for ever.
func TestKV_OppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	const keys = 20
	start := time.Now()
	rush(f, 40, func(b *Broker, i int) {
		ops := make([]string, keys)
		for k := range keys {
			ops[k] = fmt.Sprintf(`{"op":"incr","ns":"n","key":"k%d","delta":1,"forever":true}`, k)
		}
		if i%2 == 1 {
			slices.Reverse(ops)
		}
		for range 3 {
			b.KV(ops...)
		}
	})
	t.Logf("120 calls of %d keys: %v", keys, time.Since(start))
	for k := range keys {
		wantKV(t, f.One().KV1(`{"op":"get","ns":"n","key":"k%d"}`, k), "120")
	}
	var deadlocks int
	if err := f.DB.Pool(t).QueryRow(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks); err != nil || deadlocks > 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}
