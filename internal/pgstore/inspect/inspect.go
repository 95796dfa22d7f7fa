// Package inspect looks at a PostgreSQL the way an experienced operator would
// before letting a broker loose on it. It reads and changes nothing.
package inspect

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
)

// Level says how bad a finding is.
type Level string

// The levels. A broker can work with a warning and not with a failure.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is one line of the report.
type Finding struct {
	Subject string
	Level   Level
	Detail  string
}

// Querier is what the inspection needs of a pool or a connection.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const minVersion = 150000

// Run reports on the server, on what else is connected to it, and on the
// schema. poolSize is what one broker is going to use.
func Run(ctx context.Context, q Querier, poolSize int) []Finding {
	settings, err := readSettings(ctx, q)
	if err != nil {
		return []Finding{{"postgres", Fail, err.Error()}}
	}
	findings := []Finding{
		version(settings),
		durability(settings),
		autovacuum(settings),
		isolation(settings),
		connections(ctx, q, settings, poolSize),
		primary(ctx, q),
		oldSnapshots(ctx, q),
		idleTransactions(ctx, q, settings),
	}
	return append(findings, schema(ctx, q))
}

func readSettings(ctx context.Context, q Querier) (map[string]string, error) {
	rows, err := q.Query(ctx, `SELECT name, setting FROM pg_settings WHERE name = ANY($1)`, []string{
		"server_version", "server_version_num", "fsync", "synchronous_commit", "full_page_writes",
		"autovacuum", "track_counts", "max_connections", "superuser_reserved_connections",
		"default_transaction_isolation", "default_transaction_read_only",
		"idle_in_transaction_session_timeout",
	})
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	settings := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		settings[name] = value
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	return settings, nil
}

func number(settings map[string]string, name string) int {
	n, _ := strconv.Atoi(settings[name]) // the server wrote it
	return n
}

func version(s map[string]string) Finding {
	f := Finding{"version", OK, s["server_version"]}
	if number(s, "server_version_num") < minVersion {
		f.Level, f.Detail = Fail, s["server_version"]+" is older than 15, which the schema needs"
	}
	return f
}

// durability: each of these turns "stored" into "probably stored".
func durability(s map[string]string) Finding {
	switch {
	case s["fsync"] == "off":
		return Finding{"durability", Warn, "fsync is off: a crash of the machine can destroy the whole database"}
	case s["full_page_writes"] == "off":
		return Finding{"durability", Warn, "full_page_writes is off: a crash of the machine can destroy pages"}
	case s["synchronous_commit"] == "off":
		return Finding{"durability", Warn, "synchronous_commit is off: a crash loses messages that were confirmed"}
	default:
		return Finding{"durability", OK, "synchronous_commit=" + s["synchronous_commit"]}
	}
}

func autovacuum(s map[string]string) Finding {
	if s["autovacuum"] == "off" || s["track_counts"] == "off" {
		return Finding{"autovacuum", Warn, "off: the tables of a queue change all the time and slow down within hours"}
	}
	return Finding{"autovacuum", OK, "on"}
}

// isolation: the statements lock first and read after, in a new snapshot. Under
// a stricter default the second one would still see the old one.
func isolation(s map[string]string) Finding {
	switch {
	case s["default_transaction_read_only"] == "on":
		return Finding{"transactions", Fail, "default_transaction_read_only is on for this user or database"}
	case s["default_transaction_isolation"] != "read committed":
		return Finding{"transactions", Warn, "default_transaction_isolation is " + s["default_transaction_isolation"] + ", read committed is expected"}
	default:
		return Finding{"transactions", OK, s["default_transaction_isolation"]}
	}
}

func connections(ctx context.Context, q Querier, s map[string]string, poolSize int) Finding {
	usable := number(s, "max_connections") - number(s, "superuser_reserved_connections")
	var others int
	err := q.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&others)
	if err != nil {
		return Finding{"connections", Fail, err.Error()}
	}
	f := Finding{"connections", OK, fmt.Sprintf("DB_POOL_SIZE=%d for each broker, %d usable, %d in use now", poolSize, usable, others)}
	switch {
	case poolSize > usable:
		f.Level = Fail
	case poolSize > usable-others && others > 0:
		f.Level = Warn // may be brokers that run already, this one's own included
	}
	return f
}

func primary(ctx context.Context, q Querier) Finding {
	var standby bool
	if err := q.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby); err != nil {
		return Finding{"role", Fail, err.Error()}
	}
	if standby {
		return Finding{"role", Fail, "a standby, which cannot be written to"}
	}
	return Finding{"role", OK, "primary"}
}

// oldSnapshots: vacuum may not remove a row version that somebody could still
// look at, so one forgotten session slows down every queue.
func oldSnapshots(ctx context.Context, q Querier) Finding {
	var sessions, prepared, oldest int
	err := q.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM pg_stat_activity
		         WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
		           AND xact_start < now() - interval '5 minutes' AND pid <> pg_backend_pid()),
		       (SELECT count(*) FROM pg_prepared_xacts WHERE prepared < now() - interval '5 minutes'),
		       coalesce(extract(epoch FROM now() - least(
		           (SELECT min(xact_start) FROM pg_stat_activity
		             WHERE backend_xmin IS NOT NULL OR backend_xid IS NOT NULL),
		           (SELECT min(prepared) FROM pg_prepared_xacts))), 0)::int`).Scan(&sessions, &prepared, &oldest)
	if err != nil {
		return Finding{"old snapshots", Fail, err.Error()}
	}
	if sessions+prepared == 0 {
		return Finding{"old snapshots", OK, fmt.Sprintf("oldest transaction: %d s", oldest)}
	}
	return Finding{"old snapshots", Warn, fmt.Sprintf(
		"%d sessions and %d prepared transactions are older than 5 minutes (oldest %d s): vacuum cannot clean up behind them",
		sessions, prepared, oldest)}
}

func idleTransactions(ctx context.Context, q Querier, s map[string]string) Finding {
	var idle int
	err := q.QueryRow(ctx, `
		SELECT count(*) FROM pg_stat_activity
		 WHERE state LIKE 'idle in transaction%' AND state_change < now() - interval '1 minute'`).Scan(&idle)
	if err != nil {
		return Finding{"idle transactions", Fail, err.Error()}
	}
	limit := s["idle_in_transaction_session_timeout"]
	if idle > 0 {
		return Finding{"idle transactions", Warn, fmt.Sprintf(
			"%d sessions sit in a transaction for more than a minute; idle_in_transaction_session_timeout=%s would end them", idle, limit)}
	}
	if limit == "0" {
		return Finding{"idle transactions", OK, "none (idle_in_transaction_session_timeout is not set)"}
	}
	return Finding{"idle transactions", OK, "none, ended after " + limit + " ms"}
}

func schema(ctx context.Context, q Querier) Finding {
	have, err := migrate.Check(ctx, q)
	if err != nil {
		return Finding{"schema", Fail, err.Error()}
	}
	return Finding{"schema", OK, fmt.Sprintf("version %d", have)}
}
