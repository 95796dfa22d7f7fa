package broker

import (
	"context"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// DeadLetters lists dead letters, newest first.
func (b *Broker) DeadLetters(ctx context.Context, f mq.DeadLetterFilter) ([]mq.DeadLetter, error) {
	return b.store.DeadLetters(ctx, f)
}

// Replay moves a dead letter back into a queue: it is pushed and its record
// removed in one transaction. When the destination holds the replayed message
// already, inside its dedup window, nothing is written and the record is kept.
func (b *Broker) Replay(ctx context.Context, r mq.Replay) (*mq.Replayed, error) {
	id := r.ID
	if id.IsZero() {
		var err error
		if id, err = b.store.NewestDeadLetter(ctx, r.PartitionID, r.TransactionID); err != nil {
			return nil, gone(err)
		}
	}
	origin, err := b.ownQueue(ctx, r.Tenant, mq.ScopeOf(id))
	if err != nil {
		return nil, err
	}
	if origin == nil {
		return nil, mq.NotFound("Message not found")
	}
	out := &mq.Replayed{}
	for range maxPushRounds {
		var dest *mq.QueueInfo
		letter, run, err := b.store.ReplayDeadLetter(ctx, id, func(l *mq.DeadLetter) (*mq.QueueInfo, string, error) {
			out.Queue, out.Partition = origin.Name, l.Partition
			if r.Queue != "" {
				out.Queue = r.Queue
			}
			if r.Partition != "" {
				out.Partition = r.Partition
			}
			var err error
			dest, err = b.ensureQueue(ctx, r.Tenant, out.Queue)
			return dest, out.Partition, err
		})
		if err != nil {
			return nil, gone(err)
		}
		out.Letter = *letter
		out.Letter.Queue = origin.Name
		if run.Appended || len(run.Stored) > 0 {
			b.replayed(out, dest, run)
			return out, nil
		}
		b.cache.dropQueue(dest.ID)
		if dest, err = b.ensureQueue(ctx, r.Tenant, out.Queue); err != nil {
			return nil, err
		}
		if err := b.store.EnsurePartitions(ctx, dest.ID, []string{out.Partition}); err != nil {
			return nil, err
		}
	}
	return nil, &mq.Error{Kind: mq.KindBusy, Code: mq.CodeRetry, Message: errPushRounds.Error(), RetryAfter: 1e9}
}

func (b *Broker) replayed(out *mq.Replayed, dest *mq.QueueInfo, run *mq.Run) {
	m := run.Messages[0]
	out.Result = mq.PushResult{Status: mq.PushQueued, MessageID: m.ID, TransactionID: m.TransactionID, Offset: run.First}
	if !run.Appended {
		out.Result = mq.PushResult{Status: mq.PushDuplicate, TransactionID: m.TransactionID, Offset: run.Stored[0].Offset}
		return
	}
	b.announce(mq.Hint{Queue: dest.ID, Partitions: []string{out.Partition}})
}

func gone(err error) error {
	if mq.KindOf(err) == mq.KindNotFound {
		return mq.NotFound("Message not found")
	}
	return err
}

// PurgeDeadLetters removes a queue's dead letters, of one group or of all.
func (b *Broker) PurgeDeadLetters(ctx context.Context, tenant mq.UUID, queue, group string) (int64, error) {
	q, err := b.freshQueue(ctx, tenant, queue)
	if mq.KindOf(err) == mq.KindNotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return b.store.PurgeDeadLetters(ctx, q.ID, group)
}

// DeleteDeadLetters removes the dead letters of one message, of all groups.
func (b *Broker) DeleteDeadLetters(ctx context.Context, tenant mq.UUID, p mq.PartitionID, transactionID string) (int64, error) {
	q, err := b.ownQueue(ctx, tenant, p.Queue)
	if q == nil || err != nil {
		return 0, err
	}
	return b.store.DeleteDeadLetters(ctx, p, transactionID)
}
