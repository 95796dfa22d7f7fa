package broker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// eachQueue runs fn on every queue of a tenant.
func (b *Broker) eachQueue(ctx context.Context, tenant mq.UUID, fn func(*mq.QueueInfo) error) error {
	queues, err := b.store.ListQueues(ctx, tenant, mq.QueueFilter{})
	if err != nil {
		return err
	}
	for _, q := range queues {
		if err := fn(q); err != nil {
			return err
		}
	}
	return nil
}

// Groups lists the consumer groups of a tenant, ordered by group, then queue.
func (b *Broker) Groups(ctx context.Context, tenant mq.UUID) ([]mq.GroupSummary, error) {
	var out []mq.GroupSummary
	err := b.eachQueue(ctx, tenant, func(q *mq.QueueInfo) error {
		stats, err := b.store.GroupStats(ctx, q)
		if err != nil {
			return err
		}
		return b.addTimeLags(ctx, q, stats, &out)
	})
	slices.SortFunc(out, func(x, y mq.GroupSummary) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Queue, y.Queue))
	})
	return out, err
}

func (b *Broker) addTimeLags(ctx context.Context, q *mq.QueueInfo, stats []mq.GroupSummary, out *[]mq.GroupSummary) error {
	for _, g := range stats {
		if g.PartitionsWithLag > 0 {
			parts, err := b.store.GroupPartitions(ctx, q, g.Group, true)
			if err != nil {
				return err
			}
			for i := range parts {
				g.MaxTimeLag = max(g.MaxTimeLag, parts[i].TimeLag)
			}
		}
		*out = append(*out, g)
	}
	return nil
}

// Lagging lists the (group, partition) pairs whose oldest unconsumed message is
// at least minLag old.
func (b *Broker) Lagging(ctx context.Context, tenant mq.UUID, minLag time.Duration) ([]mq.GroupPartition, error) {
	var out []mq.GroupPartition
	err := b.eachQueue(ctx, tenant, func(q *mq.QueueInfo) error {
		parts, err := b.store.GroupPartitions(ctx, q, "", true)
		for i := range parts {
			if parts[i].OffsetLag > 0 && parts[i].TimeLag >= minLag {
				out = append(out, parts[i])
			}
		}
		return err
	})
	return out, err
}

// Group describes a group on every queue it has a cursor on.
func (b *Broker) Group(ctx context.Context, tenant mq.UUID, group string) ([]mq.GroupPartition, error) {
	var out []mq.GroupPartition
	err := b.eachQueue(ctx, tenant, func(q *mq.QueueInfo) error {
		if _, err := b.findGroup(ctx, q.ID, group); mq.KindOf(err) == mq.KindNotFound {
			return nil
		}
		parts, err := b.store.GroupPartitions(ctx, q, group, false)
		out = append(out, parts...)
		return err
	})
	return out, err
}

// Seek moves a group's cursors on a queue and wakes those who wait.
func (b *Broker) Seek(ctx context.Context, s mq.Seek) (int64, error) {
	q, err := b.freshQueue(ctx, s.Tenant, s.Queue)
	if mq.KindOf(err) == mq.KindNotFound {
		return 0, seekTarget(s)
	}
	if err != nil {
		return 0, err
	}
	g, err := b.store.EnsureGroup(ctx, q.ID, s.Group, mq.Start{Mode: mq.StartNew}, false)
	if err != nil {
		return 0, err
	}
	n, err := b.store.Seek(ctx, q.ID, g.ID, s)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, seekTarget(s)
	}
	b.announce(mq.Hint{Queue: q.ID, Group: g.ID})
	return n, nil
}

func seekTarget(s mq.Seek) error {
	if s.PartitionSet {
		return mq.NotFound("Partition not found")
	}
	return mq.NotFound("Queue not found or has no partitions")
}

// SetSubscription changes where a group starts on every queue it is registered
// on, for cursors that do not exist yet.
func (b *Broker) SetSubscription(ctx context.Context, tenant mq.UUID, group string, at time.Time) (rows int64, err error) {
	err = b.eachQueue(ctx, tenant, func(q *mq.QueueInfo) error {
		n, err := b.store.SetGroupStart(ctx, q.ID, group, at)
		rows += n
		return err
	})
	return rows, err
}

// DeleteGroup removes a group's cursors, on one queue or on all.
func (b *Broker) DeleteGroup(ctx context.Context, tenant mq.UUID, group, queue string, queueSet, metadata bool) (partitions int64, err error) {
	drop := func(q *mq.QueueInfo) error {
		g, err := b.store.FindGroup(ctx, q.ID, group)
		if mq.KindOf(err) == mq.KindNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		n, err := b.store.DeleteGroup(ctx, q.ID, g.ID, metadata)
		partitions += n
		if err == nil {
			b.announce(mq.Hint{Queue: q.ID, Reload: true})
		}
		return err
	}
	if !queueSet {
		return partitions, b.eachQueue(ctx, tenant, drop)
	}
	q, err := b.freshQueue(ctx, tenant, queue)
	if mq.KindOf(err) == mq.KindNotFound {
		return 0, nil
	}
	if err == nil {
		err = drop(q)
	}
	return partitions, err
}
