package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// seedStep is how many partitions one step of seeding or seeking locks.
const seedStep = 1000

// FindGroup looks a consumer group up by name.
func (s *Store) FindGroup(ctx context.Context, queue int64, name string) (mq.GroupInfo, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	g, err := db.New(s.hot).FindGroup(ctx, db.FindGroupParams{QueueID: queue, Name: name})
	return mq.GroupInfo{ID: g.ID, Seeded: g.Seeded, Conflation: g.Conflation}, translate(err)
}

// EnsureGroup registers a group on a queue unless it is known, and seeds the
// partitions that have no cursor of it yet.
func (s *Store) EnsureGroup(ctx context.Context, queue int64, name string, start mq.Start, conflation bool) (mq.GroupInfo, error) {
	g, err := s.FindGroup(ctx, queue, name)
	if mq.KindOf(err) == mq.KindNotFound {
		if err = s.register(ctx, queue, name, start, conflation); err == nil {
			g, err = s.FindGroup(ctx, queue, name)
		}
	}
	if err != nil {
		return g, err
	}
	for !g.Seeded {
		if g.Seeded, err = s.seed(ctx, queue, g.ID); err != nil {
			return g, err
		}
	}
	return g, nil
}

func (s *Store) register(ctx context.Context, queue int64, name string, start mq.Start, conflation bool) error {
	var b batch
	q := b.queries()
	_ = q.LockQueue(ctx, queue)
	p := db.RegisterGroupParams{QueueID: queue, Name: name, StartMode: int16(start.Mode), Conflation: conflation}
	if start.Mode == mq.StartTime {
		p.StartAt = &start.Time
	}
	_ = q.RegisterGroup(ctx, p)
	return translate(s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		_, err := br.Exec()
		return err
	}))
}

func (s *Store) seed(ctx context.Context, queue, group int64) (done bool, err error) {
	var b batch
	q := b.queries()
	_ = q.LockGroup(ctx, db.LockGroupParams{QueueID: queue, GroupID: group})
	_ = q.LockPartitionsToSeed(ctx, db.LockPartitionsToSeedParams{QueueID: queue, GroupID: group, Step: seedStep})
	_, _ = q.SeedCursors(ctx, db.SeedCursorsParams{QueueID: queue, GroupID: group, Step: seedStep})
	err = s.run(ctx, s.cold, &b, func(br pgx.BatchResults) error {
		for range 2 {
			if _, err := br.Exec(); err != nil {
				return err
			}
		}
		// No row: the group is seeded already, or gone.
		done = true
		rows, err := br.Query()
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&done}, func() error { return nil })
		return err
	})
	return done, translate(err)
}

// GroupStats lists the groups of a queue.
func (s *Store) GroupStats(ctx context.Context, info *mq.QueueInfo) ([]mq.GroupSummary, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	rows, err := db.New(s.cold).ListGroupStats(ctx, info.ID)
	if err != nil {
		return nil, translate(err)
	}
	out := make([]mq.GroupSummary, len(rows))
	for i := range rows {
		r := &rows[i]
		g := mq.GroupSummary{
			Group: r.Name, Queue: info.Name, Cursors: r.Cursors, PartitionsWithLag: r.Lagging, TotalLag: r.TotalLag,
			EverConsumed: r.Consumed, Start: mq.Start{Mode: mq.StartMode(r.StartMode)}, RegisteredAt: r.CreatedAt,
			Conflation: r.Conflation,
		}
		if r.StartAt != nil {
			g.Start.Time = *r.StartAt
		}
		out[i] = g
	}
	return out, nil
}

// maxGroupRows bounds the answer of a group listing.
const maxGroupRows = 100_000

// GroupPartitions lists a group's cursors on a queue (empty: of every group),
// or only those that are behind.
func (s *Store) GroupPartitions(ctx context.Context, info *mq.QueueInfo, group string, laggingOnly bool) ([]mq.GroupPartition, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	rows, err := db.New(s.cold).ListGroupPartitions(ctx, db.ListGroupPartitionsParams{
		QueueID: info.ID, GroupName: group, LaggingOnly: laggingOnly, MaxRows: maxGroupRows,
	})
	if err != nil {
		return nil, translate(err)
	}
	out := make([]mq.GroupPartition, len(rows))
	for i := range rows {
		r := &rows[i]
		p := mq.GroupPartition{
			Queue: info.Name, Group: r.GroupName, Conflation: r.Conflation, Partition: r.Name,
			ID: mq.PartitionID{Queue: info.ID, Partition: r.ID}, Committed: r.Committed, LeaseActive: r.Leased,
			OffsetLag: max(r.LastOffset-max(r.Committed, r.LogStart-1), 0),
		}
		if p.OffsetLag > 0 && r.OldestPending.Unix() > 0 {
			p.OldestPending = r.OldestPending
			p.TimeLag = max(r.Now.Sub(p.OldestPending), 0)
		}
		out[i] = p
	}
	return out, nil
}

// Seek moves a group's cursors on a queue, a bounded step at a time, and
// returns how many. The lease of each is ended, so an ack of a batch handed out
// before moves nothing.
func (s *Store) Seek(ctx context.Context, queue, group int64, k mq.Seek) (moved int64, err error) {
	after := int64(-1)
	at := k.Time
	if k.ToEnd {
		at = farPast
	}
	for {
		var ids []int64
		err = s.tx(ctx, s.cold, func(ctx context.Context, tx pgx.Tx) error {
			q := db.New(tx)
			if err := q.LockGroup(ctx, db.LockGroupParams{QueueID: queue, GroupID: group}); err != nil {
				return err
			}
			ids, err = q.LockPartitionsToSeek(ctx, db.LockPartitionsToSeekParams{
				QueueID: queue, AfterID: after, One: k.PartitionSet, Name: k.Partition, Step: seedStep,
			})
			if err != nil || len(ids) == 0 {
				return err
			}
			if err := q.AddMissingCursors(ctx, db.AddMissingCursorsParams{QueueID: queue, GroupID: group, Ids: ids}); err != nil {
				return err
			}
			return q.SeekCursors(ctx, db.SeekCursorsParams{QueueID: queue, GroupID: group, ToEnd: k.ToEnd, At: at, Ids: ids})
		})
		moved += int64(len(ids))
		if err != nil || len(ids) < seedStep {
			return moved, translate(err)
		}
		after = ids[len(ids)-1]
	}
}

// SetGroupStart changes the stored starting point of a group on a queue.
func (s *Store) SetGroupStart(ctx context.Context, queue int64, group string, at time.Time) (int64, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	n, err := db.New(s.cold).SetGroupStart(ctx, db.SetGroupStartParams{QueueID: queue, Name: group, StartAt: at})
	return n, translate(err)
}

// DeleteGroup removes a group's cursors and leases on a queue. With metadata
// its registration goes too; without, first contact seeds it again from that.
func (s *Store) DeleteGroup(ctx context.Context, queue, group int64, metadata bool) (cursors int64, err error) {
	err = s.tx(ctx, s.cold, func(ctx context.Context, tx pgx.Tx) error {
		q := db.New(tx)
		// Against the creation of partitions, which gives them cursors of the
		// groups it sees.
		if err := q.LockQueue(ctx, queue); err != nil {
			return err
		}
		if err := q.LockGroup(ctx, db.LockGroupParams{QueueID: queue, GroupID: group}); err != nil {
			return err
		}
		n, err := q.DeleteCursors(ctx, db.DeleteCursorsParams{QueueID: queue, GroupID: group})
		if err != nil {
			return err
		}
		cursors = n
		if metadata {
			return q.DeleteGroup(ctx, db.DeleteGroupParams{QueueID: queue, GroupID: group})
		}
		return q.UnseedGroup(ctx, db.UnseedGroupParams{QueueID: queue, GroupID: group})
	})
	return cursors, translate(err)
}
