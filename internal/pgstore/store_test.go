package pgstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

type fixture struct {
	*Store
	t     testing.TB
	queue *mq.QueueInfo
	lease mq.UUID
}

func setup(t testing.TB, queue string) *fixture {
	t.Helper()
	s, err := Open(t.Context(), Config{URL: pgtest.New(t).URL, PoolSize: 8, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	f := &fixture{Store: s, t: t}
	if f.queue, err = s.EnsureQueue(t.Context(), mq.DefaultTenant, queue); err != nil {
		t.Fatal(err)
	}
	return f
}

func message(txn, payload string) *mq.Message {
	m := &mq.Message{ID: mq.NewID(), TransactionID: txn, Payload: []byte(payload), Probe: txn != ""}
	if txn == "" {
		m.TransactionID = m.ID.String()
	}
	m.Hash = mq.HashID(m.TransactionID)
	return m
}

// push stores a run, creating the partition when it is new.
func (f *fixture) push(partition string, ms ...*mq.Message) mq.Run {
	f.t.Helper()
	for range 2 {
		part := []mq.Append{{Queue: f.queue, Runs: []mq.Run{{Partition: partition, Messages: ms}}}}
		if err := f.Append(context.Background(), part); err != nil {
			f.t.Fatal(err)
		}
		if r := part[0].Runs[0]; r.Appended || len(r.Stored) > 0 {
			return r
		}
		if err := f.EnsurePartitions(context.Background(), f.queue.ID, []string{partition}); err != nil {
			f.t.Fatal(err)
		}
	}
	f.t.Fatal("partition was not made")
	return mq.Run{}
}

func (f *fixture) group(name string, mode mq.StartMode) mq.GroupInfo {
	f.t.Helper()
	g, err := f.EnsureGroup(context.Background(), f.queue.ID, name, mq.Start{Mode: mode}, false)
	if err != nil {
		f.t.Fatal(err)
	}
	return g
}

// ackWhole completes a claim by its fingerprint.
func (f *fixture) ackWhole(g mq.GroupInfo, c mq.Claim, fp mq.Fingerprint) mq.BatchAckResult {
	f.t.Helper()
	acks := []mq.QueueAcks{{QueueID: f.queue.ID, Batches: []mq.BatchAck{{
		CursorKey: mq.CursorKey{Partition: c.ID.Partition, Group: g.ID}, LeaseID: f.lease, Count: fp.Count, Mark: fp.Mark,
	}}}}
	if err := f.AckBatches(context.Background(), acks); err != nil {
		f.t.Fatal(err)
	}
	if !acks[0].Results[0].Done {
		f.t.Fatal("batch not recognised")
	}
	return acks[0].Results[0]
}

// claim pops once; f.lease is the lease it took.
func (f *fixture) claim(g mq.GroupInfo, batch, partitions int) []mq.Claim {
	f.t.Helper()
	f.lease = mq.ScopedID(f.queue.ID)
	c, err := f.Claim(context.Background(), f.queue.ID, g, time.Time{}, []mq.ClaimRequest{{
		LeaseID: f.lease, Messages: batch, Partitions: partitions, Bytes: 8 << 20, LeaseSeconds: 30,
	}})
	if err != nil {
		f.t.Fatal(err)
	}
	return c.Claims[0]
}

func TestPushClaimAck(t *testing.T) {
	t.Parallel()
	f := setup(t, "orders")
	g := f.group("g", mq.StartAll)
	r := f.push("p", message("a", `{"v":1}`), message("b", `"two"`), message("", `null`))
	if !r.Appended || r.First != 0 {
		t.Fatalf("push: %+v", r)
	}
	if r := f.push("p", message("b", `9`), message("c", `9`)); r.Appended || len(r.Stored) != 1 || r.Stored[0] != (mq.StoredID{Pos: 0, Offset: 1}) {
		t.Fatalf("push of a stored id: %+v", r)
	}
	claims := f.claim(g, 2, 1)
	if len(claims) != 1 || claims[0].Messages() != 2 || claims[0].Attempt != 1 {
		t.Fatalf("claim: %+v", claims)
	}
	e, err := parseElement(claims[0].Segments[0].Message(1))
	if err != nil || e.TransactionID != "b" || string(e.Payload) != `"two"` {
		t.Fatalf("element: %+v, %v", e, err)
	}
	if again := f.claim(g, 2, 1); len(again) != 0 {
		t.Fatalf("leased partition claimed again: %+v", again)
	}
}

func TestPartialSegmentsCarryTheirFingerprint(t *testing.T) {
	t.Parallel()
	f := setup(t, "orders")
	g := f.group("g", mq.StartAll)
	var ms []*mq.Message
	for i := range 10 {
		ms = append(ms, message(fmt.Sprint("id-", i), fmt.Sprint(i)))
	}
	f.push("p", ms...)
	for from := 0; from < 10; from += 3 {
		lease := mq.ScopedID(f.queue.ID)
		c, err := f.Claim(t.Context(), f.queue.ID, g, time.Time{}, []mq.ClaimRequest{{LeaseID: lease, Messages: 3, Partitions: 1, Bytes: 1}})
		if err != nil {
			t.Fatal(err)
		}
		claims := c.Claims[0]
		want := min(3, 10-from)
		if len(claims) != 1 || claims[0].Messages() != want || claims[0].Segments[0].First != int64(from) {
			t.Fatalf("claim at %d: %+v", from, claims)
		}
		var fp mq.Fingerprint
		for _, m := range ms[from : from+want] {
			fp.Add(m.Hash)
		}
		f.lease = lease
		if r := f.ackWhole(g, claims[0], fp); r.More != (from+want < 10) {
			t.Fatalf("ack at %d: %+v", from, r)
		}
	}
	if c := f.claim(g, 3, 1); len(c) != 0 {
		t.Fatalf("drained partition claimed: %+v", c)
	}
}

// A pooler in transaction mode gives a session to others after each
// transaction: what is set for ours must not stay behind.
func TestStoreThroughAPoolerSetsForATransactionOnly(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string][2]string{"": {"100ms", "100ms"}, "&default_query_exec_mode=cache_describe": {"100ms", "0"}} {
		s, err := Open(t.Context(), Config{URL: pgtest.New(t).URL + mode, PoolSize: 4, AppName: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		var inside, after string
		for range 2 {
			var b batch
			b.Queue("SELECT current_setting('lock_timeout')")
			err = s.run(t.Context(), s.hot, &b, func(br pgx.BatchResults) error { return br.QueryRow().Scan(&inside) })
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := s.hot.QueryRow(t.Context(), "SELECT current_setting('lock_timeout')").Scan(&after); err != nil {
			t.Fatal(err)
		}
		if inside != want[0] || after != want[1] {
			t.Errorf("%q: lock_timeout is %s in a transaction of ours and %s after it, want %s", mode, inside, after, want)
		}
	}
}

// A server that takes no writes any more, and is still there, must not keep the
// connections to it.
func TestStoreLeavesAServerThatTurnedReadOnly(t *testing.T) {
	t.Parallel()
	f := setup(t, "q")
	f.push("p", message("a", "1"))
	var before, after int
	pid := func(into *int) {
		t.Helper()
		if err := f.hot.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(into); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := f.hot.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before = int(conn.Conn().PgConn().PID())
	if _, err := conn.Exec(t.Context(), "SET default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), "UPDATE queen.partitions SET last_offset = last_offset")
	if translated := translate(err); mq.KindOf(translated) != mq.KindUnavailable {
		t.Errorf("a write to it: %v", translated)
	}
	conn.Release()
	for range 20 {
		if pid(&after); after == before {
			t.Fatal("the connection is used again")
		}
	}
}

// Nothing can have happened on a connection that was never made.
func TestStoreWithoutAServerIsUnavailable(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{URL: "postgres://x@127.0.0.1:1,127.0.0.1:2/x?sslmode=disable", PoolSize: 2, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Ping(t.Context()); mq.KindOf(err) != mq.KindUnavailable {
		t.Errorf("%v is %v", err, mq.KindOf(err))
	}
}
