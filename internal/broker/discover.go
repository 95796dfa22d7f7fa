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

func (b *Broker) discoverOnce(ctx context.Context, p *mq.Pop) (*mq.Delivery, time.Duration, error) {
	d := b.nothing(p, mq.GroupInfo{})
	queues, err := b.store.ListQueues(ctx, p.Tenant, mq.QueueFilter{Namespace: p.Namespace, Task: p.Task})
	if err != nil {
		return d, -1, err
	}
	// Start anywhere, so that the first queues do not starve the last.
	if n := len(queues); n > 1 {
		at := rand.IntN(n)
		queues = append(queues[at:], queues[:at]...)
	}
	groups := make([]mq.GroupInfo, len(queues))
	pairs := make([]mq.QueueGroup, len(queues))
	for i, q := range queues {
		b.cache.putQueue(q)
		if groups[i], err = b.ensureGroup(ctx, q.ID, p.Group, p.Start, p.Conflation); err != nil {
			return d, -1, err
		}
		pairs[i] = mq.QueueGroup{Queue: q.ID, Group: groups[i].ID}
	}
	if len(pairs) == 0 {
		return d, -1, nil
	}
	ready, err := b.store.ReadyGroups(ctx, pairs)
	if err != nil {
		return d, -1, err
	}
	lease := mq.ScopedID(0)
	messages, partitions, next := p.Batch, p.Partitions, time.Duration(-1)
	for i, q := range queues {
		switch {
		case !ready[i].GroupExists:
			b.cache.dropQueue(q.ID)
			continue
		case ready[i].In > 0:
			if next < 0 || ready[i].In < next {
				next = ready[i].In
			}
			continue
		case ready[i].In < 0 || groups[i].Conflation && p.AutoCommit:
			continue
		}
		if messages <= 0 || partitions <= 0 {
			break
		}
		req := popRequest{claim: claimRequest(p, 0, b.cfg.PopBytes), group: p.Group, queueName: q.Name}
		req.claim.LeaseID, req.claim.Messages, req.claim.Partitions = lease, messages, partitions
		got, err := b.store.Claim(ctx, q.ID, groups[i], time.Time{}, []mq.ClaimRequest{req.claim})
		if err != nil {
			if len(d.Claims) > 0 {
				return d, next, nil // what was claimed is delivered
			}
			return d, next, err
		}
		part := b.delivery(&req, got.Claims[0])
		d.LeaseID = part.LeaseID
		d.Claims = append(d.Claims, part.Claims...)
		d.Conflation = d.Conflation || groups[i].Conflation && len(part.Claims) > 0
		messages -= part.Messages()
		partitions -= len(part.Claims)
	}
	return d, next, nil
}
