package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

var errBundleMoved = errors.New("a bundle did not append what it had locked")

// Transact runs a bundle in one transaction of two round trips: the first locks
// and reads everything it touches, decide judges it, the second writes and
// commits. Making queues or partitions, and filing dead letters, take more.
// committed is false when decide said so; nothing was written then.
func (s *Store) Transact(ctx context.Context, w *mq.BundleWork, decide func(*mq.BundleLocked) (*mq.BundleDecision, error)) (committed bool, err error) {
	committed, err = s.transact(ctx, w, decide)
	if errors.Is(err, errNoSlice) {
		if err = s.EnsureIDSlices(ctx); err == nil {
			committed, err = s.transact(ctx, w, decide)
		}
	}
	return committed, translate(err)
}

func (s *Store) transact(ctx context.Context, w *mq.BundleWork, decide func(*mq.BundleLocked) (*mq.BundleDecision, error)) (committed bool, err error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	err = retryStale(ctx, true, func() error {
		c, err := s.acquire(ctx, s.hot)
		if err != nil {
			return err
		}
		defer c.Release()
		committed, err = runBundle(ctx, c, w, decide)
		if !committed || err != nil {
			rollback(ctx, c)
		}
		return err
	})
	return committed && err == nil, err
}

// rollback ends a transaction that is to leave nothing. A connection on which
// that fails is closed: its transaction ends with it.
func rollback(ctx context.Context, c *pgxpool.Conn) {
	if c.Conn().IsClosed() || c.Conn().PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := c.Exec(ctx, "rollback", pgx.QueryExecModeSimpleProtocol); err != nil {
		_ = c.Conn().Close(ctx)
	}
}

func runBundle(ctx context.Context, c *pgxpool.Conn, w *mq.BundleWork, decide func(*mq.BundleLocked) (*mq.BundleDecision, error)) (bool, error) {
	locked, err := lockBundle(ctx, c, w)
	if err != nil {
		return false, err
	}
	d, err := decide(locked)
	if err != nil {
		return false, err
	}
	wanted, err := readBundleSpans(ctx, c, w, d)
	if err == nil && wanted {
		d, err = decide(locked)
	}
	if err != nil || !d.Commit {
		return false, err
	}
	for i, a := range d.Acks {
		if err := fileDeadLetters(ctx, c, w.Acks[i].QueueID, a); err != nil {
			return false, err
		}
	}
	if !d.Confirm() {
		return false, nil
	}
	return true, writeBundle(ctx, c, w, d)
}

// lockBundle begins the transaction and locks: kv keys, timers, partitions by
// (queue, id), then cursors. Places that are to be made come before, in trips of their own.
func lockBundle(ctx context.Context, c *pgxpool.Conn, w *mq.BundleWork) (*mq.BundleLocked, error) {
	var b batch
	b.Queue("begin")
	queueRiderLocks(ctx, b.queries(), w)
	if w.Create {
		if err := readAll(c.SendBatch(ctx, &b.Batch), func(br pgx.BatchResults) error { return readRiderLocks(br, w) }); err != nil {
			return nil, err
		}
		if err := createPlaces(ctx, c, w); err != nil {
			return nil, err
		}
		b = batch{}
	}
	slices.SortFunc(w.Pushes, func(x, y mq.BundlePush) int { return cmp.Compare(x.Queue.ID, y.Queue.ID) })
	q := b.queries()
	for i := range w.Pushes {
		names := slices.Clone(w.Pushes[i].Partitions)
		slices.Sort(names)
		_ = q.LockPartitions(ctx, db.LockPartitionsParams{QueueID: w.Pushes[i].Queue.ID, Names: slices.Compact(names)})
	}
	for i := range w.Pushes {
		_, _ = q.ProbeIDs(ctx, probeParams(&w.Pushes[i]))
	}
	for i := range w.Acks {
		queueAckLocks(ctx, q, &w.Acks[i])
	}
	var out *mq.BundleLocked
	err := readAll(c.SendBatch(ctx, &b.Batch), func(br pgx.BatchResults) (err error) {
		out, err = readBundleLocks(br, w)
		return err
	})
	return out, err
}

// readAll reads a batch's results and closes it.
func readAll(br pgx.BatchResults, read func(pgx.BatchResults) error) error {
	err := read(br)
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	return err
}

// queueRiderLocks locks and reads what the riders are about: keys, then timers.
func queueRiderLocks(ctx context.Context, q *db.Queries, w *mq.BundleWork) {
	if w.KV != nil {
		queueKVLock(ctx, q, w.KV)
	}
	if w.Timers != nil {
		queueTimerLock(ctx, q, w.Timers)
	}
}

// readRiderLocks reads the results of begin and queueRiderLocks.
func readRiderLocks(br pgx.BatchResults, w *mq.BundleWork) error {
	if _, err := br.Exec(); err != nil { // begin
		return err
	}
	if w.KV != nil {
		if err := readKVLock(br, w.KV); err != nil {
			return err
		}
	}
	if w.Timers != nil {
		return readTimerLock(br, w.Timers)
	}
	return nil
}

// createPlaces makes the queues and partitions of the pushes, by name, so that
// concurrent makers wait for each other in one order.
func createPlaces(ctx context.Context, c *pgxpool.Conn, w *mq.BundleWork) error {
	q := db.New(c)
	byName := make([]*mq.BundlePush, len(w.Pushes))
	for i := range w.Pushes {
		byName[i] = &w.Pushes[i]
	}
	slices.SortFunc(byName, func(x, y *mq.BundlePush) int {
		if x.Queue.Name < y.Queue.Name {
			return -1
		}
		return 1
	})
	for _, p := range byName {
		if p.Queue.ID == 0 {
			if err := q.CreateQueue(ctx, createParams(w.Tenant, p.Queue.Name, &p.Queue.Options)); err != nil {
				return err
			}
		}
		row, err := q.FindQueue(ctx, db.FindQueueParams{Tenant: w.Tenant, Name: p.Queue.Name})
		if err != nil {
			return err
		}
		p.Queue = queueInfo(&row)
	}
	slices.SortFunc(w.Pushes, func(x, y mq.BundlePush) int { return cmp.Compare(x.Queue.ID, y.Queue.ID) })
	for i := range w.Pushes {
		p := &w.Pushes[i]
		names := slices.Clone(p.Partitions)
		slices.Sort(names)
		if err := q.ShareQueue(ctx, p.Queue.ID); err != nil {
			return err
		}
		if err := q.CreatePartitions(ctx, db.CreatePartitionsParams{QueueID: p.Queue.ID, Names: slices.Compact(names)}); err != nil {
			return err
		}
	}
	return nil
}

func probeParams(p *mq.BundlePush) db.ProbeIDsParams {
	out := db.ProbeIDsParams{QueueID: p.Queue.ID, Names: p.Partitions}
	for i, m := range p.Messages {
		out.Ords = append(out.Ords, int32(i))
		out.Hashes = append(out.Hashes, m.Hash.Key)
		out.Probes = append(out.Probes, m.Probe)
	}
	return out
}

// readBundleLocks reads what lockBundle's last batch answers.
func readBundleLocks(br pgx.BatchResults, w *mq.BundleWork) (*mq.BundleLocked, error) {
	if !w.Create {
		if err := readRiderLocks(br, w); err != nil {
			return nil, err
		}
	}
	for range w.Pushes {
		if _, err := br.Exec(); err != nil {
			return nil, err
		}
	}
	out := &mq.BundleLocked{}
	for i := range w.Pushes {
		probes, err := readProbes(br, &w.Pushes[i])
		if err != nil {
			return nil, err
		}
		out.Probes = append(out.Probes, probes)
	}
	for i := range w.Acks {
		l, err := readLocked(br, &w.Acks[i])
		if err != nil {
			return nil, err // NotFound: the queue was deleted meanwhile
		}
		out.Acks = append(out.Acks, l)
	}
	return out, nil
}

// readProbes also brings up to date where the ids of the push go: a broker may
// not have heard yet that the options of the queue changed.
func readProbes(br pgx.BatchResults, p *mq.BundlePush) ([]mq.BundleProbe, error) {
	probes := make([]mq.BundleProbe, len(p.Messages))
	for i := range probes {
		probes[i] = mq.BundleProbe{Missing: true, Stored: -1} // no row: the queue is gone
	}
	rows, err := br.Query()
	if err != nil {
		return nil, err
	}
	var ord int32
	var partition, stored *int64
	info := *p.Queue
	_, err = pgx.ForEachRow(rows, []any{&ord, &partition, &stored, &info.IDClass}, func() error {
		probes[ord].Missing = partition == nil
		if stored != nil {
			probes[ord].Stored = *stored
		}
		return nil
	})
	p.Queue = &info
	return probes, err
}

// readBundleSpans reads the ids a decision asked for; false when it asked for
// none.
func readBundleSpans(ctx context.Context, c *pgxpool.Conn, w *mq.BundleWork, d *mq.BundleDecision) (wanted bool, err error) {
	for i, a := range d.Acks {
		if len(a.Spans) == 0 {
			continue
		}
		wanted = true
		if err := readSpans(ctx, c, w.Acks[i].QueueID, a.Spans); err != nil {
			return wanted, err
		}
	}
	return wanted, nil
}

// writeBundle writes what was decided and commits, in one trip.
func writeBundle(ctx context.Context, c *pgxpool.Conn, w *mq.BundleWork, d *mq.BundleDecision) error {
	var b batch
	q := b.queries()
	parts := make([]mq.Append, 0, len(w.Pushes))
	for i := range w.Pushes {
		if part := bundleAppend(&w.Pushes[i]); len(part.Runs) > 0 {
			parts = append(parts, part)
		}
	}
	for i := range parts {
		_, _ = q.AppendSegments(ctx, appendParams(&parts[i]))
	}
	saved := 0
	for i, a := range d.Acks {
		if changes := a.Changes(); len(changes) > 0 {
			_ = saveCursors(ctx, &b, w.Acks[i].QueueID, changes)
			saved++
		}
	}
	if w.KV != nil {
		queueKVWrites(ctx, q, w.KV)
	}
	if w.Timers != nil {
		queueTimerWrites(ctx, q, w.Timers)
	}
	b.Queue("commit")
	return readAll(c.SendBatch(ctx, &b.Batch), func(br pgx.BatchResults) error {
		return readBundleWrites(br, w, parts, saved)
	})
}

// readBundleWrites reads the results of writeBundle's batch. The transaction is
// committed by then or not at all, so a run that was not appended, which its
// lock rules out, is a fault and not a refusal.
func readBundleWrites(br pgx.BatchResults, w *mq.BundleWork, parts []mq.Append, saved int) error {
	for i := range parts {
		if err := readVerdicts(br, parts[i].Runs); err != nil {
			return err
		}
		for j := range parts[i].Runs {
			if r := &parts[i].Runs[j]; !r.Appended {
				return fmt.Errorf("%w: queue %d, partition %q", errBundleMoved, parts[i].Queue.ID, r.Partition)
			}
		}
	}
	for range saved {
		if _, err := br.Exec(); err != nil {
			return err
		}
	}
	if w.KV != nil {
		if err := readKVWrites(br, w.KV); err != nil {
			return err
		}
	}
	if w.Timers != nil {
		return readTimerWrites(br, w.Timers)
	}
	return nil
}

// bundleAppend groups a queue's messages by partition. Their ids were probed
// under the lock, and any version of the options will do: what they say of the
// push was read there too.
func bundleAppend(p *mq.BundlePush) mq.Append {
	info := *p.Queue
	info.Version = -1
	info.Options.DedupWindowSeconds = 0
	part := mq.Append{Queue: &info}
	at := map[string]int{}
	for i, m := range p.Messages {
		name := p.Partitions[i]
		j, ok := at[name]
		if !ok {
			j = len(part.Runs)
			at[name] = j
			part.Runs = append(part.Runs, mq.Run{Partition: name})
		}
		part.Runs[j].Messages = append(part.Runs[j].Messages, m)
	}
	return part
}
