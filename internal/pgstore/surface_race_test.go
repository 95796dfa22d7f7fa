package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// appendUntilStored is what the broker does with a run.
func (f *surface) appendUntilStored(runs ...mq.Run) error {
	ctx := context.Background()
	for range 20 {
		part := []mq.Append{{Queue: f.queue, Runs: runs}}
		err := f.Append(ctx, part)
		if errors.Is(err, mq.ErrLockHeld) && len(runs) > 1 {
			// Somebody holds one of them: each by itself, as the broker does.
			for _, r := range runs {
				if err := f.appendUntilStored(r); err != nil {
					return err
				}
			}
			return nil
		}
		if err != nil {
			return err
		}
		var open []mq.Run
		var names []string
		for _, r := range part[0].Runs {
			if !r.Appended && len(r.Stored) == 0 {
				open, names = append(open, r), append(names, r.Partition)
			}
		}
		if len(open) == 0 {
			return nil
		}
		if err := f.EnsurePartitions(ctx, f.queue.ID, names); err != nil {
			return err
		}
		runs = open
	}
	return fmt.Errorf("partitions %v were not made", runs)
}

// drain consumes, committing at delivery, until want messages have come. It
// fails when a (partition, offset) comes twice or out of order.
func (f *surface) drain(g mq.GroupInfo, want int64, give time.Duration) error {
	next := map[string]int64{}
	got := int64(0)
	end := time.Now().Add(give)
	for got < want {
		c, err := f.Claim(context.Background(), f.queue.ID, g, time.Time{}, []mq.ClaimRequest{{
			LeaseID: mq.ScopedID(f.queue.ID), Messages: 50, Partitions: 4, Bytes: 8 << 20, AutoCommit: true,
		}})
		if err != nil {
			return err
		}
		for _, claim := range c.Claims[0] {
			for _, s := range claim.Segments {
				if s.First != next[claim.Partition] {
					return fmt.Errorf("%s: offset %d came, want %d", claim.Partition, s.First, next[claim.Partition])
				}
				next[claim.Partition] += int64(s.Len())
				got += int64(s.Len())
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d messages came: the rest is stranded", got, want)
		}
	}
	return nil
}

// Sessions of both kinds, on partitions and a queue that all of them want to
// make: offsets are dense, nothing is lost, no consumer is left waiting, and
// every group gets a cursor on every partition.
func TestSQLPushBesideBrokers(t *testing.T) {
	t.Parallel()
	const writers, each, parts = 10, 30, 3
	f := setupSurface(t, writers)
	g := f.group("consumer", mq.StartAll)
	var wg sync.WaitGroup
	errs := make(chan error, 4*writers)
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if _, err := sqlPush(f.sql, "orders", fmt.Sprint("p", (w+i)%parts), `{"by":"sql"}`, fmt.Sprint("sql-", w, "-", i)); err != nil {
					errs <- err
					return
				}
			}
		})
		wg.Go(func() {
			for i := range each {
				run := mq.Run{Partition: fmt.Sprint("p", (w+i)%parts), Messages: []*mq.Message{message(fmt.Sprint("broker-", w, "-", i), `{"by":"broker"}`)}}
				if err := f.appendUntilStored(run); err != nil {
					errs <- err
					return
				}
			}
		})
		wg.Go(func() {
			if _, err := f.EnsureGroup(context.Background(), f.queue.ID, fmt.Sprint("late-", w), mq.Start{Mode: mq.StartAll}, false); err != nil {
				errs <- err
			}
		})
	}
	wg.Go(func() {
		if err := f.drain(g, 2*writers*each, 30*time.Second); err != nil {
			errs <- err
		}
	})
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if n := f.count(`SELECT count(*) FROM queen.partitions p WHERE p.last_offset + 1 = (
		SELECT count(DISTINCT end_offset) FROM queen.segments s WHERE s.queue_id = p.queue_id AND s.partition_id = p.id)`); n != parts {
		t.Errorf("%d partitions of %d have dense offsets", n, parts)
	}
	if n := f.count(`SELECT count(*) FROM queen.message_ids`); n != 2*writers*each {
		t.Errorf("%d ids, want %d", n, 2*writers*each)
	}
	if n := f.count(`SELECT count(*) FROM queen.cursors`); n != parts*(writers+1) {
		t.Errorf("%d cursors, want one of each of %d groups on each of %d partitions", n, writers+1, parts)
	}
	if n := f.count(`SELECT count(*) FROM queen.partitions p JOIN queen.segments s ON s.queue_id = p.queue_id AND s.partition_id = p.id
		JOIN queen.segments n ON n.queue_id = p.queue_id AND n.partition_id = p.id AND n.end_offset = s.end_offset + 1
		WHERE n.created_at < s.created_at`); n != 0 {
		t.Errorf("created_at falls %d times along the offsets", n)
	}
}

// One id, pushed by everybody at once to a place that is not there yet.
func TestSQLPushOfOneIDAtOnce(t *testing.T) {
	t.Parallel()
	const writers = 10
	f := setupSurface(t, writers)
	answers := make(chan pushed, writers)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			p, err := sqlPush(f.sql, "brand.new", "p", `1`, "same")
			if err != nil {
				t.Error(err)
				return
			}
			answers <- p
		})
	}
	wg.Wait()
	close(answers)
	ids, fresh := map[mq.UUID]bool{}, 0
	for p := range answers {
		ids[p.id] = true
		if !p.duplicate {
			fresh++
		}
	}
	if len(ids) != 1 || fresh != 1 || f.count(`SELECT count(*) FROM queen.segments`) != 1 {
		t.Errorf("%d ids, %d of them new", len(ids), fresh)
	}
}

// Transactions that push to several partitions in an order of their own can
// deadlock with each other and with brokers. PostgreSQL ends one: an application
// repeats its transaction, a broker repeats its push unseen by its clients.
func TestSQLPushDeadlocksDoNotReachBrokerClients(t *testing.T) {
	t.Parallel()
	const writers, rounds, parts = 4, 25, 5
	f := setupSurface(t, writers, "deadlock_timeout = '10ms'")
	g := f.group("consumer", mq.StartAll)
	var names []string
	for i := range parts {
		names = append(names, fmt.Sprint("p", i))
	}
	if err := f.EnsurePartitions(t.Context(), f.queue.ID, names); err != nil {
		t.Fatal(err)
	}
	var stored, deadlocks atomic.Int64
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range rounds {
				for {
					err := f.pushInRandomOrder(names)
					if err == nil {
						stored.Add(3)
						break
					}
					if sqlState(err) != "40P01" {
						t.Error(err)
						return
					}
					deadlocks.Add(1)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				var runs []mq.Run
				for _, i := range rand.Perm(parts)[:3] {
					runs = append(runs, mq.Run{Partition: names[i], Messages: []*mq.Message{message("", `1`)}})
				}
				if err := f.appendUntilStored(runs...); err != nil {
					t.Errorf("broker: %v", err)
					return
				}
				stored.Add(3)
			}
		})
	}
	wg.Wait()
	t.Logf("%d deadlocks met by applications", deadlocks.Load())
	if err := f.drain(g, stored.Load(), 10*time.Second); err != nil {
		t.Error(err)
	}
}

func (f *surface) pushInRandomOrder(names []string) error {
	ctx := context.Background()
	tx, err := f.sql.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, i := range rand.Perm(len(names))[:3] {
		if _, err := sqlPush(tx, "orders", names[i], `1`, nil); err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // what an application does in between
	}
	return tx.Commit(ctx)
}

// A partition that is made between the two statements of a push was not locked
// by the first and must not be written by the second: two such pushes would
// store different messages at the same offsets.
func TestAppendWritesOnlyWhatItLocked(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 2)
	part := mq.Append{Queue: f.queue, Runs: []mq.Run{{Partition: "new", Messages: []*mq.Message{message("a", `1`)}}}}
	for _, stored := range []int{0, 1} {
		tx := f.begin()
		q := db.New(tx)
		if err := q.LockPartitions(t.Context(), db.LockPartitionsParams{QueueID: f.queue.ID, Names: []string{"new"}}); err != nil {
			t.Fatal(err)
		}
		if err := f.EnsurePartitions(t.Context(), f.queue.ID, []string{"new"}); err != nil {
			t.Fatal(err)
		}
		rows, err := q.AppendSegments(t.Context(), appendParams(&part))
		if err != nil || len(rows) != stored {
			t.Errorf("%d runs stored, want %d, %v", len(rows), stored, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
