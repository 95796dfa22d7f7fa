package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/node"
	"github.com/queenmq-go/queenmq/internal/pgstore/inspect"
)

func checkRedis(ctx context.Context, cfg config.Config) []inspect.Finding {
	if cfg.RedisURL == "" {
		return []inspect.Finding{{
			Subject: "redis", Level: inspect.OK,
			Detail: "none: no ephemeral queues, and brokers wake each other by PostgreSQL",
		}}
	}
	client, err := node.OpenRedis(cfg.RedisURL)
	if err != nil {
		return []inspect.Finding{{Subject: "redis", Level: inspect.Fail, Detail: err.Error()}}
	}
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return []inspect.Finding{{Subject: "redis", Level: inspect.Fail, Detail: err.Error()}}
	}
	findings := []inspect.Finding{{Subject: "redis", Level: inspect.OK, Detail: config.MaskURL(cfg.RedisURL)}}
	servers, err := redisServers(ctx, client)
	if err != nil {
		return append(findings, inspect.Finding{Subject: "redis", Level: inspect.Fail, Detail: err.Error()})
	}
	for _, s := range servers {
		findings = append(findings, s.eviction(), s.limit(cfg.Ephemeral.MaxBytes, len(servers)))
	}
	return findings
}

// redisServer is one server that stores something, and what it is set to.
type redisServer struct {
	name   string // empty when there is only one
	policy string // empty: the server does not tell
	memory int64  // 0: without a limit; below: the server does not tell
}

// redisServers asks every master of a cluster, or the one server.
func redisServers(ctx context.Context, client redis.UniversalClient) ([]redisServer, error) {
	cluster, isCluster := client.(*redis.ClusterClient)
	if !isCluster {
		return []redisServer{askServer(ctx, client, "")}, nil
	}
	var mu sync.Mutex
	var all []redisServer
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		if err := master.Ping(ctx).Err(); err != nil {
			return err
		}
		s := askServer(ctx, master, " "+master.Options().Addr)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, s)
		return nil
	})
	slices.SortFunc(all, func(a, b redisServer) int { return strings.Compare(a.name, b.name) })
	return all, err
}

// askServer reads the settings. Hosted servers refuse CONFIG, but show them
// among other things.
func askServer(ctx context.Context, client redis.Cmdable, name string) redisServer {
	s := redisServer{name: name, memory: -1}
	settings, err := client.ConfigGet(ctx, "maxmemory*").Result()
	if err != nil || settings["maxmemory-policy"] == "" {
		settings = map[string]string{}
		text, _ := client.Info(ctx, "memory").Result()
		for line := range strings.Lines(text) {
			if key, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
				settings[strings.Replace(key, "maxmemory_", "maxmemory-", 1)] = value
			}
		}
	}
	s.policy = settings["maxmemory-policy"]
	if n, err := strconv.ParseInt(settings["maxmemory"], 10, 64); err == nil {
		s.memory = n
	}
	return s
}

// eviction: a server that makes room by dropping keys drops messages, and
// nobody counts them.
func (s redisServer) eviction() inspect.Finding {
	f := inspect.Finding{Subject: "redis eviction" + s.name, Level: inspect.OK, Detail: s.policy}
	switch {
	case s.policy == "":
		f.Detail = "not told by this server; ephemeral queues need noeviction"
	case s.policy != "noeviction" && s.memory > 0:
		f.Level, f.Detail = inspect.Fail, s.policy+": this server drops messages of ephemeral queues when it is full; set noeviction"
	case s.policy != "noeviction":
		f.Level, f.Detail = inspect.Warn, s.policy+": would drop messages of ephemeral queues once there is a memory limit; set noeviction"
	}
	return f
}

// limit: what is on the other side of the limit is refused pushes, and what is
// on the other side of no limit is the kernel, which kills.
func (s redisServer) limit(most int64, servers int) inspect.Finding {
	f := inspect.Finding{Subject: "redis memory" + s.name, Level: inspect.OK}
	// Payloads are not all that takes room, hence the factor. The queues of a
	// cluster are spread over its servers.
	need := 2 * most / int64(max(servers, 1))
	switch {
	case s.memory < 0:
		f.Detail = "not told by this server"
	case s.memory == 0:
		f.Level, f.Detail = inspect.Warn, "maxmemory is not set: a server that grows without limit is killed, and takes the ephemeral queues with it"
	case s.memory < need:
		f.Level = inspect.Warn
		f.Detail = fmt.Sprintf("maxmemory is %d bytes; QUEEN_EPHEMERAL_MAX_BYTES is %d, and needs about %d here", s.memory, most, need)
	default:
		f.Detail = fmt.Sprintf("%d bytes", s.memory)
	}
	return f
}
