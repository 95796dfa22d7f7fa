// Package migrate brings a database to the schema of this binary. It is the one
// place that does so, for `queen migrate`, for `queen dev` and for tests.
//
// The bookkeeping tables (goose_db_version, goose_lock) live in the schema
// queen, beside what they describe, so that one `pg_dump -n queen` carries data
// and version together and a restore cannot tear them apart. Hence two rules
// for migrations: the schema exists before step 1 runs, and no Down step may
// drop it.
//
// Concurrent runs are kept apart by a lease row instead of a session lock. It
// works through transaction pooling, and CREATE INDEX CONCURRENTLY, which waits
// for every older transaction, cannot deadlock with a runner that waits for a
// blocking lock.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/queenmq-go/queenmq/migrations"
)

const (
	schema       = "queen"
	versionTable = schema + ".goose_db_version"
	lockTable    = schema + ".goose_lock"
)

// Step is one migration and whether it has been applied.
type Step struct {
	Version   int64
	Name      string
	AppliedAt time.Time // zero while pending
}

// Pending reports whether the step waits to be applied.
func (s Step) Pending() bool { return s.AppliedAt.IsZero() }

// Up applies every pending step and returns the names of those this call
// applied. Several calls at once are safe: each step is applied once.
func Up(ctx context.Context, url string) ([]string, error) {
	return UpFrom(ctx, migrations.FS, url)
}

// UpFrom is Up with the steps of another folder, such as those of a version to
// come.
func UpFrom(ctx context.Context, fsys fs.FS, url string) ([]string, error) {
	var applied []string
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		names, err := up(ctx, fsys, url)
		applied = append(applied, names...)
		if err == nil || !lockTaken(err) {
			return applied, err
		}
		// A step that alters a table which is in use gives way after a moment,
		// because everybody who comes after it waits for it. It tries again.
		select {
		case <-ctx.Done():
			return applied, errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

// lockTaken reports a step that gave up on a lock, or lost a deadlock.
func lockTaken(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "55P03" || pgErr.Code == "40P01")
}

// Down takes back the newest applied step and returns its name.
func Down(ctx context.Context, url string) (string, error) {
	return down(ctx, migrations.FS, url)
}

// Status lists all steps this binary knows, oldest first. It changes nothing.
func Status(ctx context.Context, url string) ([]Step, error) {
	return status(ctx, migrations.FS, url)
}

// Latest is the newest version this binary knows.
func Latest() (int64, error) { return latest(migrations.FS) }

func up(ctx context.Context, fsys fs.FS, url string) (applied []string, err error) {
	err = withProvider(ctx, fsys, url, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		var partial *goose.PartialError
		if errors.As(err, &partial) {
			results = partial.Applied
		}
		for _, r := range results {
			applied = append(applied, path.Base(r.Source.Path))
		}
		return err
	})
	if err != nil {
		return applied, fmt.Errorf("migrate up: %w", err)
	}
	return applied, nil
}

func down(ctx context.Context, fsys fs.FS, url string) (name string, err error) {
	err = withProvider(ctx, fsys, url, func(p *goose.Provider) error {
		r, err := p.Down(ctx)
		if err != nil {
			return err
		}
		name = path.Base(r.Source.Path)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("migrate down: %w", err)
	}
	return name, nil
}

func status(ctx context.Context, fsys fs.FS, url string) ([]Step, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("migrate status: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	at, err := appliedAt(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("migrate status: %w", err)
	}
	sources, err := list(fsys)
	if err != nil {
		return nil, fmt.Errorf("migrate status: %w", err)
	}
	steps := make([]Step, 0, len(sources))
	for _, s := range sources {
		steps = append(steps, Step{Version: s.Version, Name: path.Base(s.Path), AppliedAt: at[s.Version]})
	}
	return steps, nil
}

func latest(fsys fs.FS) (int64, error) {
	sources, err := list(fsys)
	if err != nil {
		return 0, fmt.Errorf("list migrations: %w", err)
	}
	return sources[len(sources)-1].Version, nil
}

// list reads the steps without a database: the provider needs a handle and
// opens no connection before it is asked to.
func list(fsys fs.FS) ([]*goose.Source, error) {
	db := stdlib.OpenDB(pgx.ConnConfig{})
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, fsys)
	if err != nil {
		return nil, err
	}
	return p.ListSources(), nil
}

func withProvider(ctx context.Context, fsys fs.FS, url string, use func(*goose.Provider) error) error {
	db, err := open(url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := createSchema(ctx, db); err != nil {
		return err
	}
	locker, err := lock.NewPostgresTableLocker(
		lock.WithTableName(lockTable),
		// Looked at often and waited for long: a fleet that rolls out runs
		// this job in parallel, and building an index can take an hour.
		lock.WithTableLockTimeout(500*time.Millisecond, 2*60*60*2),
		lock.WithTableRetryPolicy(worthWaiting),
	)
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, fsys,
		goose.WithTableName(versionTable), goose.WithLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	return use(p)
}

// worthWaiting tells a lease that somebody else holds, which has no type of its
// own, from an answer of the server that waiting does not change, such as a
// missing right. Without it a refused job would hang as long as a patient one.
func worthWaiting(err error) bool {
	var connectErr *pgconn.ConnectError
	if errors.As(err, &connectErr) {
		return false
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return true
	}
	switch pgErr.Code {
	case "40001", "40P01", "55P03":
		return true
	default:
		return false
	}
}

// open avoids prepared statements, which a transaction pooler does not keep.
func open(url string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err // pgx masks the password
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	return stdlib.OpenDB(*cfg), nil
}

// createSchema makes room for the bookkeeping tables. IF NOT EXISTS alone is
// not enough: two sessions can both see nothing and the slower one fails. The
// lock lasts for this transaction only.
func createSchema(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	for _, stmt := range []string{
		`SELECT pg_advisory_xact_lock(hashtext('queen.migrate'))`,
		`CREATE SCHEMA IF NOT EXISTS ` + schema,
	} {
		if _, err := tx.ExecContext(ctx, stmt); err != nil {
			return fmt.Errorf("create schema %s: %w", schema, err)
		}
	}
	return tx.Commit()
}
