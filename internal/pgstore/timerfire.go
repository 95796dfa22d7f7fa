package pgstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// Firing: claim rows that are due, append their messages as a push would and
// delete the rows, all in one transaction, so that a timer is pending or its
// message is there, whoever dies when. Any broker does it; rows that another
// one has claimed are passed over.

// DueTimers lists what is due, oldest first, at most limit of them.
func (s *Store) DueTimers(ctx context.Context, limit int) (mq.DueTimers, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	out := mq.DueTimers{Next: -1}
	rows, err := db.New(s.hot).ListDueTimers(ctx, int32(limit))
	if err != nil {
		return out, translate(err)
	}
	for i := range rows {
		r := &rows[i]
		if r.DueInUs > 0 {
			out.Next = time.Duration(r.DueInUs) * time.Microsecond
			break
		}
		out.Timers = append(out.Timers, mq.DueTimer{
			TimerID:   mq.TimerID{Tenant: r.Tenant, Queue: r.Queue, Key: r.TimerKey},
			Partition: r.Partition, MessageID: r.MessageID, Size: int(r.Size),
		})
	}
	return out, nil
}

// othersPage is how many tenants DueTimersOfOthers looks at.
const othersPage = 64

// DueTimersOfOthers lists a few due timers of each of the next tenants after a
// given one, except those in busy. last is where to go on, zero at the end.
func (s *Store) DueTimersOfOthers(ctx context.Context, busy []mq.UUID, after mq.UUID, each int) (found []mq.DueTimer, last mq.UUID, err error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	p := db.ListDueTimersOfOthersParams{After: after, Each: int32(each), MaxTenants: othersPage}
	for _, t := range busy {
		p.Busy = append(p.Busy, t)
	}
	rows, err := db.New(s.hot).ListDueTimersOfOthers(ctx, p)
	if err != nil {
		return nil, after, translate(err)
	}
	tenants := map[mq.UUID]struct{}{}
	for i := range rows {
		r := &rows[i]
		tenants[r.Tenant] = struct{}{}
		if last = r.Tenant; r.Queue == "" {
			continue
		}
		found = append(found, mq.DueTimer{
			TimerID:   mq.TimerID{Tenant: r.Tenant, Queue: r.Queue, Key: r.TimerKey},
			Partition: r.Partition, MessageID: r.MessageID, Size: int(r.Size),
		})
	}
	if len(tenants) < othersPage {
		last = mq.UUID{}
	}
	return found, last, nil
}

// FireTimers fires those of the timers that are due and that nobody else fires,
// in one transaction. find names the queues that are known, without asking the
// store. Timers whose queue or partition is missing stay.
func (s *Store) FireTimers(ctx context.Context, due []mq.DueTimer, find func(tenant mq.UUID, queue string) *mq.QueueInfo) (mq.Fired, error) {
	f, err := s.fireTimers(ctx, due, find)
	if errors.Is(err, errNoSlice) {
		if err = s.EnsureIDSlices(ctx); err == nil {
			f, err = s.fireTimers(ctx, due, find)
		}
	}
	return f, translate(err)
}

// fireTimers takes three trips: begin and claim, append, delete and commit.
func (s *Store) fireTimers(ctx context.Context, due []mq.DueTimer, find func(mq.UUID, string) *mq.QueueInfo) (out mq.Fired, err error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	err = retryStale(ctx, false, func() error {
		c, err := s.acquire(ctx, s.hot)
		if err != nil {
			return err
		}
		defer c.Release()
		out, err = fireOn(ctx, c, due, find)
		if err != nil {
			out = mq.Fired{}
			rollback(ctx, c)
		}
		return err
	})
	return out, err
}

func fireOn(ctx context.Context, c *pgxpool.Conn, due []mq.DueTimer, find func(mq.UUID, string) *mq.QueueInfo) (mq.Fired, error) {
	claimed, err := claimTimers(ctx, c, due)
	if err != nil {
		return mq.Fired{}, err
	}
	v := layVolley(claimed, find)
	if err := v.append(ctx, c); err != nil {
		return mq.Fired{}, err
	}
	return v.fired(), v.finish(ctx, c)
}

// claimedTimer is a locked row, in the order of delivery.
type claimedTimer struct {
	*mq.DueTimer
	message   *mq.Message
	deliverAt time.Time
}

func claimTimers(ctx context.Context, c *pgxpool.Conn, due []mq.DueTimer) ([]claimedTimer, error) {
	places := map[int64]struct{}{}
	var p db.ClaimTimersParams
	for i := range due {
		t := &due[i]
		place := lockNumber("timers into", t.Tenant, t.Queue, t.Partition)
		if _, known := places[place]; !known {
			places[place] = struct{}{}
			p.Places = append(p.Places, place)
		}
		p.Ords = append(p.Ords, int32(i))
		p.Tenants = append(p.Tenants, t.Tenant)
		p.Queues = append(p.Queues, t.Queue)
		p.TimerKeys = append(p.TimerKeys, t.Key)
		p.MessageIds = append(p.MessageIds, t.MessageID)
		p.TimerPlaces = append(p.TimerPlaces, place)
	}
	var b batch
	b.Queue("begin")
	q := b.queries()
	_ = q.LimitIdleTransaction(ctx)
	_, _ = q.ClaimTimers(ctx, p)
	br := c.SendBatch(ctx, &b.Batch)
	claimed, err := readClaimed(br, due)
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	slices.SortFunc(claimed, func(a, b claimedTimer) int {
		return cmp.Or(a.deliverAt.Compare(b.deliverAt), cmp.Compare(a.Key, b.Key))
	})
	return claimed, err
}

func readClaimed(br pgx.BatchResults, due []mq.DueTimer) ([]claimedTimer, error) {
	for range 2 { // begin and the limit
		if _, err := br.Exec(); err != nil {
			return nil, err
		}
	}
	rows, err := br.Query()
	if err != nil {
		return nil, err
	}
	var claimed []claimedTimer
	var r db.ClaimTimersRow
	_, err = pgx.ForEachRow(rows, []any{
		&r.Ord, &r.Partition, &r.Txn, &r.Payload, &r.ProducerSub, &r.Attempts, &r.DeliverAt, &r.CreatedAt,
	}, func() error {
		t := &due[r.Ord]
		claimed = append(claimed, claimedTimer{
			DueTimer: t, deliverAt: r.DeliverAt,
			message: &mq.Message{
				ID: t.MessageID, TransactionID: r.Txn, ProducerSub: deref(r.ProducerSub),
				Payload: mq.TimerBody(r.Payload), Hash: mq.HashID(r.Txn), Probe: true,
			},
		})
		return nil
	})
	return claimed, err
}

// volley is what one transaction fires: a part for each queue, and in it a run
// for each partition.
type volley struct {
	parts   []mq.Append
	timers  map[mq.Place][]claimedTimer
	missing []mq.Place
	done    []claimedTimer
	hints   map[int64]*mq.Hint
}

func layVolley(claimed []claimedTimer, find func(mq.UUID, string) *mq.QueueInfo) *volley {
	v := &volley{timers: map[mq.Place][]claimedTimer{}, hints: map[int64]*mq.Hint{}}
	var order []mq.Place
	for _, t := range claimed {
		at := t.Place()
		if v.timers[at] == nil {
			order = append(order, at)
		}
		v.timers[at] = append(v.timers[at], t)
	}
	index := map[int64]int{}
	for _, at := range order {
		q := find(at.Tenant, at.Queue)
		if q == nil {
			v.missing = append(v.missing, at)
			continue
		}
		i, known := index[q.ID]
		if !known {
			i = len(v.parts)
			index[q.ID] = i
			v.parts = append(v.parts, mq.Append{Queue: q})
		}
		v.parts[i].Runs = append(v.parts[i].Runs, runOf(at.Partition, v.timers[at], q.Options.DedupWindowSeconds > 0))
	}
	slices.SortFunc(v.parts, func(a, b mq.Append) int { return cmp.Compare(a.Queue.ID, b.Queue.ID) })
	return v
}

// runOf lines timers up as a run. Where the queue remembers ids, the first
// timer of an id leads and the others are done with it.
func runOf(partition string, timers []claimedTimer, dedup bool) mq.Run {
	run := mq.Run{Partition: partition, Messages: make([]*mq.Message, 0, len(timers))}
	seen := make(map[mq.UUID]struct{}, len(timers))
	for _, t := range timers {
		if _, again := seen[t.message.Hash.Key]; again && dedup {
			continue
		}
		seen[t.message.Hash.Key] = struct{}{}
		run.Messages = append(run.Messages, t.message)
	}
	return run
}

// append stores the runs. A run is stored whole or not at all: one that holds
// an id which is stored already is tried again without it, under the same lock.
func (v *volley) append(ctx context.Context, c *pgxpool.Conn) error {
	for first := true; len(v.parts) > 0; first = false {
		if err := sendParts(ctx, c, v.parts, first); err != nil {
			return err
		}
		var rest []mq.Append
		for i := range v.parts {
			again := mq.Append{Queue: v.parts[i].Queue}
			for j := range v.parts[i].Runs {
				if run := &v.parts[i].Runs[j]; !v.settle(again.Queue, run) {
					again.Runs = append(again.Runs, *run)
				}
			}
			if len(again.Runs) > 0 {
				rest = append(rest, again)
			}
		}
		v.parts = rest
	}
	return nil
}

func sendParts(ctx context.Context, c *pgxpool.Conn, parts []mq.Append, lock bool) error {
	var b batch
	q := b.queries()
	for i := range parts {
		if !lock {
			break
		}
		names := make([]string, len(parts[i].Runs))
		for j := range parts[i].Runs {
			names[j] = parts[i].Runs[j].Partition
		}
		_ = q.LockPartitions(ctx, db.LockPartitionsParams{QueueID: parts[i].Queue.ID, Names: names})
	}
	for i := range parts {
		_, _ = q.AppendSegments(ctx, appendParams(&parts[i]))
	}
	br := c.SendBatch(ctx, &b.Batch)
	var err error
	for i := 0; lock && err == nil && i < len(parts); i++ {
		_, err = br.Exec()
	}
	for i := 0; err == nil && i < len(parts); i++ {
		err = readVerdicts(br, parts[i].Runs)
	}
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	return err
}

// settle takes a run's verdict; false: it is to be sent again without what is
// stored.
func (v *volley) settle(q *mq.QueueInfo, run *mq.Run) bool {
	at := mq.Place{Tenant: q.Tenant, Queue: q.Name, Partition: run.Partition}
	switch {
	case run.Appended:
		h := v.hints[q.ID]
		if h == nil {
			h = &mq.Hint{Queue: q.ID}
			v.hints[q.ID] = h
		}
		h.Partitions = append(h.Partitions, run.Partition)
	case len(run.Stored) > 0:
		kept := make([]*mq.Message, 0, len(run.Messages))
		for pos, m := range run.Messages {
			if !slices.ContainsFunc(run.Stored, func(s mq.StoredID) bool { return s.Pos == pos }) {
				kept = append(kept, m)
			}
		}
		if run.Messages = kept; len(kept) > 0 {
			return false
		}
	default:
		v.missing = append(v.missing, at)
		return true
	}
	v.done = append(v.done, v.timers[at]...)
	return true
}

func (v *volley) fired() mq.Fired {
	out := mq.Fired{Done: len(v.done), Missing: v.missing}
	for _, h := range v.hints {
		out.Hints = append(out.Hints, *h)
	}
	for _, t := range v.done {
		if out.Late.IsZero() || t.deliverAt.Before(out.Late) {
			out.Late = t.deliverAt
		}
	}
	return out
}

// finish deletes what is done and commits.
func (v *volley) finish(ctx context.Context, c *pgxpool.Conn) error {
	var b batch
	if len(v.done) > 0 {
		var p db.DeleteTimersParams
		for _, t := range v.done {
			p.Tenants = append(p.Tenants, t.Tenant)
			p.Queues = append(p.Queues, t.Queue)
			p.TimerKeys = append(p.TimerKeys, t.Key)
		}
		_, _ = b.queries().DeleteTimers(ctx, p)
	}
	b.Queue("commit")
	return c.SendBatch(ctx, &b.Batch).Close()
}

// PostponeTimer puts a timer that was not fired off. A failure counts as an
// attempt and is remembered.
func (s *Store) PostponeTimer(ctx context.Context, t *mq.DueTimer, d time.Duration, failure string) error {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	p := db.PostponeTimerParams{
		Tenant: t.Tenant, Queue: t.Queue, TimerKey: t.Key, MessageID: t.MessageID, DelaySeconds: d.Seconds(),
	}
	if failure != "" {
		p.Attempts, p.LastError = 1, &failure
	}
	_, err := db.New(s.cold).PostponeTimer(ctx, p)
	return translate(err)
}

// BuryTimer gives a timer up: it becomes a dead letter of its destination,
// which must exist, in the transaction that removes it. False: the timer or the
// partition was not there.
func (s *Store) BuryTimer(ctx context.Context, t *mq.DueTimer, queue *mq.QueueInfo, retries int32, failure string) (buried bool, err error) {
	err = s.tx(ctx, s.cold, func(ctx context.Context, tx pgx.Tx) error {
		buried = false
		q := db.New(tx)
		r, err := q.TakeTimer(ctx, db.TakeTimerParams{Tenant: t.Tenant, Queue: t.Queue, TimerKey: t.Key, MessageID: t.MessageID})
		if err != nil {
			return err
		}
		part, err := q.FindPartition(ctx, db.FindPartitionParams{QueueID: queue.ID, Name: r.Partition})
		if err != nil {
			return err
		}
		buried = true
		return q.FileDeadLetters(ctx, db.FileDeadLettersParams{
			QueueID: queue.ID, Ids: [][16]byte{mq.ScopedID(queue.ID)}, PartitionIds: []int64{part.ID}, Offsets: []int64{-1},
			MessageIds: [][16]byte{t.MessageID}, IDHashes: [][16]byte{mq.HashID(r.Txn).Key}, CreatedAts: []time.Time{r.CreatedAt},
			RetryCounts: []int32{retries}, GroupNames: []string{mq.TimerGroup}, TransactionIds: []string{r.Txn},
			TraceIds: [][16]byte{{}}, ProducerSubs: []string{deref(r.ProducerSub)}, Errors: []string{failure},
			Payloads: []string{string(mq.TimerBody(r.Payload))},
		})
	})
	if errors.Is(err, pgx.ErrNoRows) || mq.KindOf(err) == mq.KindNotFound {
		return false, nil
	}
	return buried && err == nil, translate(err)
}
