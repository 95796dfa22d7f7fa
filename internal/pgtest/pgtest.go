// Package pgtest gives every test a real PostgreSQL database of its own.
//
// One server is started per test binary, or the one at TEST_DATABASE_URL is
// used. The schema is migrated once into a template; a test's database is a
// copy of it, made in tens of milliseconds and dropped at cleanup. Tests may
// therefore run in parallel, commit, and break things.
//
// A machine without PostgreSQL is a failure, not a skip: a green run that
// tested nothing is worse than a red one.
package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
	"github.com/queenmq-go/queenmq/migrations"
)

// PoolSize is the number of connections of a DB's pool. It is small because
// parallel tests share the server's limit.
const PoolSize = 5

// DB is one test's database.
type DB struct {
	Name string
	URL  string
}

// New returns a clean database with the current schema.
func New(t testing.TB) *DB {
	t.Helper()
	s := theServer(t)
	name, err := s.template(t.Context())
	if err != nil {
		t.Fatalf("pgtest: migrate template: %v", err)
	}
	return create(t, s, name)
}

// NewEmpty returns a database without any schema.
func NewEmpty(t testing.TB) *DB {
	t.Helper()
	return create(t, theServer(t), "template0")
}

// Pool returns a small pool on the database, closed at cleanup. Its
// search_path is empty, so a query that forgets to name its schema fails here
// instead of working by luck.
func (db *DB) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cfg.MaxConns = PoolSize
	cfg.ConnConfig.RuntimeParams["search_path"] = ""
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("pgtest: open pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

var created atomic.Int64

func create(t testing.TB, s *server, template string) *DB {
	t.Helper()
	name := fmt.Sprintf("queen_test_%d_%d_%d", os.Getpid(), time.Now().UnixNano(), created.Add(1))
	quoted := pgx.Identifier{name}.Sanitize()
	_, err := s.admin.Exec(t.Context(), "CREATE DATABASE "+quoted+" TEMPLATE "+pgx.Identifier{template}.Sanitize())
	if err != nil {
		t.Fatalf("pgtest: create database: %v", err)
	}
	t.Cleanup(func() {
		// The test's context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := s.admin.Exec(ctx, "DROP DATABASE "+quoted+" WITH (FORCE)"); err != nil {
			t.Errorf("pgtest: drop database: %v", err)
		}
	})
	return &DB{Name: name, URL: s.urlFor(name)}
}

// template makes the migrated template the first time, under a lock, because
// several test binaries may share the server. Its name carries a hash of the
// migrations, so a changed step gets a new one.
func (s *server) template(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.templateName != "" {
		return s.templateName, nil
	}
	hash, err := hashFS(migrations.FS)
	if err != nil {
		return "", err
	}
	name := "queen_template_" + hash
	conn, err := s.admin.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext('queen_template'))"); err != nil {
		return "", err
	}
	defer conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtext('queen_template'))") //nolint:errcheck // ends with the connection

	var ready bool
	err = conn.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_database WHERE datname = $1 AND datistemplate", name).Scan(&ready)
	if err != nil {
		return "", err
	}
	if !ready {
		if err := s.makeTemplate(ctx, name); err != nil {
			return "", err
		}
	}
	s.templateName = name
	return name, nil
}

// makeTemplate sets the template mark last: a database without it is the rest
// of a failed run and is made anew.
func (s *server) makeTemplate(ctx context.Context, name string) error {
	quoted := pgx.Identifier{name}.Sanitize()
	for _, stmt := range []string{
		"DROP DATABASE IF EXISTS " + quoted + " WITH (FORCE)",
		"CREATE DATABASE " + quoted + " TEMPLATE template0",
	} {
		if _, err := s.admin.Exec(ctx, stmt); err != nil {
			return err
		}
	}
	if _, err := migrate.Up(ctx, s.urlFor(name)); err != nil {
		return err
	}
	// Nobody may connect, or copying it would fail now and then.
	_, err := s.admin.Exec(ctx, "ALTER DATABASE "+quoted+" WITH IS_TEMPLATE true ALLOW_CONNECTIONS false")
	return err
}

func hashFS(fsys fs.FS) (string, error) {
	h := sha256.New()
	names, err := fs.Glob(fsys, "*.sql") // sorted
	if err != nil {
		return "", err
	}
	for _, name := range names {
		raw, err := fs.ReadFile(fsys, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(raw))
		h.Write(raw)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

func replaceDatabase(base, name string) (string, error) {
	u, err := url.Parse(base)
	if err != nil {
		return "", fmt.Errorf("TEST_DATABASE_URL: %w", err)
	}
	u.Path = "/" + name
	return u.String(), nil
}
