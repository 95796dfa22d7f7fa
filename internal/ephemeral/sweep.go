package ephemeral

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// sweepInterval is how often every broker looks for what is due. Whoever comes
// first does it; the script looks again before it does anything.
const sweepInterval = time.Second

// lookAgain is how long the sweep leaves a queue alone in which nothing is due.
const lookAgain = time.Minute

func (s *Service) sweepEvery(ctx context.Context, interval time.Duration) {
	for {
		// Brokers must not all look at the same instant.
		if !pause(ctx, interval-time.Duration(rand.Int64N(int64(interval)/4+1))) {
			return
		}
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil && !isOutage(err) {
			s.log.Error("ephemeral queues not swept", "error", err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// sweep does what is due in all queues.
func (s *Service) sweep(ctx context.Context) error {
	if err := s.watchEpoch(ctx); err != nil {
		return err
	}
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = s.sweepOnce(ctx); err != nil {
			return err
		}
	}
	return s.readUsage(ctx)
}

// sweepOnce goes through the buckets once. It reports whether one of them had
// as much to do as one look tells.
func (s *Service) sweepOnce(ctx context.Context) (more bool, err error) {
	// The script asks Redis itself what time it is: this only finds candidates.
	now, err := s.redis.Time(ctx).Result()
	if err != nil {
		return false, s.failed(err)
	}
	due := make([]*redis.StringSliceCmd, buckets)
	until := redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(now.UnixMilli(), 10), Count: perLook}
	_, err = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range due {
			due[i] = pipe.ZRangeByScore(ctx, address{base: s.bucket(i)}.registry(), &until)
		}
		return nil
	})
	if err != nil {
		return false, s.failed(err)
	}
	for i, cmd := range due {
		ids := cmd.Val()
		for _, id := range ids {
			if err := s.sweepQueue(ctx, addressIn(s.bucket(i), id)); err != nil {
				return false, err
			}
		}
		more = more || len(ids) == perLook
	}
	return more, nil
}

// perLook is how many queues a bucket names at once.
const perLook = 100

func (s *Service) sweepQueue(ctx context.Context, at address) error {
	r, err := s.run(ctx, &call{
		script: sweepScript, at: at, limits: s.declared.of(ctx, at.queue),
		args: []any{s.cfg.Unread.Milliseconds(), s.cfg.GroupIdle.Milliseconds(), lookAgain.Milliseconds()},
	})
	if err != nil {
		return err
	}
	if len(r.rest) > 0 {
		if n := number(r.rest[0]); n > 0 {
			s.metrics.EphemeralGroupsForgotten(int(n))
		}
	}
	return nil
}

// watchEpoch notices that the contents were lost.
func (s *Service) watchEpoch(ctx context.Context) error {
	key := s.cfg.Prefix + "ephemeral:epoch"
	if err := s.redis.SetNX(ctx, key, incarnation()[:4], 0).Err(); err != nil {
		return s.failed(err)
	}
	now, err := s.redis.Get(ctx, key).Result()
	if err != nil {
		return s.failed(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != "" && s.epoch != now {
		s.metrics.EphemeralWiped()
		s.log.Warn("ephemeral queues were lost with the contents of Redis")
	}
	s.epoch = now
	return nil
}

// eachBucketHash reads the usage of all buckets in one trip.
func (s *Service) eachBucketHash(ctx context.Context) ([]map[string]string, error) {
	cmds := make([]*redis.MapStringStringCmd, buckets)
	if err := s.reachable(); err != nil {
		return nil, err
	}
	_, err := s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range cmds {
			cmds[i] = pipe.HGetAll(ctx, address{base: s.bucket(i)}.usage())
		}
		return nil
	})
	if err != nil {
		return nil, s.failed(err)
	}
	out := make([]map[string]string, buckets)
	for i, cmd := range cmds {
		out[i] = cmd.Val()
	}
	return out, nil
}

func cutQueues(field string) (tenant string, ok bool) { return strings.CutSuffix(field, ":n") }
