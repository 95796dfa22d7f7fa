package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore"
)

// BenchmarkBundle is how many transactions a second are committed, each an ack
// and a push, with a counter and a timer or without: over HTTP, and by the
// broker's statements alone on as many connections, which is the floor.
func BenchmarkBundle(b *testing.B) {
	for _, riders := range []bool{false, true} {
		name := "ack+push"
		if riders {
			name += "+kv+timer"
		}
		b.Run("floor/"+name, func(b *testing.B) { benchFloor(b, riders) })
		b.Run("http/"+name, func(b *testing.B) { benchHTTP(b, riders) })
	}
}

const benchWorkers = 16

// benchmark gives each worker a partition with as many messages as it will
// acknowledge, and measures all of them together.
func benchmark(b *testing.B, f *Fleet, worker func(w, n int, source Message) error) {
	each := (b.N + benchWorkers - 1) / benchWorkers
	sources := make([]Message, benchWorkers)
	for w := range sources {
		part := fmt.Sprint("p", w)
		for at := 0; at < each; at += 500 {
			items := make([]Item, min(500, each-at))
			for i := range items {
				items[i] = Item{Queue: "in", Partition: part, TransactionID: fmt.Sprint("m-", at+i)}
			}
			f.One().Push(items...)
		}
		f.One().Push(Item{Queue: "out", Partition: part})
		sources[w] = f.One().PopPinned("in", part, as("g")+"batch=1&leaseSeconds=3600").Messages[0]
	}
	var wg sync.WaitGroup
	b.ResetTimer()
	from := time.Now()
	for w := range benchWorkers {
		wg.Go(func() {
			if err := worker(w, each, sources[w]); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(each*benchWorkers)/time.Since(from).Seconds(), "bundles/s")
}

func benchHTTP(b *testing.B, riders bool) {
	f := Start(b, Options{Env: []string{"DB_POOL_SIZE=20"}})
	benchmark(b, f, func(w, n int, source Message) error {
		for i := range n {
			ack := AckItem{TransactionID: fmt.Sprint("m-", i), PartitionID: source.PartitionID}
			body := map[string]any{"operations": ops(groupAcks{"g", []AckItem{ack}}, Item{
				Queue: "out", Partition: fmt.Sprint("p", w), TransactionID: fmt.Sprint("o-", i), Payload: json.RawMessage(`{"n":1}`),
			}).Operations}
			if riders {
				body["kv"] = []any{map[string]any{"op": "incr", "ns": "n", "key": fmt.Sprint("w", w), "delta": 1, "forever": true}}
				body["timers"] = []any{map[string]any{
					"op": "schedule", "queue": "later", "timerKey": fmt.Sprintf("%d-%d", w, i), "txn": fmt.Sprintf("%d-%d", w, i), "delayMs": 3600000, "payload": "e30=",
				}}
			}
			status, _, raw, err := f.One().Try(context.Background(), "POST", transactionPath, body)
			var a bundleAnswer
			if err == nil {
				err = json.Unmarshal(raw, &a)
			}
			if err != nil || status != http.StatusOK || !a.Success {
				return fmt.Errorf("%d %s: %w", status, raw, err)
			}
		}
		return nil
	})
}

func benchFloor(b *testing.B, riders bool) {
	f := Start(b, Options{})
	store, err := pgstore.Open(b.Context(), pgstore.Config{URL: f.DB.URL, PoolSize: 20, AppName: "floor"})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	benchmark(b, f, func(w, n int, source Message) error {
		ctx := context.Background()
		out, err := store.EnsureQueue(ctx, mq.DefaultTenant, "out")
		if err != nil {
			return err
		}
		id, _ := mq.ParsePartitionID(source.PartitionID)
		g, err := store.FindGroup(ctx, id.Queue, "g")
		if err != nil {
			return err
		}
		for i := range n {
			if err := floorBundle(ctx, store, out, id, g.ID, w, i, riders); err != nil {
				return err
			}
		}
		return nil
	})
}

// floorBundle is what a broker does for such a transaction, already judged.
func floorBundle(ctx context.Context, store *pgstore.Store, out *mq.QueueInfo, id mq.PartitionID, group int64, w, i int, riders bool) error {
	key := mq.CursorKey{Partition: id.Partition, Group: group}
	m := &mq.Message{ID: mq.NewID(), TransactionID: fmt.Sprint("o-", i), Payload: []byte(`{"n":1}`), Probe: true}
	m.Hash = mq.HashID(m.TransactionID)
	work := &mq.BundleWork{
		Tenant: mq.DefaultTenant,
		Pushes: []mq.BundlePush{{Queue: out, Partitions: []string{fmt.Sprint("p", w)}, Messages: []*mq.Message{m}}},
		Acks: []mq.AckQuery{{
			QueueID: id.Queue, Cursors: []mq.CursorKey{key},
			IDs: []mq.AckID{{Partition: id.Partition, Key: mq.HashID(fmt.Sprint("m-", i)).Key}},
		}},
	}
	if riders {
		delta, _ := mq.ParseDecimal([]byte("1"))
		work.KV = &mq.KVCall{Tenant: mq.DefaultTenant, Locked: true, Ops: []mq.KVOp{{
			Verb: mq.KVIncr, KVAddress: mq.KVAddress{Namespace: "n", Key: fmt.Sprint("w", w)}, Delta: delta,
		}}}
		name := fmt.Sprintf("%d-%d", w, i)
		work.Timers = mq.NewTimerCall(mq.DefaultTenant, "", []mq.TimerOp{{
			Queue: "later", Key: name, Partition: mq.DefaultPartition, TransactionID: name, Delay: time.Hour, Payload: []byte(`{}`),
		}})
	}
	committed, err := store.Transact(ctx, work, func(l *mq.BundleLocked) (*mq.BundleDecision, error) {
		if work.KV != nil {
			work.KV.Evaluate()
		}
		if got := l.Acks[0].Offsets[work.Acks[0].IDs[0]]; len(got) != 1 || l.Probes[0][0].Stored >= 0 {
			return nil, fmt.Errorf("step %d of %d: %v %v", i, w, got, l.Probes)
		}
		ack := &mq.AckDecision{Changes: func() []mq.CursorChange {
			return []mq.CursorChange{{CursorKey: key, Committed: int64(i), Release: i == 0, AttemptOffset: -1}}
		}}
		return &mq.BundleDecision{Commit: true, Acks: []*mq.AckDecision{ack}, Confirm: func() bool { return true }}, nil
	})
	if err == nil && !committed {
		err = fmt.Errorf("step %d of %d was not committed", i, w)
	}
	return err
}
