package devdb

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
)

func TestRedisServers(t *testing.T) {
	t.Parallel()
	for name, launch := range map[string]func() (*Redis, error){
		"real":       func() (*Redis, error) { return StartRedis(t.Context()) },
		"in-process": StartMiniRedis,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := launch()
			if err != nil {
				t.Fatal(err)
			}
			addr := strings.TrimSuffix(strings.TrimPrefix(r.URL(), "redis://"), "/0")
			if err := ping(t.Context(), addr); err != nil {
				t.Errorf("ping: %v", err)
			}
			for range 2 {
				if err := r.Stop(context.Background()); err != nil {
					t.Errorf("stop: %v", err)
				}
			}
			if ping(t.Context(), addr) == nil {
				t.Error("still answers after stop")
			}
		})
	}
}

func TestNoRedisServer(t *testing.T) { //nolint:paralleltest // sets the environment
	t.Setenv("PATH", t.TempDir())
	if _, err := StartRedis(t.Context()); !errors.Is(err, ErrNoRedis) {
		t.Errorf("error %v, want ErrNoRedis", err)
	}
}

func TestStartRedisWith(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r, err := StartRedisWith(ctx, RedisOptions{Args: []string{"--maxmemory", "5mb"}})
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := ping(ctx, r.addr); err == nil {
		t.Error("it answers while it is paused")
	}
	if err := r.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := ping(ctx, r.addr); err != nil {
		t.Error(err)
	}
	if err := errors.Join(r.Kill(), r.Stop(ctx)); err != nil {
		t.Error(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	again, err := StartRedisWith(ctx, RedisOptions{Port: n})
	if err != nil {
		t.Fatal(err)
	}
	if again.addr != r.addr {
		t.Errorf("%s became %s", r.addr, again.addr)
	}
	if err := again.Stop(ctx); err != nil {
		t.Error(err)
	}
}
