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
func (s *Service) admit(ctx context.Context, tenant mq.UUID, messages int) (*mq.EphemeralGrant, error) {
	if s.redis == nil {
		return nil, fault(errNoRedis)
	}
	enabled, grant := s.declared.settings(ctx, tenant)
	switch {
	case !enabled:
		return nil, &mq.Error{
			Kind: mq.KindUnavailable, Code: mq.CodeEphemeralDisabled, Message: "ephemeral queues are turned off",
			RetryAfter: time.Second,
		}
	case grant == nil && s.cfg.RequireGrant, grant != nil && !grant.Enabled:
		return nil, &mq.Error{Kind: mq.KindForbidden, Code: mq.CodeEphemeralGated, Message: "ephemeral queues are not part of this plan"}
	case grant != nil && grant.MessagesPerSecond != nil && *grant.MessagesPerSecond > 0:
		return grant, s.rates.spend(tenant, *grant.MessagesPerSecond, messages)
	}
	return grant, nil
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

// near is the share of a limit from which on what is remembered of the usage is
// read again, at most this often: other brokers add to it too.
const (
	near      = 0.9
	nearPause = 100 * time.Millisecond
)

// reserve refuses a push beyond the tenant's bytes, or beyond what the
// installation may hold. Several pushes at once may go over a little.
func (s *Service) reserve(ctx context.Context, at address, grant *mq.EphemeralGrant, bytes int64) error {
	close, over := s.limits(at.tenant, grant, bytes)
	asked := time.Now()
	if over == nil {
		if !close {
			return nil
		}
		asked = asked.Add(-nearPause)
	}
	// What is remembered may be out of date: nothing is refused on its word.
	if err := s.readUsageSince(ctx, asked); err != nil {
		return err
	}
	_, over = s.limits(at.tenant, grant, bytes)
	return over
}

// limits says whether that many bytes more come close to a limit, and whether
// they go beyond.
func (s *Service) limits(tenant string, grant *mq.EphemeralGrant, bytes int64) (close bool, over error) {
	total, held, _ := s.usage.of(tenant)
	total, held = total+bytes, held+bytes
	if limit := positiveLimit(grant, func(g *mq.EphemeralGrant) *int64 { return g.MaxBytes }); limit > 0 {
		if held > limit {
			return true, overQuota("the tenant's ephemeral queues hold as much as they may")
		}
		close = float64(held) > near*float64(limit)
	}
	if total > s.cfg.MaxBytes {
		return true, &mq.Error{
			Kind: mq.KindUnavailable, Code: mq.CodeEphemeralUnavailable, RetryAfter: time.Second,
			Message: "ephemeral queues hold as much as they may, all together",
		}
	}
	return close || float64(total) > near*float64(s.cfg.MaxBytes), nil
}

// mayMake refuses a call on a queue that is not there yet and that the tenant
// may not have besides the others.
func (s *Service) mayMake(ctx context.Context, at address, grant *mq.EphemeralGrant) error {
	limit := positiveLimit(grant, func(g *mq.EphemeralGrant) *int64 { return g.MaxQueues })
	if limit == 0 {
		return nil
	}
	if err := s.readUsageSince(ctx, time.Now().Add(-nearPause)); err != nil {
		return err
	}
	if _, _, queues := s.usage.of(at.tenant); queues < limit {
		return nil
	}
	n, err := s.redis.Exists(ctx, at.keys()[0]).Result()
	if err != nil {
		return s.failed(err)
	}
	if n == 0 {
		return overQuota("the tenant has as many ephemeral queues as it may")
	}
	return nil
}

// positiveLimit reads a limit of a grant. Limits of zero and below are none.
func positiveLimit(g *mq.EphemeralGrant, of func(*mq.EphemeralGrant) *int64) int64 {
	if g == nil || of(g) == nil {
		return 0
	}
	return max(*of(g), 0)
}

func overQuota(message string) error {
	return &mq.Error{Kind: mq.KindForbidden, Code: mq.CodeEphemeralQuota, Message: message}
}

// readUsageSince reads the usage unless somebody did after an instant.
func (s *Service) readUsageSince(ctx context.Context, since time.Time) error {
	s.usage.reading.Lock()
	defer s.usage.reading.Unlock()
	if s.usage.readAt().After(since) {
		return nil
	}
	return s.readUsage(ctx)
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
