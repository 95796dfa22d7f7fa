package wake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// channel, after the prefix of the installation, is where brokers of one fleet
// meet.
const channel = "wake"

// Redis carries hints over pub/sub.
type Redis struct {
	client  redis.UniversalClient
	channel string
}

// NewRedis returns a transport over client. Fleets that share a Redis differ by
// prefix.
func NewRedis(client redis.UniversalClient, prefix string) *Redis {
	return &Redis{client: client, channel: prefix + channel}
}

// Publish implements Transport.
func (r *Redis) Publish(ctx context.Context, texts []string) error {
	pipe := r.client.Pipeline()
	for _, t := range texts {
		pipe.Publish(ctx, r.channel, t)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("publish hints: %w", err)
	}
	return nil
}

// Listen implements Transport.
func (r *Redis) Listen(ctx context.Context, ready func(), hear func(string)) error {
	sub := r.client.Subscribe(ctx, r.channel)
	defer func() { _ = sub.Close() }()
	// A read in progress does not look at ctx.
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	if _, err := sub.Receive(ctx); err != nil {
		return fmt.Errorf("subscribe to hints: %w", err)
	}
	ready()
	for {
		// A silent connection is pinged, so that a dead one is noticed.
		msg, err := sub.ReceiveTimeout(ctx, 15*time.Second)
		if err != nil {
			if isTimeout(err) {
				if err = sub.Ping(ctx); err == nil {
					continue
				}
			}
			return fmt.Errorf("receive hints: %w", err)
		}
		if m, ok := msg.(*redis.Message); ok {
			hear(m.Payload)
		}
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
