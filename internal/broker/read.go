package broker

import (
	"context"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Fetch reads records by offset, waiting up to f.Wait for f.MinBytes. It takes
// no lease and moves no cursor.
func (b *Broker) Fetch(ctx context.Context, f mq.Fetch) ([]mq.FetchResult, error) {
	deadline := time.Now().Add(min(f.Wait, mq.MaxFetchWait))
	for empty := 0; ; empty++ {
		// Listen before looking: what comes in between rings.
		bell, done := b.bells.listen(b.fetchQueues(&f)...)
		out, size, failed, err := b.fetchOnce(ctx, &f)
		left := time.Until(deadline)
		if err != nil || failed || size >= f.MinBytes || left <= 0 {
			done()
			return out, err
		}
		select {
		case <-ctx.Done():
			done()
			return nil, ctx.Err()
		case _, ok := <-bell:
			if !ok {
				return out, nil
			}
		case <-time.After(min(left, b.recheck(empty))):
		}
		done()
	}
}

// fetchQueues are the queues a fetch waits for; those that are not known yet
// are found by the slow re-check.
func (b *Broker) fetchQueues(f *mq.Fetch) []int64 {
	seen := map[int64]bool{}
	ids := []int64{0} // never rings: an empty list would listen to all
	for i := range f.Entries {
		if q := b.cache.queue(f.Tenant, f.Entries[i].Queue); q != nil && !seen[q.ID] {
			seen[q.ID] = true
			ids = append(ids, q.ID)
		}
	}
	return ids
}

func (b *Broker) fetchOnce(ctx context.Context, f *mq.Fetch) (out []mq.FetchResult, size int, failed bool, err error) {
	out = make([]mq.FetchResult, len(f.Entries))
	for i := range f.Entries {
		e := f.Entries[i]
		q, err := b.findQueue(ctx, f.Tenant, e.Queue)
		if mq.KindOf(err) == mq.KindNotFound {
			out[i].Err, failed = mq.ReadErrUnknown, true
			continue
		}
		if err != nil {
			return nil, 0, false, err
		}
		// The call as a whole is bounded; an entry past the bound comes back
		// without records.
		e.MaxBytes = min(e.MaxBytes, mq.MaxFetchTotal-size)
		records := mq.MaxFetchRecords
		if e.MaxBytes <= 0 {
			e.MaxBytes, records = 1, 0
		}
		if out[i], err = b.store.ReadLog(ctx, q, e, max(records, 1)); err != nil {
			return nil, 0, false, err
		}
		if records == 0 {
			out[i].Records = nil
		}
		failed = failed || out[i].Err != ""
		for j := range out[i].Records {
			size += max(len(out[i].Records[j].Payload), 1)
		}
	}
	return out, size, failed, nil
}

// FetchOffsets finds the first offsets stored at or after given times.
func (b *Broker) FetchOffsets(ctx context.Context, tenant mq.UUID, entries []mq.OffsetEntry) ([]mq.OffsetResult, error) {
	out := make([]mq.OffsetResult, len(entries))
	for i := range entries {
		q, err := b.findQueue(ctx, tenant, entries[i].Queue)
		if mq.KindOf(err) == mq.KindNotFound {
			out[i].Err = mq.ReadErrUnknown
			continue
		}
		if err != nil {
			return nil, err
		}
		if out[i], err = b.store.OffsetAt(ctx, q, entries[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// PartitionsChanged sweeps partitions page by page. The safe time is read
// first: the other order could vouch for what it has not seen.
func (b *Broker) PartitionsChanged(ctx context.Context, tenant mq.UUID, entries []mq.ChangedEntry) (mq.SafeTime, []mq.ChangedResult, error) {
	safe, err := b.store.SafeTime(ctx, b.cfg.FetchSafeFloor)
	if err != nil {
		return safe, nil, err
	}
	out := make([]mq.ChangedResult, len(entries))
	for i := range entries {
		q, err := b.freshQueue(ctx, tenant, entries[i].Queue)
		if mq.KindOf(err) == mq.KindNotFound {
			out[i].Err = mq.ReadErrUnknown
			continue
		}
		if err != nil {
			return safe, nil, err
		}
		if out[i].Partitions, err = b.store.Changed(ctx, q, entries[i]); err != nil {
			return safe, nil, err
		}
		out[i].More = len(out[i].Partitions) >= entries[i].Limit
	}
	return safe, out, nil
}

// Message describes one message from outside any group.
func (b *Broker) Message(ctx context.Context, tenant mq.UUID, p mq.PartitionID, transactionID string) (*mq.MessageDetail, error) {
	q, err := b.ownQueue(ctx, tenant, p.Queue)
	if err != nil {
		return nil, err
	}
	if q == nil {
		return nil, mq.NotFound("Message not found")
	}
	d, err := b.store.MessageDetail(ctx, q, p, transactionID)
	if err != nil {
		return nil, gone(err)
	}
	letters, err := b.store.DeadLetters(ctx, mq.DeadLetterFilter{
		Tenant: tenant, Queue: q.Name, Partition: d.Partition, TransactionID: transactionID, Limit: 1,
	})
	if err != nil {
		return nil, err
	}
	if len(letters) > 0 {
		fillFromLetter(d, &letters[0])
	}
	if d.Payload == nil {
		return nil, mq.NotFound("Message not found")
	}
	return d, nil
}

// fillFromLetter adds the newest dead letter of the address, and what only it
// still holds once the message itself was removed by retention.
func fillFromLetter(d *mq.MessageDetail, l *mq.DeadLetter) {
	d.DeadLetter = l
	if d.Payload == nil {
		d.MessageID, d.Payload, d.ProducerSub = l.MessageID, l.Payload, l.ProducerSub
		d.Offset, d.CreatedAt = l.Offset, l.CreatedAt
	}
}
