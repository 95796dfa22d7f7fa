package ephemeral

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// What travels on the channel beside the names of queues in which there is
// something: that a declaration changed, or all settings did.
const changed = "!"

// hear listens until ctx ends. Whatever was said while nobody listened is made
// up for by looking everywhere.
func (s *Service) hear(ctx context.Context) {
	for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 2*time.Second) {
		err := s.listen(ctx, func() {
			wait = 100 * time.Millisecond
			s.missed(ctx)
		})
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("wake-ups of ephemeral queues are not heard, trying again", "error", err)
		pause(ctx, wait)
	}
}

// missed looks at everything.
func (s *Service) missed(ctx context.Context) {
	if err := s.declared.reload(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("declarations of ephemeral queues not read, trying again", "error", err)
	}
	for queue := range s.lot.Waiting() {
		s.lot.Wake(queue, nil)
	}
}

func (s *Service) listen(ctx context.Context, ready func()) error {
	sub := s.redis.Subscribe(ctx, s.channel())
	defer func() { _ = sub.Close() }()
	// A read in progress does not look at ctx.
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	if _, err := sub.Receive(ctx); err != nil {
		return err
	}
	ready()
	for {
		msg, err := sub.ReceiveTimeout(ctx, 15*time.Second)
		if err != nil {
			var t net.Error
			if errors.As(err, &t) && t.Timeout() {
				if err = sub.Ping(ctx); err == nil {
					continue
				}
			}
			return err
		}
		if m, ok := msg.(*redis.Message); ok {
			s.heard(ctx, m.Payload)
		}
	}
}

func (s *Service) heard(ctx context.Context, said string) {
	queue, isChange := strings.CutPrefix(said, changed)
	switch {
	case !isChange:
		s.lot.Wake(queue, nil)
	case queue == "":
		s.missed(ctx)
	default:
		s.declared.reread(ctx, queue)
		s.lot.Wake(queue, nil)
	}
}

// tell says to all brokers that a declaration changed, or with no queue that
// the settings did. They read again by themselves, only later.
func (s *Service) tell(ctx context.Context, queue string) {
	if err := s.redis.Publish(ctx, s.channel(), changed+queue).Err(); err != nil {
		s.log.Warn("a change was not announced, brokers find out by themselves", "queue", queue, "error", err)
	}
}

// refresh reads the declarations again from time to time, and takes back in
// Redis those that are not there any more.
func (s *Service) refresh(ctx context.Context) {
	for pause(ctx, s.cfg.Refresh) {
		if err := s.declared.reload(ctx); err != nil {
			if ctx.Err() == nil {
				s.log.Warn("declarations of ephemeral queues not read, trying again", "error", err)
			}
			continue
		}
		if err := s.retract(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("declarations not compared", "error", err)
		}
	}
}
