// Package janitor keeps the log from growing: it removes messages under the
// retention rules, message ids nobody needs any more, partitions out of use and
// what is left of deleted queues.
//
// The load-bearing detail: everything is done in small steps that commit by
// themselves and hold at most one partition's lock, because pushes to that
// partition wait meanwhile. Each loop runs on one broker of the fleet at a
// time, by a lease in the database; two at once would do no harm but to each
// other's speed, since every step checks again under its lock.
package janitor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Store is what the janitor needs of the log.
type Store interface {
	TakeLoop(ctx context.Context, loop, holder string, d time.Duration) (bool, error)
	LeaveLoop(ctx context.Context, loop, holder string) error

	RetentionRules(ctx context.Context) ([]mq.RetentionRule, error)
	AgedPartitions(ctx context.Context, rule mq.RetentionRule, after mq.AgePosition, limit int) (found []mq.AgePosition, next mq.AgePosition, err error)
	Trim(ctx context.Context, rule mq.RetentionRule, partition int64, limit int) (messages int64, more bool, err error)

	EnsureIDSlices(ctx context.Context) error
	ExpireIDs(ctx context.Context) (dropped int, err error)

	PruneKV(ctx context.Context, limit int) (removed int, err error)

	QueueIDs(ctx context.Context, after int64, limit int) ([]int64, error)
	DropIdlePartitions(ctx context.Context, queue, after int64, days int32, limit int) (next int64, dropped int, err error)
	SweepDropped(ctx context.Context, limit int) (removed int, err error)
}

// Config says how often and how much. Zero values get the defaults named.
type Config struct {
	Holder            string        // names this broker among the fleet; must be unique
	RetentionInterval time.Duration // 5 s
	BatchSize         int           // segments a step removes; 1000
	PartitionCleanup  bool          // remove partitions that are empty and idle
	IdleDays          int           // when a partition is idle; 30
	Log               *slog.Logger  // slog.Default()

	// For tests; their defaults are right for everybody else.
	IDInterval   time.Duration // 1 min
	IdleInterval time.Duration // 1 min
	KVInterval   time.Duration // 10 s
	Lease        time.Duration // of a loop; 3 intervals of it, at least 1 min
}

const (
	defaultRetentionInterval = 5 * time.Second
	defaultBatchSize         = 1000
	defaultIdleDays          = 30
	defaultSlowInterval      = time.Minute
	defaultKVInterval        = 10 * time.Second
	// A step begins with half of the lease left at least, and no statement
	// takes longer than half a minute.
	minLease = time.Minute
	// leaveTimeout bounds how long a stopping broker tries to give its loops up.
	leaveTimeout = time.Second
)

// Janitor runs the background loops of one broker.
type Janitor struct {
	store Store
	cfg   Config
	log   *slog.Logger

	// Places of the walks, kept between cycles. Each belongs to one loop.
	ages ageWalk
	idle idleWalk
}

// New returns a janitor that works on the store.
func New(store Store, cfg Config) *Janitor {
	setDefault(&cfg.RetentionInterval, defaultRetentionInterval)
	setDefault(&cfg.BatchSize, defaultBatchSize)
	setDefault(&cfg.IdleDays, defaultIdleDays)
	setDefault(&cfg.IDInterval, defaultSlowInterval)
	setDefault(&cfg.IdleInterval, defaultSlowInterval)
	setDefault(&cfg.KVInterval, defaultKVInterval)
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Janitor{store: store, cfg: cfg, log: cfg.Log, ages: ageWalk{at: map[int64]mq.AgePosition{}}}
}

func setDefault[T int | time.Duration](v *T, to T) {
	if *v <= 0 {
		*v = to
	}
}

// loop is one background job.
type loop struct {
	name  string
	every time.Duration
	cycle func(context.Context, *tenure) error
}

func (j *Janitor) loops() []loop {
	all := []loop{
		{"retention", j.cfg.RetentionInterval, j.retain},
		{"dropped_queues", j.cfg.RetentionInterval, j.sweep},
		{"message_ids", j.cfg.IDInterval, j.expireIDs},
		{"kv", j.cfg.KVInterval, j.pruneKV},
	}
	if j.cfg.PartitionCleanup {
		all = append(all, loop{"idle_partitions", j.cfg.IdleInterval, j.dropIdle})
	}
	return all
}

// Run works until ctx ends. A step that is under way is cancelled or, where it
// holds a lock, short.
func (j *Janitor) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, l := range j.loops() {
		wg.Go(func() { j.runLoop(ctx, l) })
	}
	wg.Wait()
}

func (j *Janitor) runLoop(ctx context.Context, l loop) {
	lease := j.cfg.Lease
	if lease <= 0 {
		lease = max(3*l.every, minLease)
	}
	t := &tenure{store: j.store, loop: l.name, holder: j.cfg.Holder, lease: lease}
	defer t.leave(ctx)
	trouble := complaint{log: j.log, loop: l.name}
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		ok, err := t.hold(ctx)
		if ok {
			err = l.cycle(ctx, t)
		}
		if ctx.Err() != nil {
			return
		}
		trouble.report(err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// tenure is the right to run a loop, for as long as its lease lasts.
type tenure struct {
	store  Store
	loop   string
	holder string
	lease  time.Duration
	until  time.Time // by our clock, counted from before we asked: never late
}

// hold reports whether a step may begin: it renews the lease when less than
// half of it is left. False without an error means another broker has the loop.
func (t *tenure) hold(ctx context.Context) (bool, error) {
	asked := time.Now()
	if t.until.Sub(asked) > t.lease/2 {
		return ctx.Err() == nil, ctx.Err()
	}
	ok, err := t.store.TakeLoop(ctx, t.loop, t.holder, t.lease)
	t.until = time.Time{}
	if ok && err == nil {
		t.until = asked.Add(t.lease)
	}
	return ok && err == nil, err
}

// leave lets another broker go on at once.
func (t *tenure) leave(ctx context.Context) {
	if t.until.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	// Should it fail, the lease ends by itself.
	_ = t.store.LeaveLoop(ctx, t.loop, t.holder)
}

// complaintInterval is how often a loop that keeps failing says so.
const complaintInterval = time.Minute

// complaint logs the errors of a loop, which repeats until it succeeds: the
// first at once, then one a minute.
type complaint struct {
	log    *slog.Logger
	loop   string
	last   time.Time
	unsaid int
}

func (c *complaint) report(err error) {
	now := time.Now()
	switch {
	case err == nil:
	case now.Sub(c.last) < complaintInterval:
		c.unsaid++
	default:
		c.log.Warn("background loop failed, it is repeated", "loop", c.loop, "error", err, "not_logged", c.unsaid)
		c.last, c.unsaid = now, 0
	}
}
