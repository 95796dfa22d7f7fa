package pgstore

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// What the janitor does every few seconds costs what there is to remove, not
// what there is: no statement of it scans a table that grows, and 100,000
// partitions that are empty or young are not even read.
func TestRetentionReadsOnlyWhatIsDue(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	g := f.group("g", mq.StartAll)
	due := f.push("due", message("", `1`)).PartitionID
	f.exec(`INSERT INTO queen.partitions (queue_id, name, created_at, last_offset, log_start, last_write_at, oldest_at)
		SELECT $1, 'idle-' || n, now() - interval '1 year', 9, 10, now() - interval '1 year', NULL FROM generate_series(1, 100000) n`, f.queue.ID)
	f.exec(`INSERT INTO queen.partitions (queue_id, name, created_at, last_offset, last_write_at, oldest_at)
		SELECT $1, 'young-' || n, now(), 9, now(), now() FROM generate_series(1, 2000) n`, f.queue.ID)
	f.exec(`INSERT INTO queen.segments SELECT p.queue_id, p.id, n, now(), 1, s.ends, s.marks, s.body
		FROM queen.partitions p, (SELECT * FROM queen.segments LIMIT 1) s, generate_series(0, 9) n WHERE p.name LIKE 'young-%'`)
	f.exec(`INSERT INTO queen.cursors (queue_id, partition_id, group_id, committed) SELECT p.queue_id, p.id, $1, 9 FROM queen.partitions p
		ON CONFLICT DO NOTHING`, g.ID)
	f.exec(`INSERT INTO queen.dead_letters SELECT $1, gen_random_uuid(), p.id, 0, gen_random_uuid(), gen_random_uuid(), now(), now(), 0, 'g', 't', NULL, NULL, '', '1'
		FROM queen.partitions p WHERE p.name LIKE 'young-%'`, f.queue.ID)
	f.exec(`UPDATE queen.segments SET created_at = created_at - interval '1 hour' WHERE partition_id = $1`, due)
	f.exec(`UPDATE queen.partitions SET oldest_at = oldest_at - interval '1 hour' WHERE id = $1`, due)
	f.exec(`VACUUM ANALYZE`)

	rule := mq.RetentionRule{QueueID: f.queue.ID, Age: 600, Completed: 60}
	from := time.Now()
	found, next, err := f.AgedPartitions(t.Context(), rule, mq.AgePosition{}, 1000)
	if err != nil || len(found) != 1 || found[0].Partition != due || next != (mq.AgePosition{}) {
		t.Errorf("%+v, %+v, %v", found, next, err)
	}
	t.Logf("a look at 102,001 partitions, one of which is due, takes %v", time.Since(from))

	var b batch
	q, ctx := b.queries(), context.Background()
	_, _ = q.ListAgedPartitions(ctx, db.ListAgedPartitionsParams{
		QueueID: f.queue.ID, OlderSeconds: 600, CompletedSeconds: 60, AgedSeconds: 60, AfterAt: farPast, Step: 1000,
	})
	_ = q.LockPartition(ctx, db.LockPartitionParams{QueueID: f.queue.ID, ID: due})
	_, _ = q.TrimPartition(ctx, db.TrimPartitionParams{QueueID: f.queue.ID, ID: due, Step: 1000, MaxBytes: trimBytes, OlderSeconds: 600, CompletedSeconds: 60})
	_, _ = q.ListIdlePartitions(ctx, db.ListIdlePartitionsParams{QueueID: f.queue.ID, IdleDays: 30, Step: 500})
	_ = q.DropIdleCursors(ctx, db.DropIdleCursorsParams{QueueID: f.queue.ID, ID: due, IdleDays: 30})
	_, _ = q.DropIdlePartition(ctx, db.DropIdlePartitionParams{QueueID: f.queue.ID, ID: due, IdleDays: 30})
	_, _ = q.RemoveDroppedSegments(ctx, db.RemoveDroppedSegmentsParams{QueueID: f.queue.ID, Step: 100})
	scan := regexp.MustCompile(`Seq Scan on (partitions|segments|cursors|dead_letters|message_ids)`)
	tx := f.begin()
	if err := db.New(tx).PrepareStep(ctx, lockWait(stepLockWait)); err != nil {
		t.Fatal(err)
	}
	for i, s := range b.QueuedQueries {
		plan := explain(t, tx, "EXPLAIN "+s.SQL, s.Arguments...)
		if scan.MatchString(plan) {
			t.Errorf("%.60s scans a growing table:\n%s", s.SQL, plan)
		}
		if i == 0 {
			plan = explain(t, f.sql, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) "+s.SQL, s.Arguments...)
			if !regexp.MustCompile(`partitions_queue_id_oldest_at_idx on partitions p \(actual rows=1(\.00)? loops=1\)`).MatchString(plan) ||
				strings.Contains(plan, "Rows Removed") {
				t.Errorf("not the due partition alone is read:\n%s", plan)
			}
		}
	}
}

// A step is bounded by bytes too: pushes to the partition wait for it.
func TestTrimStepsAreBounded(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	part := f.push("p", message("", `1`)).PartitionID
	// Half a megabyte each, of text that does not compress.
	f.exec(`INSERT INTO queen.segments SELECT s.queue_id, s.partition_id, n, s.created_at, 1, s.ends, s.marks,
		(SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 14000 + n * 0))
		FROM queen.segments s, generate_series(1, 30) n`)
	f.exec(`UPDATE queen.segments SET created_at = created_at - interval '1 hour'`)
	f.exec(`UPDATE queen.partitions SET last_offset = 30, oldest_at = oldest_at - interval '1 hour'`)
	rule := mq.RetentionRule{QueueID: f.queue.ID, Age: 600}
	var steps []int64
	for more := true; more; {
		var n int64
		var err error
		if n, more, err = f.Trim(t.Context(), rule, part, 12); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, n)
	}
	total, most := int64(0), int64(0)
	for _, n := range steps {
		total, most = total+n, max(most, n)
	}
	if total != 31 || most > 12 || most < 8 || len(steps) < 4 {
		t.Errorf("steps of %v messages", steps)
	}
	if steps, more, err := f.Trim(t.Context(), rule, part, 12); steps != 0 || more || err != nil {
		t.Errorf("an empty partition: %d, %v, %v", steps, more, err)
	}
}
