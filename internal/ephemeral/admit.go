package ephemeral

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// admit refuses in the order of the contract: no store, the operator's switch,
// the grant, the rate of messages.
func (s *Service) admit(ctx context.Context, tenant mq.UUID, messages int) error {
	if s.redis == nil {
		return fault(errNoRedis)
	}
	enabled, grant := s.declared.settings(ctx, tenant)
	switch {
	case !enabled:
		return &mq.Error{
			Kind: mq.KindUnavailable, Code: mq.CodeEphemeralDisabled, Message: "ephemeral queues are turned off",
			RetryAfter: time.Second,
		}
	case grant == nil && s.cfg.RequireGrant, grant != nil && !grant.Enabled:
		return &mq.Error{Kind: mq.KindForbidden, Code: mq.CodeEphemeralGated, Message: "ephemeral queues are not part of this plan"}
	case grant != nil && grant.MessagesPerSecond != nil && *grant.MessagesPerSecond > 0:
		return s.rates.spend(tenant, *grant.MessagesPerSecond, messages)
	}
	return nil
}

// rates is one bucket of messages a tenant, at this broker.
type rates struct {
	mu       sync.Mutex
	limiters map[mq.UUID]*rate.Limiter
}

// spend takes messages from the bucket, which holds what two seconds bring. A
// call for more than it ever holds takes all of it.
func (r *rates) spend(tenant mq.UUID, perSecond float64, messages int) error {
	if messages == 0 {
		return nil
	}
	burst := max(int(2*perSecond), 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limiters[tenant]
	if l == nil || l.Limit() != rate.Limit(perSecond) {
		l = rate.NewLimiter(rate.Limit(perSecond), burst)
		if r.limiters == nil {
			r.limiters = map[mq.UUID]*rate.Limiter{}
		}
		r.limiters[tenant] = l
	}
	now := time.Now()
	wait := l.ReserveN(now, min(messages, burst))
	if after := wait.DelayFrom(now); after > 0 {
		wait.CancelAt(now)
		return &mq.Error{
			Kind: mq.KindOverloaded, Code: "rate_limited", Message: "too many messages a second", RetryAfter: after,
		}
	}
	return nil
}

// usage remembers what the tenants hold, as Redis said last. Pushes since then
// are added, what has gone is not: close to a limit it is read again.
type usage struct {
	reading sync.Mutex // held by a push that reads them again

	mu     sync.Mutex
	at     time.Time
	total  int64 // bytes
	count  int64 // queues
	bytes  map[string]int64
	queues map[string]int64
}

func (u *usage) set(at time.Time, bytes, queues map[string]int64) (total, count int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes, u.queues, u.at, u.total, u.count = bytes, queues, at, 0, 0
	for _, n := range bytes {
		u.total += n
	}
	for _, n := range queues {
		u.count += n
	}
	return u.total, u.count
}

func (u *usage) sums() (bytes, queues int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total, u.count
}

func (u *usage) charge(tenant string, bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.total += bytes
	if u.bytes != nil {
		u.bytes[tenant] += bytes
	}
}

func (u *usage) of(tenant string) (total, bytes, queues int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total, u.bytes[tenant], u.queues[tenant]
}

// readAt is when the reading began that the numbers come from.
func (u *usage) readAt() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.at
}

// reserve refuses a push beyond the tenant's bytes or queues, or beyond what
// the installation may hold. Several pushes at once may go over a little.
func (s *Service) reserve(ctx context.Context, tenant string, id mq.UUID, bytes int64) error {
	_, grant := s.declared.settings(ctx, id)
	if s.overLimit(tenant, grant, bytes) == nil {
		return nil
	}
	// What is remembered may be out of date: nothing is refused on its word.
	asked := time.Now()
	s.usage.reading.Lock()
	defer s.usage.reading.Unlock()
	if s.usage.readAt().Before(asked) {
		if err := s.readUsage(ctx); err != nil {
			return err
		}
	}
	return s.overLimit(tenant, grant, bytes)
}

func (s *Service) overLimit(tenant string, grant *mq.EphemeralGrant, bytes int64) error {
	total, held, queues := s.usage.of(tenant)
	if over(grant, held+bytes, queues) {
		return &mq.Error{Kind: mq.KindForbidden, Code: mq.CodeEphemeralQuota, Message: "the tenant's ephemeral queues hold as much as they may"}
	}
	if total+bytes > s.cfg.MaxBytes {
		return &mq.Error{
			Kind: mq.KindUnavailable, Code: mq.CodeEphemeralUnavailable, RetryAfter: time.Second,
			Message: "ephemeral queues hold as much as they may, all together",
		}
	}
	return nil
}

// over tells whether a tenant is beyond its grant. Limits of zero and below
// are none.
func over(g *mq.EphemeralGrant, bytes, queues int64) bool {
	if g == nil {
		return false
	}
	return g.MaxBytes != nil && *g.MaxBytes > 0 && bytes > *g.MaxBytes ||
		g.MaxQueues != nil && *g.MaxQueues > 0 && queues > *g.MaxQueues
}

// readUsage asks every bucket what it holds.
func (s *Service) readUsage(ctx context.Context) error {
	began := time.Now()
	all, err := s.eachBucketHash(ctx)
	if err != nil {
		return err
	}
	bytes, queues := map[string]int64{}, map[string]int64{}
	for _, fields := range all {
		for name, value := range fields {
			if tenant, ok := cutQueues(name); ok {
				queues[tenant] += number(value)
			} else {
				bytes[name] += number(value)
			}
		}
	}
	s.metrics.EphemeralHeld(s.usage.set(began, bytes, queues))
	return nil
}
