package ephemeral

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Causes of a refusal that is not Redis' own.
var (
	errNoRedis = errors.New("no Redis is configured")
	errAway    = errors.New("it did not answer a moment ago")
	errAnswer  = errors.New("an answer of another form")
)

// fault translates an error of Redis: whatever it is, nothing half-done is left
// behind and the call may be repeated.
func fault(err error) error {
	return &mq.Error{
		Kind: mq.KindUnavailable, Code: mq.CodeEphemeralUnavailable, Message: "ephemeral queues are not reachable",
		Err: fmt.Errorf("redis: %w", err),
	}
}

// failed notes that Redis did not answer, and translates the error.
func (s *Service) failed(err error) error {
	if isOutage(err) {
		select {
		case s.lost <- err:
		default:
		}
	}
	return fault(err)
}

// isOutage tells a connection that broke or timed out from an error that Redis
// sent, and from a caller that left.
func isOutage(err error) bool {
	var sent redis.Error
	return err != nil && !errors.As(err, &sent) && !errors.Is(err, context.Canceled)
}

// reachable refuses at once while Redis is away: every call that waited for its
// own timeout would hold a connection and its body. Of a cluster, the other
// servers may be there.
func (s *Service) reachable() error {
	if _, isCluster := s.redis.(*redis.ClusterClient); s.up.Load() || isCluster {
		return nil
	}
	return fault(errAway)
}

// turned notes whether Redis answers, and says so when that has changed.
func (s *Service) turned(up bool, why error) {
	if s.up.Swap(up) == up {
		return
	}
	s.metrics.EphemeralUp(up)
	if up {
		s.log.Info("ephemeral queues are reachable")
		return
	}
	s.log.Warn("ephemeral queues are not reachable", "error", why)
}

// returnPause is between two looks at a Redis that is away.
const returnPause = 200 * time.Millisecond

// pingTimeout is how long Redis may take to say that it is there. Calls have
// more time, but they are not alone.
const pingTimeout = time.Second

func (s *Service) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return s.redis.Ping(ctx).Err() == nil
}

// watch finds out whether Redis is away when a call has failed: it may have
// been that one connection only.
func (s *Service) watch(ctx context.Context) {
	for {
		var why error
		select {
		case <-ctx.Done():
			return
		case why = <-s.lost:
		}
		for !s.answers(ctx) && ctx.Err() == nil {
			s.turned(false, why)
			pause(ctx, returnPause)
		}
		if !s.up.Load() && ctx.Err() == nil {
			s.turned(true, nil)
			s.missed(ctx)
		}
	}
}
