package pgstore

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq-go/queenmq/internal/pgstore/db"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// planNode is a node of EXPLAIN's tree.
type planNode struct {
	Type      string     `json:"Node Type"`
	Parent    string     `json:"Parent Relationship"`
	Relation  string     `json:"Relation Name"`
	Index     string     `json:"Index Name"`
	IndexCond string     `json:"Index Cond"`
	Plans     []planNode `json:"Plans"`
}

func (n *planNode) walk(visit func(*planNode)) {
	visit(n)
	for i := range n.Plans {
		n.Plans[i].walk(visit)
	}
}

// growing are the tables whose size is the installation's.
var growing = regexp.MustCompile(`^(partitions|cursors|segments_\d+|message_ids_.+|dead_letters)$`)

// wholeQueue is the bound of a scan that costs as much as the queue is large,
// which the planner likes as long as it takes the queue for small.
var wholeQueue = regexp.MustCompile(`^(\(queue_id = [^ ]+\))?$`)

// indexUse is an index a plan has to use, and what of it bounds the scan.
type indexUse struct{ index, bound string }

const (
	drainedIndex = `^cursors_queue_id_partition_id_committed_group_id_idx$`
	claimIndex   = `^cursors_queue_id_group_id_ready_at_idx$`
	cursorKey    = `^cursors_committed_pkey$`
	leaseIndex   = `^cursors_queue_id_lease_id_idx$`
	partitionKey = `^partitions_epoch_pkey$`
	nameKey      = `^partitions_name_key$`
	segmentKey   = `^segments_\d+_pkey$`
	idIndex      = `^message_ids_.*_queue_id_partition_id_id_hash_idx$`
)

var hotPlans = []struct {
	name, sql string
	cold      bool
	uses      []indexUse
	// sorts are growing tables whose rows may be sorted straight from the
	// index, because the call says how many there are.
	sorts []string
}{
	{name: "LockPartitions", sql: db.LockPartitions, uses: []indexUse{{nameKey, "name"}}, sorts: []string{"partitions"}},
	{name: "AppendSegments", sql: db.AppendSegments, uses: []indexUse{
		{nameKey, "name"}, {idIndex, "id_hash"}, {drainedIndex, "committed >="},
	}},
	{name: "ClaimPartitions", sql: db.ClaimPartitions, uses: []indexUse{
		{claimIndex, "ready_at <= queen.clock()"},
		{cursorKey, "partition_id"},
		{partitionKey, "id"},
		{nameKey, "name"},
		{segmentKey, "end_offset >="},
	}},
	{name: "ClaimNewest", sql: db.ClaimNewest, uses: []indexUse{
		{claimIndex, "ready_at <= queen.clock()"}, {cursorKey, "partition_id"}, {partitionKey, "id"}, {segmentKey, "end_offset >="},
	}},
	{name: "NextReady", sql: db.NextReady, uses: []indexUse{{claimIndex, "ready_at >="}}},
	{name: "NextReadyOf", sql: db.NextReadyOf, uses: []indexUse{{nameKey, "name"}, {cursorKey, "partition_id"}}},
	{name: "AckBatches", sql: db.AckBatches, uses: []indexUse{{cursorKey, "partition_id"}, {partitionKey, "id"}}},
	{name: "LockCursors", sql: db.LockCursors, uses: []indexUse{{cursorKey, "partition_id"}}},
	{name: "ResolveIDs", sql: db.ResolveIDs, uses: []indexUse{{idIndex, "id_hash"}}},
	{name: "ReadSegmentsAt", sql: db.ReadSegmentsAt, uses: []indexUse{{segmentKey, "end_offset >="}}},
	{name: "SaveCursors", sql: db.SaveCursors, uses: []indexUse{{cursorKey, "partition_id"}, {partitionKey, "id"}}},
	{name: "ExtendLeases", sql: db.ExtendLeases, uses: []indexUse{{leaseIndex, "lease_id"}}, sorts: []string{"cursors"}},
	{name: "ReleaseLeases", sql: db.ReleaseLeases, uses: []indexUse{{leaseIndex, "lease_id"}}, sorts: []string{"cursors"}},
	{name: "ReadLog", sql: db.ReadLog, cold: true, uses: []indexUse{{segmentKey, "end_offset >="}}},
	{name: "ListChanged", sql: db.ListChanged, cold: true, uses: []indexUse{{nameKey, "name"}}},
}

// TestHotPlans holds the statements of push, pop and ack to plans whose cost
// does not depend on how much is stored: on tables that are new, and on tables
// that grew under the same sessions.
func TestHotPlans(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{URL: pgtest.New(t).URL, PoolSize: 8, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	t.Run("new", func(t *testing.T) { checkPlans(t, s) })
	seedPlans(t, s)
	t.Run("grown", func(t *testing.T) { checkPlans(t, s) })
}

func seedPlans(t *testing.T, s *Store) {
	t.Helper()
	for _, stmt := range []string{
		`INSERT INTO queen.partitions (queue_id, name, created_at, last_offset, last_write_at)
			SELECT 1 + (n > 18000)::int * (n % 20), 'p' || n, now(), 49, now() FROM generate_series(1, 20000) n`,
		`INSERT INTO queen.cursors (queue_id, partition_id, group_id, committed, lease_id, lease_expires_at, ready_at)
			SELECT p.queue_id, p.id, g, 9, CASE WHEN (p.id + g) % 3 = 0 THEN gen_random_uuid() END,
				CASE WHEN (p.id + g) % 3 = 0 THEN now() + interval '1 minute' END,
				CASE (p.id + g) % 3 WHEN 0 THEN now() + interval '1 minute' WHEN 1 THEN now() END
			FROM queen.partitions p, generate_series(1, 3) g`,
		`INSERT INTO queen.segments (queue_id, partition_id, end_offset, created_at, message_count, ends, marks, body)
			SELECT p.queue_id, p.id, n * 10 + 9, now(), 10, '', '', '[]' FROM queen.partitions p, generate_series(0, 4) n`,
		`INSERT INTO queen.message_ids (window_class, created_at, queue_id, partition_id, message_offset, id_hash)
			SELECT 1, now(), p.queue_id, p.id, n, gen_random_uuid() FROM queen.partitions p, generate_series(0, 4) n`,
		`ANALYZE`,
	} {
		if _, err := s.cold.Exec(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
}

func checkPlans(t *testing.T, s *Store) {
	for _, p := range hotPlans {
		pool := s.hot
		if p.cold {
			pool = s.cold
		}
		root, text := planOf(t, pool, p.name, p.sql)
		var used []planNode
		root.walk(func(n *planNode) {
			if n.Index != "" {
				used = append(used, *n)
			}
			if n.Index != "" && growing.MatchString(n.Relation) && wholeQueue.MatchString(n.IndexCond) {
				t.Errorf("%s reads %s of a whole queue:\n%s", p.name, n.Relation, text)
			}
			if n.Type == "Seq Scan" && growing.MatchString(n.Relation) {
				t.Errorf("%s reads all of %s:\n%s", p.name, n.Relation, text)
			}
			if !strings.Contains(n.Type, "Sort") {
				return
			}
			for _, table := range fedBy(n) {
				if growing.MatchString(table) && !slices.Contains(p.sorts, table) {
					t.Errorf("%s sorts %s:\n%s", p.name, table, text)
				}
			}
		})
		for _, want := range p.uses {
			re := regexp.MustCompile(want.index)
			if !slices.ContainsFunc(used, func(n planNode) bool {
				return re.MatchString(n.Index) && strings.Contains(n.IndexCond, want.bound)
			}) {
				t.Errorf("%s does not use %s bound by %q:\n%s", p.name, want.index, want.bound, text)
			}
		}
	}
}

// fedBy lists the tables whose rows reach a sort without a join or a limit in
// between.
func fedBy(sort *planNode) []string {
	var out []string
	for i := range sort.Plans {
		n := &sort.Plans[i]
		if n.Parent != "Outer" && n.Parent != "Member" && n.Parent != "Subquery" {
			continue // a common table expression that stands with its first user
		}
		switch n.Type {
		case "Append", "Merge Append", "LockRows", "Result", "Subquery Scan":
			out = append(out, fedBy(n)...)
		default:
			out = append(out, n.Relation)
		}
	}
	return out
}

// planOf prepares a statement in a session of the pool, with its settings, and
// returns the plan it runs with.
func planOf(t *testing.T, pool *pgxpool.Pool, name, sql string) (*planNode, string) {
	t.Helper()
	c, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	prepared := "plan_of_" + strings.ToLower(name)
	sd, err := c.Conn().Prepare(t.Context(), prepared, sql)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	args := make([]string, len(sd.ParamOIDs))
	for i, oid := range sd.ParamOIDs {
		args[i] = anyValue(t, c.Conn().TypeMap(), oid)
	}
	execute := fmt.Sprintf("EXECUTE %s (%s)", prepared, strings.Join(args, ", "))
	defer func() { _ = c.Conn().Deallocate(t.Context(), prepared) }()
	var raw []byte
	if err := c.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) "+execute).Scan(&raw); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var plans []struct{ Plan planNode }
	if err := json.Unmarshal(raw, &plans); err != nil || len(plans) != 1 {
		t.Fatalf("%s: %v in %s", name, err, raw)
	}
	rows, err := c.Query(t.Context(), "EXPLAIN (COSTS OFF) "+execute)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var text strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		text.WriteString(line + "\n")
	}
	return &plans[0].Plan, text.String()
}

// anyValue is a literal of a type. A generic plan does not look at it, except
// to leave out the slices of a table it rules out.
func anyValue(t *testing.T, types *pgtype.Map, oid uint32) string {
	t.Helper()
	typ, ok := types.TypeForOID(oid)
	if !ok {
		t.Fatalf("parameter of unknown type %d", oid)
	}
	value := map[string]string{
		"int2": "1", "int4": "1", "int8": "1", "float8": "1", "text": "p1", "bool": "true", "timestamptz": "2026-01-01Z", "bytea": `\x00`,
		"uuid": "00000000-0000-0000-0000-000000000001",
	}[strings.TrimPrefix(typ.Name, "_")]
	if value == "" {
		t.Fatalf("parameter of type %s", typ.Name)
	}
	if strings.HasPrefix(typ.Name, "_") {
		return fmt.Sprintf("ARRAY['%s']::%s[]", value, typ.Name[1:])
	}
	return fmt.Sprintf("'%s'::%s", value, typ.Name)
}
