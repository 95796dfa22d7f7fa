package broker

import (
	"context"
	"errors"
	"sync"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// pushRun is what one call pushes to one partition.
type pushRun struct {
	tenant    mq.UUID
	queueName string
	queue     *mq.QueueInfo
	partition string
	items     []*pushItem
	bytes     int
	err       error
	done      *sync.WaitGroup
}

// pushItem is one message on its way.
type pushItem struct {
	msg    mq.Message
	result *mq.PushResult
	leader *pushItem // an earlier item with the same id decides
	// decided: the result is final. What was stored in one round must not be
	// stored again when a later round of the same flush fails.
	decided bool
}

// open reports whether anything of the run is left to decide.
func (r *pushRun) open() bool {
	for _, it := range r.items {
		if !it.decided {
			return true
		}
	}
	return false
}

// Push stores the items of a call. The runs of a call go to the lanes of their
// partitions; the call is answered when all of them are committed. An error
// means that at least one run failed; a repeat is safe for items with a
// transaction id, and without one as far as the error says that nothing was
// written.
func (b *Broker) Push(ctx context.Context, p mq.Push) ([]mq.PushResult, error) {
	results := make([]mq.PushResult, len(p.Items))
	items := make([]pushItem, len(p.Items))
	runs, followers, err := b.splitPush(ctx, &p, items, results)
	if err != nil {
		return nil, err
	}
	var done sync.WaitGroup
	done.Add(len(runs))
	for _, r := range runs {
		r.done = &done
		b.pushes.Add(r, b.lane(r.queue.ID, r.partition), len(r.items), r.bytes)
	}
	done.Wait()
	for _, r := range runs {
		if r.err != nil {
			return nil, r.err
		}
	}
	for _, f := range followers {
		*f.result = *f.leader.result
		f.result.Status = mq.PushDuplicate
	}
	return results, nil
}

// splitPush sorts the items of a call into runs. Items that repeat the id of an
// earlier item of the call follow it and are not stored.
func (b *Broker) splitPush(ctx context.Context, p *mq.Push, items []pushItem, results []mq.PushResult) (runs []*pushRun, followers []*pushItem, err error) {
	type place struct{ queue, partition string }
	type named struct {
		place
		id string
	}
	byPlace := map[place]*pushRun{}
	leaders := map[named]*pushItem{}
	for i := range p.Items {
		src, it := &p.Items[i], &items[i]
		it.result = &results[i]
		at := place{src.Queue, src.Partition}
		it.msg = mq.Message{
			ID: mq.NewID(), TransactionID: src.TransactionID, TraceID: src.TraceID,
			ProducerSub: p.ProducerSub, Payload: src.Payload, Probe: src.TransactionID != "",
		}
		if it.msg.Probe && len(p.Items) > 1 {
			key := named{at, src.TransactionID}
			if lead := leaders[key]; lead != nil {
				it.leader = lead
				followers = append(followers, it)
				continue
			}
			leaders[key] = it
		}
		if !it.msg.Probe {
			it.msg.TransactionID = it.msg.ID.String()
		}
		it.msg.Hash = mq.HashID(it.msg.TransactionID)
		run := byPlace[at]
		if run == nil {
			run = &pushRun{tenant: p.Tenant, queueName: src.Queue, partition: src.Partition}
			if run.queue, err = b.ensureQueue(ctx, p.Tenant, src.Queue); err != nil {
				return nil, nil, err
			}
			byPlace[at] = run
			runs = append(runs, run)
		}
		run.items = append(run.items, it)
		run.bytes += len(src.Payload) + len(src.TransactionID) + 128
	}
	return runs, followers, nil
}

// flushPush stores a gathered batch. When it fails for a reason that may lie in
// one of the calls, each is tried alone, so that one cannot fail its neighbours;
// when somebody holds one of the partitions, each alone and in its turn, so that
// the others do not wait for it.
func (b *Broker) flushPush(runs []*pushRun) {
	ctx := context.Background()
	err := b.storeRuns(ctx, runs)
	held := errors.Is(err, mq.ErrLockHeld) && len(mergeRuns(runs)) > 1
	alone := err != nil && len(runs) > 1 && !isOutage(err)
	settled := make([]*pushRun, 0, len(runs))
	for _, r := range runs {
		switch {
		case !r.open():
		case held:
			b.pushes.Add(r, b.lane(r.queue.ID, r.partition), pushLimits.Items, r.bytes)
			continue
		case alone:
			r.err = b.storeRuns(ctx, []*pushRun{r})
		default:
			r.err = err
		}
		settled = append(settled, r)
	}
	b.announcePushes(settled)
	for _, r := range settled {
		r.done.Done()
	}
}

// isOutage says that the store was out of reach: trying calls one by one would
// not help, and after an unknown outcome it could store them twice.
func isOutage(err error) bool {
	switch mq.KindOf(err) {
	case mq.KindUnavailable, mq.KindTimeout, mq.KindUnknown, mq.KindBusy:
		return true
	default:
		return false
	}
}

func (b *Broker) announcePushes(runs []*pushRun) {
	hints := map[int64]*mq.Hint{}
	for _, r := range runs {
		if r.err != nil {
			continue
		}
		h := hints[r.queue.ID]
		if h == nil {
			h = &mq.Hint{Queue: r.queue.ID}
			hints[r.queue.ID] = h
		}
		h.Partitions = append(h.Partitions, r.partition)
	}
	for _, h := range hints {
		b.announce(*h)
	}
}
