package devdb

import (
	"context"
	"errors"
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
