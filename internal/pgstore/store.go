// Package pgstore keeps the log in PostgreSQL. It is the only package that
// knows pgx and SQLSTATE: one method per use case, one transaction per method,
// errors translated to mq kinds on the way out.
//
// The load-bearing detail: every transaction of a hot path is one pgx batch,
// that is one pipeline ended by one Sync, which PostgreSQL runs as one implicit
// transaction. It costs one round trip and one commit, and nothing may be
// answered before the batch was closed without an error, because that is when
// the commit is known.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/queenmq-go/queenmq/internal/pgstore/db"
	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
)

// Config says how to reach the database.
type Config struct {
	URL         string
	PoolSize    int           // connections of this broker, both pools together
	StmtTimeout time.Duration // ceiling of one transaction
	AppName     string
}

// Store is the log in PostgreSQL. It has two pools: the hot one, whose sessions
// always reuse a plan made of index lookups, serves push, pop and ack; the cold
// one plans freely and serves reads, administration and the janitor.
type Store struct {
	hot     *pgxpool.Pool
	cold    *pgxpool.Pool
	kv      *semaphore.Weighted // turns of calls to the key/value store
	timeout time.Duration
	// pooled: a pooler in transaction mode is in between, and no session is
	// ours for longer than a transaction.
	pooled bool
}

// coldShare is how many connections of the pool serve everything that is not
// push, pop or ack.
const coldShare = 4

// acquireTimeout bounds the wait for a connection: a full pool is an overload
// the caller should hear of, not a queue of its own.
const acquireTimeout = 5 * time.Second

// hotSettings make the plans of the hot sessions independent of when they were
// made: statements there touch few rows through primary keys, and a plan chosen
// while the tables were small must not survive into a time when they are not.
var hotSettings = map[string]string{
	"plan_cache_mode":   "force_generic_plan",
	"enable_seqscan":    "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
	"enable_bitmapscan": "off",
	// Where an index has the order that is asked for, it is the one to use: what
	// an old snapshot keeps alive makes a small index look dearer than a large one.
	"enable_sort":             "off",
	"enable_incremental_sort": "off",
	"jit":                     "off",
	// A gathered transaction that waits for one row holds all the others that
	// it has locked, on every broker: it gives up soon and is sent again in
	// parts.
	"lock_timeout": "100ms",
}

// Open connects lazily: it fails on a malformed URL, not on an absent server.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	size := max(cfg.PoolSize, 2)
	cold := min(coldShare, max(size/4, 1))
	s := &Store{timeout: cfg.StmtTimeout, kv: newKVTurns(size - cold)}
	if s.timeout <= 0 {
		s.timeout = 30 * time.Second
	}
	var err error
	if s.hot, err = openPool(ctx, cfg, size-cold, hotSettings); err != nil {
		return nil, err
	}
	if s.cold, err = openPool(ctx, cfg, cold, map[string]string{"jit": "off"}); err != nil {
		s.hot.Close()
		return nil, err
	}
	s.pooled = throughPooler(s.hot.Config())
	return s, nil
}

func openPool(ctx context.Context, cfg Config, size int, settings map[string]string) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		// pgx masks the password in its parse errors.
		return nil, fmt.Errorf("database url: %w", err)
	}
	pc.MaxConns = int32(size)
	pc.MinConns = int32(min(size, 2))
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.HealthCheckPeriod = 15 * time.Second
	pc.ConnConfig.RuntimeParams["application_name"] = cfg.AppName
	noticeSilence(&pc.ConnConfig.Config)
	leaveReadOnly(&pc.ConnConfig.Config)
	// By statement, not as start-up parameters: a pooler in between would
	// refuse those it does not know. And not at all with one that gives the
	// session to somebody else after each transaction: see run.
	if !throughPooler(pc) {
		set := settingsStatement(settings, false)
		pc.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, set, pgx.QueryExecModeSimpleProtocol)
			return err
		}
	}
	return pgxpool.NewWithConfig(ctx, pc)
}

// throughPooler: who asks for statements that no session keeps has a pooler in
// transaction mode.
func throughPooler(c *pgxpool.Config) bool {
	return c.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement
}

// settingsStatement sets them for the session, or for its transaction only.
func settingsStatement(settings map[string]string, local bool) string {
	calls := make([]string, 0, len(settings))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		calls = append(calls, fmt.Sprintf("set_config('%s', '%s', %t)", name, settings[name], local))
	}
	return "SELECT " + strings.Join(calls, ", ")
}

var hotTransaction = settingsStatement(hotSettings, true)

// leaveReadOnly drops a connection whose server no longer takes writes: after a
// switch-over the old primary may stay up, and connections to it alive, while
// the address, or another host of the URL, leads to the new one.
func leaveReadOnly(c *pgconn.Config) {
	usual := c.OnPgError
	c.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		return err.Code != stateReadOnly && usual(conn, err)
	}
}

// Close waits for connections in use and closes both pools.
func (s *Store) Close() {
	s.hot.Close()
	s.cold.Close()
}

// Ping makes a round trip; it needs no schema.
func (s *Store) Ping(ctx context.Context) error {
	return translate(s.cold.Ping(ctx))
}

// CheckSchema refuses a schema this binary does not fit, and returns its
// version. It never changes it.
func (s *Store) CheckSchema(ctx context.Context) (int64, error) {
	return migrate.Check(ctx, s.cold)
}

// Stat reports the connections of both pools.
func (s *Store) Stat() (size, idle, active int) {
	for _, p := range []*pgxpool.Pool{s.hot, s.cold} {
		st := p.Stat()
		size += int(st.MaxConns())
		idle += int(st.IdleConns())
		active += int(st.AcquiredConns())
	}
	return size, idle, active
}

// detach gives database work a context of its own: a transaction serves many
// requests, and pgx closes the connection of a query whose context ends.
func (s *Store) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), s.timeout, errStatementTimeout)
}

// acquire takes a connection, waiting a bounded time.
func (s *Store) acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	wait, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errPoolTimeout)
	defer cancel()
	c, err := pool.Acquire(wait)
	if err == nil {
		return c, nil
	}
	// A pool that waits for the server to take connections is not full.
	if errors.Is(context.Cause(wait), errPoolTimeout) && pool.Stat().AcquiredConns() >= pool.Config().MaxConns {
		err = errPoolTimeout
	}
	return nil, &notSentError{err}
}

// batch queues checked statements. It satisfies db.DBTX, so the generated,
// typed functions fill it: each call queues its statement and returns
// errQueued; results are read from run's BatchResults in the same order.
type batch struct {
	pgx.Batch
	// gathered: the work of several callers. When somebody holds a row of it,
	// the caller takes it apart instead of trying again.
	gathered bool
}

func (b *batch) queries() *db.Queries { return db.New(b) }

func (b *batch) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	b.Queue(sql, args...)
	return pgconn.CommandTag{}, errQueued
}

func (b *batch) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	b.Queue(sql, args...)
	return nil, errQueued
}

func (b *batch) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	b.Queue(sql, args...)
	return queuedRow{}
}

// unsent is the batch as it was before it was sent, behind some statements. pgx
// notes in a batch which prepared statements it used; on another connection, or
// after an error, those do not exist.
func (b *batch) unsent(before ...string) *pgx.Batch {
	fresh := &pgx.Batch{}
	for _, sql := range before {
		fresh.Queue(sql)
	}
	for _, q := range b.QueuedQueries {
		fresh.Queue(q.SQL, q.Arguments...)
	}
	return fresh
}

type queuedRow struct{}

func (queuedRow) Scan(...any) error { return errQueued }

// run sends the batch as one transaction and lets read consume the results in
// order. The transaction is committed when run returns nil.
func (s *Store) run(ctx context.Context, pool *pgxpool.Pool, b *batch, read func(pgx.BatchResults) error) error {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	sent := false
	return retryStale(ctx, pool == s.hot && !b.gathered, func() error {
		c, err := s.acquire(ctx, pool)
		if err != nil {
			return err
		}
		defer c.Release()
		pb, local := &b.Batch, s.pooled && pool == s.hot
		switch {
		case local:
			pb = b.unsent(hotTransaction)
		case sent:
			pb = b.unsent()
		}
		sent = true
		br := c.SendBatch(ctx, pb)
		if local {
			_, err = br.Exec()
		}
		if err == nil {
			err = read(br)
		}
		if cerr := br.Close(); err == nil {
			err = cerr
		}
		return err
	})
}

// tx runs fn in an explicit transaction, for the few paths that decide between
// round trips.
func (s *Store) tx(ctx context.Context, pool *pgxpool.Pool, fn func(context.Context, pgx.Tx) error) error {
	return s.txRelock(ctx, pool, pool == s.hot, fn)
}

// txRelock is tx that says whether to wait for rows that somebody holds.
func (s *Store) txRelock(ctx context.Context, pool *pgxpool.Pool, relock bool, fn func(context.Context, pgx.Tx) error) error {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	return retryStale(ctx, relock, func() error {
		c, err := s.acquire(ctx, pool)
		if err != nil {
			return err
		}
		defer c.Release()
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return fn(ctx, tx) })
	})
}
