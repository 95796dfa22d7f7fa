package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/queenmq-go/queenmq/internal/devdb"
)

// server is the PostgreSQL of this test binary.
type server struct {
	child  *devdb.Server // nil when TEST_DATABASE_URL names a server
	admin  *pgxpool.Pool
	urlFor func(name string) string

	mu           sync.Mutex
	templateName string
}

// shared holds what all tests of a binary use together, made on first use.
var shared struct {
	mu       sync.Mutex
	pg       *server
	pgErr    error
	redis    *devdb.Redis
	redisErr error
}

func theServer(t testing.TB) *server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.pg == nil && shared.pgErr == nil {
		shared.pg, shared.pgErr = startServer()
	}
	if shared.pgErr != nil {
		t.Fatalf("pgtest: %v", shared.pgErr)
	}
	return shared.pg
}

// startServer does not use a test's context: the server serves all of them.
func startServer() (*server, error) {
	ctx := context.Background()
	s := &server{}
	base := os.Getenv("TEST_DATABASE_URL")
	if base != "" {
		if _, err := replaceDatabase(base, "x"); err != nil {
			return nil, err
		}
		s.urlFor = func(name string) string {
			u, _ := replaceDatabase(base, name) // checked above
			return u
		}
	} else {
		// Parallel tests that wait for their subtests keep their brokers, and
		// those their connections: many at once, few of them busy.
		child, err := devdb.Start(ctx, devdb.Options{ExtraSettings: map[string]string{"max_connections": "600"}})
		if err != nil {
			return nil, err
		}
		s.child, s.urlFor, base = child, child.URLFor, child.URL()
	}
	cfg, err := pgxpool.ParseConfig(base)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	cfg.MaxConns = 4
	s.admin, err = pgxpool.NewWithConfig(ctx, cfg)
	if err == nil {
		pingCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err = s.admin.Ping(pingCtx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to test server: %w", err), s.stop())
	}
	return s, nil
}

func (s *server) stop() error {
	if s.admin != nil {
		s.admin.Close()
	}
	if s.child == nil {
		return nil
	}
	return s.child.Stop(context.Background())
}

// Redis returns the URL of a real redis-server, one per test binary, or the
// one at TEST_REDIS_URL. It is shared: use names of your own, t.Name() for one.
func Redis(t testing.TB) string {
	t.Helper()
	if url := os.Getenv("TEST_REDIS_URL"); url != "" {
		return url
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.redis == nil && shared.redisErr == nil {
		shared.redis, shared.redisErr = devdb.StartRedis(context.Background())
	}
	if shared.redisErr != nil {
		t.Fatalf("pgtest: %v", shared.redisErr)
	}
	return shared.redis.URL()
}

// Option changes what Main does.
type Option func(*mainOptions)

type mainOptions struct {
	leaks   bool
	ignored []goleak.Option
}

// CheckLeaks fails the run when goroutines are left over after all tests.
func CheckLeaks(ignored ...goleak.Option) Option {
	return func(o *mainOptions) { o.leaks, o.ignored = true, ignored }
}

// Main runs the tests, stops what they started, and exits. Call it from
// TestMain. Without it the servers end with the test binary on Linux, and stay
// behind elsewhere until the next run.
func Main(m *testing.M, opts ...Option) {
	var o mainOptions
	for _, opt := range opts {
		opt(&o)
	}
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	// A failed test may have left anything; its own message matters more.
	if code == 0 && o.leaks {
		if err := goleak.Find(o.ignored...); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func stopShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var errs []error
	if shared.pg != nil {
		errs = append(errs, shared.pg.stop())
	}
	if shared.redis != nil {
		errs = append(errs, shared.redis.Stop(context.Background()))
	}
	return errors.Join(errs...)
}
