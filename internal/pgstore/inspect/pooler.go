package inspect

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Pooler reports on a pooler between us and the server, such as PgBouncer, by two
// connections through it. Without one there is no finding. To such a pooler a
// connection is not a session of the server: it gives out keys to cancel with
// that are its own, and in transaction mode the session changes below a
// connection. Statements that were prepared are then gone.
func Pooler(ctx context.Context, first, second *pgx.Conn) (Finding, bool) {
	f := Finding{"pooler", OK, "in session mode"}
	before, err := backend(ctx, first)
	if err != nil {
		return Finding{"pooler", Fail, err.Error()}, true
	}
	if before == first.PgConn().PID() {
		return f, false
	}
	after := before
	for tries := 0; err == nil && after == before && tries < 20; tries++ { // others may be using the pooler
		after, err = swap(ctx, first, second)
	}
	switch {
	case err != nil:
		return Finding{"pooler", Fail, err.Error()}, true
	case before == after:
		return f, true
	case first.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement:
		f.Level = Fail
		f.Detail = "in transaction mode: add default_query_exec_mode=cache_describe to DATABASE_URL"
	default:
		f.Detail = "in transaction mode, which DATABASE_URL says"
	}
	return f, true
}

// swap has the second connection take the session that the first one had, if
// sessions are there to be taken, and returns which one the first gets then. A
// pooler hands out the session that was given back last.
func swap(ctx context.Context, first, second *pgx.Conn) (pid uint32, err error) {
	for _, step := range []struct {
		conn *pgx.Conn
		sql  string
	}{
		{first, "BEGIN"}, {second, "BEGIN"}, {second, "COMMIT"}, {first, "COMMIT"}, {second, "BEGIN"},
	} {
		if _, err := step.conn.Exec(ctx, step.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return 0, err
		}
	}
	if pid, err = backend(ctx, first); err != nil {
		return 0, err
	}
	_, err = second.Exec(ctx, "COMMIT", pgx.QueryExecModeSimpleProtocol)
	return pid, err
}

func backend(ctx context.Context, c *pgx.Conn) (pid uint32, err error) {
	err = c.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid, err
}
