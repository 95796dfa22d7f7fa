package broker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// discover pops from every queue whose labels match. One lease covers all of
// them; it carries no queue of its own.
func (b *Broker) discover(ctx context.Context, p mq.Pop) (*mq.Delivery, error) {
	deadline := time.Now().Add(p.Wait)
	bell, done := b.bells.listen()
	defer done()
	for empty := 0; ; empty++ {
		d, next, err := b.discoverOnce(ctx, &p)
		if err != nil && (p.Wait == 0 || empty == 0 || !isOutage(err)) {
			return nil, err
		}
		left := time.Until(deadline)
		if err == nil && len(d.Claims) > 0 || left <= 0 {
			return d, err
		}
		pause := b.recheck(empty)
		if next >= 0 {
			pause = min(pause, next+time.Millisecond)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case _, ok := <-bell:
			if !ok {
				return d, nil
			}
		case <-time.After(min(pause, left)):
		}
	}
}

// recheck is the pause before the next look without a wake.
func (b *Broker) recheck(empty int) time.Duration {
	d := b.cfg.RecheckInterval
	for range min(max(empty-b.cfg.RecheckThreshold, 0), 30) {
		d = time.Duration(float64(d) * b.cfg.RecheckFactor)
	}
	return min(d, b.cfg.RecheckMax)
}

// found is a queue that a discovery pop looks at, with the group on it.
type found struct {
	queue *mq.QueueInfo
	group mq.GroupInfo
}

// matching returns the queues with the labels of a pop, from a random one on so
// that the first do not starve the last.
func (b *Broker) matching(ctx context.Context, p *mq.Pop) ([]found, error) {
	queues, err := b.store.ListQueues(ctx, p.Tenant, mq.QueueFilter{Namespace: p.Namespace, Task: p.Task})
	if err != nil || len(queues) == 0 {
		return nil, err
	}
	at := rand.IntN(len(queues))
	out := make([]found, 0, len(queues))
	for _, q := range append(queues[at:], queues[:at]...) {
		b.cache.putQueue(q)
		g, err := b.ensureGroup(ctx, q.ID, p.Group, p.Start, p.Conflation)
		if mq.KindOf(err) == mq.KindNotFound {
			continue // deleted since it was listed
		}
		if err != nil {
			return nil, err
		}
		out = append(out, found{q, g})
	}
	return out, nil
}

func (b *Broker) discoverOnce(ctx context.Context, p *mq.Pop) (*mq.Delivery, time.Duration, error) {
	d := &mq.Delivery{Group: p.Group, Conflation: p.Conflation}
	all, err := b.matching(ctx, p)
	if err != nil || len(all) == 0 {
		return d, -1, err
	}
	d.Conflation = false
	keys := make([]popKey, len(all))
	for i, f := range all {
		keys[i] = popKey{queue: f.queue.ID, group: f.group.ID}
		applied, conflict := policy(p, f.group)
		d.Conflation, d.ConflationConflict = d.Conflation || applied, d.ConflationConflict || conflict
	}
	ready, err := b.ready(ctx, keys)
	if err != nil {
		return d, -1, err
	}
	lease := mq.ScopedID(0)
	messages, partitions, next := p.Batch, p.Partitions, time.Duration(-1)
	for i, f := range all {
		switch {
		case !ready[i].GroupExists || !ready[i].Seeded:
			b.cache.dropQueue(f.queue.ID)
			continue
		case ready[i].In > 0:
			if next < 0 || ready[i].In < next {
				next = ready[i].In
			}
			continue
		case ready[i].In < 0 || f.group.Conflation && p.AutoCommit:
			continue
		}
		if messages <= 0 || partitions <= 0 {
			break
		}
		req := popRequest{claim: claimRequest(p, 0, b.cfg.PopBytes), group: p.Group, queueName: f.queue.Name}
		req.claim.LeaseID, req.claim.Messages, req.claim.Partitions = lease, messages, partitions
		got, err := b.store.Claim(ctx, f.queue.ID, f.group, time.Time{}, []mq.ClaimRequest{req.claim})
		if err != nil {
			b.takeBackLater(f.queue.ID, []mq.ClaimRequest{req.claim}, err)
			if len(d.Claims) > 0 {
				return d, next, nil // what was claimed is delivered
			}
			return d, next, err
		}
		part := b.delivery(&req, got.Claims[0])
		d.LeaseID = part.LeaseID
		d.Claims = append(d.Claims, part.Claims...)
		messages -= part.Messages()
		partitions -= len(part.Claims)
	}
	return d, next, nil
}
