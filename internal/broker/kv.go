package broker

import (
	"context"
	"sync"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// KVStore keeps the key/value rows and the operator's switches.
type KVStore interface {
	RunKV(ctx context.Context, c *mq.KVCall) error
	KVNamespaces(ctx context.Context, tenant mq.UUID) ([]mq.KVNamespace, error)
	ReadSwitches(ctx context.Context) (mq.Switches, error)
	SaveSwitches(ctx context.Context, change mq.SwitchChange) error
}

// KVConfig tunes the key/value store of a broker. Zero values are replaced by
// defaults; a rate below zero is no limit.
type KVConfig struct {
	ReadBytes           int64   // of values, that one call prints
	WriteRate, ReadRate float64 // calls a second of one tenant; bursts are twice that
}

// kvGate is what stands before the store: the operator's switch, then the rates.
type kvGate struct {
	cfg      KVConfig
	switches switchCache
	writes   rates
	reads    rates
}

func newKVGate(cfg KVConfig) *kvGate {
	if cfg.WriteRate == 0 {
		cfg.WriteRate = 100
	}
	if cfg.ReadRate == 0 {
		cfg.ReadRate = 200
	}
	return &kvGate{cfg: cfg, writes: newRates(cfg.WriteRate), reads: newRates(cfg.ReadRate)}
}

// KV runs the operations of one call. They happen together or, when Failed
// says so, not at all.
func (b *Broker) KV(ctx context.Context, tenant mq.UUID, ops []mq.KVOp) (*mq.KVCall, error) {
	c := &mq.KVCall{Tenant: tenant, Ops: ops}
	spend := b.SpendKVRead
	if c.Writes() {
		spend = b.SpendKVWrite
	}
	if err := b.kvAllowed(ctx, tenant, spend); err != nil {
		return nil, err
	}
	return c, b.runKV(ctx, c)
}

// kvAllowed refuses in the order of the contract: the switch, then the rate.
func (b *Broker) kvAllowed(ctx context.Context, tenant mq.UUID, spend func(mq.UUID) error) error {
	if err := b.KVEnabled(ctx); err != nil {
		return err
	}
	return spend(tenant)
}

// KVEnabled refuses while an operator has turned the store off.
func (b *Broker) KVEnabled(ctx context.Context) error {
	sw, err := b.Switches(ctx)
	if err != nil {
		return err
	}
	if !sw.KV {
		return &mq.Error{
			Kind: mq.KindUnavailable, Code: "kv_disabled", Message: "the key/value store is turned off", RetryAfter: time.Second,
		}
	}
	return nil
}

// SpendKVWrite takes one call from the tenant's writes.
func (b *Broker) SpendKVWrite(tenant mq.UUID) error { return b.kv.writes.spend(tenant) }

// SpendKVRead takes one call from the tenant's reads.
func (b *Broker) SpendKVRead(tenant mq.UUID) error { return b.kv.reads.spend(tenant) }

func (b *Broker) runKV(ctx context.Context, c *mq.KVCall) error {
	c.ReadBudget = b.kv.cfg.ReadBytes
	return b.store.RunKV(ctx, c)
}

// KVNamespaces lists the namespaces of a tenant.
func (b *Broker) KVNamespaces(ctx context.Context, tenant mq.UUID) ([]mq.KVNamespace, error) {
	if err := b.kvAllowed(ctx, tenant, b.SpendKVRead); err != nil {
		return nil, err
	}
	return b.store.KVNamespaces(ctx, tenant)
}

// switchAge is how long the operator's switches are believed without a look.
const switchAge = time.Second

// switchGrace is how long they are believed while somebody looks: a database
// that is slow must not hold up those who would not have looked.
const switchGrace = 5 * time.Second

// switchCache remembers the switches for a moment.
type switchCache struct {
	looking sync.Mutex // held by the one who looks
	mu      sync.Mutex
	at      time.Time
	now     mq.Switches
}

// get returns the switches if they are younger than an age.
func (s *switchCache) get(age time.Duration) (mq.Switches, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, !s.at.IsZero() && time.Since(s.at) < age
}

func (s *switchCache) put(sw mq.Switches, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.at = sw, at
}

// Switches are the operator's switches, about a second old at the most.
func (b *Broker) Switches(ctx context.Context) (mq.Switches, error) {
	s := &b.kv.switches
	if sw, ok := s.get(switchAge); ok {
		return sw, nil
	}
	if !s.looking.TryLock() {
		if sw, ok := s.get(switchGrace); ok {
			return sw, nil
		}
		s.looking.Lock()
	}
	defer s.looking.Unlock()
	if sw, ok := s.get(switchAge); ok { // somebody else looked
		return sw, nil
	}
	asked := time.Now()
	sw, err := b.store.ReadSwitches(ctx)
	if err == nil {
		s.put(sw, asked)
	}
	return sw, err
}

// SetSwitches stores the switches that change and returns them all.
func (b *Broker) SetSwitches(ctx context.Context, change mq.SwitchChange) (mq.Switches, error) {
	if err := b.store.SaveSwitches(ctx, change); err != nil {
		return mq.Switches{}, err
	}
	// Whoever is looking may have looked before the change.
	b.kv.switches.looking.Lock()
	defer b.kv.switches.looking.Unlock()
	asked := time.Now()
	sw, err := b.store.ReadSwitches(ctx)
	if err == nil {
		b.kv.switches.put(sw, asked)
	}
	return sw, err
}

// maxBuckets bounds how many tenants are remembered; with more, those whose
// bucket is full again are forgotten, which changes nothing for them.
const maxBuckets = 10_000

// rates is one token bucket a tenant.
type rates struct {
	perSecond, burst float64

	mu      sync.Mutex
	buckets map[mq.UUID]bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

func newRates(perSecond float64) rates {
	return rates{perSecond: perSecond, burst: 2 * perSecond, buckets: map[mq.UUID]bucket{}}
}

func (r *rates) spend(tenant mq.UUID) error {
	if r.perSecond < 0 {
		return nil
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.buckets[tenant]
	if !ok {
		r.forget(now)
		k = bucket{tokens: r.burst, at: now}
	}
	k.tokens = min(r.burst, k.tokens+r.perSecond*now.Sub(k.at).Seconds())
	k.at = now
	missing := 1 - k.tokens
	if missing <= 0 {
		k.tokens--
	}
	r.buckets[tenant] = k
	if missing > 0 {
		return &mq.Error{
			Kind: mq.KindOverloaded, Code: "rate_limited", Message: "too many calls a second",
			RetryAfter: time.Duration(missing / r.perSecond * float64(time.Second)),
		}
	}
	return nil
}

func (r *rates) forget(now time.Time) {
	if len(r.buckets) < maxBuckets {
		return
	}
	for t, k := range r.buckets {
		if k.tokens+r.perSecond*now.Sub(k.at).Seconds() >= r.burst {
			delete(r.buckets, t)
		}
	}
}
