package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// How long Redis may take, unless the address says otherwise. Nothing that is
// asked of it takes longer than milliseconds when it is well.
const (
	redisDial = time.Second
	redisIO   = 3 * time.Second
)

var errNotAnAddress = errors.New("not a URL")

// OpenRedis returns a client of the Redis at an address: a single server, a
// cluster when the address lists more of its nodes (?addr=host:port, repeated),
// or the servers that Sentinels watch (?master_name=). It does not connect, so
// it fails only on an address that cannot be read.
//
// Calls are not repeated: a script that ran, and whose answer was lost, would
// run twice. Whoever called hears of it and decides.
func OpenRedis(address string) (redis.UniversalClient, error) {
	quieten()
	u, err := url.Parse(address)
	if err != nil {
		// The parser's own message repeats the address, password and all.
		return nil, fmt.Errorf("REDIS_URL: %w", errNotAnAddress)
	}
	q := u.Query()
	switch {
	case q.Has("master_name"):
		o, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, fmt.Errorf("REDIS_URL: %w", err)
		}
		o.ContextTimeoutEnabled = true
		bound(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.MaxRetries, &o.DialerRetries)
		return redis.NewFailoverClient(o), nil
	case q.Has("addr"):
		o, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, fmt.Errorf("REDIS_URL: %w", err)
		}
		o.ContextTimeoutEnabled = true
		bound(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.MaxRetries, &o.DialerRetries)
		client := redis.NewClusterClient(o)
		client.OnNewNode(func(node *redis.Client) { node.AddHook(once{}) })
		return client, nil
	default:
		o, err := redis.ParseURL(address)
		if err != nil {
			return nil, fmt.Errorf("REDIS_URL: %w", err)
		}
		o.ContextTimeoutEnabled = true
		bound(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.MaxRetries, &o.DialerRetries)
		return redis.NewClient(o), nil
	}
}

// quieten keeps the client library from writing to standard error by itself, a line
// for each connection that fails. Whoever uses a client hears of it, and logs an
// outage once.
var quieten = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

// Printf is what the library writes by.
func (silence) Printf(context.Context, string, ...any) {}

// once keeps a client of a cluster from sending a command again after its answer
// was lost. It does so to find its way to another node, and has no option not to;
// what it does not recognise as a lost connection it leaves alone. Commands that
// never left, and those that were sent to the wrong node, are sent again.
type once struct{}

// lostError is an answer that did not come. It has no Unwrap on purpose.
type lostError struct{ cause error }

func (e *lostError) Error() string { return "redis: answer lost: " + e.cause.Error() }

// DialHook implements redis.Hook.
func (once) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements redis.Hook. A pipeline is repeated within it,
// which is out of reach.
func (once) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements redis.Hook.
func (once) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		var network *net.OpError
		var timeout net.Error
		switch {
		case errors.As(err, &network) && network.Op == "dial":
			return err
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &timeout):
			return &lostError{err}
		}
		return err
	}
}

// bound sets what the address left open.
func bound(dial, read, write *time.Duration, retries, dials *int) {
	for to, limit := range map[*time.Duration]time.Duration{dial: redisDial, read: redisIO, write: redisIO} {
		if *to == 0 {
			*to = limit
		}
	}
	for to, n := range map[*int]int{retries: -1, dials: 1} {
		if *to == 0 {
			*to = n
		}
	}
}
