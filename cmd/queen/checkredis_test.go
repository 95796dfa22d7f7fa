package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/node"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestRedisEviction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy string
		memory int64
		want   string
	}{
		{"noeviction", 0, "ok"},
		{"noeviction", 1 << 30, "ok"},
		{"allkeys-lru", 0, "warn"},
		{"allkeys-lru", 1 << 30, "fail"},
		{"volatile-ttl", 1 << 30, "fail"},
		{"allkeys-lru", -1, "warn"},
		{"", -1, "ok"},
	} {
		if f := (redisServer{policy: c.policy, memory: c.memory}).eviction(); string(f.Level) != c.want || f.Detail == "" {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

func TestRedisMemory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		memory  int64
		servers int
		want    string
	}{
		{-1, 1, "ok"}, {0, 1, "warn"}, {1999, 1, "warn"}, {2000, 1, "ok"}, {700, 3, "ok"}, {600, 3, "warn"},
	} {
		if f := (redisServer{memory: c.memory}).limit(1000, c.servers); string(f.Level) != c.want || f.Detail == "" {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// hosted is a server that does not let anybody read its configuration.
type hosted struct {
	redis.Cmdable
	info string
}

func (hosted) ConfigGet(ctx context.Context, _ string) *redis.MapStringStringCmd {
	cmd := redis.NewMapStringStringCmd(ctx)
	cmd.SetErr(errors.New("ERR unknown command"))
	return cmd
}

func (h hosted) Info(ctx context.Context, _ ...string) *redis.StringCmd {
	cmd := redis.NewStringCmd(ctx)
	cmd.SetVal(h.info)
	return cmd
}

func TestAskServer(t *testing.T) {
	t.Parallel()
	client, err := node.OpenRedis(pgtest.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if s := askServer(t.Context(), client, ""); s.policy != "noeviction" || s.memory != 0 {
		t.Errorf("a real server: %+v", s)
	}
	s := askServer(t.Context(), hosted{info: "# Memory\r\nmaxmemory:1024\r\nmaxmemory_policy:allkeys-lru\r\n"}, "")
	if s.policy != "allkeys-lru" || s.memory != 1024 {
		t.Errorf("a hosted one: %+v", s)
	}
	if s := askServer(t.Context(), hosted{}, ""); s.policy != "" || s.memory != -1 {
		t.Errorf("one that tells nothing: %+v", s)
	}
}

func TestCheckWithoutRedis(t *testing.T) {
	t.Parallel()
	out, code := queen(t, "check", "--database-url="+pgtest.New(t).URL)
	wantOutput(t, out, code, 0, "no ephemeral queues")
	out, code = queen(t, "check", "--redis-url=redis://:s3cr3t@127.0.0.1:1?nonsense=1", "--database-url="+pgtest.New(t).URL)
	wantOutput(t, out, code, 1, "REDIS_URL", "nonsense")
	if strings.Contains(out, "s3cr3t") {
		t.Errorf("password printed: %s", out)
	}
}
