package pgstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// WriteTimers carries a call out in one transaction and one round trip.
func (s *Store) WriteTimers(ctx context.Context, c *mq.TimerCall) error {
	var b batch
	q := b.queries()
	queueTimerLock(ctx, q, c)
	queueTimerWrites(ctx, q, c)
	return translate(s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		if err := readTimerLock(br, c); err != nil {
			return err
		}
		return readTimerWrites(br, c)
	}))
}

// lockNumber is the advisory lock of a name; kind keeps those of different
// things apart.
func lockNumber(kind string, tenant mq.UUID, names ...string) int64 {
	h := sha256.New()
	h.Write([]byte(kind))
	h.Write(tenant[:])
	var n [8]byte
	for _, name := range names {
		binary.BigEndian.PutUint64(n[:], uint64(len(name)))
		h.Write(n[:])
		h.Write([]byte(name))
	}
	return int64(binary.BigEndian.Uint64(h.Sum(n[:0])))
}

// queueTimerLock queues the locks of a call's timers: two statements, none
// without operations. They come after the locks of kv keys and before those of
// partitions.
func queueTimerLock(ctx context.Context, q *db.Queries, c *mq.TimerCall) {
	if len(c.Ops) == 0 {
		return
	}
	type named struct {
		number int64
		op     *mq.TimerOp
	}
	all := make([]named, len(c.Ops))
	for i := range c.Ops {
		op := &c.Ops[i]
		all[i] = named{lockNumber("timer", c.Tenant, op.Queue, op.Key), op}
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Compare(a.number, b.number) })
	p := db.LockTimersParams{Tenant: c.Tenant}
	ids := make([]int64, len(all))
	for i, n := range all {
		ids[i] = n.number
		p.Queues = append(p.Queues, n.op.Queue)
		p.TimerKeys = append(p.TimerKeys, n.op.Key)
	}
	_ = q.LockTimerKeys(ctx, ids)
	_ = q.LockTimers(ctx, p)
}

// readTimerLock reads what queueTimerLock queued.
func readTimerLock(br pgx.BatchResults, c *mq.TimerCall) error {
	if len(c.Ops) == 0 {
		return nil
	}
	for range 2 {
		if _, err := br.Exec(); err != nil {
			return err
		}
	}
	return nil
}

// queueTimerWrites queues the writes of a call whose timers are locked: one
// statement for all schedules and one for all cancels.
func queueTimerWrites(ctx context.Context, q *db.Queries, c *mq.TimerCall) {
	put := db.ScheduleTimersParams{Tenant: c.Tenant, ProducerSub: c.ProducerSub}
	drop := db.CancelTimersParams{Tenant: c.Tenant}
	for i := range c.Ops {
		op := &c.Ops[i]
		if op.Cancel {
			drop.Ords = append(drop.Ords, int32(i))
			drop.Queues = append(drop.Queues, op.Queue)
			drop.TimerKeys = append(drop.TimerKeys, op.Key)
			continue
		}
		put.Ords = append(put.Ords, int32(i))
		put.Queues = append(put.Queues, op.Queue)
		put.TimerKeys = append(put.TimerKeys, op.Key)
		put.Partitions = append(put.Partitions, op.Partition)
		put.DelaysUs = append(put.DelaysUs, op.Delay.Microseconds())
		put.Txns = append(put.Txns, op.TransactionID)
		put.MessageIds = append(put.MessageIds, op.MessageID)
		put.Payloads = append(put.Payloads, notNull(op.Payload))
		put.Encrypted = append(put.Encrypted, op.Encrypted)
	}
	if len(put.Ords) > 0 {
		_, _ = q.ScheduleTimers(ctx, put)
	}
	if len(drop.Ords) > 0 {
		_, _ = q.CancelTimers(ctx, drop)
	}
}

func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// readTimerWrites reads what queueTimerWrites queued into the call's results,
// which hold once the transaction has committed.
func readTimerWrites(br pgx.BatchResults, c *mq.TimerCall) error {
	if len(c.Results) != len(c.Ops) {
		c.Results = make([]mq.TimerResult, len(c.Ops))
	}
	cancels := 0
	for i := range c.Ops {
		op := &c.Ops[i]
		c.Results[i] = mq.TimerResult{TransactionID: op.TransactionID, MessageID: op.MessageID}
		if op.Cancel {
			cancels++
			c.Results[i].Status = mq.TimerAbsent
		}
	}
	if cancels < len(c.Ops) {
		if err := readScheduled(br, c.Results); err != nil {
			return err
		}
	}
	if cancels > 0 {
		return readCancelled(br, c.Results)
	}
	return nil
}

func readScheduled(br pgx.BatchResults, results []mq.TimerResult) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	var ord int32
	var at time.Time
	var kept bool
	_, err = pgx.ForEachRow(rows, []any{&ord, &at, &kept}, func() error {
		results[ord].DeliverAt = at
		if kept {
			results[ord].Status = mq.TimerRescheduled
		}
		return nil
	})
	return err
}

func readCancelled(br pgx.BatchResults, results []mq.TimerResult) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	var ord int32
	var txn string
	_, err = pgx.ForEachRow(rows, []any{&ord, &txn}, func() error {
		results[ord].Status, results[ord].TransactionID = mq.TimerCancelled, txn
		return nil
	})
	return err
}

// ReadTimer reads a pending timer, nil when there is none.
func (s *Store) ReadTimer(ctx context.Context, id mq.TimerID) (*mq.Timer, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	r, err := db.New(s.cold).ReadTimer(ctx, db.ReadTimerParams{Tenant: id.Tenant, Queue: id.Queue, TimerKey: id.Key})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, translate(err)
	}
	return &mq.Timer{
		Queue: r.Queue, Key: r.TimerKey, Partition: r.Partition, DeliverAt: r.DeliverAt, TransactionID: r.Txn,
		MessageID: r.MessageID, Encrypted: r.Encrypted, ProducerSub: deref(r.ProducerSub), Attempts: r.Attempts,
		LastError: deref(r.LastError), CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Payload: r.Payload,
	}, nil
}

// ListTimers reads a page, and whether there are more.
func (s *Store) ListTimers(ctx context.Context, l mq.TimerList) (page []mq.Timer, more bool, err error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	rows, err := db.New(s.cold).ListTimers(ctx, db.ListTimersParams{
		Tenant: l.Tenant, Queue: l.Queue, After: l.After, MaxRows: int32(l.Limit) + 1,
	})
	if err != nil {
		return nil, false, translate(err)
	}
	if more = len(rows) > l.Limit; more {
		rows = rows[:l.Limit]
	}
	page = make([]mq.Timer, len(rows))
	for i := range rows {
		r := &rows[i]
		page[i] = mq.Timer{
			Queue: l.Queue, Key: r.TimerKey, Partition: r.Partition, DeliverAt: r.DeliverAt, TransactionID: r.Txn,
			MessageID: r.MessageID, Encrypted: r.Encrypted, ProducerSub: deref(r.ProducerSub), Attempts: r.Attempts,
			LastError: deref(r.LastError), CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		}
	}
	return page, more, nil
}

// CountTimers counts the timers of a queue whose keys begin with a prefix.
func (s *Store) CountTimers(ctx context.Context, tenant mq.UUID, queue, prefix string) (int64, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	n, err := db.New(s.cold).CountTimers(ctx, db.CountTimersParams{
		Tenant: tenant, Queue: queue, Prefix: prefix, PrefixEnd: prefixEnd(prefix),
	})
	return n, translate(err)
}

// prefixEnd is the least text beyond every one that begins with the prefix, in
// the order of the bytes, which in UTF-8 is that of the characters. Empty: there
// is none.
func prefixEnd(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch next := last + 1; {
		case next == 0xD800: // no text holds surrogates
			return prefix + "\uE000"
		case next <= utf8.MaxRune:
			return prefix + string(next)
		}
	}
	return ""
}
