package janitor

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var errLost = errors.New("another broker took the loop over")

// lost explains why a cycle stops when its lease could not be kept.
func lost(err error) error {
	if err != nil {
		return fmt.Errorf("renew lease: %w", err)
	}
	return errLost
}

// expireIDs makes slices of message ids ahead of time and drops those that are
// no longer needed. One does not wait for the other to succeed: without slices
// pushes slow down.
func (j *Janitor) expireIDs(ctx context.Context, t *tenure) error {
	ensured := j.store.EnsureIDSlices(ctx)
	if ok, err := t.hold(ctx); !ok {
		return errors.Join(ensured, lost(err))
	}
	n, err := j.store.ExpireIDs(ctx)
	if n > 0 {
		j.log.Debug("slices of message ids dropped", "slices", n)
	}
	return errors.Join(ensured, err)
}

// sweep removes the segments of deleted queues until none is left or half of
// the interval is over.
func (j *Janitor) sweep(ctx context.Context, t *tenure) error {
	end := time.Now().Add(j.cfg.RetentionInterval / 2)
	for {
		n, err := j.store.SweepDropped(ctx, j.cfg.BatchSize)
		if err != nil || n < j.cfg.BatchSize || !time.Now().Before(end) {
			return err
		}
		if ok, err := t.hold(ctx); !ok {
			return lost(err)
		}
	}
}

const (
	queuePage = 100
	idlePage  = 500
	// A cycle looks at this many partitions and takes about this long at the
	// most. A partition becomes idle in days: being an hour late does not matter.
	idlePages  = 40
	idleBudget = 5 * time.Second
)

// idleWalk is where the walk over all partitions is, kept between cycles.
type idleWalk struct {
	queues    []int64 // still to visit, the current one first
	lastQueue int64   // of those listed so far
	partition int64   // the last one looked at in the current queue
}

// dropIdle removes partitions that are empty and have been out of use.
func (j *Janitor) dropIdle(ctx context.Context, t *tenure) error {
	w := &j.idle
	end := time.Now().Add(idleBudget)
	for range idlePages {
		if len(w.queues) == 0 {
			ids, err := j.store.QueueIDs(ctx, w.lastQueue, queuePage)
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				*w = idleWalk{} // all seen: from the beginning, next time
				return nil
			}
			w.queues, w.lastQueue = ids, ids[len(ids)-1]
		}
		if ok, err := t.hold(ctx); !ok {
			return lost(err)
		}
		next, dropped, err := j.store.DropIdlePartitions(ctx, w.queues[0], w.partition, int32(j.cfg.IdleDays), idlePage)
		if dropped > 0 {
			j.log.Debug("idle partitions removed", "queue", w.queues[0], "partitions", dropped)
		}
		w.partition = next
		if err != nil {
			return err
		}
		if next == 0 {
			w.queues = w.queues[1:]
		}
		if !time.Now().Before(end) {
			return nil
		}
	}
	return nil
}
