package node

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func openRedis(t *testing.T, address string) redis.UniversalClient {
	t.Helper()
	c, err := OpenRedis(address)
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestOpenRedis_Forms(t *testing.T) {
	t.Parallel()
	single, ok := openRedis(t, "rediss://u:p@cache:6380/2").(*redis.Client)
	if !ok || single.Options().Addr != "cache:6380" || single.Options().DB != 2 || single.Options().TLSConfig == nil {
		t.Errorf("single: %+v", single)
	}
	if o := single.Options(); o.DialTimeout != redisDial || o.ReadTimeout != redisIO || o.WriteTimeout != redisIO || o.MaxRetries != 0 {
		t.Errorf("not bounded: %v, %v, %v, %d retries", o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.MaxRetries)
	}
	tuned, ok := openRedis(t, "redis://cache?read_timeout=7s&max_retries=2").(*redis.Client)
	if !ok || tuned.Options().ReadTimeout != 7*time.Second || tuned.Options().MaxRetries != 2 {
		t.Error("what the address says does not hold")
	}
	cluster, ok := openRedis(t, "redis://:p@a:1?addr=b:2&addr=c:3").(*redis.ClusterClient)
	if !ok || !slices.Equal(cluster.Options().Addrs, []string{"a:1", "b:2", "c:3"}) || cluster.Options().Password != "p" ||
		cluster.Options().DialTimeout != redisDial {
		t.Errorf("cluster: %+v", cluster)
	}
	watched, ok := openRedis(t, "redis://s1:26379?master_name=queen&addr=s2:26379&password=p").(*redis.Client)
	if !ok || watched.Options().Addr != "FailoverClient" || watched.Options().Password != "p" {
		t.Errorf("sentinel: %+v", watched)
	}
}

func TestOpenRedis_RefusesWithoutTellingThePassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"redis://:s3cr3t@h/x", "redis://:s3cr3t@h?no_such_option=1", "redis://:s3cr3t%@h", "http://:s3cr3t@h",
		"redis://:s3cr3t@h?addr=nonsense", "redis://:s3cr3t@h?master_name=m&addr=nonsense",
	} {
		c, err := OpenRedis(address)
		if err == nil {
			_ = c.Close()
			t.Errorf("%s accepted", address)
			continue
		}
		if strings.Contains(err.Error(), "s3cr3t") || !strings.HasPrefix(err.Error(), "REDIS_URL: ") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestOpenRedis_GivesUpSoon: neither a port that refuses nor one that never
// answers holds a call for long.
func TestOpenRedis_GivesUpSoon(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	silent, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	refusing, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = refusing.Close()
	for address, limit := range map[string]time.Duration{
		"redis://" + refusing.Addr().String():                         time.Second,
		"redis://" + silent.Addr().String() + "?read_timeout=200ms":   2 * time.Second,
		"redis://" + refusing.Addr().String() + "?addr=127.0.0.1:1":   3 * time.Second,
		"redis://" + refusing.Addr().String() + "?master_name=absent": 3 * time.Second,
	} {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := openRedis(t, address).Ping(ctx).Err(); err == nil {
			t.Errorf("%s answers", address)
		}
		cancel()
		if took := time.Since(begin); took > limit {
			t.Errorf("%s: %v until it failed", address, took)
		}
	}
}
