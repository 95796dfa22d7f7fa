package node

import (
	"errors"
	"fmt"
	"net/url"
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
		return redis.NewClusterClient(o), nil
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
