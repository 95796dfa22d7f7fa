package pgstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// TestOneCursorForAGroupAndAPartition makes partitions, registers groups, moves
// them and takes them back, all at once. No constraint of the table says that a
// group has one cursor in a partition.
func TestOneCursorForAGroupAndAPartition(t *testing.T) {
	t.Parallel()
	const workers, rounds = 4, 25
	f := setupSurface(t, 1)
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	try := func(what string, err error) {
		if err != nil && mq.KindOf(err) != mq.KindNotFound {
			select {
			case errs <- fmt.Errorf("%s: %w", what, err):
			default:
			}
		}
	}
	each := func(do func(ctx context.Context, w, i int)) {
		for w := range workers {
			wg.Go(func() {
				for i := range rounds {
					do(context.Background(), w, i)
				}
			})
		}
	}
	group := func(i int) string { return fmt.Sprint("g", i%3) }
	each(func(ctx context.Context, w, i int) {
		name := fmt.Sprint("p", (i*workers+w)/2) // each by two at once
		try("make a partition", f.EnsurePartitions(ctx, f.queue.ID, []string{name}))
		try("push", f.appendUntilStored(mq.Run{Partition: name, Messages: []*mq.Message{message("", `1`)}}))
	})
	each(func(ctx context.Context, w, i int) {
		_, err := f.EnsureGroup(ctx, f.queue.ID, group(i+w), mq.Start{Mode: mq.StartAll}, false)
		try("register", err)
	})
	each(func(ctx context.Context, w, i int) {
		g, err := f.FindGroup(ctx, f.queue.ID, group(i+w))
		if err != nil {
			return
		}
		if w == 0 && i%5 == 0 {
			_, err = f.DeleteGroup(ctx, f.queue.ID, g.ID, i%2 == 0)
			try("delete", err)
			return
		}
		_, err = f.Seek(ctx, f.queue.ID, g.ID, mq.Seek{ToEnd: i%2 == 0, Time: time.Now().Add(-time.Hour)})
		try("seek", err)
	})
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	for i := range 3 {
		f.group(group(i), mq.StartAll)
	}
	if n := f.count(`SELECT count(*) FROM (
		SELECT 1 FROM queen.cursors GROUP BY queue_id, partition_id, group_id HAVING count(*) > 1) twice`); n != 0 {
		t.Errorf("%d cursors too many", n)
	}
	if n := f.count(`SELECT count(*) FROM queen.partitions p CROSS JOIN queen.consumer_groups g WHERE NOT EXISTS (
		SELECT FROM queen.cursors c WHERE c.queue_id = p.queue_id AND c.partition_id = p.id AND c.group_id = g.id)`); n != 0 {
		t.Errorf("%d cursors too few", n)
	}
	if n := f.count(`SELECT count(*) FROM queen.cursors c JOIN queen.partitions p ON p.queue_id = c.queue_id AND p.id = c.partition_id
		WHERE (c.ready_at IS NULL) <> (c.committed = p.last_offset)`); n != 0 {
		t.Errorf("%d cursors that are drained and not at the end, or at the end and not drained", n)
	}
}
