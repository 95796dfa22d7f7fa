package pgstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func openKV(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{URL: pgtest.New(t).URL, PoolSize: 8, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func kvOps(ops ...mq.KVOp) *mq.KVCall { return &mq.KVCall{Tenant: mq.DefaultTenant, Ops: ops} }

func kvPut(key, value string, ttl int64) mq.KVOp {
	return mq.KVOp{Verb: mq.KVPut, KVAddress: mq.KVAddress{Namespace: "n", Key: key}, Value: []byte(value), TTL: ttl}
}

func kvGet(key string) mq.KVOp {
	return mq.KVOp{Verb: mq.KVGet, KVAddress: mq.KVAddress{Namespace: "n", Key: key}}
}

func runKV(t *testing.T, s *Store, ops ...mq.KVOp) *mq.KVCall {
	t.Helper()
	c := kvOps(ops...)
	if err := s.RunKV(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKVPlans holds the statements of the store to the primary key, on a table
// that is new and on one that grew under the same sessions.
func TestKVPlans(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	check := func(t *testing.T) {
		for name, c := range map[string]struct {
			sql   string
			conds []string // each scan of the table is bound by one of them
		}{
			"ReadKV":   {db.ReadKV, []string{"(key = ", "(key >= "}},
			"DeleteKV": {db.DeleteKV, []string{"(key = "}},
			"PruneKV":  {db.PruneKV, []string{"expires_at <= queen.clock()"}},
		} {
			root, text := planOf(t, s.hot, name, c.sql)
			used := map[string]bool{}
			root.walk(func(n *planNode) {
				if n.Relation != "kv" || n.Type == "Tid Scan" || n.Type == "ModifyTable" {
					return
				}
				for _, cond := range c.conds {
					if strings.Contains(n.IndexCond, cond) {
						used[cond] = true
						return
					}
				}
				t.Errorf("%s reads the table by %s, %q:\n%s", name, n.Type, n.IndexCond, text)
			})
			if len(used) != len(c.conds) {
				t.Errorf("%s uses %v:\n%s", name, used, text)
			}
		}
	}
	t.Run("new", check)
	if _, err := s.cold.Exec(t.Context(), `INSERT INTO queen.kv (tenant, version, created_at, updated_at, expires_at, ns, key, value)
		SELECT '00000000-0000-0000-0000-000000000001', n, now(), now(), now() + n * interval '1 second', 'n' || n % 3, 'p' || n, '1'
		FROM generate_series(1, 100000) n`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.cold.Exec(t.Context(), "ANALYZE queen.kv"); err != nil {
		t.Fatal(err)
	}
	t.Run("grown", check)
}

func TestKV_K35_CallsShareTheirConnections(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	lost := kvPut("k", "2", 0)
	lost.Conditional, lost.Required = true, true
	runKV(t, s, kvPut("k", "1", 0))
	before := s.hot.Stat().NewConnsCount()
	for range 50 {
		if c := runKV(t, s, lost, kvPut("other", "1", 0)); c.Failed == nil || c.Failed.Reason != mq.KVExists {
			t.Fatalf("%+v", c.Failed)
		}
	}
	if made := s.hot.Stat().NewConnsCount() - before; made > 6 {
		t.Errorf("%d connections for 50 calls that rolled back", made)
	}
	if c := runKV(t, s, kvGet("other")); c.Results[0].Found {
		t.Error("a call that lost wrote something")
	}
}

// A key that is locked holds up those who write it, and nobody else.
func TestKV_LocksOnlyWhatIsWritten(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	holder, err := s.cold.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.WithoutCancel(t.Context())) }()
	held := kvOps(kvPut("k", "1", 0))
	if err := db.New(holder).LockKV(t.Context(), held.Hashes()); err != nil {
		t.Fatal(err)
	}
	runKV(t, s, kvPut("other", "1", 0), kvGet("k"))
	done := make(chan *mq.KVCall)
	go func() {
		c := kvOps(kvPut("k", "2", 0))
		if err := s.RunKV(context.WithoutCancel(t.Context()), c); err != nil {
			t.Error(err)
		}
		done <- c
	}()
	select {
	case <-done:
		t.Fatal("written under somebody's lock")
	case <-time.After(300 * time.Millisecond):
	}
	// What was written meanwhile has the lower version.
	var version int64
	if err := holder.QueryRow(t.Context(), "SELECT nextval('queen.kv_version')").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := <-done; c.Results[0].Version <= version {
		t.Errorf("version %d was drawn before the lock was had, %d was drawn under it", c.Results[0].Version, version)
	}
}

func TestKV_Prune(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	runKV(t, s, kvPut("a", "1", 0), kvPut("b", "1", 3600), kvPut("c", "1", 1), kvPut("d", "1", 1), kvPut("e", "1", 1))
	time.Sleep(1100 * time.Millisecond)
	runKV(t, s, kvPut("e", "2", 60)) // written again before it was removed
	for _, want := range []int{1, 1, 0} {
		if n, err := s.PruneKV(t.Context(), 1); err != nil || n != want {
			t.Fatalf("removed %d, %v, want %d", n, err, want)
		}
	}
	list, err := s.KVNamespaces(t.Context(), mq.DefaultTenant)
	if err != nil || len(list) != 1 || list[0] != (mq.KVNamespace{Name: "n", Keys: 3}) {
		t.Errorf("%+v %v", list, err)
	}
}

// The halves of a call go into a batch of somebody else's, and each consumes
// its own results and no more.
func TestKV_HalvesFitIntoOtherBatches(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	runKV(t, s, kvPut("k", "1", 0), kvPut("gone", "1", 0))
	check := kvGet("k")
	check.Verb, check.Conditional, check.Expect = mq.KVCheck, true, 1
	del := kvGet("gone")
	del.Verb = mq.KVDelete
	for name, ops := range map[string][]mq.KVOp{
		"check": {check}, "get": {kvGet("k")}, "put": {kvPut("x", "1", 0)}, "delete": {del}, "all": {kvPut("y", "1", 0), del, kvGet("k"), check},
	} {
		c := kvOps(ops...)
		c.Locked = true
		err := s.tx(t.Context(), s.hot, func(ctx context.Context, tx pgx.Tx) error {
			for _, half := range []struct {
				queue func(context.Context, *db.Queries, *mq.KVCall)
				read  func(pgx.BatchResults, *mq.KVCall) error
			}{{queueKVLock, readKVLock}, {queueKVWrites, readKVWrites}} {
				var b batch
				b.Queue("SELECT 1")
				half.queue(ctx, b.queries(), c)
				b.Queue("SELECT 2")
				br := tx.SendBatch(ctx, &b.Batch)
				var first, last int
				err := errors.Join(br.QueryRow().Scan(&first), half.read(br, c), br.QueryRow().Scan(&last), br.Close())
				if err != nil || first != 1 || last != 2 {
					return errors.Join(err, errors.New("the results are out of step"))
				}
				c.Evaluate()
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if c := runKV(t, s, kvGet("x"), kvGet("y"), kvGet("gone")); !c.Results[0].Found || !c.Results[1].Found || c.Results[2].Found {
		t.Errorf("%+v", c.Results)
	}
}

func BenchmarkKV(b *testing.B) {
	s, err := Open(b.Context(), Config{URL: pgtest.New(b).URL, PoolSize: 8, AppName: "test"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	for name, op := range map[string]mq.KVOp{"put": kvPut("k", `{"a":1}`, 60), "get": kvGet("k")} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := s.RunKV(b.Context(), kvOps(op)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
