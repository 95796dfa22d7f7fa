package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is what Version needs of a pool or a connection.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const undefinedTable = "42P01"

// Version is the newest step applied to the database, 0 when it has never been
// migrated. It only reads, so a broker can ask at start without any right to
// change the schema.
func Version(ctx context.Context, q Querier) (int64, error) {
	at, err := appliedAt(ctx, q)
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	var newest int64
	for v := range at {
		newest = max(newest, v)
	}
	return newest, nil
}

// appliedAt maps each applied version to its time, without version 0, which
// goose writes when it creates the table.
func appliedAt(ctx context.Context, q Querier) (map[int64]time.Time, error) {
	rows, err := q.Query(ctx,
		`SELECT version_id, tstamp FROM `+versionTable+` WHERE is_applied AND version_id > 0 ORDER BY id`)
	at := map[int64]time.Time{}
	if err == nil {
		defer rows.Close()
		var version int64
		var tstamp time.Time
		for rows.Next() && err == nil {
			if err = rows.Scan(&version, &tstamp); err == nil {
				at[version] = tstamp
			}
		}
		err = errors.Join(err, rows.Err())
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == undefinedTable || pgErr.Code == "3F000") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return at, nil
}

// SchemaError says that binary and database do not fit together.
type SchemaError struct {
	Have int64 // the database's version
	Want int64 // this binary's newest
}

func (e *SchemaError) Error() string {
	switch {
	case e.Have == 0:
		return "database has no queen schema yet: run `queen migrate up`"
	case e.Have < e.Want:
		return fmt.Sprintf("schema version %d is older than this binary needs (%d): run `queen migrate up`", e.Have, e.Want)
	default:
		return fmt.Sprintf("schema version %d is more than one release newer than this binary (%d): upgrade the binary", e.Have, e.Want)
	}
}

// Check decides whether a broker may serve on the database. An older schema is
// refused. A newer one is accepted when it belongs to the next release, because
// a rolling upgrade migrates first and replaces brokers one by one. Versions
// are numbered in hundreds by release (00001…, 00101…), so "within one release"
// is arithmetic.
func Check(ctx context.Context, q Querier) (have int64, err error) {
	have, err = Version(ctx, q)
	if err != nil {
		return 0, err
	}
	want, err := Latest()
	if err != nil {
		return 0, err
	}
	return have, fits(have, want)
}

func fits(have, want int64) error {
	if have < want || have/stepsPerRelease > want/stepsPerRelease+1 {
		return &SchemaError{Have: have, Want: want}
	}
	return nil
}

const stepsPerRelease = 100
