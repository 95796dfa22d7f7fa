package pgstore

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// AckBatches completes the leases that are acknowledged as a whole, of several
// queues in one transaction, and writes the results beside them. The cursors of
// a queue differ from each other. A batch that is not Done was not touched.
func (s *Store) AckBatches(ctx context.Context, acks []mq.QueueAcks) error {
	var b batch
	b.gathered = len(acks) > 1 || len(acks[0].Batches) > 1
	q := b.queries()
	for i := range acks {
		p := db.AckBatchesParams{QueueID: acks[i].QueueID}
		for ord := range acks[i].Batches {
			a := &acks[i].Batches[ord]
			p.Ords = append(p.Ords, int32(ord))
			p.PartitionIds = append(p.PartitionIds, a.Partition)
			p.GroupIds = append(p.GroupIds, a.Group)
			p.LeaseIds = append(p.LeaseIds, a.LeaseID)
			p.Counts = append(p.Counts, a.Count)
			p.Marks = append(p.Marks, a.Mark)
		}
		_, _ = q.AckBatches(ctx, p)
	}
	return translate(s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		for i := range acks {
			acks[i].Results = make([]mq.BatchAckResult, len(acks[i].Batches))
			rows, err := br.Query()
			if err != nil {
				return err
			}
			var done mq.CursorKey
			var more bool
			if _, err = pgx.ForEachRow(rows, []any{&done.Partition, &done.Group, &more}, func() error {
				at := slices.IndexFunc(acks[i].Batches, func(a mq.BatchAck) bool { return a.CursorKey == done })
				acks[i].Results[at] = mq.BatchAckResult{Done: true, More: more}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// AckLocked locks the cursors of the query, resolves its ids, lets decide judge
// them and writes what it decided, all in one transaction. Two round trips;
// three when a message is dead-lettered.
func (s *Store) AckLocked(ctx context.Context, query *mq.AckQuery, decide func(*mq.LockedAcks) (*mq.AckDecision, error)) error {
	return translate(s.txRelock(ctx, s.hot, len(query.Cursors) == 1, func(ctx context.Context, tx pgx.Tx) error {
		locked, err := lockAcks(ctx, tx, query)
		if err != nil {
			return err
		}
		decision, err := decide(locked)
		if err != nil {
			return err
		}
		if len(decision.Spans) > 0 {
			if err := readSpans(ctx, tx, query.QueueID, decision.Spans); err != nil {
				return err
			}
			if decision, err = decide(locked); err != nil {
				return err
			}
		}
		if err := fileDeadLetters(ctx, tx, query.QueueID, decision); err != nil {
			return err
		}
		return saveCursors(ctx, tx, query.QueueID, decision.Changes())
	}))
}

func lockAcks(ctx context.Context, tx pgx.Tx, query *mq.AckQuery) (*mq.LockedAcks, error) {
	var b batch
	queueAckLocks(ctx, b.queries(), query)
	br := tx.SendBatch(ctx, &b.Batch)
	out, err := readLocked(br, query)
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	return out, err
}

// queueAckLocks queues the statements whose results readLocked reads.
func queueAckLocks(ctx context.Context, q *db.Queries, query *mq.AckQuery) {
	lock := db.LockCursorsParams{QueueID: query.QueueID}
	for i, c := range query.Cursors {
		lock.Ords = append(lock.Ords, int32(i))
		lock.PartitionIds = append(lock.PartitionIds, c.Partition)
		lock.GroupIds = append(lock.GroupIds, c.Group)
	}
	ids := db.ResolveIDsParams{QueueID: query.QueueID}
	for i, id := range query.IDs {
		ids.Ords = append(ids.Ords, int32(i))
		ids.PartitionIds = append(ids.PartitionIds, id.Partition)
		ids.Hashes = append(ids.Hashes, id.Key)
	}
	_, _ = q.LockCursors(ctx, lock)
	_, _ = q.ReadAckRules(ctx, query.QueueID)
	_, _ = q.ResolveIDs(ctx, ids)
}

// readLocked reads the results of queueAckLocks.
func readLocked(br pgx.BatchResults, query *mq.AckQuery) (*mq.LockedAcks, error) {
	out := &mq.LockedAcks{Cursors: map[mq.CursorKey]*mq.Cursor{}, Offsets: map[mq.AckID][]int64{}}
	rows, err := br.Query()
	if err != nil {
		return nil, err
	}
	var (
		r                       db.LockCursorsRow
		lease                   pgtype.UUID
		leaseEnd                *time.Time
		batchEnd, attemptOffset *int64
	)
	if _, err = pgx.ForEachRow(rows, []any{
		&r.Ord, &r.Committed, &batchEnd, &lease, &leaseEnd, &r.LeaseConflated,
		&r.LeaseCount, &r.LeaseMark, &attemptOffset, &r.AttemptCount, &r.RetryCount,
	}, func() error {
		c := &mq.Cursor{
			CursorKey: query.Cursors[r.Ord], Committed: r.Committed, BatchEnd: -1, Conflated: r.LeaseConflated,
			LeaseCount: r.LeaseCount, LeaseMark: r.LeaseMark, AttemptOffset: -1,
			AttemptCount: r.AttemptCount, RetryCount: r.RetryCount,
		}
		if batchEnd != nil {
			c.BatchEnd = *batchEnd
		}
		if attemptOffset != nil {
			c.AttemptOffset = *attemptOffset
		}
		if lease.Valid && leaseEnd != nil {
			c.LeaseID, c.LeaseExpires = lease.Bytes, *leaseEnd
		}
		out.Cursors[c.CursorKey] = c
		return nil
	}); err != nil {
		return nil, err
	}
	if err := br.QueryRow().Scan(&out.Rules.RetryLimit, &out.Rules.DeadLetters, &out.Rules.Now); err != nil {
		return nil, err
	}
	if rows, err = br.Query(); err != nil {
		return nil, err
	}
	var ord int32
	var offset int64
	_, err = pgx.ForEachRow(rows, []any{&ord, &offset}, func() error {
		id := query.IDs[ord]
		out.Offsets[id] = append(out.Offsets[id], offset)
		return nil
	})
	return out, err
}

// readSpans fills in the ids stored in leased spans, which only a batch with
// repeated ids asks for.
func readSpans(ctx context.Context, tx db.DBTX, queue int64, spans []*mq.Span) error {
	for _, sp := range spans {
		sp.Read = true
		rows, err := db.New(tx).ReadSegmentIDs(ctx, db.ReadSegmentIDsParams{
			QueueID: queue, PartitionID: sp.Partition, Committed: sp.After,
			// A segment is at most maxSegmentMessages long.
			UntilOffset: sp.Through + maxSegmentMessages,
		})
		if err != nil {
			return err
		}
		for i := range rows {
			r := &rows[i]
			first := r.EndOffset - int64(r.MessageCount) + 1
			from, to := max(sp.After+1-first, 0), min(sp.Through-first, int64(r.MessageCount)-1)
			if to < from {
				continue
			}
			_, part, ends, base, err := cut(r.EndOffset, r.MessageCount, r.Ends, []byte(r.Body), int(from), int(to))
			if err != nil {
				return err
			}
			seg := mq.NewSegment(0, time.Time{}, part, ends, base)
			for j := range seg.Len() {
				e, err := parseElement(seg.Message(j))
				if err != nil {
					return err
				}
				sp.IDs = append(sp.IDs, e.TransactionID)
			}
		}
	}
	return nil
}

// fileDeadLetters snapshots the poison messages. A message that can no longer
// be read is not filed, and its cursor does not move onto it.
func fileDeadLetters(ctx context.Context, tx db.DBTX, queue int64, d *mq.AckDecision) error {
	if len(d.Letters) == 0 {
		return nil
	}
	refs := make([]mq.OffsetRef, len(d.Letters))
	for i, l := range d.Letters {
		refs[i] = mq.OffsetRef{Partition: l.PartitionID.Partition, Offset: l.Offset}
	}
	filed := make([]bool, len(refs))
	p := db.FileDeadLettersParams{QueueID: queue}
	err := readElements(ctx, tx, queue, refs, func(i int, head mq.Segment, raw []byte) error {
		e, err := parseElement(raw)
		if err != nil {
			return err
		}
		filed[i] = true
		l := d.Letters[i]
		p.Ids = append(p.Ids, mq.ScopedID(queue))
		p.PartitionIds = append(p.PartitionIds, l.PartitionID.Partition)
		p.Offsets = append(p.Offsets, l.Offset)
		p.MessageIds = append(p.MessageIds, e.ID)
		p.IDHashes = append(p.IDHashes, mq.HashID(e.TransactionID).Key)
		p.CreatedAts = append(p.CreatedAts, head.CreatedAt)
		p.RetryCounts = append(p.RetryCounts, l.RetryCount)
		p.GroupNames = append(p.GroupNames, l.Group)
		p.TransactionIds = append(p.TransactionIds, e.TransactionID)
		p.TraceIds = append(p.TraceIds, e.TraceID)
		p.ProducerSubs = append(p.ProducerSubs, e.ProducerSub)
		p.Errors = append(p.Errors, l.Error)
		p.Payloads = append(p.Payloads, string(e.Payload))
		return nil
	})
	if err != nil {
		return err
	}
	for i, ok := range filed {
		if !ok {
			d.Reject(i)
		}
	}
	if len(p.Ids) == 0 {
		return nil
	}
	return db.New(tx).FileDeadLetters(ctx, p)
}

func saveCursors(ctx context.Context, tx db.DBTX, queue int64, changes []mq.CursorChange) error {
	if len(changes) == 0 {
		return nil
	}
	p := db.SaveCursorsParams{QueueID: queue}
	for _, c := range changes {
		p.PartitionIds = append(p.PartitionIds, c.Partition)
		p.GroupIds = append(p.GroupIds, c.Group)
		p.Committed = append(p.Committed, c.Committed)
		p.Releases = append(p.Releases, c.Release)
		p.AttemptOffsets = append(p.AttemptOffsets, c.AttemptOffset)
		p.AttemptCounts = append(p.AttemptCounts, c.AttemptCount)
		p.RetryCounts = append(p.RetryCounts, c.RetryCount)
	}
	return db.New(tx).SaveCursors(ctx, p)
}
