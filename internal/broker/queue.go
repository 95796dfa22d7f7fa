package broker

import (
	"context"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Configure makes or changes a queue. The new options hold at once here, and
// elsewhere as soon as the hint arrives; a push prepared for the old ones is
// refused by the store and prepared again.
func (b *Broker) Configure(ctx context.Context, c mq.Configure) (mq.Queue, error) {
	var was *mq.Options
	q, err := b.store.Configure(ctx, c.Tenant, c.Queue, func(current *mq.Options) (mq.Options, error) {
		was = current
		return c.Apply(current)
	})
	if err != nil {
		return mq.Queue{}, err
	}
	b.announce(mq.Hint{Queue: q.ID, Reload: true})
	b.cache.putQueue(q)
	if was != nil && (was.DelayedProcessing > q.Options.DelayedProcessing || was.WindowBuffer > q.Options.WindowBuffer) {
		b.wakeHeldLater(q.ID)
	}
	return q.Queue, nil
}

// holdGrace is longer than any push or pop that began under the old options
// takes, on a database that is not in trouble.
const holdGrace = 500 * time.Millisecond

// wakeHeldLater looks again at what a shortened hold keeps back. The change of
// the options has done so already, but pushes and pops that were under way knew
// the old ones and may have stored an instant far ahead.
func (b *Broker) wakeHeldLater(queue int64) {
	b.chores.after(holdGrace, func() {
		if err := b.store.WakeHeld(context.Background(), queue); err != nil {
			b.log.Warn("held messages not looked at again after a change of options", "error", err)
			return
		}
		b.announce(mq.Hint{Queue: queue})
	})
}

// DeleteQueue removes a queue and everything of it.
func (b *Broker) DeleteQueue(ctx context.Context, tenant mq.UUID, queue string) (existed bool, err error) {
	q, err := b.store.FindQueue(ctx, tenant, queue)
	if mq.KindOf(err) == mq.KindNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if existed, err = b.store.DeleteQueue(ctx, tenant, queue); err != nil {
		return false, err
	}
	b.announce(mq.Hint{Queue: q.ID, Reload: true})
	return existed, nil
}

// Queues lists the queues of a tenant.
func (b *Broker) Queues(ctx context.Context, tenant mq.UUID, f mq.QueueFilter) ([]mq.QueueSummary, error) {
	list, err := b.store.ListQueues(ctx, tenant, f)
	if err != nil {
		return nil, err
	}
	return b.store.QueueStats(ctx, list)
}

// freshQueue reads a queue past the cache, for answers that show its options.
func (b *Broker) freshQueue(ctx context.Context, tenant mq.UUID, name string) (*mq.QueueInfo, error) {
	q, err := b.store.FindQueue(ctx, tenant, name)
	if mq.KindOf(err) == mq.KindNotFound {
		return nil, mq.NotFound("Queue not found")
	}
	return q, err
}

// Queue describes a queue and its partitions.
func (b *Broker) Queue(ctx context.Context, tenant mq.UUID, queue string) (*mq.QueueDetail, error) {
	q, err := b.freshQueue(ctx, tenant, queue)
	if err != nil {
		return nil, err
	}
	return b.store.QueueDetail(ctx, q)
}

// Depth describes what a group, or without one the slowest, has before it.
func (b *Broker) Depth(ctx context.Context, tenant mq.UUID, queue, group string) (*mq.Depth, error) {
	q, err := b.freshQueue(ctx, tenant, queue)
	if err != nil {
		return nil, err
	}
	d := &mq.Depth{Queue: queue, Group: group}
	if group != "" {
		g, err := b.store.FindGroup(ctx, q.ID, group)
		if err != nil && mq.KindOf(err) != mq.KindNotFound {
			return nil, err
		}
		d.Conflation = g.Conflation
	}
	detail, err := b.store.Backlog(ctx, q, group)
	if err != nil {
		return nil, err
	}
	for i := range detail.Partitions {
		p := &detail.Partitions[i]
		d.Partitions = append(d.Partitions, mq.PartitionDepth{
			Partition: p.Name, Pending: p.Counts.Pending, Processing: p.Counts.Processing,
		})
		d.Pending += p.Counts.Pending
		d.Processing += p.Counts.Processing
		if p.Counts.Pending > 0 {
			d.PartitionsPending++
		}
		if p.Counts.Pending > p.Counts.Processing {
			d.PartitionsReady++
		}
	}
	return d, nil
}
