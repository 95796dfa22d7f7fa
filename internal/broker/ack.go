package broker

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// ackUnit is the items of one call for one (partition, lease): one atomic step.
type ackUnit struct {
	id        mq.PartitionID
	key       mq.CursorKey
	partition string // as the client named it
	group     string
	lease     string
	leaseID   mq.UUID // zero when none was sent, or it is none of ours
	items     []ackItem
	err       error
	done      *sync.WaitGroup
}

type ackItem struct {
	*mq.AckItem
	hash   mq.IDHash
	result *mq.AckResult
}

// fail gives every item of the unit one error.
func (u *ackUnit) fail(text string) {
	for i := range u.items {
		*u.items[i].result = mq.AckResult{Error: text}
	}
}

// Ack carries acknowledgements out, each (partition, lease) of the call by
// itself.
func (b *Broker) Ack(ctx context.Context, a mq.Ack) ([]mq.AckResult, error) {
	results := make([]mq.AckResult, len(a.Items))
	units := splitAck(&a, results)
	var done sync.WaitGroup
	var sent []*ackUnit
	for _, u := range units {
		ok, err := b.resolveUnit(ctx, a.Tenant, u)
		if err != nil {
			return nil, err
		}
		if ok {
			u.done = &done
			sent = append(sent, u)
		}
	}
	done.Add(len(sent))
	for _, u := range sent {
		b.acks.Add(u, b.lane(u.id.Queue, u.partition), len(u.items), 64*len(u.items))
	}
	done.Wait()
	for _, u := range sent {
		if u.err != nil {
			return nil, u.err
		}
	}
	return results, nil
}

func splitAck(a *mq.Ack, results []mq.AckResult) []*ackUnit {
	type place struct{ partition, lease string }
	byPlace := map[place]*ackUnit{}
	var units []*ackUnit
	for i := range a.Items {
		it := &a.Items[i]
		at := place{it.PartitionID, it.LeaseID}
		u := byPlace[at]
		if u == nil {
			u = &ackUnit{partition: it.PartitionID, group: a.Group, lease: it.LeaseID}
			u.leaseID, _ = mq.ParseUUID(it.LeaseID)
			byPlace[at] = u
			units = append(units, u)
		}
		u.items = append(u.items, ackItem{AckItem: it, hash: mq.HashID(it.TransactionID), result: &results[i]})
	}
	return units
}

// resolveUnit finds the cursor a unit addresses; false when the unit has its
// verdict already.
func (b *Broker) resolveUnit(ctx context.Context, tenant mq.UUID, u *ackUnit) (bool, error) {
	id, ok := mq.ParsePartitionID(u.partition)
	if !ok {
		u.fail(mq.AckErrNotOwned)
		return false, nil
	}
	q, err := b.ownQueue(ctx, tenant, id.Queue)
	if err != nil {
		return false, err
	}
	if q == nil {
		u.fail(mq.AckErrNotOwned)
		return false, nil
	}
	g, err := b.findGroup(ctx, id.Queue, u.group)
	if mq.KindOf(err) == mq.KindNotFound {
		u.fail(mq.AckErrNoConsumer)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	u.id, u.key = id, mq.CursorKey{Partition: id.Partition, Group: g.ID}
	return true, nil
}

// flushAck carries gathered units out: whole batches by their fingerprint, the
// rest by their ids. When somebody holds one of the cursors, each is tried alone
// and in its turn, so that the others do not wait for it.
func (b *Broker) flushAck(units []*ackUnit) {
	ctx := context.Background()
	rest, err := b.ackWhole(ctx, units)
	if err != nil {
		for _, u := range units {
			u.err = err
		}
	} else {
		for _, same := range byQueue(rest) {
			b.ackByID(ctx, same)
		}
	}
	several := slices.ContainsFunc(units, func(u *ackUnit) bool { return u.key != units[0].key })
	for _, u := range units {
		if several && errors.Is(u.err, mq.ErrLockHeld) {
			u.err = nil
			b.acks.Add(u, b.lane(u.id.Queue, u.partition), ackLimits.Items, 0)
			continue
		}
		u.done.Done()
	}
}

// fingerprint returns what identifies the unit as a whole batch; false when it
// cannot be one.
func (u *ackUnit) fingerprint() (mq.Fingerprint, bool) {
	var fp mq.Fingerprint
	if u.leaseID.IsZero() {
		return fp, false
	}
	seen := make(map[mq.UUID]struct{}, len(u.items))
	for i := range u.items {
		it := &u.items[i]
		if it.Status != mq.AckCompleted {
			return fp, false
		}
		seen[it.hash.Key] = struct{}{}
		fp.Add(it.hash)
	}
	return fp, len(seen) == len(u.items)
}

// ackWhole tries the units that may be whole batches and returns the others.
func (b *Broker) ackWhole(ctx context.Context, units []*ackUnit) (rest []*ackUnit, err error) {
	var acks []mq.QueueAcks
	var tried [][]*ackUnit
	index := map[int64]int{}
	cursors := map[mq.QueueGroup]map[int64]bool{}
	for _, u := range units {
		fp, ok := u.fingerprint()
		// Two units of one flush on one cursor are judged one after the other.
		at := mq.QueueGroup{Queue: u.id.Queue, Group: u.key.Group}
		if cursors[at] == nil {
			cursors[at] = map[int64]bool{}
		}
		if ok = ok && !cursors[at][u.key.Partition]; ok {
			cursors[at][u.key.Partition] = true
		}
		if !ok {
			rest = append(rest, u)
			continue
		}
		i, known := index[u.id.Queue]
		if !known {
			i = len(acks)
			index[u.id.Queue] = i
			acks = append(acks, mq.QueueAcks{QueueID: u.id.Queue})
			tried = append(tried, nil)
		}
		acks[i].Batches = append(acks[i].Batches, mq.BatchAck{CursorKey: u.key, LeaseID: u.leaseID, Count: fp.Count, Mark: fp.Mark})
		tried[i] = append(tried[i], u)
	}
	if len(acks) == 0 {
		return rest, nil
	}
	if err := b.store.AckBatches(ctx, acks); err != nil {
		return nil, err
	}
	for i := range acks {
		for j, u := range tried[index[acks[i].QueueID]] {
			r := acks[i].Results[j]
			if !r.Done {
				rest = append(rest, u)
				continue
			}
			for k := range u.items {
				*u.items[k].result = mq.AckResult{Success: true, LeaseReleased: true}
			}
			if r.More {
				b.announce(mq.Hint{Queue: u.id.Queue, Group: u.key.Group})
			}
		}
	}
	return rest, nil
}

func byQueue(units []*ackUnit) map[int64][]*ackUnit {
	out := map[int64][]*ackUnit{}
	for _, u := range units {
		out[u.id.Queue] = append(out[u.id.Queue], u)
	}
	return out
}

// ackByID carries units of one queue out by their ids. A failure that may lie
// in one of them is tried again one by one.
func (b *Broker) ackByID(ctx context.Context, units []*ackUnit) {
	err := b.judgeUnits(ctx, units)
	if mq.KindOf(err) == mq.KindNotFound {
		// The queue was deleted and we have not heard of it.
		b.cache.dropQueue(units[0].id.Queue)
		for _, u := range units {
			u.fail(mq.AckErrNotOwned)
		}
		return
	}
	if err != nil && len(units) > 1 && !isOutage(err) {
		for _, u := range units {
			u.err = b.judgeUnits(ctx, []*ackUnit{u})
		}
		return
	}
	for _, u := range units {
		u.err = err
	}
}

func (b *Broker) judgeUnits(ctx context.Context, units []*ackUnit) error {
	query := &mq.AckQuery{QueueID: units[0].id.Queue}
	cursors := map[mq.CursorKey]struct{}{}
	ids := map[mq.AckID]struct{}{}
	for _, u := range units {
		if _, ok := cursors[u.key]; !ok {
			cursors[u.key] = struct{}{}
			query.Cursors = append(query.Cursors, u.key)
		}
		for i := range u.items {
			id := mq.AckID{Partition: u.key.Partition, Key: u.items[i].hash.Key}
			if _, ok := ids[id]; !ok {
				ids[id] = struct{}{}
				query.IDs = append(query.IDs, id)
			}
		}
	}
	var j *judgement
	spans := map[mq.CursorKey]*mq.Span{}
	err := b.store.AckLocked(ctx, query, func(l *mq.LockedAcks) (*mq.AckDecision, error) {
		j = judge(units, l, spans)
		return j.decision(), nil
	})
	if err != nil {
		return err
	}
	if n := len(j.letters) - j.rejected; n > 0 {
		b.metrics.DeadLettered(n)
	}
	for key := range j.released {
		b.announce(mq.Hint{Queue: query.QueueID, Group: key.Group})
	}
	for _, u := range units {
		if j.missing[u.key] {
			b.judgeAnew(ctx, u)
		}
	}
	return nil
}

// judgeAnew is for a unit whose cursor is not there: its group may have been
// deleted and registered anew. If it was not, or that cannot be told, the
// unit's verdict stays.
func (b *Broker) judgeAnew(ctx context.Context, u *ackUnit) {
	b.cache.dropGroup(u.id.Queue, u.group)
	g, err := b.findGroup(ctx, u.id.Queue, u.group)
	if err != nil || g.ID == u.key.Group {
		return
	}
	u.key.Group = g.ID
	if err := b.judgeUnits(ctx, []*ackUnit{u}); err != nil {
		u.fail(mq.AckErrNoConsumer)
	}
}
