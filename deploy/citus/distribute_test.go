// Package citus has the script that spreads the tables over a Citus cluster.
// The tests run it on a real schema in a PostgreSQL without Citus, whose
// functions are stood in for: they hold the script to the schema, not Citus to
// the statements.
package citus

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// newPool is a database with the current schema and the stand-ins.
func newPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t).Pool(t)
	if _, err := pool.Exec(t.Context(), read(t, "standin_test.sql")); err != nil {
		t.Fatal(err)
	}
	return pool
}

// distribute runs the script as `psql -1` does.
func distribute(t *testing.T, pool *pgxpool.Pool) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL search_path = public;\n"+read(t, "distribute.sql"))
		return err
	})
}

func names(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestDistribute(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for range 2 { // it may be run again
		if err := distribute(t, pool); err != nil {
			t.Fatal(err)
		}
	}
	placed := placement(t)
	if got := names(t, pool, `SELECT logicalrelid::text FROM public.pg_dist_partition WHERE partkey = 'queue_id' ORDER BY 1`); !slices.Equal(got, placed["distributed"]) {
		t.Errorf("distributed by queue_id: %v, want %v", got, placed["distributed"])
	}
	if got := names(t, pool, `SELECT logicalrelid::text FROM public.pg_dist_partition WHERE partkey IS NULL`); !slices.Equal(got, placed["reference"]) {
		t.Errorf("reference: %v, want %v", got, placed["reference"])
	}
	if got := names(t, pool, `SELECT logicalrelid::text FROM public.pg_dist_partition
		WHERE partkey IS NOT NULL AND colocated IS DISTINCT FROM 'queen.partitions'::regclass`); !slices.Equal(got, []string{"queen.partitions"}) {
		t.Errorf("not with the partitions: %v", got)
	}
}

// TestTableThatIsNotPlaced: a migration adds one, and nobody thought of Citus.
func TestTableThatIsNotPlaced(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for _, c := range []struct{ step, want string }{
		{"CREATE TABLE queen.novelty (id int)", "novelty"},
		{"DROP TABLE queen.novelty; ALTER TABLE queen.timers RENAME TO promises", "promises"},
		{"ALTER TABLE queen.promises RENAME TO timers; CREATE UNIQUE INDEX one_idx ON queen.dead_letters (id)", "one_idx"},
		{"DROP INDEX queen.one_idx; DROP FUNCTION queen.first_offset_at", "first_offset_at"},
	} {
		if _, err := pool.Exec(t.Context(), c.step); err != nil {
			t.Fatal(err)
		}
		if err := distribute(t, pool); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("after %s: %v, want an error with %q", c.step, err, c.want)
		}
		if got := names(t, pool, "SELECT logicalrelid::text FROM public.pg_dist_partition"); len(got) > 0 {
			t.Fatalf("%v were placed all the same", got)
		}
	}
}

var placed = regexp.MustCompile(`(?m)^ {2}\('(\w+)',\s+'(distributed|reference|local)'`)

// placement reads the script: tables with their schema, by kind, in order.
func placement(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, m := range placed.FindAllStringSubmatch(read(t, "distribute.sql"), -1) {
		out[m[2]] = append(out[m[2]], "queen."+m[1])
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

var (
	comment = regexp.MustCompile(`(?m)--.*$`)
	table   = regexp.MustCompile(`queen\.\w+\b`)
	call    = regexp.MustCompile(`queen\.(\w+)\s*\(`)
	insert  = regexp.MustCompile(`(?i)INSERT\s+INTO\s+queen\.\w+`)
)

// statements are those of the broker, by name.
func statements(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../queries/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	all := map[string]string{}
	for _, file := range files {
		for i, part := range strings.Split(read(t, file), "-- name: ") {
			if name, sql, _ := strings.Cut(part, "\n"); i > 0 {
				all[name] = comment.ReplaceAllString(sql, "")
			}
		}
	}
	return all
}

func TestNoStatementJoinsLocalAndDistributedTables(t *testing.T) {
	t.Parallel()
	kinds := map[string]string{}
	for kind, list := range placement(t) {
		for _, name := range list {
			kinds[name] = kind
		}
	}
	mixed := func(sql string) bool {
		uses := map[string]bool{}
		for _, name := range table.FindAllString(sql, -1) {
			uses[kinds[name]] = true
		}
		return uses["local"] && (uses["distributed"] || uses["reference"])
	}
	seen := 0
	for name, sql := range statements(t) {
		seen++
		if mixed(sql) {
			t.Errorf("%s joins tables of the coordinator with tables of the workers", name)
		}
	}
	if seen < 80 || !mixed("SELECT FROM queen.timers t JOIN queen.queues q ON true") || mixed("SELECT FROM queen.cursors c, queen.queues q") {
		t.Errorf("%d statements were looked at", seen)
	}
}

// TestFunctionsOfStatementsAreDistributed: what is called beside a distributed
// table runs where its rows are.
func TestFunctionsOfStatementsAreDistributed(t *testing.T) {
	t.Parallel()
	script := read(t, "distribute.sql")
	distributed := placement(t)["distributed"]
	called := map[string]string{}
	for name, sql := range statements(t) {
		if !slices.ContainsFunc(table.FindAllString(sql, -1), func(use string) bool { return slices.Contains(distributed, use) }) {
			continue
		}
		for _, m := range call.FindAllStringSubmatch(insert.ReplaceAllString(sql, ""), -1) {
			called[m[1]] = name
		}
	}
	for _, fn := range slices.Sorted(maps.Keys(called)) {
		if !strings.Contains(script, "'queen."+fn+"(") {
			t.Errorf("%s calls queen.%s, which is on the coordinator only", called[fn], fn)
		}
	}
	if len(called) < 3 {
		t.Errorf("only %v were found", called)
	}
}

// refused are the statements that write by INSERT inside WITH. Citus' planner
// for statements of one shard has refused that in every version looked at, so
// each of them has to be taken apart before it can run there. The list is here
// to get shorter.
var refused = []string{"AppendSegments", "ClaimNewest", "ClaimPartitions", "CreatePartitions", "SeedCursors"}

var insertInWith = regexp.MustCompile(`(?i)\bAS\s+(?:NOT\s+)?(?:MATERIALIZED\s+)?\(\s*INSERT\b`)

func TestStatementsThatCitusRefuses(t *testing.T) {
	t.Parallel()
	distributed := placement(t)["distributed"]
	var got []string
	for name, sql := range statements(t) {
		spread := slices.ContainsFunc(table.FindAllString(sql, -1), func(use string) bool { return slices.Contains(distributed, use) })
		if spread && insertInWith.MatchString(sql) {
			got = append(got, strings.Fields(name)[0])
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, refused) {
		t.Errorf("with INSERT inside WITH: %v, want %v", got, refused)
	}
	for _, name := range refused {
		if !strings.Contains(read(t, "../../docs/scaling.md"), "`"+name+"`") {
			t.Errorf("docs/scaling.md does not name %s", name)
		}
	}
}
