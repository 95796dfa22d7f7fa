package ephemeral

import (
	"context"
	"sync"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// declaration is what the brokers go by: options in force and their version, 0
// for a queue that nobody declared.
type declaration struct {
	version int64
	limits  mq.EphemeralLimits
}

// declarations remembers what the database says. It is a cache: a broker that
// is behind is corrected by Redis, which keeps the latest version with the
// contents, and one that is ahead brings Redis up to date.
type declarations struct {
	store Store
	cfg   Config

	loading sync.Mutex // held by the one who reads everything

	mu      sync.RWMutex
	loaded  time.Time // of the last complete reading
	tried   time.Time
	enabled bool
	grants  map[mq.UUID]mq.EphemeralGrant
	byQueue map[string]declaration
}

// loadTimeout bounds a reading, and retryAfter is the rest after one failed:
// with the database away, calls go on with what is known.
const (
	loadTimeout = 2 * time.Second
	retryAfter  = time.Second
)

func newDeclarations(store Store, cfg Config) *declarations {
	return &declarations{store: store, cfg: cfg, enabled: true}
}

// of returns the declaration of a queue.
func (d *declarations) of(ctx context.Context, queue string) declaration {
	d.ensure(ctx)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if known, ok := d.byQueue[queue]; ok {
		return known
	}
	return declaration{limits: d.cfg.inForce(&mq.EphemeralOptions{})}
}

// ensure reads everything if that has not been done yet.
func (d *declarations) ensure(ctx context.Context) {
	if d.fresh() {
		return
	}
	d.loading.Lock()
	defer d.loading.Unlock()
	if !d.fresh() {
		_ = d.load(ctx) // tried again by the next call, a little later
	}
}

func (d *declarations) fresh() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return !d.loaded.IsZero() || time.Since(d.tried) < retryAfter
}

// reload reads everything again.
func (d *declarations) reload(ctx context.Context) error {
	d.loading.Lock()
	defer d.loading.Unlock()
	return d.load(ctx)
}

func (d *declarations) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
	defer cancel()
	set, err := d.store.EphemeralSettings(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tried = time.Now()
	if err != nil {
		return err
	}
	d.loaded, d.enabled = d.tried, set.Enabled
	d.grants = make(map[mq.UUID]mq.EphemeralGrant, len(set.Grants))
	for _, g := range set.Grants {
		d.grants[g.Tenant] = g
	}
	old := d.byQueue
	d.byQueue = make(map[string]declaration, len(set.Declarations))
	for i := range set.Declarations {
		q := &set.Declarations[i]
		id := queueID(q.Tenant, q.Queue)
		next := declaration{version: q.Version, limits: d.cfg.inForce(&q.Options)}
		if known, ok := old[id]; ok && known.version > next.version {
			next = known // declared while we read
		}
		d.byQueue[id] = next
	}
	return nil
}

// reread reads one declaration again.
func (d *declarations) reread(ctx context.Context, queue string) {
	tenant, name, ok := names(queue)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
	defer cancel()
	q, err := d.store.EphemeralDeclaration(ctx, tenant, name)
	if err != nil {
		// What is known led nowhere, so it is better forgotten.
		d.forget(queue)
		return
	}
	if q == nil {
		d.forget(queue)
		return
	}
	d.remember(queue, q.Version, &q.Options)
}

func (d *declarations) remember(queue string, version int64, o *mq.EphemeralOptions) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byQueue == nil {
		d.byQueue = map[string]declaration{}
	}
	if d.byQueue[queue].version <= version {
		d.byQueue[queue] = declaration{version: version, limits: d.cfg.inForce(o)}
	}
}

func (d *declarations) forget(queue string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byQueue, queue)
}

// settings returns the operator's switch and the grant of a tenant.
func (d *declarations) settings(ctx context.Context, tenant mq.UUID) (enabled bool, grant *mq.EphemeralGrant) {
	d.ensure(ctx)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if g, ok := d.grants[tenant]; ok {
		grant = &g
	}
	return d.enabled, grant
}

func (d *declarations) turn(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.enabled = on
}

func (d *declarations) granted() int64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return int64(len(d.grants))
}

// all copies what is known, for the listing and the sweep.
func (d *declarations) all() map[string]declaration {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := make(map[string]declaration, len(d.byQueue))
	for id, known := range d.byQueue {
		out[id] = known
	}
	return out
}

// inForce completes options with defaults and holds them below the ceilings.
func (c *Config) inForce(o *mq.EphemeralOptions) mq.EphemeralLimits {
	l := mq.EphemeralLimits{
		MaxBytes: below(o.MaxBytes, c.QueueMaxBytes), MaxLength: below(o.MaxLength, c.QueueMaxLength),
		Policy: mq.EphemeralReject, LeaseSeconds: positive(o.LeaseSeconds, int64(c.Lease.Seconds())),
		TTLSeconds: bounded(o.TTLSeconds), RetryLimit: c.RetryLimit,
	}
	if o.Policy != nil {
		l.Policy = *o.Policy
	}
	if o.RetryLimit != nil {
		l.RetryLimit = bounded(o.RetryLimit)
	}
	if o.Window != nil {
		l.WindowMS, l.WindowCount = bounded(o.Window.MS), bounded(o.Window.Count)
	}
	return l
}

// longest is what a number of an option counts as at the most: Redis' scripts
// calculate with floating point, and no time that long ever passes.
const longest = 1 << 31

func bounded(n *int64) int64 {
	if n == nil {
		return 0
	}
	return min(*n, longest)
}

func positive(n *int64, otherwise int64) int64 {
	if n == nil || *n == 0 {
		return otherwise
	}
	return bounded(n)
}

func below(n *int64, ceiling int64) int64 {
	if n == nil || *n == 0 {
		return ceiling
	}
	return min(*n, ceiling)
}
