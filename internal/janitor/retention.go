package janitor

import (
	"context"
	"slices"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

const (
	// agePage is how many partitions of one queue are looked at before it is
	// the next queue's turn.
	agePage = 200
	// partitionSteps is how many steps a partition gets before it is the next
	// one's turn.
	partitionSteps = 8
)

// ageWalk is where the walks over the partitions of the queues are. It is kept
// between cycles: partitions from which nothing may be removed, because a group
// that never acknowledges pins them, are the oldest ones, and a walk that began
// anew each time would never get past them.
type ageWalk struct {
	at   map[int64]mq.AgePosition // by queue; absent: at the beginning
	last int64                    // the queue visited last
}

// retain removes messages under the retention rules until nothing is left to
// remove or half of the interval is over. Queues take turns, a page of
// partitions each.
func (j *Janitor) retain(ctx context.Context, t *tenure) error {
	end := time.Now().Add(j.cfg.RetentionInterval / 2)
	rules, err := j.store.RetentionRules(ctx)
	if err != nil {
		return err
	}
	j.ages.keep(rules)
	queues := make([]retained, 0, len(rules))
	for _, r := range j.ages.order(rules) {
		queues = append(queues, retained{rule: r})
	}
	for len(queues) > 0 && time.Now().Before(end) {
		q := queues[0]
		done, err := j.retainPage(ctx, t, &q, end)
		if err != nil {
			return err
		}
		j.ages.last = q.rule.QueueID
		queues = queues[1:]
		if !done {
			queues = append(queues, q)
		}
	}
	return nil
}

// retained is a queue in the course of a cycle.
type retained struct {
	rule mq.RetentionRule
	more bool // the walk has left something behind
}

// retainPage visits the next partitions of a queue. done: there is nothing more
// to do for it in this cycle.
func (j *Janitor) retainPage(ctx context.Context, t *tenure, q *retained, end time.Time) (done bool, err error) {
	queue := q.rule.QueueID
	found, next, err := j.store.AgedPartitions(ctx, q.rule, j.ages.at[queue], agePage)
	if err != nil {
		return false, err
	}
	for _, at := range found {
		if !time.Now().Before(end) {
			return false, nil
		}
		more, err := j.trim(ctx, t, q.rule, at.Partition, end)
		if err != nil {
			return false, err
		}
		q.more = q.more || more
		j.ages.at[queue] = at
	}
	if next != (mq.AgePosition{}) {
		j.ages.at[queue] = next
		return false, nil
	}
	delete(j.ages.at, queue)
	done = !q.more
	q.more = false
	return done, nil
}

// trim removes what the rule allows from the front of a partition, in steps.
func (j *Janitor) trim(ctx context.Context, t *tenure, rule mq.RetentionRule, partition int64, end time.Time) (more bool, err error) {
	for step := 0; step < partitionSteps && (step == 0 || time.Now().Before(end)); step++ {
		if ok, err := t.hold(ctx); !ok {
			return false, lost(err)
		}
		if _, more, err = j.store.Trim(ctx, rule, partition, j.cfg.BatchSize); mq.KindOf(err) == mq.KindBusy {
			// Somebody's transaction holds the partition: at the next round.
			return false, nil
		}
		if err != nil || !more {
			return false, err
		}
	}
	return more, nil
}

// keep forgets the places of queues without a rule.
func (w *ageWalk) keep(rules []mq.RetentionRule) {
	ruled := make(map[int64]bool, len(rules))
	for _, r := range rules {
		ruled[r.QueueID] = true
	}
	for queue := range w.at {
		if !ruled[queue] {
			delete(w.at, queue)
		}
	}
}

// order puts the rules so that the queue after the one visited last is first.
func (w *ageWalk) order(rules []mq.RetentionRule) []mq.RetentionRule {
	slices.SortFunc(rules, func(a, b mq.RetentionRule) int {
		return int(min(max(a.QueueID-b.QueueID, -1), 1))
	})
	i := slices.IndexFunc(rules, func(r mq.RetentionRule) bool { return r.QueueID > w.last })
	if i <= 0 {
		return rules
	}
	return slices.Concat(rules[i:], rules[:i])
}
