package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// maxPushRounds bounds the rounds of one gathered push. A round more is needed
// for a new queue or partition, for options that changed meanwhile, and for a
// run in which some ids are stored already; each makes the next one smaller.
const maxPushRounds = 8

var errPushRounds = errors.New("the queue kept changing while the push was stored")

// merged is everything a flush has for one partition, in arrival order.
type merged struct {
	runs  []*pushRun
	items []*pushItem // not decided yet
	dups  []dup
}

type dup struct {
	item *pushItem
	ref  mq.OffsetRef
}

// storeRuns stores runs in as few transactions as there are rounds, usually one.
func (b *Broker) storeRuns(ctx context.Context, runs []*pushRun) error {
	todo := mergeRuns(runs)
	defer b.nameOriginals(ctx, todo)
	open := todo
	for range maxPushRounds {
		var err error
		if open, err = b.storeRound(ctx, open); err != nil {
			return err
		}
		if len(open) == 0 {
			return nil
		}
	}
	return &mq.Error{Kind: mq.KindBusy, Code: mq.CodeRetry, Message: errPushRounds.Error(), RetryAfter: 1e9, Err: errPushRounds}
}

// mergeRuns joins the runs of one partition. Inside the dedup window an id that
// two calls of the flush bring is stored once: the first leads.
func mergeRuns(runs []*pushRun) []*merged {
	type place struct {
		queue     int64
		partition string
	}
	byPlace := make(map[place]*merged, len(runs))
	out := make([]*merged, 0, len(runs))
	for _, r := range runs {
		at := place{r.queue.ID, r.partition}
		m := byPlace[at]
		if m == nil {
			m = &merged{}
			byPlace[at] = m
			out = append(out, m)
		}
		m.runs = append(m.runs, r)
	}
	for _, m := range out {
		m.join()
	}
	return out
}

func (m *merged) join() {
	m.items = nil
	var leaders map[mq.UUID]*pushItem
	if len(m.runs) > 1 && m.queue().Options.DedupWindowSeconds > 0 {
		leaders = map[mq.UUID]*pushItem{}
	}
	for _, r := range m.runs {
		for _, it := range r.items {
			it.leader = nil
			if it.decided {
				continue
			}
			if leaders != nil && it.msg.Probe {
				if lead := leaders[it.msg.Hash.Key]; lead != nil {
					it.leader = lead
					continue
				}
				leaders[it.msg.Hash.Key] = it
			}
			m.items = append(m.items, it)
		}
	}
}

// queue is the newest the runs know of their queue.
func (m *merged) queue() *mq.QueueInfo {
	q := m.runs[0].queue
	for _, r := range m.runs[1:] {
		if r.queue.Version > q.Version {
			q = r.queue
		}
	}
	return q
}

// storeRound tries to append what is open and returns what still is.
func (b *Broker) storeRound(ctx context.Context, open []*merged) ([]*merged, error) {
	parts := make([]mq.Append, 0, 4)
	index := map[int64]int{}
	backs := [][]*merged{}
	for _, m := range open {
		q := m.queue()
		i, ok := index[q.ID]
		if !ok {
			i = len(parts)
			index[q.ID] = i
			parts = append(parts, mq.Append{Queue: q})
			backs = append(backs, nil)
		} else if q.Version > parts[i].Queue.Version {
			parts[i].Queue = q
		}
		run := mq.Run{Partition: m.runs[0].partition, Messages: make([]*mq.Message, len(m.items))}
		for j, it := range m.items {
			run.Messages[j] = &it.msg
		}
		parts[i].Runs = append(parts[i].Runs, run)
		backs[i] = append(backs[i], m)
	}
	if err := b.store.Append(ctx, parts); err != nil {
		return nil, err
	}
	var rest, missing []*merged
	for i := range parts {
		// Append sorts the parts by queue: find the way back by number.
		back := backs[index[parts[i].Queue.ID]]
		for j := range parts[i].Runs {
			switch m, run := back[j], &parts[i].Runs[j]; {
			case run.Appended:
				m.appended(run)
			case len(run.Stored) > 0:
				if m.stored(run); len(m.items) > 0 {
					rest = append(rest, m)
				}
			default:
				missing = append(missing, m)
			}
		}
	}
	if len(missing) > 0 {
		if err := b.ensurePlaces(ctx, missing); err != nil {
			return nil, err
		}
	}
	return append(rest, missing...), nil
}

func (m *merged) appended(run *mq.Run) {
	for i, it := range m.items {
		*it.result = mq.PushResult{
			Status: mq.PushQueued, MessageID: it.msg.ID, TransactionID: it.msg.TransactionID, Offset: run.First + int64(i),
		}
		it.decided = true
	}
	m.items = nil
	m.follow()
}

// stored takes the items out whose ids are stored already.
func (m *merged) stored(run *mq.Run) {
	at := make(map[int]int64, len(run.Stored))
	for _, s := range run.Stored {
		at[s.Pos] = s.Offset
	}
	kept := m.items[:0]
	for i, it := range m.items {
		off, dupe := at[i]
		if !dupe {
			kept = append(kept, it)
			continue
		}
		*it.result = mq.PushResult{Status: mq.PushDuplicate, TransactionID: it.msg.TransactionID, Offset: off}
		it.decided = true
		m.dups = append(m.dups, dup{it, mq.OffsetRef{Partition: run.PartitionID, Offset: off}})
	}
	if m.items = kept; len(kept) == 0 {
		m.follow()
	}
}

// follow gives the items of later calls the verdict of the one they repeat.
func (m *merged) follow() {
	for _, r := range m.runs {
		for _, it := range r.items {
			if it.leader != nil && it.leader.decided {
				it.decided = true
				*it.result = *it.leader.result
				it.result.Status = mq.PushDuplicate
			}
		}
	}
}

// nameOriginals fills in the ids of the messages that duplicates repeat. One
// that can no longer be read stays zero.
func (b *Broker) nameOriginals(ctx context.Context, all []*merged) {
	for _, m := range all {
		if len(m.dups) == 0 {
			continue
		}
		refs := make([]mq.OffsetRef, len(m.dups))
		for i, d := range m.dups {
			refs[i] = d.ref
		}
		ids, err := b.store.MessageIDs(ctx, m.queue().ID, refs)
		if err != nil {
			b.log.Warn("originals of duplicates not read", "error", err)
			continue
		}
		for i, d := range m.dups {
			d.item.result.MessageID = ids[i]
		}
		m.follow()
	}
}

// ensurePlaces makes what the store did not find: it looks the queues up again
// and makes the partitions.
func (b *Broker) ensurePlaces(ctx context.Context, missing []*merged) error {
	names := map[int64][]string{}
	for _, m := range missing {
		r := m.runs[0]
		b.cache.dropQueue(r.queue.ID)
	}
	for _, m := range missing {
		r := m.runs[0]
		q, err := b.ensureQueue(ctx, r.tenant, r.queueName)
		if err != nil {
			return err
		}
		for _, r := range m.runs {
			r.queue = q
		}
		names[q.ID] = append(names[q.ID], r.partition)
	}
	for id, list := range names {
		if err := b.store.EnsurePartitions(ctx, id, list); err != nil {
			return fmt.Errorf("make partitions: %w", err)
		}
	}
	return nil
}
