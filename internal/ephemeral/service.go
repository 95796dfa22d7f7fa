package ephemeral

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/batch"
	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/park"
)

// Store keeps what outlives Redis.
type Store interface {
	EphemeralSettings(ctx context.Context) (mq.EphemeralSettings, error)
	EphemeralDeclaration(ctx context.Context, tenant mq.UUID, queue string) (*mq.EphemeralDeclaration, error)
	PutEphemeral(ctx context.Context, tenant mq.UUID, queue string, o mq.EphemeralOptions) (version int64, err error)
	DeleteEphemeral(ctx context.Context, tenant mq.UUID, queue string) (version int64, existed bool, err error)
	SetEphemeralEnabled(ctx context.Context, on bool) error
}

// Metrics counts what happens.
type Metrics interface {
	EphemeralPushed(n int)
	EphemeralPopped(n int)
	EphemeralAcked(n int)
	EphemeralDropped(reason string, n int) // bounds, ttl or retry
	EphemeralWiped()
	EphemeralGroupsForgotten(n int)
	EphemeralHeld(bytes, queues int64)
	EphemeralUp(up bool)
}

// Config tunes the service. Zero values are replaced by defaults.
type Config struct {
	Prefix                   string // of keys and channels: one for each installation
	MaxBytes                 int64  // of all queues together
	QueueMaxBytes            int64  // default and ceiling of a queue's option
	QueueMaxLength           int64  // the same
	RetryLimit               int64
	Lease                    time.Duration
	ImplicitIdle             time.Duration // an empty implicit queue is removed after this
	Unread                   time.Duration // one that holds messages and that nobody touches, after this
	GroupIdle                time.Duration // a group of a declared queue is forgotten after this; 0: never
	RequireGrant             bool
	Refresh                  time.Duration // of declarations, without a hint
	RecheckFirst, RecheckMax time.Duration // parked pops look by themselves this often
	Logger                   *slog.Logger
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	setN := func(n *int64, to int64) {
		if *n <= 0 {
			*n = to
		}
	}
	setN(&c.MaxBytes, 256<<20)
	setN(&c.QueueMaxBytes, 16<<20)
	setN(&c.QueueMaxLength, 10_000)
	setN(&c.RetryLimit, 5)
	set(&c.Lease, 30*time.Second)
	set(&c.ImplicitIdle, 300*time.Second)
	set(&c.Unread, time.Hour)
	set(&c.Refresh, 15*time.Second)
	set(&c.RecheckFirst, time.Second)
	set(&c.RecheckMax, 2*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// lookRate bounds what parked pops cost that nothing wakes: lines looked at a
// second. With more lines than that, each waits longer for its turn.
const lookRate = 2000

// Service serves ephemeral queues. Any number of brokers may share a Redis.
type Service struct {
	redis   redis.UniversalClient
	store   Store
	metrics Metrics
	cfg     Config
	log     *slog.Logger

	declared *declarations
	usage    *usage
	rates    rates
	lot      *park.Lot[popKey, string, *popRequest, *mq.EphemeralDelivery]
	pushes   batch.Lanes[*pushUnit]
	acks     batch.Lanes[*ackUnit]

	up    atomic.Bool // Redis answered last time
	lost  chan error  // why it did not
	mu    sync.Mutex
	epoch string // of the contents, as last seen
}

// New returns a service. It hears and sweeps once Run is called. A client of
// nil means that there is no Redis: every call is refused.
func New(client redis.UniversalClient, store Store, metrics Metrics, cfg Config) *Service {
	cfg = cfg.withDefaults()
	s := &Service{redis: client, store: store, metrics: metrics, cfg: cfg, log: cfg.Logger, usage: &usage{}, lost: make(chan error, 1)}
	s.declared = newDeclarations(store, cfg)
	s.up.Store(true)
	metrics.EphemeralUp(client != nil)
	s.lot = park.New(park.Config[popKey, string, *popRequest, *mq.EphemeralDelivery]{
		Topic:    func(k popKey) string { return k.queue },
		Probe:    s.probe,
		Undo:     func(d *mq.EphemeralDelivery) { s.HandBack(context.Background(), d) },
		Interval: cfg.RecheckFirst, MaxInterval: cfg.RecheckMax, Threshold: 3, Factor: 1.5, MaxProbe: maxProbe,
		LookRate: lookRate,
	})
	lanes := max(runtime.GOMAXPROCS(0)/2, 1)
	s.pushes = batch.NewLanes(lanes, gatherLimits, nil, s.flushPushes)
	s.acks = batch.NewLanes(lanes, gatherLimits, nil, s.flushAcks)
	return s
}

// Run hears wake-ups and sweeps until ctx ends.
func (s *Service) Run(ctx context.Context) {
	if s.redis == nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.hear(ctx) })
	wg.Go(func() { s.watch(ctx) })
	wg.Go(func() { s.sweepEvery(ctx, sweepInterval) })
	wg.Go(func() { s.refresh(ctx) })
	wg.Wait()
}

// Drain answers the parked pops with nothing and waits for what is under way.
// Calls that still come are served, but do not wait.
func (s *Service) Drain() {
	s.lot.Drain()
	s.pushes.Wait()
	s.acks.Wait()
}

// Waiting is how many pops wait.
func (s *Service) Waiting() int {
	total := 0
	for _, n := range s.lot.Waiting() {
		total += n
	}
	return total
}
