package pgstore

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// The janitor's statements. Each commits by itself and is bounded. Unlike those
// of requests they end with their caller's context: nobody else waits for them,
// and a broker that stops must not wait for them either.

// stepLockWait bounds the wait of a step for a lock, detachLockWait that of a
// detach for the transactions that may still use the slice.
const (
	stepLockWait   = 250 * time.Millisecond
	detachLockWait = 5 * time.Second
)

// trimBytes bounds the stored bodies one step removes: pushes to the partition
// wait for it.
const trimBytes = 4 << 20

// bounded is the janitor's answer to detach.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.timeout, errStatementTimeout)
}

func lockWait(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// TakeLoop makes holder the one broker that runs a background loop, for a
// while; false when another one does.
func (s *Store) TakeLoop(ctx context.Context, loop, holder string, d time.Duration) (bool, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	n, err := db.New(s.cold).TakeJanitorLease(ctx, db.TakeJanitorLeaseParams{LoopName: loop, Holder: holder, Seconds: d.Seconds()})
	return n > 0, translate(err)
}

// LeaveLoop gives a loop up before its lease ends.
func (s *Store) LeaveLoop(ctx context.Context, loop, holder string) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return translate(db.New(s.cold).DropJanitorLease(ctx, db.DropJanitorLeaseParams{LoopName: loop, Holder: holder}))
}

// RetentionRules lists the queues that have a retention rule.
func (s *Store) RetentionRules(ctx context.Context) ([]mq.RetentionRule, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := db.New(s.cold).ListRetainingQueues(ctx)
	out := make([]mq.RetentionRule, len(rows))
	for i, r := range rows {
		out[i] = mq.RetentionRule{QueueID: r.ID, Age: r.MaxWaitTimeSeconds}
		if r.RetentionEnabled {
			if r.RetentionSeconds > 0 && (out[i].Age <= 0 || r.RetentionSeconds < out[i].Age) {
				out[i].Age = r.RetentionSeconds
			}
			out[i].Completed = max(r.CompletedRetentionSeconds, 0)
		}
		out[i].Age = max(out[i].Age, 0)
	}
	return out, translate(err)
}

// AgedPartitions looks at the next limit partitions of a queue whose oldest
// message is old enough for one of the rules, and returns those from which
// something can be removed. next is the last one looked at, zero at the end of
// the walk.
func (s *Store) AgedPartitions(ctx context.Context, rule mq.RetentionRule, after mq.AgePosition, limit int) (found []mq.AgePosition, next mq.AgePosition, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if after.OldestAt.IsZero() {
		after.OldestAt = farPast
	}
	aged := rule.Age
	if aged <= 0 || rule.Completed > 0 && rule.Completed < aged {
		aged = rule.Completed
	}
	rows, err := db.New(s.cold).ListAgedPartitions(ctx, db.ListAgedPartitionsParams{
		QueueID: rule.QueueID, OlderSeconds: rule.Age, CompletedSeconds: rule.Completed, AgedSeconds: aged,
		AfterAt: after.OldestAt, AfterID: after.Partition, Step: int32(limit),
	})
	for i, r := range rows {
		at := mq.AgePosition{OldestAt: r.OldestAt, Partition: r.ID}
		if r.Removable {
			found = append(found, at)
		}
		if i == limit-1 {
			next = at
		}
	}
	return found, next, translate(err)
}

// Trim removes up to limit segments from the front of a partition under a rule,
// and says whether there may be more to remove. It answers mq.KindBusy when
// somebody keeps the partition locked.
func (s *Store) Trim(ctx context.Context, rule mq.RetentionRule, partition int64, limit int) (messages int64, more bool, err error) {
	var b batch
	q := b.queries()
	_ = q.PrepareStep(ctx, lockWait(stepLockWait))
	_ = q.LockPartition(ctx, db.LockPartitionParams{QueueID: rule.QueueID, ID: partition})
	_, _ = q.TrimPartition(ctx, db.TrimPartitionParams{
		QueueID: rule.QueueID, ID: partition, Step: int32(limit), MaxBytes: trimBytes,
		OlderSeconds: rule.Age, CompletedSeconds: rule.Completed,
	})
	err = s.run(ctx, s.cold, &b, func(br pgx.BatchResults) error {
		for range 2 {
			if _, err := br.Exec(); err != nil {
				return err
			}
		}
		return br.QueryRow().Scan(&messages, &more)
	})
	return messages, more, translate(err)
}

// QueueIDs walks the queues.
func (s *Store) QueueIDs(ctx context.Context, after int64, limit int) ([]int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	ids, err := db.New(s.cold).ListQueueIDs(ctx, db.ListQueueIDsParams{AfterID: after, Step: int32(limit)})
	return ids, translate(err)
}

// DropIdlePartitions looks at the next limit partitions of a queue and removes
// those that are empty, were written last more than days ago and are of no use
// to anybody. It returns the last partition looked at, and 0 at the end of the
// walk.
func (s *Store) DropIdlePartitions(ctx context.Context, queue, after int64, days int32, limit int) (next int64, dropped int, err error) {
	list, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := db.New(s.cold).ListIdlePartitions(list, db.ListIdlePartitionsParams{QueueID: queue, AfterID: after, IdleDays: days, Step: int32(limit)})
	if err != nil {
		return after, 0, translate(err)
	}
	for _, r := range rows {
		if !r.Idle {
			continue
		}
		if err := ctx.Err(); err != nil {
			return after, dropped, err
		}
		gone, err := s.dropIdlePartition(ctx, queue, r.ID, days)
		switch {
		case mq.KindOf(err) == mq.KindBusy:
			// In use after all.
		case err != nil:
			return after, dropped, err
		case gone:
			dropped++
		}
		after = r.ID
	}
	if len(rows) < limit {
		return 0, dropped, nil
	}
	return rows[len(rows)-1].ID, dropped, nil
}

func (s *Store) dropIdlePartition(ctx context.Context, queue, id int64, days int32) (gone bool, err error) {
	var b batch
	q := b.queries()
	_ = q.PrepareStep(ctx, lockWait(stepLockWait))
	_ = q.LockPartition(ctx, db.LockPartitionParams{QueueID: queue, ID: id})
	_ = q.DropIdleCursors(ctx, db.DropIdleCursorsParams{QueueID: queue, ID: id, IdleDays: days})
	_, _ = q.DropIdlePartition(ctx, db.DropIdlePartitionParams{QueueID: queue, ID: id, IdleDays: days})
	err = s.run(ctx, s.cold, &b, func(br pgx.BatchResults) error {
		for range 3 {
			if _, err := br.Exec(); err != nil {
				return err
			}
		}
		tag, err := br.Exec()
		gone = tag.RowsAffected() > 0
		return err
	})
	return gone, translate(err)
}

// SweepDropped removes up to limit segments of deleted queues.
func (s *Store) SweepDropped(ctx context.Context, limit int) (removed int, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	q := db.New(s.cold)
	ids, err := q.ListDroppedQueues(ctx)
	if err != nil {
		return 0, translate(err)
	}
	for _, id := range ids {
		n, err := s.removeDropped(ctx, id, limit-removed)
		if err != nil {
			return removed, translate(err)
		}
		if removed += n; removed >= limit {
			return removed, nil
		}
		if err := q.ForgetDroppedQueue(ctx, id); err != nil {
			return removed, translate(err)
		}
	}
	return removed, nil
}

func (s *Store) removeDropped(ctx context.Context, queue int64, limit int) (n int, err error) {
	var b batch
	q := b.queries()
	_ = q.PrepareStep(ctx, lockWait(stepLockWait))
	_, _ = q.RemoveDroppedSegments(ctx, db.RemoveDroppedSegmentsParams{QueueID: queue, Step: int32(limit)})
	err = s.run(ctx, s.cold, &b, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		return br.QueryRow().Scan(&n)
	})
	return n, err
}

// ExpireIDs drops the slices of message ids that nobody needs any more, and
// finishes a drop that was interrupted. Detaching waits a bounded time for
// transactions that use the table, without making anybody wait for it; what was
// not finished then is finished the next time.
func (s *Store) ExpireIDs(ctx context.Context) (dropped int, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	c, err := s.acquire(ctx, s.cold)
	if err != nil {
		return 0, translate(err)
	}
	defer c.Release()
	q := db.New(c)
	slices, err := q.ListSpentIDSlices(ctx)
	if err != nil {
		return 0, translate(err)
	}
	if len(slices) > 0 {
		if err := execPlain(ctx, c.Conn(), "SET lock_timeout = '"+lockWait(detachLockWait)+"'"); err != nil {
			return 0, translate(err)
		}
		defer func() {
			// A session that could not be put right does not go back.
			if rerr := execPlain(ctx, c.Conn(), "RESET lock_timeout"); rerr != nil {
				_ = c.Conn().Close(ctx)
			}
		}()
	}
	for _, sl := range slices {
		if err := dropSlice(ctx, c.Conn(), &sl); err != nil {
			return dropped, translate(err)
		}
		dropped++
	}
	_, err = q.SettleIDClasses(ctx)
	return dropped, translate(err)
}

func dropSlice(ctx context.Context, c *pgx.Conn, sl *db.ListSpentIDSlicesRow) error {
	table := pgx.Identifier{"queen", sl.Name}.Sanitize()
	if sl.Attached {
		how := " CONCURRENTLY"
		if sl.Detaching {
			how = " FINALIZE"
		}
		if err := execPlain(ctx, c, "ALTER TABLE queen.message_ids DETACH PARTITION "+table+how); err != nil {
			return err
		}
	}
	return execPlain(ctx, c, "DROP TABLE "+table)
}

// execPlain sends a statement that PostgreSQL runs neither prepared nor inside
// a transaction block, so not through a batch either.
func execPlain(ctx context.Context, c *pgx.Conn, sql string) error {
	_, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}
