// Package broker holds the use cases: push, pop with waiting, ack, leases,
// queues, groups, dead letters and reads. It declares the store and the waker
// it needs and knows neither HTTP nor SQL.
//
// Nothing here is state another broker needs. The caches are hints with a
// check behind them: a push carries the version of the options it was prepared
// for and is refused when that is stale; a claim on a group or queue that is
// gone says so.
package broker

import (
	"context"
	"hash/maphash"
	"log/slog"
	"runtime"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/queenmq-go/queenmq/internal/batch"
	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/park"
)

// Store keeps the log.
type Store interface {
	Append(ctx context.Context, parts []mq.Append) error
	MessageIDs(ctx context.Context, queue int64, refs []mq.OffsetRef) ([]mq.UUID, error)
	EnsureQueue(ctx context.Context, tenant mq.UUID, name string) (*mq.QueueInfo, error)
	EnsurePartitions(ctx context.Context, queue int64, names []string) error

	Claim(ctx context.Context, queue int64, group mq.GroupInfo, floor time.Time, reqs []mq.ClaimRequest) (mq.Claimed, error)
	ReadyGroups(ctx context.Context, asked []mq.ReadyQuery) ([]mq.NextReady, error)
	ReleaseLeases(ctx context.Context, queues []int64, lease mq.UUID) error
	ExtendLeases(ctx context.Context, queues []int64, lease mq.UUID, seconds int32) (mq.Extension, error)

	AckBatches(ctx context.Context, acks []mq.QueueAcks) error
	AckLocked(ctx context.Context, q *mq.AckQuery, decide func(*mq.LockedAcks) (*mq.AckDecision, error)) error

	Transact(ctx context.Context, w *mq.BundleWork, decide func(*mq.BundleLocked) (*mq.BundleDecision, error)) (committed bool, err error)

	FindQueue(ctx context.Context, tenant mq.UUID, name string) (*mq.QueueInfo, error)
	FindQueueByID(ctx context.Context, id int64) (*mq.QueueInfo, error)
	Configure(ctx context.Context, tenant mq.UUID, name string, apply func(*mq.Options) (mq.Options, error)) (*mq.QueueInfo, error)
	WakeHeld(ctx context.Context, queue int64) error
	DeleteQueue(ctx context.Context, tenant mq.UUID, name string) (bool, error)
	ListQueues(ctx context.Context, tenant mq.UUID, f mq.QueueFilter) ([]*mq.QueueInfo, error)
	QueueStats(ctx context.Context, queues []*mq.QueueInfo) ([]mq.QueueSummary, error)
	QueueDetail(ctx context.Context, q *mq.QueueInfo) (*mq.QueueDetail, error)
	Backlog(ctx context.Context, q *mq.QueueInfo, group string) (*mq.QueueDetail, error)

	FindGroup(ctx context.Context, queue int64, name string) (mq.GroupInfo, error)
	EnsureGroup(ctx context.Context, queue int64, name string, start mq.Start, conflation bool) (mq.GroupInfo, error)
	GroupStats(ctx context.Context, q *mq.QueueInfo) ([]mq.GroupSummary, error)
	GroupPartitions(ctx context.Context, q *mq.QueueInfo, group string, laggingOnly bool) ([]mq.GroupPartition, error)
	Seek(ctx context.Context, queue, group int64, s mq.Seek) (int64, error)
	SetGroupStart(ctx context.Context, queue int64, group string, at time.Time) (int64, error)
	DeleteGroup(ctx context.Context, queue, group int64, metadata bool) (int64, error)

	DeadLetters(ctx context.Context, f mq.DeadLetterFilter) ([]mq.DeadLetter, error)
	NewestDeadLetter(ctx context.Context, p mq.PartitionID, transactionID string) (mq.UUID, error)
	ReplayDeadLetter(ctx context.Context, id mq.UUID, target func(*mq.DeadLetter) (*mq.QueueInfo, string, error)) (*mq.DeadLetter, *mq.Run, error)
	PurgeDeadLetters(ctx context.Context, queue int64, group string) (int64, error)
	DeleteDeadLetters(ctx context.Context, p mq.PartitionID, transactionID string) (int64, error)

	ReadLog(ctx context.Context, q *mq.QueueInfo, e mq.FetchEntry, maxRecords int) (mq.FetchResult, error)
	OffsetAt(ctx context.Context, q *mq.QueueInfo, e mq.OffsetEntry) (mq.OffsetResult, error)
	Changed(ctx context.Context, q *mq.QueueInfo, e mq.ChangedEntry) ([]mq.ChangedPartition, error)
	SafeTime(ctx context.Context, floor time.Duration) (mq.SafeTime, error)
	MessageDetail(ctx context.Context, q *mq.QueueInfo, p mq.PartitionID, transactionID string) (*mq.MessageDetail, error)

	KVStore

	TimerStore

	Ping(ctx context.Context) error
}

// Waker carries hints to the other brokers. Send must not block.
type Waker interface {
	Send(h mq.Hint)
}

// Metrics counts what the broker does.
type Metrics interface {
	GatherFired(op string, items int, d time.Duration)
	Claimed(d time.Duration)
	Redelivered(n int)
	DeadLettered(n int)
}

// Config tunes a broker. Zero values are replaced by defaults.
type Config struct {
	PushLanes, AckLanes int
	PopBytes            int64 // bodies one pop hands out, about
	CacheTTL            time.Duration
	FetchSafeFloor      time.Duration
	// The slow re-check of parked pops.
	RecheckInterval, RecheckMax time.Duration
	RecheckThreshold            int
	RecheckFactor               float64
	KV                          KVConfig
	Logger                      *slog.Logger
}

// Limits of one gathered transaction.
var (
	pushLimits = batch.Limits{Items: 5000, Bytes: 8 << 20}
	ackLimits  = batch.Limits{Items: 5000, Bytes: 8 << 20}
)

// maxPopGather is how many pops of one (queue, group) share a transaction.
const maxPopGather = 16

// lookRate bounds what parked pops cost that nothing wakes: lines looked at a
// second. Beyond it, a lost hint costs more than RecheckMax.
const lookRate = 2000

// Broker serves the use cases. Any number of brokers may share a store.
type Broker struct {
	store   Store
	waker   Waker
	metrics Metrics
	cfg     Config
	log     *slog.Logger
	seed    maphash.Seed

	cache   *cache
	lookups singleflight.Group
	floors  *floors
	bells   *bells
	chores  *chores
	timers  *timerClock
	kv      *kvGate
	lot     *park.Lot[popKey, int64, popRequest, *mq.Delivery]
	pushes  batch.Lanes[*pushRun]
	acks    batch.Lanes[*ackUnit]
}

// New returns a broker that is ready to serve.
func New(store Store, waker Waker, metrics Metrics, cfg Config) *Broker {
	cfg = withDefaults(cfg)
	b := &Broker{
		store: store, waker: waker, metrics: metrics, cfg: cfg, log: cfg.Logger,
		seed: maphash.MakeSeed(), cache: newCache(cfg.CacheTTL), floors: newFloors(), bells: newBells(),
		chores: newChores(), timers: newTimerClock(), kv: newKVGate(cfg.KV),
	}
	b.lot = park.New(park.Config[popKey, int64, popRequest, *mq.Delivery]{
		Topic: func(k popKey) int64 { return k.queue },
		Probe: b.probe,
		Undo:  func(d *mq.Delivery) { b.Release(context.Background(), d) },
		Look:  b.look, LookRate: lookRate,
		Interval: cfg.RecheckInterval, MaxInterval: cfg.RecheckMax,
		Threshold: cfg.RecheckThreshold, Factor: cfg.RecheckFactor, MaxProbe: maxPopGather,
	})
	b.pushes = batch.NewLanes(cfg.PushLanes, pushLimits, b.observe("push"), b.flushPush)
	b.acks = batch.NewLanes(cfg.AckLanes, ackLimits, b.observe("ack"), b.flushAck)
	return b
}

func withDefaults(c Config) Config {
	// Few lanes make large transactions. One keeps a database of two cores
	// busy; more cores take more at once.
	lanes := max(runtime.GOMAXPROCS(0)/2, 1)
	if c.PushLanes <= 0 {
		c.PushLanes = lanes
	}
	if c.AckLanes <= 0 {
		c.AckLanes = lanes
	}
	if c.PopBytes <= 0 {
		c.PopBytes = 8 << 20
	}
	if c.CacheTTL <= 0 {
		c.CacheTTL = time.Minute
	}
	if c.FetchSafeFloor <= 0 {
		c.FetchSafeFloor = 30 * time.Second
	}
	if c.RecheckInterval <= 0 {
		c.RecheckInterval = 100 * time.Millisecond
	}
	if c.RecheckMax <= 0 {
		c.RecheckMax = time.Second
	}
	if c.RecheckThreshold <= 0 {
		c.RecheckThreshold = 3
	}
	if c.RecheckFactor < 1 {
		c.RecheckFactor = 2
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (b *Broker) observe(op string) batch.Observe {
	return func(items int, took time.Duration) { b.metrics.GatherFired(op, items, took) }
}

// Drain answers the parked pops with nothing and waits until whatever is under
// way is done. New calls are served, but do not wait.
func (b *Broker) Drain() {
	b.bells.close()
	b.lot.Drain()
	b.pushes.Wait()
	b.acks.Wait()
	b.chores.close()
}

// Waiting is how many pops wait, all together.
func (b *Broker) Waiting() int {
	total := 0
	for _, n := range b.lot.Waiting() {
		total += n
	}
	return total
}

// Parked counts waiting pops by queue name.
func (b *Broker) Parked() map[string]int {
	out := map[string]int{}
	for id, n := range b.lot.Waiting() {
		if name, ok := b.cache.nameOf(id); ok {
			out[name] += n
		}
	}
	return out
}

// Ping makes a round trip to the store.
func (b *Broker) Ping(ctx context.Context) error { return b.store.Ping(ctx) }

// lane spreads partitions over lanes; one partition is always in one.
func (b *Broker) lane(queue int64, partition string) uint64 {
	return maphash.String(b.seed, partition) ^ uint64(queue)*0x9e3779b97f4a7c15
}
