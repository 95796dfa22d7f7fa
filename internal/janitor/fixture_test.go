package janitor_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/janitor"
	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

// fixture is a store with one queue, and a session beside it.
type fixture struct {
	*pgstore.Store
	t     *testing.T
	db    *pgtest.DB
	queue *mq.QueueInfo
	sql   *session
	// cycles counts how often the retention loop has begun.
	cycles atomic.Int64
}

// session runs statements as an operator would.
type session struct {
	t        *testing.T
	execFunc func(sql string, args ...any) error
	oneFunc  func(dst *int64, sql string, args ...any) error
}

func (s *session) exec(sql string, args ...any) {
	s.t.Helper()
	if err := s.execFunc(sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *session) one(sql string, args ...any) int64 {
	s.t.Helper()
	var n int64
	if err := s.oneFunc(&n, sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func setup(t *testing.T, apply func(*mq.Options)) *fixture {
	t.Helper()
	db := pgtest.New(t)
	s, err := pgstore.Open(t.Context(), pgstore.Config{URL: db.URL, PoolSize: 12, AppName: "janitor-test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	pool := db.Pool(t)
	f := &fixture{Store: s, t: t, db: db, sql: &session{
		t: t,
		execFunc: func(sql string, args ...any) error {
			_, err := pool.Exec(context.Background(), sql, args...)
			return err
		},
		oneFunc: func(dst *int64, sql string, args ...any) error {
			return pool.QueryRow(context.Background(), sql, args...).Scan(dst)
		},
	}}
	f.queue = f.configure("q", apply)
	return f
}

func (f *fixture) configure(name string, apply func(*mq.Options)) *mq.QueueInfo {
	f.t.Helper()
	q, err := f.Configure(f.t.Context(), mq.DefaultTenant, name, func(o *mq.Options) (mq.Options, error) {
		if o == nil {
			fresh := mq.DefaultOptions()
			o = &fresh
		}
		out := *o
		apply(&out)
		return out, nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return q
}

// RetentionRules is where every cycle of the retention loop begins.
func (f *fixture) RetentionRules(ctx context.Context) ([]mq.RetentionRule, error) {
	f.cycles.Add(1)
	return f.Store.RetentionRules(ctx)
}

// push stores n messages, each as a segment of its own.
func (f *fixture) push(partition string, n int) (partitionID int64) {
	f.t.Helper()
	for range n {
		partitionID = f.pushRun(partition, 1).PartitionID
	}
	return partitionID
}

// pushRun stores n messages as one segment.
func (f *fixture) pushRun(partition string, n int) mq.Run {
	f.t.Helper()
	run, err := f.tryPush(partition, n)
	if err != nil {
		f.t.Fatal(err)
	}
	return run
}

func (f *fixture) tryPush(partition string, n int) (mq.Run, error) {
	ms := make([]*mq.Message, n)
	for i := range ms {
		id := mq.NewID()
		ms[i] = &mq.Message{ID: id, TransactionID: id.String(), Hash: mq.HashID(id.String()), Payload: []byte(`{"a":1}`)}
	}
	ctx := context.Background()
	for range 5 {
		part := []mq.Append{{Queue: f.queue, Runs: []mq.Run{{Partition: partition, Messages: ms}}}}
		if err := f.Append(ctx, part); err != nil {
			return mq.Run{}, err
		}
		if part[0].Runs[0].Appended {
			return part[0].Runs[0], nil
		}
		if err := f.EnsurePartitions(ctx, f.queue.ID, []string{partition}); err != nil {
			return mq.Run{}, err
		}
	}
	return mq.Run{}, fmt.Errorf("push to %s was not stored", partition)
}

// age makes the messages of a partition up to an offset older by an hour.
func (f *fixture) age(partition, through int64) {
	f.t.Helper()
	f.sql.exec(`UPDATE queen.segments SET created_at = created_at - interval '1 hour'
		WHERE queue_id = $1 AND partition_id = $2 AND end_offset <= $3`, f.queue.ID, partition, through)
	f.sql.exec(`UPDATE queen.partitions p SET oldest_at = (SELECT min(s.created_at) FROM queen.segments s
		WHERE s.queue_id = p.queue_id AND s.partition_id = p.id) WHERE queue_id = $1 AND id = $2`, f.queue.ID, partition)
}

func (f *fixture) group(name string) mq.GroupInfo {
	f.t.Helper()
	g, err := f.EnsureGroup(f.t.Context(), f.queue.ID, name, mq.Start{Mode: mq.StartAll}, false)
	if err != nil {
		f.t.Fatal(err)
	}
	return g
}

// lease claims up to n messages of the queue.
func (f *fixture) lease(g mq.GroupInfo, n int) (mq.UUID, []mq.Claim) {
	f.t.Helper()
	id := mq.ScopedID(f.queue.ID)
	c, err := f.Claim(f.t.Context(), f.queue.ID, g, time.Time{}, []mq.ClaimRequest{{
		LeaseID: id, Messages: n, Partitions: 1, Bytes: 8 << 20, LeaseSeconds: 60,
	}})
	if err != nil {
		f.t.Fatal(err)
	}
	return id, c.Claims[0]
}

// consume completes up to n messages and returns how many.
func (f *fixture) consume(g mq.GroupInfo, n int) int {
	f.t.Helper()
	c, err := f.Claim(f.t.Context(), f.queue.ID, g, time.Time{}, []mq.ClaimRequest{{
		LeaseID: mq.ScopedID(f.queue.ID), Messages: n, Partitions: 1, Bytes: 8 << 20, LeaseSeconds: 60, AutoCommit: true,
	}})
	if err != nil {
		f.t.Fatal(err)
	}
	got := 0
	for _, c := range c.Claims[0] {
		got += c.Messages()
	}
	return got
}

// start runs a janitor until the test, or the function returned, ends it.
func (f *fixture) start(apply func(*janitor.Config)) (stop func()) {
	f.t.Helper()
	return f.startOn(f, apply)
}

func (f *fixture) startOn(store janitor.Store, apply func(*janitor.Config)) (stop func()) {
	f.t.Helper()
	cfg := janitor.Config{
		Holder: "test", RetentionInterval: 20 * time.Millisecond, IDInterval: 20 * time.Millisecond, IdleInterval: 20 * time.Millisecond,
	}
	if apply != nil {
		apply(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		janitor.New(store, cfg).Run(ctx)
	}()
	stop = func() {
		cancel()
		select {
		case <-done:
		case <-time.After(3 * time.Second):
			f.t.Error("the janitor did not stop in time")
			<-done
		}
	}
	f.t.Cleanup(stop)
	return stop
}

// someCycles waits until the retention loop has finished a few cycles.
func (f *fixture) someCycles() {
	f.t.Helper()
	from := f.cycles.Load()
	eventually(f.t, func() bool { return f.cycles.Load() >= from+4 })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(end) {
			t.Fatal("did not happen in time")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (f *fixture) segments() int64 {
	f.t.Helper()
	return f.sql.one(`SELECT count(*) FROM queen.segments WHERE queue_id = $1`, f.queue.ID)
}
