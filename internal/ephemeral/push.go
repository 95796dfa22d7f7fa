package ephemeral

import (
	"context"
	"errors"
	"fmt"

	"github.com/queenmq-go/queenmq/internal/batch"
	"github.com/queenmq-go/queenmq/internal/mq"
)

// Limits of one gathered trip.
var gatherLimits = batch.Limits{Items: 10_000, Bytes: 8 << 20}

// pushUnit is one push on its way.
type pushUnit struct {
	at   address
	args []any // partition, how many, payloads
	done chan error
}

// Push stores all messages of p, or none.
func (s *Service) Push(ctx context.Context, p *mq.EphemeralPush) error {
	grant, err := s.admit(ctx, p.Tenant, len(p.Payloads))
	if err != nil {
		return err
	}
	if len(p.Payloads) == 0 {
		return nil
	}
	u := &pushUnit{at: s.addressOf(p.Tenant, p.Queue), args: make([]any, 0, 2+len(p.Payloads)), done: make(chan error, 1)}
	u.args = append(u.args, p.Partition, len(p.Payloads))
	bytes := 0
	for _, payload := range p.Payloads {
		bytes += len(payload)
		u.args = append(u.args, payload)
	}
	if err := s.mayMake(ctx, u.at, grant); err != nil {
		return err
	}
	if err := s.reserve(ctx, u.at, grant, int64(bytes)); err != nil {
		// That the queue is full comes first, and it is the queue's owner who
		// can do something about it.
		if s.isFull(ctx, u.at, len(p.Payloads), bytes) {
			return full(p.Queue)
		}
		return err
	}
	s.pushes.Add(u, laneOf(u.at.queue), len(p.Payloads), bytes)
	// The payloads are slices of the request, so this waits for the end even if
	// the caller has left. Redis' own time limits bound it.
	if err := <-u.done; err != nil {
		if errors.Is(err, errFull) {
			return full(p.Queue)
		}
		return err
	}
	s.usage.charge(u.at.tenant, int64(bytes))
	s.metrics.EphemeralPushed(len(p.Payloads))
	return nil
}

var errFull = errors.New("the queue is full")

func full(queue string) error {
	return &mq.Error{
		Kind: mq.KindOverloaded, Code: mq.CodeEphemeralFull, Message: fmt.Sprintf("queue %q is full, nothing was stored", queue),
	}
}

// isFull tells whether a queue that rejects has no room for a push.
func (s *Service) isFull(ctx context.Context, at address, count, bytes int) bool {
	l := s.declared.of(ctx, at.queue).limits
	held, err := s.redis.HMGet(ctx, at.keys()[0], "n", "b").Result()
	if err != nil || len(held) != 2 {
		return false
	}
	tooLarge := int64(count) > l.MaxLength || int64(bytes) > l.MaxBytes
	over := number(held[0])+int64(count) > l.MaxLength || number(held[1])+int64(bytes) > l.MaxBytes
	return tooLarge || over && l.Policy == mq.EphemeralReject
}

// flushPushes stores gathered pushes: one script for each queue, all in one
// trip.
func (s *Service) flushPushes(units []*pushUnit) {
	ctx := context.Background()
	s.gathered(ctx, queuesOf(units, func(u *pushUnit) string { return u.at.queue }), func(i []int) *call {
		first := units[i[0]]
		c := &call{script: pushScript, at: first.at, limits: s.declared.of(ctx, first.at.queue), args: []any{salt(), len(i)}}
		for _, n := range i {
			c.args = append(c.args, units[n].args...)
		}
		return c
	}, func(i []int, r reply, err error) {
		letters := ""
		if len(r.rest) > 0 {
			letters = text(r.rest[0])
		}
		for k, n := range i {
			switch {
			case err != nil:
				units[n].done <- err
			case k < len(letters) && letters[k] == 'k':
				units[n].done <- nil
			case k < len(letters):
				units[n].done <- errFull
			default:
				units[n].done <- fault(errAnswer)
			}
		}
	})
}
