package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// session is a transaction of somebody else, who has locked something.
type session struct {
	t    testing.TB
	conn *pgx.Conn
	tx   pgx.Tx
}

// holdRow opens a transaction beside the brokers and runs statements in it.
func holdRow(t testing.TB, f *Fleet, statements ...string) *session {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, f.DB.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, conn: conn}
	t.Cleanup(s.Close)
	if s.tx, err = conn.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	for _, sql := range statements {
		tag, err := s.tx.Exec(ctx, sql)
		if err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("%s: %v, %d rows", sql, err, tag.RowsAffected())
		}
	}
	return s
}

// Close rolls the transaction back. It may be called early, and again.
func (s *session) Close() {
	if s.conn.IsClosed() {
		return
	}
	_ = s.conn.Close(context.Background())
}

// slowCommit makes transactions that write such a row take seconds more to
// commit, everything they changed being locked meanwhile.
func slowCommit(t testing.TB, f *Fleet, table, event, when string, seconds float64) {
	t.Helper()
	_, err := f.DB.Pool(t).Exec(t.Context(), fmt.Sprintf(`
		CREATE FUNCTION queen.test_slow() RETURNS trigger LANGUAGE plpgsql AS
		  $$ BEGIN IF %s THEN PERFORM pg_sleep(%g); END IF; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER test_slow AFTER %s ON %s DEFERRABLE INITIALLY DEFERRED
		  FOR EACH ROW EXECUTE FUNCTION queen.test_slow()`, when, seconds, event, table))
	if err != nil {
		t.Fatal(err)
	}
}

// committing waits until somebody is in such a commit.
func committing(t testing.TB, f *Fleet) {
	t.Helper()
	pool := f.DB.Pool(t)
	eventually(t, func() bool {
		var n int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'").Scan(&n)
		return err == nil && n > 0
	}, "a slow commit")
}

// setClock moves the database's clock, which is the same as moving the brokers'
// the other way.
func setClock(t testing.TB, pool *pgxpool.Pool, offset string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `CREATE OR REPLACE FUNCTION queen.clock() RETURNS timestamptz
		LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT clock_timestamp() + interval '`+offset+`' $$`)
	if err != nil {
		t.Fatal(err)
	}
}
