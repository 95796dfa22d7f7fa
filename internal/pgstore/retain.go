package pgstore

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// The janitor's statements. Each commits by itself and is bounded.

// TakeLoop makes holder the one broker that runs a background loop, for a
// while; false when another one does.
func (s *Store) TakeLoop(ctx context.Context, loop, holder string, d time.Duration) (bool, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	n, err := db.New(s.cold).TakeJanitorLease(ctx, db.TakeJanitorLeaseParams{LoopName: loop, Holder: holder, Seconds: d.Seconds()})
	return n > 0, translate(err)
}

// LeaveLoop gives a loop up before its lease ends.
func (s *Store) LeaveLoop(ctx context.Context, loop, holder string) error {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	return translate(db.New(s.cold).DropJanitorLease(ctx, db.DropJanitorLeaseParams{LoopName: loop, Holder: holder}))
}

// RetentionRules lists the queues that have a retention rule.
func (s *Store) RetentionRules(ctx context.Context) ([]mq.RetentionRule, error) {
	ctx, cancel := s.detach(ctx)
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

// AgedPartitions lists partitions whose oldest message is older than seconds,
// after a position of the walk.
func (s *Store) AgedPartitions(ctx context.Context, queue int64, seconds int32, after mq.AgePosition, limit int) ([]mq.AgePosition, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	if after.OldestAt.IsZero() {
		after.OldestAt = farPast
	}
	rows, err := db.New(s.cold).ListAgedPartitions(ctx, db.ListAgedPartitionsParams{
		QueueID: queue, OlderSeconds: seconds, AfterAt: after.OldestAt, AfterID: after.Partition, Step: int32(limit),
	})
	out := make([]mq.AgePosition, len(rows))
	for i, r := range rows {
		out[i] = mq.AgePosition{OldestAt: r.OldestAt, Partition: r.ID}
	}
	return out, translate(err)
}

// Trim removes up to limit segments from the front of a partition under a rule.
func (s *Store) Trim(ctx context.Context, rule mq.RetentionRule, partition int64, limit int) (segments int, messages int64, err error) {
	var b batch
	q := b.queries()
	_ = q.LockPartition(ctx, db.LockPartitionParams{QueueID: rule.QueueID, ID: partition})
	_, _ = q.TrimPartition(ctx, db.TrimPartitionParams{
		QueueID: rule.QueueID, ID: partition, Step: int32(limit), OlderSeconds: rule.Age, CompletedSeconds: rule.Completed,
	})
	err = s.run(ctx, s.cold, &b, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		return br.QueryRow().Scan(&segments, &messages)
	})
	return segments, messages, translate(err)
}

// QueueIDs walks the queues.
func (s *Store) QueueIDs(ctx context.Context, after int64, limit int) ([]int64, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	ids, err := db.New(s.cold).ListQueueIDs(ctx, db.ListQueueIDsParams{AfterID: after, Step: int32(limit)})
	return ids, translate(err)
}

// DropIdlePartitions removes partitions of a queue that are empty, were written
// last more than days ago and are of no use to anybody. It returns the last
// partition looked at, and 0 at the end of the walk.
func (s *Store) DropIdlePartitions(ctx context.Context, queue, after int64, days int32, limit int) (next int64, dropped int, err error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	ids, err := db.New(s.cold).ListIdlePartitions(ctx, db.ListIdlePartitionsParams{QueueID: queue, AfterID: after, IdleDays: days, Step: int32(limit)})
	if err != nil {
		return 0, 0, translate(err)
	}
	for _, id := range ids {
		var b batch
		q := b.queries()
		_ = q.LockPartition(ctx, db.LockPartitionParams{QueueID: queue, ID: id})
		_ = q.DropIdleCursors(ctx, db.DropIdleCursorsParams{QueueID: queue, ID: id, IdleDays: days})
		_, _ = q.DropIdlePartition(ctx, db.DropIdlePartitionParams{QueueID: queue, ID: id})
		err := s.run(ctx, s.cold, &b, func(br pgx.BatchResults) error {
			for range 2 {
				if _, err := br.Exec(); err != nil {
					return err
				}
			}
			tag, err := br.Exec()
			dropped += int(tag.RowsAffected())
			return err
		})
		if err != nil {
			return id, dropped, translate(err)
		}
	}
	if len(ids) < limit {
		return 0, dropped, nil
	}
	return ids[len(ids)-1], dropped, nil
}

// SweepDropped removes up to limit segments of deleted queues.
func (s *Store) SweepDropped(ctx context.Context, limit int) (removed int, err error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	q := db.New(s.cold)
	ids, err := q.ListDroppedQueues(ctx)
	if err != nil {
		return 0, translate(err)
	}
	for _, id := range ids {
		n, err := q.RemoveDroppedSegments(ctx, db.RemoveDroppedSegmentsParams{QueueID: id, Step: int32(limit - removed)})
		if err != nil {
			return removed, translate(err)
		}
		if removed += int(n); removed >= limit {
			return removed, nil
		}
		if err := q.ForgetDroppedQueue(ctx, id); err != nil {
			return removed, translate(err)
		}
	}
	return removed, nil
}

// sliceBound reads the class and the end out of a slice's bound:
// FOR VALUES FROM ('0', '2026-…') TO ('0', '2026-…')
var sliceBound = regexp.MustCompile(`TO \('?(\d+)'?, '([^']+)'\)`)

// ExpireIDs drops the slices of message ids that nobody needs any more, and
// finishes a drop that was interrupted. Detaching waits for transactions that
// use the table, without making anybody wait for it.
func (s *Store) ExpireIDs(ctx context.Context) (dropped int, err error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	c, err := s.acquire(ctx, s.cold)
	if err != nil {
		return 0, translate(err)
	}
	defer c.Release()
	// A bound prints in the session's zone.
	if _, err := c.Exec(ctx, "SET timezone = 'UTC'"); err != nil {
		return 0, translate(err)
	}
	q := db.New(c)
	slices, err := q.ListIDSlices(ctx)
	if err != nil {
		return 0, translate(err)
	}
	ends, err := idEnds(ctx, q)
	if err != nil {
		return 0, translate(err)
	}
	for _, sl := range slices {
		class, end, err := parseBound(sl.Bound)
		if err != nil {
			return dropped, err
		}
		if end.After(ends[class]) && !sl.Detaching {
			continue
		}
		if err := dropSlice(ctx, c.Conn(), sl.Name, sl.Detaching); err != nil {
			return dropped, translate(err)
		}
		dropped++
	}
	_, err = q.SettleIDClasses(ctx)
	return dropped, translate(err)
}

// idEnds returns per class the instant up to which ids are not needed.
func idEnds(ctx context.Context, q *db.Queries) ([3]time.Time, error) {
	var ends [3]time.Time
	for class := range int16(len(ends)) {
		w, err := q.LongestIDWindow(ctx, class)
		if err != nil {
			return ends, err
		}
		keep := max(time.Duration(w.Seconds)*time.Second, mq.MinIDKeep)
		ends[class] = w.Now.Add(-keep)
	}
	return ends, nil
}

func parseBound(bound string) (class int, end time.Time, err error) {
	m := sliceBound.FindStringSubmatch(bound)
	if m == nil {
		return 0, end, fmt.Errorf("slice bound %q is not understood", bound)
	}
	class, err = strconv.Atoi(m[1])
	if err != nil || class > 2 {
		return 0, end, fmt.Errorf("slice class in %q is not understood", bound)
	}
	end, err = time.Parse("2006-01-02 15:04:05Z07", m[2])
	return class, end, err
}

func dropSlice(ctx context.Context, c *pgx.Conn, name string, detaching bool) error {
	table := pgx.Identifier{"queen", name}.Sanitize()
	how := "CONCURRENTLY"
	if detaching {
		how = "FINALIZE"
	}
	// Neither runs inside a transaction block, so not through a batch either.
	if _, err := c.Exec(ctx, "ALTER TABLE queen.message_ids DETACH PARTITION "+table+" "+how, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	_, err := c.Exec(ctx, "DROP TABLE "+table, pgx.QueryExecModeSimpleProtocol)
	return err
}
