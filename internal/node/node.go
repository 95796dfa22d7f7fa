// Package node puts one broker together: store, use cases, hints, background
// loops and HTTP handler. It is the only place that knows all of them.
package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/broker"
	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/ephemeral"
	"github.com/queenmq-go/queenmq/internal/httpapi"
	"github.com/queenmq-go/queenmq/internal/janitor"
	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/obs"
	"github.com/queenmq-go/queenmq/internal/pgstore"
)

// firstConnection is how long a broker waits for a database that is still
// starting, as in a compose file without health checks.
const firstConnection = 60 * time.Second

// Node is one running broker without its listener.
type Node struct {
	handler  http.Handler
	store    *pgstore.Store
	broker   *broker.Broker
	redis    redis.UniversalClient // nil: there is no Redis
	queues   *ephemeral.Service    // ephemeral ones; nil without Redis
	draining atomic.Bool

	stop       context.CancelFunc // of the background loops
	loops      sync.WaitGroup
	closeHints func()
}

// Open connects to the database, waiting for it a while, refuses a schema it
// does not know, and starts the background loops.
func Open(ctx context.Context, cfg config.Config, version string, log *slog.Logger) (*Node, error) {
	store, err := pgstore.Open(ctx, pgstore.Config{
		URL: cfg.DatabaseURL, PoolSize: cfg.PoolSize, StmtTimeout: cfg.StatementTimeout, AppName: "queen " + cfg.ServerID,
	})
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	n := &Node{store: store, closeHints: func() {}, stop: func() {}}
	if err := n.start(ctx, cfg, version, log); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Node) start(ctx context.Context, cfg config.Config, version string, log *slog.Logger) error {
	if err := awaitDatabase(ctx, n.store.Ping, log); err != nil {
		return fmt.Errorf("connect to database: %w", err)
	}
	if err := checkSchema(ctx, n.store, log); err != nil {
		return err
	}
	metrics := obs.NewMetrics(prometheus.NewRegistry())
	metrics.SetPool(n.store.Stat)
	hints := &relay{}
	n.broker = broker.New(n.store, hints, metrics, brokerConfig(cfg, log))
	metrics.SetParked(n.broker.Parked)

	if err := n.openQueues(cfg, metrics, log); err != nil {
		return err
	}
	var background context.Context
	background, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	n.closeHints = hints.start(background, &n.loops, cfg, n.redis, log, metrics, n.broker)
	if n.queues != nil {
		n.loops.Go(func() { n.queues.Run(background) })
	}
	n.limitMemory(background)
	keeper := janitor.New(n.store, janitorConfig(cfg, log))
	n.loops.Go(func() { keeper.Run(background) })
	n.loops.Go(func() { n.broker.RunTimers(background) })
	if cfg.ProfileAddr != "" {
		n.profile(background, cfg.ProfileAddr, log)
	}
	n.handler = httpapi.New(n.broker, httpapi.Options{
		Ephemeral:    n.ephemeral(),
		MaxBodyBytes: cfg.MaxBodyBytes, MaxInflightBytes: cfg.MaxInflight, DefaultTimeout: cfg.PopTimeout,
		KV:           mq.KVLimits{Ops: cfg.KV.MaxOps, Keys: cfg.KV.MaxKeys, ValueBytes: cfg.KV.MaxValueBytes},
		Timers:       mq.TimerLimits{Payload: cfg.TimerPayload, Horizon: cfg.TimerHorizon},
		DefaultStart: startMode(cfg), Version: version, Logger: log, Metrics: metrics,
		MetricsHandler: metrics.Handler(), Draining: n.draining.Load,
	})
	return nil
}

// openQueues makes ready what needs Redis. That it cannot be reached, now or
// later, concerns the ephemeral queues and nothing else.
func (n *Node) openQueues(cfg config.Config, metrics *obs.Metrics, log *slog.Logger) error {
	if cfg.RedisURL == "" {
		return nil
	}
	client, err := OpenRedis(cfg.RedisURL)
	if err != nil {
		return err
	}
	n.redis = client
	n.queues = ephemeral.New(client, n.store, metrics, ephemeralConfig(cfg, log))
	metrics.SetEphemeralParked(n.queues.Waiting)
	return nil
}

// ephemeral is what the routes are given. A nil service must not become an
// interface that is not nil.
func (n *Node) ephemeral() httpapi.Ephemeral {
	if n.queues == nil {
		return nil
	}
	return n.queues
}

// waiting is how many pops are parked.
func (n *Node) waiting() int {
	if n.queues == nil {
		return n.broker.Waiting()
	}
	return n.broker.Waiting() + n.queues.Waiting()
}

// profile serves the profiler until the background ends. A port that cannot be
// opened is worth a line, not a broker.
func (n *Node) profile(ctx context.Context, addr string, log *slog.Logger) {
	srv := obs.ProfileServer(addr)
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	n.loops.Go(func() {
		if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Error("profiler not served", "address", addr, "error", err)
		}
	})
}

// Handler serves the broker's routes.
func (n *Node) Handler() http.Handler { return n.handler }

// Drain turns readiness off, answers the parked pops with nothing and waits
// for what is under way. Calls that still come are served, but do not wait.
func (n *Node) Drain() {
	n.draining.Store(true)
	if n.queues != nil {
		n.queues.Drain()
	}
	n.broker.Drain()
}

// Close ends the background loops and the connections.
func (n *Node) Close() {
	n.stop()
	n.loops.Wait()
	n.closeHints()
	if n.redis != nil {
		_ = n.redis.Close()
	}
	n.store.Close()
}

// checkSchema refuses a schema this broker does not know. It never changes it:
// that is the job of queen migrate.
func checkSchema(ctx context.Context, store *pgstore.Store, log *slog.Logger) error {
	schema, err := store.CheckSchema(ctx)
	if err != nil {
		return err
	}
	log.Info("database is ready", "schema", schema)
	return nil
}

func awaitDatabase(ctx context.Context, ping func(context.Context) error, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, firstConnection)
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := ping(ctx)
		// A server that has answered (a wrong password, no such database) will
		// say the same a minute later.
		if err == nil || mq.KindOf(err) == mq.KindInternal {
			return err
		}
		log.Warn("database does not answer yet", "error", err)
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

// softMemory is where the garbage collector starts to work harder. A broker
// holds requests and caches, so a few hundred megabytes are plenty; a parked pop
// is a connection with two goroutines and comes on top.
const (
	softMemory   = 200 << 20
	parkedMemory = 10 << 10
)

// limitMemory keeps the soft limit of the process above what it cannot help
// holding: a collector that chases a limit below that never rests. GOMEMLIMIT,
// when it is set, is left alone.
func (n *Node) limitMemory(ctx context.Context) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	debug.SetMemoryLimit(softMemory)
	n.loops.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				debug.SetMemoryLimit(softMemory + int64(n.waiting())*parkedMemory)
			}
		}
	})
}

func brokerConfig(cfg config.Config, log *slog.Logger) broker.Config {
	return broker.Config{
		CacheTTL: cfg.CacheRefresh, FetchSafeFloor: cfg.FetchSafeFloor,
		RecheckInterval: cfg.PopWait.InitialInterval, RecheckMax: cfg.PopWait.MaxInterval,
		RecheckThreshold: cfg.PopWait.BackoffThreshold, RecheckFactor: cfg.PopWait.Multiplier, Logger: log,
		KV: broker.KVConfig{
			ReadBytes: cfg.KV.MaxReadBytes, WriteRate: unlimited(cfg.KV.WriteRate), ReadRate: unlimited(cfg.KV.ReadRate),
		},
	}
}

func ephemeralConfig(cfg config.Config, log *slog.Logger) ephemeral.Config {
	e := &cfg.Ephemeral
	return ephemeral.Config{
		Prefix: cfg.RedisPrefix, MaxBytes: e.MaxBytes, QueueMaxBytes: e.QueueMaxBytes, QueueMaxLength: e.QueueMaxLength,
		RetryLimit: e.RetryLimit, Lease: e.Lease, ImplicitIdle: e.ImplicitIdle, Unread: e.Unread, GroupIdle: e.GroupIdle,
		RequireGrant: e.RequireGrant, Logger: log,
	}
}

// unlimited turns the operator's 0 into the broker's no limit.
func unlimited(rate float64) float64 {
	if rate == 0 {
		return -1
	}
	return rate
}

func janitorConfig(cfg config.Config, log *slog.Logger) janitor.Config {
	return janitor.Config{
		// Two brokers of one name must not take each other's loops for theirs.
		Holder:            cfg.ServerID + " " + rand.Text()[:8],
		RetentionInterval: cfg.RetentionInterval, BatchSize: cfg.RetentionBatchSize,
		PartitionCleanup: cfg.PartitionCleanup, IdleDays: cfg.PartitionIdleDays, Log: log,
	}
}

func startMode(cfg config.Config) mq.StartMode {
	if cfg.SubscriptionMode == config.SubscribeAll {
		return mq.StartAll
	}
	return mq.StartNew
}
