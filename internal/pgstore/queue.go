package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// FindQueue looks a queue up by name.
func (s *Store) FindQueue(ctx context.Context, tenant mq.UUID, name string) (*mq.QueueInfo, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	q, err := db.New(s.hot).FindQueue(ctx, db.FindQueueParams{Tenant: tenant, Name: name})
	return queueInfo(&q), translate(err)
}

// FindQueueByID looks a queue up by its number.
func (s *Store) FindQueueByID(ctx context.Context, id int64) (*mq.QueueInfo, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	q, err := db.New(s.hot).FindQueueByID(ctx, id)
	return queueInfo(&q), translate(err)
}

// EnsureQueue makes a queue with the options of an implicit one unless it
// exists, and returns it.
func (s *Store) EnsureQueue(ctx context.Context, tenant mq.UUID, name string) (*mq.QueueInfo, error) {
	o := mq.ImplicitOptions(name)
	dctx, cancel := s.detach(ctx)
	defer cancel()
	if err := db.New(s.cold).CreateQueue(dctx, createParams(tenant, name, &o)); err != nil {
		return nil, translate(err)
	}
	return s.FindQueue(ctx, tenant, name)
}

// Configure makes or changes a queue: apply gets the stored options, nil for a
// queue that does not exist, under the queue's lock.
func (s *Store) Configure(ctx context.Context, tenant mq.UUID, name string, apply func(*mq.Options) (mq.Options, error)) (*mq.QueueInfo, error) {
	var out *mq.QueueInfo
	err := s.tx(ctx, s.cold, func(ctx context.Context, tx pgx.Tx) error {
		q := db.New(tx)
		_, err := q.FindQueue(ctx, db.FindQueueParams{Tenant: tenant, Name: name})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			// Two makers at once: the second finds the queue made, locks it
			// below and merges.
			fresh, err := apply(nil)
			if err != nil {
				return err
			}
			if err := q.CreateQueue(ctx, createParams(tenant, name, &fresh)); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		row, err := q.FindQueue(ctx, db.FindQueueParams{Tenant: tenant, Name: name})
		if err != nil {
			return err
		}
		if err := q.LockQueue(ctx, row.ID); err != nil {
			return err
		}
		if row, err = q.FindQueueByID(ctx, row.ID); err != nil {
			return err
		}
		out, err = changeQueue(ctx, q, queueInfo(&row), row.IDClassUntil, apply)
		return err
	})
	return out, translate(err)
}

func changeQueue(ctx context.Context, q *db.Queries, cur *mq.QueueInfo, until *time.Time, apply func(*mq.Options) (mq.Options, error)) (*mq.QueueInfo, error) {
	o, err := apply(&cur.Options)
	if err != nil {
		return nil, err
	}
	next := *cur
	next.Options = o
	next.Version++
	if class := o.IDClass(); class != cur.IDClass {
		// Ids stored so far stay where they are: look there too until the
		// longest window they were promised has passed.
		now, err := q.ReadClock(ctx)
		if err != nil {
			return nil, err
		}
		end := now.Add(max(cur.Options.IDKeep(), o.IDKeep()))
		next.IDClass, next.IDClassBefore, until = class, cur.IDClass, &end
	}
	if err := q.UpdateQueue(ctx, updateParams(&next, until)); err != nil {
		return nil, err
	}
	if o.DelayedProcessing != cur.Options.DelayedProcessing || o.WindowBuffer != cur.Options.WindowBuffer {
		if err := q.WakeHeldCursors(ctx, cur.ID); err != nil {
			return nil, err
		}
	}
	return &next, nil
}

// WakeHeld makes what delayedProcessing and windowBuffer hold back of a queue
// claimable: the next claim works out anew whether it is due.
func (s *Store) WakeHeld(ctx context.Context, queue int64) error {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	return translate(db.New(s.cold).WakeHeldCursors(ctx, queue))
}

// DeleteQueue removes a queue and everything of it in one transaction, but for
// its segments, which nobody can address any more: the janitor removes those.
func (s *Store) DeleteQueue(ctx context.Context, tenant mq.UUID, name string) (existed bool, err error) {
	err = s.tx(ctx, s.cold, func(ctx context.Context, tx pgx.Tx) error {
		q := db.New(tx)
		row, err := q.FindQueue(ctx, db.FindQueueParams{Tenant: tenant, Name: name})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := q.LockQueue(ctx, row.ID); err != nil {
			return err
		}
		for _, step := range []func(context.Context, int64) error{
			q.LockAllPartitions, q.DeleteQueueCursors, q.DeleteQueuePartitions,
			q.DeleteQueueGroups, q.DeleteQueueDeadLetters,
		} {
			if err := step(ctx, row.ID); err != nil {
				return err
			}
		}
		n, err := q.DeleteQueue(ctx, row.ID)
		if err != nil || n == 0 {
			return err // n == 0: another broker was faster
		}
		existed = true
		return q.DropQueue(ctx, row.ID)
	})
	return existed, translate(err)
}

// ListQueues lists the queues of a tenant by name; empty labels match all.
func (s *Store) ListQueues(ctx context.Context, tenant mq.UUID, f mq.QueueFilter) ([]*mq.QueueInfo, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	limit := int32(1<<31 - 1)
	if f.Limit > 0 {
		limit = int32(min(f.Limit, 1<<31-1))
	}
	rows, err := db.New(s.cold).ListQueues(ctx, db.ListQueuesParams{
		Tenant: tenant, Namespace: f.Namespace, Task: f.Task, MaxRows: limit, SkipRows: int32(f.Offset),
	})
	out := make([]*mq.QueueInfo, len(rows))
	for i := range rows {
		out[i] = queueInfo(&rows[i])
	}
	return out, translate(err)
}

// QueueStats counts what queues retain, in their order.
func (s *Store) QueueStats(ctx context.Context, queues []*mq.QueueInfo) ([]mq.QueueSummary, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	q := db.New(s.cold)
	out := make([]mq.QueueSummary, len(queues))
	for i, info := range queues {
		out[i].Queue = info.Queue
		d, err := s.backlog(ctx, info, "")
		if err != nil {
			return nil, translate(err)
		}
		seg, err := q.CountSegments(ctx, info.ID)
		if err != nil {
			return nil, translate(err)
		}
		out[i].Partitions, out[i].Counts = int64(len(d.Partitions)), d.Totals
		out[i].Segments, out[i].RetainedBytes = seg.Segments, seg.Bytes
	}
	return out, nil
}

// QueueDetail describes a queue and its partitions.
func (s *Store) QueueDetail(ctx context.Context, info *mq.QueueInfo) (*mq.QueueDetail, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	d, err := s.backlog(ctx, info, "")
	if err != nil {
		return nil, translate(err)
	}
	seg, err := db.New(s.cold).CountSegments(ctx, info.ID)
	if err != nil {
		return nil, translate(err)
	}
	d.Segments, d.RetainedBytes = seg.Segments, seg.Bytes
	letters, err := db.New(s.cold).CountDeadLetters(ctx, info.ID)
	if err != nil {
		return nil, translate(err)
	}
	at := make(map[int64]int64, len(letters))
	for _, l := range letters {
		at[l.PartitionID] = l.Letters
		d.Totals.DeadLetter += l.Letters
	}
	for i := range d.Partitions {
		d.Partitions[i].Counts.DeadLetter = at[d.Partitions[i].ID.Partition]
	}
	return d, nil
}

// Backlog describes what a group (empty: the slowest) has before it, per
// partition. Watermarks only.
func (s *Store) Backlog(ctx context.Context, info *mq.QueueInfo, group string) (*mq.QueueDetail, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	d, err := s.backlog(ctx, info, group)
	return d, translate(err)
}

func (s *Store) backlog(ctx context.Context, info *mq.QueueInfo, group string) (*mq.QueueDetail, error) {
	rows, err := db.New(s.cold).ListBacklog(ctx, db.ListBacklogParams{QueueID: info.ID, GroupName: group})
	if err != nil {
		return nil, err
	}
	d := &mq.QueueDetail{Queue: info.Queue, Partitions: make([]mq.PartitionDetail, len(rows))}
	for i := range rows {
		r := &rows[i]
		p := mq.PartitionDetail{
			ID: mq.PartitionID{Queue: info.ID, Partition: r.ID}, Name: r.Name, CreatedAt: r.CreatedAt,
			Counts: mq.Counts{Total: r.LastOffset - r.LogStart + 1, Pending: r.Pending, Processing: min(r.Processing, r.Pending)},
		}
		if r.OldestAt != nil && r.LastWriteAt != nil {
			p.Oldest, p.Newest = *r.OldestAt, *r.LastWriteAt
		}
		d.Totals.Total += p.Counts.Total
		d.Totals.Pending += p.Counts.Pending
		d.Totals.Processing += p.Counts.Processing
		d.Partitions[i] = p
	}
	return d, nil
}
