package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// TestAnOldSnapshotCostsNoLookups holds a snapshot open, so that no version of
// a row that changes can be removed, and counts the pages each statement of a
// push, a claim and an ack touches, after few cycles and after many. What grows
// with the number of versions makes a broker slower the longer somebody's report
// runs.
func TestAnOldSnapshotCostsNoLookups(t *testing.T) {
	t.Parallel()
	f := setup(t, "versions")
	g := f.group("g", mq.StartAll)
	f.group("h", mq.StartAll) // never reads
	f.cycles(g, 1)
	old, err := f.cold.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(context.Background()) }()
	if _, err := old.Exec(t.Context(), "SELECT count(*) FROM queen.cursors"); err != nil {
		t.Fatal(err)
	}
	f.cycles(g, 20)
	few := f.pages(g)
	f.cycles(g, 1500)
	many := f.pages(g)
	// To the planner an index full of dead entries is dear, a partial one above all.
	if _, err := f.cold.Exec(t.Context(), "VACUUM (ANALYZE) queen.cursors, queen.partitions"); err != nil {
		t.Fatal(err)
	}
	checkPlans(t, f.Store)
	for name, pages := range many {
		t.Logf("%-16s %4d pages after few cycles, %4d after many", name, few[name], pages)
		if pages > few[name]*3/2+10 {
			t.Errorf("%s touches %d pages after 1500 cycles under an old snapshot, %d before", name, pages, few[name])
		}
	}
}

// cycles pushes, claims and acknowledges messages of one partition.
func (f *fixture) cycles(g mq.GroupInfo, n int) {
	f.t.Helper()
	for range n {
		m := message("", `1`)
		f.push("p", m)
		var fp mq.Fingerprint
		fp.Add(m.Hash)
		f.ackWhole(g, f.claim(g, 10, 1)[0], fp)
	}
}

// pages runs one cycle and tells how many pages each statement of it touched.
func (f *fixture) pages(g mq.GroupInfo) map[string]int64 {
	f.t.Helper()
	m := message("", `1`)
	part := mq.Append{Queue: f.queue, Runs: []mq.Run{{Partition: "p", Messages: []*mq.Message{m}}}}
	out := map[string]int64{}
	floor := time.Now() // below what this push makes ready, and above all before
	f.explain(out, func(ctx context.Context, q *db.Queries) {
		_ = q.LockPartitions(ctx, db.LockPartitionsParams{QueueID: f.queue.ID, Names: []string{"p"}})
		_, _ = q.AppendSegments(ctx, appendParams(&part))
	}, "LockPartitions", "AppendSegments")
	lease := mq.ScopedID(f.queue.ID)
	f.explain(out, func(ctx context.Context, q *db.Queries) {
		queueClaim(ctx, q, f.queue.ID, g, floor, &mq.ClaimRequest{LeaseID: lease, Messages: 10, Partitions: 1, Bytes: 1 << 20, LeaseSeconds: 60})
	}, "ClaimPartitions")
	f.explain(out, func(ctx context.Context, q *db.Queries) {
		var key int64
		if err := f.cold.QueryRow(ctx, "SELECT id FROM queen.partitions WHERE queue_id = $1", f.queue.ID).Scan(&key); err != nil {
			f.t.Fatal(err)
		}
		var fp mq.Fingerprint
		fp.Add(m.Hash)
		_, _ = q.AckBatches(ctx, db.AckBatchesParams{
			QueueID: f.queue.ID, Ords: []int32{0}, PartitionIds: []int64{key}, GroupIds: []int64{g.ID},
			LeaseIds: [][16]byte{lease}, Counts: []int32{fp.Count}, Marks: []int64{fp.Mark},
		})
	}, "AckBatches")
	return out
}

// pagesOf is a node of a plan.
type pagesOf struct {
	Type  string `json:"Node Type"`
	Hit   int64  `json:"Shared Hit Blocks"`
	Read  int64  `json:"Shared Read Blocks"`
	Plans []pagesOf
}

func (n *pagesOf) writes() (pages int64) {
	if n.Type == "ModifyTable" {
		return n.Hit + n.Read
	}
	for i := range n.Plans {
		pages += n.Plans[i].writes()
	}
	return pages
}

// explain runs statements in one transaction and notes the pages they touched.
func (f *fixture) explain(out map[string]int64, queue func(context.Context, *db.Queries), names ...string) {
	f.t.Helper()
	var b batch
	queue(f.t.Context(), b.queries())
	err := f.tx(f.t.Context(), f.hot, func(ctx context.Context, tx pgx.Tx) error {
		for i, q := range b.QueuedQueries {
			var raw []byte
			if err := tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+q.SQL, q.Arguments...).Scan(&raw); err != nil {
				return fmt.Errorf("%s: %w", names[i], err)
			}
			var plans []struct{ Plan pagesOf }
			if err := json.Unmarshal(raw, &plans); err != nil {
				return err
			}
			// What nobody reads from is written when the statement is done
			// otherwise, and not part of what the whole of it counts.
			out[names[i]] = plans[0].Plan.Hit + plans[0].Plan.Read + plans[0].Plan.writes()
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
}
