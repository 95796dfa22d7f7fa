package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// deadlocks is how often the database broke one up.
func (f *Fleet) deadlocks() (n int) {
	f.t.Helper()
	pool := f.DB.Pool(f.t)
	defer pool.Close()
	// Sessions report what they counted when they are idle, not at once.
	time.Sleep(1100 * time.Millisecond)
	if err := pool.QueryRow(f.t.Context(), `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// Bundles over the same partitions of two queues, in any order, each with acks
// and pushes, beside plain pushes, plain acks and pops: no client sees a
// deadlock, or any other error.
func TestBundle_B142_OverlappingBundlesAtOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{20, 200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			seed := modelSeed(t)
			f := Start(t, Options{Brokers: 2})
			const lanes, each = 6, 40
			place := func(r *rand.Rand) (queue, part string) {
				return fmt.Sprint("q", r.IntN(2)), fmt.Sprint("p", r.IntN(lanes))
			}
			sources := map[string]*PopAnswer{}
			for q := range 2 {
				queue := fmt.Sprint("q", q)
				for p := range lanes {
					f.One().PushN(queue, fmt.Sprint("p", p), "m", each)
					got := f.One().PopPinned(queue, fmt.Sprint("p", p), as("g")+fmt.Sprint("batch=", each))
					sources[got.Queue+"/"+got.Partition] = got
				}
			}
			var wg sync.WaitGroup
			start := make(chan struct{})
			var mu sync.Mutex
			var slowest time.Duration
			call := func(b *Broker, want int, path string, body any) (answer []byte) {
				from := time.Now()
				status, _, answer, err := b.Try(context.Background(), "POST", path, body)
				if err != nil || status != want {
					t.Errorf("%s: %d %s %v", path, status, answer, err)
				}
				mu.Lock()
				defer mu.Unlock()
				slowest = max(slowest, time.Since(from))
				return answer
			}
			items := func(r *rand.Rand) (out []Item) {
				for range 1 + r.IntN(6) {
					queue, part := place(r)
					if r.IntN(20) == 0 {
						queue, part = fmt.Sprint("new", r.IntN(3)), fmt.Sprint("new", r.IntN(5))
					}
					out = append(out, Item{Queue: queue, Partition: part})
				}
				return out
			}
			// Without leases: an ack that comes too late is done already.
			acks := func(r *rand.Rand) (out []AckItem) {
				for range 1 + r.IntN(6) {
					queue, part := place(r)
					out = append(out, without(pick(sources[queue+"/"+part], fmt.Sprint(r.IntN(each))))...)
				}
				return out
			}
			for i := range n {
				r, b := rand.New(rand.NewPCG(seed, uint64(i))), f.Brokers[i%2]
				wg.Go(func() {
					<-start
					for range 3 {
						var a bundleAnswer
						raw := call(b, http.StatusOK, transactionPath, ops(items(r), groupAcks{"g", acks(r)}, items(r)))
						if err := json.Unmarshal(raw, &a); err != nil || !a.Success {
							t.Errorf("bundle: %s", raw)
						}
						switch r.IntN(3) {
						case 0:
							call(b, http.StatusCreated, "/api/v1/push", PushBody(filled(items(r)...)...))
						case 1:
							call(b, http.StatusOK, "/api/v1/ack/batch", map[string]any{"consumerGroup": "g", "acknowledgments": acks(r)})
						default:
							b.Do("GET", "/api/v1/pop/queue/q0?autoAck=true&partitions=8&batch=20&"+as("h"), nil)
						}
					}
				})
			}
			close(start)
			wg.Wait()
			dead := f.deadlocks()
			t.Logf("%d bundles at once, three times: %d deadlocks in the database, slowest call %v", n, dead, slowest)
			checkNothingStranded(t, f.DB.Pool(t))
		})
	}
}

// TestBundle_B147_WakesAfterTheCommit holds the partition of a bundle's push, so
// that the bundle waits, and looks what a parked pop gets, and when.
func TestBundle_B147_WakesAfterTheCommit(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b, other := f.Brokers[0], f.Brokers[1]
	b.PushN("in", "p", "m", 1)
	b.Push(Item{Queue: "out", Partition: "p", TransactionID: "first"})
	for _, b := range f.Brokers {
		b.Pop("out", as("g")+"autoAck=true")
	}
	p := b.Pop("in", "")
	parkedAt := func(b *Broker) <-chan *PopAnswer {
		got := parkPop(b, "out", as("g")+"wait=true&timeout=20000")
		parked(t, b, "out", 1)
		return got
	}
	here := parkedAt(b)
	pool := f.DB.Pool(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM queen.partitions WHERE id = (SELECT id FROM queen.partitions ORDER BY id DESC LIMIT 1) FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	done := async(func() []stepResult {
		return commits(b, ops(pick(p, "0"), Item{Queue: "out", Partition: "p", TransactionID: "second"}))
	})
	select {
	case got := <-here:
		t.Fatalf("delivered before the commit: %v", got.IDs())
	case <-done:
		t.Fatal("committed past a lock")
	case <-time.After(1200 * time.Millisecond):
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, done, "the commit")
	committed := time.Now()
	if got := await(t, here, "a delivery"); got == nil || got.IDs()[0] != "second" {
		t.Fatalf("got %v", got.IDs())
	} else if took := time.Since(committed); took > 300*time.Millisecond {
		t.Errorf("woken %v after the commit", took)
	} else {
		b.AckAll(got)
	}
	// At another broker, too, and for a queue and partition that are new.
	for i, it := range []Item{{Queue: "out", Partition: "p"}, {Queue: "out", Partition: "p-new"}, {Queue: "new"}} {
		if it.Queue == "new" {
			deliversNothing(other, "new", as("g"))
		}
		got := parkPop(other, it.Queue, as("g")+"wait=true&timeout=20000")
		parked(t, other, it.Queue, 1)
		commits(b, ops(it))
		committed := time.Now()
		p := await(t, got, "a delivery")
		if took := time.Since(committed); p == nil || took > 700*time.Millisecond {
			t.Errorf("%d: %v after %v", i, p.IDs(), took)
		}
		other.AckAll(p)
	}
	// What a bundle hands back is delivered at once.
	b.PushN("in", "p", "n", 1)
	p = b.Pop("in", "")
	got := parkPop(other, "in", "wait=true&timeout=20000")
	parked(t, other, "in", 1)
	commits(b, ops(pick(p, "0 failed")))
	from := time.Now()
	if p := await(t, got, "a redelivery"); p == nil || time.Since(from) > 700*time.Millisecond {
		t.Errorf("%v after %v", p.IDs(), time.Since(from))
	}
}
