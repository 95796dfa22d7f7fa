package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// DeadLetters lists dead letters, newest first.
func (s *Store) DeadLetters(ctx context.Context, f mq.DeadLetterFilter) ([]mq.DeadLetter, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	p := db.ListDeadLettersParams{
		Tenant: f.Tenant, Queue: f.Queue, GroupName: f.Group, Partition: f.Partition, TransactionID: f.TransactionID,
		MaxRows: int32(f.Limit), SkipRows: int32(f.Offset), FromAt: optional(f.From), ToAt: optional(f.To),
	}
	rows, err := db.New(s.cold).ListDeadLetters(ctx, p)
	if err != nil {
		return nil, translate(err)
	}
	out := make([]mq.DeadLetter, len(rows))
	for i := range rows {
		r := &rows[i]
		out[i] = mq.DeadLetter{
			ID: r.ID, MessageID: r.MessageID, TransactionID: r.TransactionID,
			PartitionID: mq.PartitionID{Queue: r.QueueID, Partition: r.PartitionID},
			Queue:       r.Queue, Partition: r.Partition, Group: r.GroupName, Offset: r.MessageOffset,
			RetryCount: r.RetryCount, Error: r.Error, Payload: []byte(r.Payload), ProducerSub: deref(r.ProducerSub),
			CreatedAt: r.CreatedAt, FailedAt: r.FailedAt,
		}
	}
	return out, nil
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// NewestDeadLetter finds the newest record at a message's address.
func (s *Store) NewestDeadLetter(ctx context.Context, p mq.PartitionID, transactionID string) (mq.UUID, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	id, err := db.New(s.cold).NewestDeadLetter(ctx, db.NewestDeadLetterParams{
		QueueID: p.Queue, PartitionID: p.Partition, IDHash: mq.HashID(transactionID).Key,
	})
	return id, translate(err)
}

// errKept ends a replay whose target holds the message already.
var errKept = errors.New("replayed before")

// ReplayDeadLetter moves a record into a queue: locks it, pushes its message as
// transaction id dlq:<record id> and deletes it, in one transaction. target
// resolves the destination once the record is known; its partition must exist.
// When the id is stored there already nothing is written.
func (s *Store) ReplayDeadLetter(ctx context.Context, id mq.UUID, target func(*mq.DeadLetter) (*mq.QueueInfo, string, error)) (*mq.DeadLetter, *mq.Run, error) {
	queue := mq.ScopeOf(id)
	var letter *mq.DeadLetter
	run := &mq.Run{}
	err := s.tx(ctx, s.cold, func(ctx context.Context, tx pgx.Tx) error {
		q := db.New(tx)
		r, err := q.LockDeadLetter(ctx, db.LockDeadLetterParams{QueueID: queue, ID: id})
		if err != nil {
			return err
		}
		letter = &mq.DeadLetter{
			ID: id, MessageID: r.MessageID, TransactionID: r.TransactionID,
			PartitionID: mq.PartitionID{Queue: queue, Partition: r.PartitionID}, Partition: r.Partition,
			Group: r.GroupName, Offset: r.MessageOffset, RetryCount: r.RetryCount, Error: r.Error,
			ProducerSub: deref(r.ProducerSub), CreatedAt: r.CreatedAt, FailedAt: r.FailedAt,
		}
		dest, partition, err := target(letter)
		if err != nil {
			return err
		}
		txn := "dlq:" + id.String()
		*run = mq.Run{Partition: partition, Messages: []*mq.Message{{
			ID: mq.NewID(), TransactionID: txn, Payload: []byte(r.Payload), Hash: mq.HashID(txn),
			TraceID: r.TraceID.Bytes, ProducerSub: letter.ProducerSub, Probe: true,
		}}}
		part := mq.Append{Queue: dest, Runs: []mq.Run{*run}}
		if err := appendOne(ctx, tx, &part); err != nil {
			return err
		}
		*run = part.Runs[0]
		if !run.Appended {
			return errKept
		}
		_, err = q.DeleteDeadLetter(ctx, db.DeleteDeadLetterParams{QueueID: queue, ID: id})
		return err
	})
	if errors.Is(err, errKept) {
		err = nil
	}
	return letter, run, translate(err)
}

// appendOne is Append inside a transaction that does more.
func appendOne(ctx context.Context, tx pgx.Tx, part *mq.Append) error {
	var b batch
	q := b.queries()
	_ = q.LockPartitions(ctx, db.LockPartitionsParams{QueueID: part.Queue.ID, Names: []string{part.Runs[0].Partition}})
	_, _ = q.AppendSegments(ctx, appendParams(part))
	br := tx.SendBatch(ctx, &b.Batch)
	_, err := br.Exec()
	if err == nil {
		err = readVerdicts(br, part.Runs)
	}
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	return err
}

// PurgeDeadLetters removes a queue's records, of one group or (empty) of all.
func (s *Store) PurgeDeadLetters(ctx context.Context, queue int64, group string) (int64, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	n, err := db.New(s.cold).PurgeDeadLetters(ctx, db.PurgeDeadLettersParams{QueueID: queue, GroupName: group})
	return n, translate(err)
}

// DeleteDeadLetters removes the records of a message's address, of all groups.
func (s *Store) DeleteDeadLetters(ctx context.Context, p mq.PartitionID, transactionID string) (int64, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	n, err := db.New(s.cold).DeleteDeadLettersAt(ctx, db.DeleteDeadLettersAtParams{
		QueueID: p.Queue, PartitionID: p.Partition, IDHash: mq.HashID(transactionID).Key,
	})
	return n, translate(err)
}
