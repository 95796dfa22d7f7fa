package broker

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Transact runs a bundle: everything in it commits, or nothing does. A bundle
// is never merged with another.
func (b *Broker) Transact(ctx context.Context, in mq.Bundle) (*mq.BundleResult, error) {
	res := &mq.BundleResult{ID: mq.NewID(), Ops: make([]mq.BundleOpResult, len(in.Ops))}
	if reason, text := checkBundle(&in); reason != "" {
		return refuse(res, reason, text), nil
	}
	err := b.admitRiders(ctx, &in)
	if err != nil {
		return nil, err
	}
	anew := false
	for range maxPushRounds {
		bd := &bundle{broker: b, in: &in, res: res, anew: anew}
		if err = bd.prepare(ctx); err != nil || res.Reason != "" {
			return res, err
		}
		var committed bool
		committed, err = b.store.Transact(ctx, &bd.work, bd.decide)
		switch {
		case committed:
			bd.finish()
			return res, nil
		case mq.KindOf(err) == mq.KindNotFound:
			// A queue of the acks was deleted while we knew it.
			bd.forget()
		case err != nil:
			return nil, err
		case res.Reason != "":
			return res, nil
		case bd.lost:
			anew = true
		default:
			// A partition or queue is not there: make it next time, inside.
			bd.forget()
			in.Create = true
		}
	}
	return nil, &mq.Error{Kind: mq.KindBusy, Code: mq.CodeRetry, Message: errPushRounds.Error(), RetryAfter: 1e9, Err: err}
}

// admitRiders refuses riders that an operator has turned off. Unlike calls of
// their own they spend nothing of a tenant's rate.
func (b *Broker) admitRiders(ctx context.Context, in *mq.Bundle) error {
	if in.KV != nil {
		if err := b.KVEnabled(ctx); err != nil {
			return err
		}
		in.KV.Locked, in.KV.ReadBudget = true, b.kv.cfg.ReadBytes
	}
	if in.Timers != nil {
		return b.AdmitTimers(ctx, in.Timers)
	}
	return nil
}

func refuse(res *mq.BundleResult, reason, text string) *mq.BundleResult {
	res.Reason, res.Error = reason, text
	return res
}

// checkBundle finds what is wrong with a bundle before anything is looked up.
func checkBundle(in *mq.Bundle) (reason, text string) {
	if len(in.Ops) == 0 && in.KV == nil && in.Timers == nil {
		return mq.BundleBadRequest, mq.BundleErrNoParts
	}
	for i := range in.Ops {
		switch op := &in.Ops[i]; {
		case op.Push != nil && op.Push.Queue == "":
			return mq.BundleBadRequest, fmt.Sprintf("%s (step %d)", mq.BundleErrNoQueue, i)
		case op.Ack != nil:
			if _, ok := mq.ParsePartitionID(op.Ack.PartitionID); !ok {
				return mq.BundleBadRequest, fmt.Sprintf("%s (step %d)", mq.BundleErrPartitionID, i)
			}
		}
	}
	return "", ""
}

// bundle is one attempt at a bundle.
type bundle struct {
	broker *Broker
	in     *mq.Bundle
	res    *mq.BundleResult
	work   mq.BundleWork
	acks   []bundleAcks // as work.Acks

	leases leaseHints
	// A cursor was not there, and its group is forgotten: it may have been
	// deleted and registered anew. anew: the groups were looked up after that.
	lost, anew bool
}

// bundleAcks are a bundle's acks on one queue.
type bundleAcks struct {
	queue int64
	steps []bundleStep
	j     *judgement
	spans map[mq.CursorKey]*mq.Span

	cursors map[mq.CursorKey]bool // those of the steps
}

// bundleStep is one ack, on its cursor.
type bundleStep struct {
	op     int // in Bundle.Ops
	key    mq.CursorKey
	result mq.AckResult
}

// prepare resolves the bundle into work for the store.
func (bd *bundle) prepare(ctx context.Context) error {
	bd.work = mq.BundleWork{Tenant: bd.in.Tenant, KV: bd.in.KV, Timers: bd.in.Timers, Create: bd.in.Create}
	bd.leases = collectHints(bd.in)
	if err := bd.preparePushes(ctx); err != nil {
		return err
	}
	return bd.prepareAcks(ctx)
}

func (bd *bundle) preparePushes(ctx context.Context) error {
	type named struct{ queue, partition, id string }
	leaders := map[named]int{}
	index := map[string]int{}
	for i := range bd.in.Ops {
		p := bd.in.Ops[i].Push
		if p == nil {
			continue
		}
		m := bd.message(i, p)
		if p.TransactionID != "" {
			key := named{p.Queue, p.Partition, p.TransactionID}
			if lead, ok := leaders[key]; ok {
				bd.res.Ops[i] = bd.res.Ops[lead]
				bd.res.Ops[i].Duplicate = true
				continue
			}
			leaders[key] = i
		}
		at, ok := index[p.Queue]
		if !ok {
			q, err := bd.broker.findQueue(ctx, bd.in.Tenant, p.Queue)
			if mq.KindOf(err) == mq.KindNotFound {
				// Made inside the transaction, so that a rollback takes it back.
				q = &mq.QueueInfo{Tenant: bd.in.Tenant, Queue: mq.Queue{Name: p.Queue, Options: mq.ImplicitOptions(p.Queue)}}
				bd.work.Create, err = true, nil
			}
			if err != nil {
				return err
			}
			at = len(bd.work.Pushes)
			index[p.Queue] = at
			bd.work.Pushes = append(bd.work.Pushes, mq.BundlePush{Queue: q})
		}
		w := &bd.work.Pushes[at]
		w.Partitions = append(w.Partitions, p.Partition)
		w.Messages = append(w.Messages, m)
	}
	return nil
}

// message prepares the message of a push step. A step keeps its id over all
// attempts.
func (bd *bundle) message(i int, p *mq.PushItem) *mq.Message {
	r := &bd.res.Ops[i]
	if r.MessageID.IsZero() || r.Duplicate {
		*r = mq.BundleOpResult{MessageID: mq.NewID()}
	}
	m := &mq.Message{
		ID: r.MessageID, TransactionID: p.TransactionID, TraceID: p.TraceID, ProducerSub: bd.in.ProducerSub,
		Payload: p.Payload, Probe: p.TransactionID != "",
	}
	if !m.Probe {
		m.TransactionID = m.ID.String()
	}
	m.Hash = mq.HashID(m.TransactionID)
	r.TransactionID = m.TransactionID
	return m
}

func (bd *bundle) prepareAcks(ctx context.Context) error {
	index := map[int64]int{}
	for i := range bd.in.Ops {
		a := bd.in.Ops[i].Ack
		if a == nil {
			continue
		}
		bd.res.Ops[i].TransactionID = a.TransactionID
		id, _ := mq.ParsePartitionID(a.PartitionID)
		q, err := bd.broker.ownQueue(ctx, bd.in.Tenant, id.Queue)
		if err != nil {
			return err
		}
		if q == nil {
			bd.reject(i, mq.AckErrNotOwned)
			return nil
		}
		g, err := bd.broker.findGroup(ctx, id.Queue, a.Group)
		if mq.KindOf(err) == mq.KindNotFound {
			bd.reject(i, mq.AckErrNoConsumer)
			return nil
		}
		if err != nil {
			return err
		}
		at, ok := index[id.Queue]
		if !ok {
			at = len(bd.acks)
			index[id.Queue] = at
			bd.acks = append(bd.acks, bundleAcks{queue: id.Queue, spans: map[mq.CursorKey]*mq.Span{}, cursors: map[mq.CursorKey]bool{}})
			bd.work.Acks = append(bd.work.Acks, mq.AckQuery{QueueID: id.Queue})
		}
		bd.acks[at].add(&bd.work.Acks[at], bundleStep{op: i, key: mq.CursorKey{Partition: id.Partition, Group: g.ID}}, mq.HashID(a.TransactionID).Key)
	}
	// The order of locks; both alike, because they answer each other by index.
	slices.SortFunc(bd.acks, func(x, y bundleAcks) int { return cmp.Compare(x.queue, y.queue) })
	slices.SortFunc(bd.work.Acks, func(x, y mq.AckQuery) int { return cmp.Compare(x.QueueID, y.QueueID) })
	return nil
}

func (as *bundleAcks) add(query *mq.AckQuery, step bundleStep, id mq.UUID) {
	if !as.cursors[step.key] {
		as.cursors[step.key] = true
		query.Cursors = append(query.Cursors, step.key)
	}
	query.IDs = append(query.IDs, mq.AckID{Partition: step.key.Partition, Key: id})
	as.steps = append(as.steps, step)
}

func (bd *bundle) reject(op int, text string) {
	refuse(bd.res, mq.BundleRejectedAck, fmt.Sprintf("%s step %d: %s; rolled back", mq.BundleRejectedWord, op, text))
}

// forget drops what is remembered of the bundle's queues and groups.
func (bd *bundle) forget() {
	for i := range bd.work.Pushes {
		bd.broker.cache.dropQueue(bd.work.Pushes[i].Queue.ID)
	}
	for i := range bd.acks {
		bd.broker.cache.dropQueue(bd.acks[i].queue)
	}
}

// finish wakes whoever waits for what was committed.
func (bd *bundle) finish() {
	b := bd.broker
	if bd.work.Timers != nil {
		b.TimersWritten(bd.work.Timers)
	}
	for i := range bd.work.Pushes {
		p := &bd.work.Pushes[i]
		b.announce(mq.Hint{Queue: p.Queue.ID, Partitions: p.Partitions})
	}
	for i := range bd.acks {
		as := &bd.acks[i]
		if n := len(as.j.letters); n > 0 {
			b.metrics.DeadLettered(n)
		}
		for key := range as.j.released {
			b.announce(mq.Hint{Queue: as.queue, Group: key.Group})
		}
	}
}
