package migrate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/queenmq-go/queenmq/internal/devdb"
)

// pgtest is built on this package, so these tests start their server
// themselves.
var testServer *devdb.Server

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(run{m})
}

type run struct{ m *testing.M }

func (r run) Run() int {
	var err error
	testServer, err = devdb.Start(context.Background(), devdb.Options{})
	if err != nil {
		println("start postgres:", err.Error())
		return 1
	}
	defer testServer.Stop(context.Background()) //nolint:errcheck // the run is over
	return r.m.Run()
}

var steps = fstest.MapFS{
	"00001_create_things.sql": {Data: []byte(`-- +goose Up
CREATE TABLE queen.things (id bigint PRIMARY KEY, name text NOT NULL);
-- +goose Down
DROP TABLE queen.things;
`)},
	"00002_index_things.sql": {Data: []byte(`-- +goose NO TRANSACTION
-- +goose Up
CREATE INDEX CONCURRENTLY things_name_idx ON queen.things (name);
-- +goose Down
DROP INDEX CONCURRENTLY queen.things_name_idx;
`)},
	"embed.go": {Data: []byte("package migrations\n")},
}

var stepNames = []string{"00001_create_things.sql", "00002_index_things.sql"}

// database makes an empty one and returns its URL and a connection to it.
func database(t *testing.T) (string, *pgx.Conn) {
	t.Helper()
	name := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "_"))
	admin := connect(t, testServer.URL())
	if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	url := testServer.URLFor(name)
	return url, connect(t, url)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestUpAppliesEachStepOnce(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	applied, err := up(t.Context(), steps, url)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(applied, stepNames) {
		t.Errorf("applied %q, want %q", applied, stepNames)
	}
	applied, err = up(t.Context(), steps, url)
	if err != nil || len(applied) != 0 {
		t.Errorf("second run: applied %q, error %v; want nothing", applied, err)
	}
	version, err := Version(t.Context(), conn)
	if err != nil || version != 2 {
		t.Errorf("version %d, error %v; want 2", version, err)
	}
	var valid bool
	err = conn.QueryRow(t.Context(), "SELECT indisvalid FROM pg_index WHERE indexrelid = 'queen.things_name_idx'::regclass").Scan(&valid)
	if err != nil || !valid {
		t.Errorf("concurrent index valid=%v, error %v", valid, err)
	}
}

func TestUpKeepsItsTablesOutOfPublic(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	if _, err := up(t.Context(), steps, url); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d tables in public, error %v; want none", n, err)
	}
}

func TestUpFromManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	var mu sync.Mutex
	var all []string
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			applied, err := up(t.Context(), steps, url)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, applied...)
		})
	}
	wg.Wait()
	slices.Sort(all)
	if !slices.Equal(all, stepNames) {
		t.Errorf("all runs together applied %q, want each of %q once", all, stepNames)
	}
	if v, err := Version(t.Context(), conn); err != nil || v != 2 {
		t.Errorf("version %d, error %v", v, err)
	}
}

func TestUpReportsWhatItAppliedBeforeAFailure(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	broken := fstest.MapFS{
		"00001_create_things.sql": steps["00001_create_things.sql"],
		"00002_break.sql":         {Data: []byte("-- +goose Up\nSELECT no_such_column;\n")},
	}
	applied, err := up(t.Context(), broken, url)
	if err == nil || !slices.Equal(applied, stepNames[:1]) {
		t.Errorf("applied %q, error %v; want the first step and an error", applied, err)
	}
	if v, err := Version(t.Context(), conn); err != nil || v != 1 {
		t.Errorf("version %d, error %v; want 1", v, err)
	}
	// The lock must be free again, or the repaired job would wait for a lease.
	if _, err := up(t.Context(), steps, url); err != nil {
		t.Errorf("after repair: %v", err)
	}
}

func TestUpWithoutTheRightToFailsAtOnce(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	first := fstest.MapFS{stepNames[0]: steps[stepNames[0]]}
	if _, err := up(t.Context(), first, url); err != nil {
		t.Fatal(err)
	}
	// A role that may look but not touch.
	if _, err := conn.Exec(t.Context(), `CREATE ROLE onlooker LOGIN; GRANT USAGE ON SCHEMA queen TO onlooker;
		GRANT CREATE ON DATABASE `+conn.Config().Database+` TO onlooker;
		GRANT SELECT ON ALL TABLES IN SCHEMA queen TO onlooker`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, err := up(t.Context(), steps, strings.Replace(url, "postgres@", "onlooker@", 1))
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "42501" {
		t.Errorf("error %v, want permission denied", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestDownTakesBackOneStep(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	if _, err := up(t.Context(), steps, url); err != nil {
		t.Fatal(err)
	}
	name, err := down(t.Context(), steps, url)
	if err != nil || name != stepNames[1] {
		t.Fatalf("took back %q, error %v; want %q", name, err, stepNames[1])
	}
	if v, err := Version(t.Context(), conn); err != nil || v != 1 {
		t.Errorf("version %d, error %v; want 1", v, err)
	}
	if _, err := up(t.Context(), steps, url); err != nil {
		t.Errorf("up again: %v", err)
	}
}

func TestStatusChangesNothing(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	before, err := status(t.Context(), steps, url)
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != 2 || !before[0].Pending() || !before[1].Pending() {
		t.Errorf("status of an empty database: %+v, want two pending steps", before)
	}
	var schemas int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = 'queen'").Scan(&schemas); err != nil || schemas != 0 {
		t.Errorf("status created the schema (%d, %v)", schemas, err)
	}
	if _, err := up(t.Context(), steps, url); err != nil {
		t.Fatal(err)
	}
	after, err := status(t.Context(), steps, url)
	if err != nil || len(after) != 2 || after[0].Pending() || after[1].Pending() {
		t.Errorf("status after up: %+v, %v; want nothing pending", after, err)
	}
}

func TestSchemaFits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		have, want int64
		ok         bool
		text       string
	}{
		{0, 3, false, "queen migrate up"},
		{2, 3, false, "queen migrate up"},
		{3, 3, true, ""},
		{4, 3, true, ""},
		{199, 3, true, ""},
		{200, 3, false, "upgrade the binary"},
		{201, 199, true, ""},
		{301, 199, false, "upgrade the binary"},
	} {
		err := fits(tc.have, tc.want)
		var schemaErr *SchemaError
		switch {
		case tc.ok && err != nil:
			t.Errorf("have %d, want %d: %v", tc.have, tc.want, err)
		case !tc.ok && (!errors.As(err, &schemaErr) || !strings.Contains(err.Error(), tc.text)):
			t.Errorf("have %d, want %d: error %v, want one saying %q", tc.have, tc.want, err, tc.text)
		}
	}
}

func TestLatest(t *testing.T) {
	t.Parallel()
	if v, err := latest(steps); err != nil || v != 2 {
		t.Errorf("latest %d, error %v; want 2", v, err)
	}
	if _, err := latest(fstest.MapFS{}); err == nil {
		t.Error("no migrations at all must be an error")
	}
}
