package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/semaphore"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// The way of a writing call: the first trip locks its keys, reads and draws
// versions, in statements of their own, so that each sees what others committed
// while the locks were waited for; the call is judged; the second trip writes
// and commits. Both halves are helpers that queue into a batch of somebody
// else's too. A half always has the same number of statements for the same
// call, and its reader consumes exactly those.

// queueKVLock queues the first half.
func queueKVLock(ctx context.Context, q *db.Queries, c *mq.KVCall) {
	if hashes := c.Hashes(); len(hashes) > 0 {
		_ = q.LockKV(ctx, hashes)
	}
	_, _ = q.ReadKV(ctx, kvReads(c))
	if n := c.VersionsNeeded(); n > 0 {
		_, _ = q.DrawKVVersions(ctx, int32(n))
	}
}

// readKVLock reads the results of queueKVLock into the call.
func readKVLock(br pgx.BatchResults, c *mq.KVCall) error {
	c.Reset()
	if len(c.Keys()) > 0 {
		if _, err := br.Exec(); err != nil {
			return err
		}
	}
	if err := readKVRows(br, c); err != nil {
		return err
	}
	if c.VersionsNeeded() == 0 {
		return nil
	}
	rows, err := br.Query()
	if err != nil {
		return err
	}
	c.Versions, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	return err
}

// kvReads names what the call needs to see. A single key has ord 0, the
// multi-key read at index i has i+1.
func kvReads(c *mq.KVCall) db.ReadKVParams {
	p := db.ReadKVParams{Tenant: c.Tenant, Budget: c.Budget()}
	addKey := func(ord int, ns, key string) {
		p.KeyOrds = append(p.KeyOrds, int32(ord))
		p.KeyNamespaces = append(p.KeyNamespaces, ns)
		p.Keys = append(p.Keys, key)
	}
	for _, at := range c.Singles() {
		addKey(0, at.Namespace, at.Key)
	}
	for i := range c.Ops {
		o := &c.Ops[i]
		switch o.Verb {
		case mq.KVGetMany:
			seen := make(map[string]bool, len(o.Keys))
			for _, k := range o.Keys {
				if !seen[k] {
					seen[k] = true
					addKey(i+1, o.Namespace, k)
				}
			}
		case mq.KVGetPrefix:
			r := c.Range(i)
			p.RangeOrds = append(p.RangeOrds, int32(i+1))
			p.RangeNamespaces = append(p.RangeNamespaces, r.Namespace)
			p.RangeFirsts = append(p.RangeFirsts, r.First)
			p.RangeEnds = append(p.RangeEnds, r.End)
			p.RangeLimits = append(p.RangeLimits, int32(r.Limit))
			p.RangeKeysOnly = append(p.RangeKeysOnly, o.KeysOnly)
			p.RangeExpired = append(p.RangeExpired, o.IncludeExpired)
		}
	}
	return p
}

func readKVRows(br pgx.BatchResults, c *mq.KVCall) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	var r db.ReadKVRow
	into := []any{&r.Now, &r.Ord, &r.Ns, &r.Key, &r.Value, &r.Version, &r.UpdatedAt, &r.ExpiresAt, &r.Cut}
	_, err = pgx.ForEachRow(rows, into, func() error {
		c.Now = r.Now
		if r.Ord < 0 { // nothing was found: the row is there for the instant
			return nil
		}
		row := mq.KVRow{Key: r.Key, Version: r.Version, Cut: r.Cut, UpdatedAt: *r.UpdatedAt}
		if r.Value != "" {
			row.Value = []byte(r.Value)
		}
		if r.ExpiresAt != nil {
			row.ExpiresAt = *r.ExpiresAt
		}
		if r.Ord == 0 {
			c.LoadSingle(r.Ns, row)
		} else {
			c.LoadMany(int(r.Ord)-1, row)
		}
		return nil
	})
	return err
}

// queueKVWrites queues what Evaluate decided.
func queueKVWrites(ctx context.Context, q *db.Queries, c *mq.KVCall) {
	if len(c.Puts) > 0 {
		p := db.PutKVParams{Tenant: c.Tenant, Now: c.Now}
		for i := range c.Puts {
			w := &c.Puts[i]
			p.Namespaces = append(p.Namespaces, w.Namespace)
			p.Keys = append(p.Keys, w.Key)
			p.Values = append(p.Values, string(w.Value))
			p.Versions = append(p.Versions, w.Version)
			p.Expires = append(p.Expires, w.ExpiresAt)
		}
		_ = q.PutKV(ctx, p)
	}
	if len(c.Deletes) > 0 {
		p := db.DeleteKVParams{Tenant: c.Tenant}
		for _, at := range c.Deletes {
			p.Namespaces = append(p.Namespaces, at.Namespace)
			p.Keys = append(p.Keys, at.Key)
		}
		_ = q.DeleteKV(ctx, p)
	}
}

// readKVWrites reads the results of queueKVWrites.
func readKVWrites(br pgx.BatchResults, c *mq.KVCall) error {
	for _, n := range []int{len(c.Puts), len(c.Deletes)} {
		if n == 0 {
			continue
		}
		if _, err := br.Exec(); err != nil {
			return err
		}
	}
	return nil
}

// kvShare is the part of the hot connections that calls to the store may hold
// at once: a database that is slow sheds them before it sheds messages. It also
// bounds the locks that such calls take together.
const kvShare = 3

// kvWait is how long a call waits for its turn.
const kvWait = 5 * time.Second

var errKVBusy = errors.New("all connections for the key/value store are in use")

// RunKV runs a call: as one statement when it only reads, else in two round
// trips and one commit. When a required operation did not apply, Failed says so
// and nothing was written.
func (s *Store) RunKV(ctx context.Context, c *mq.KVCall) error {
	wait, cancel := context.WithTimeout(ctx, kvWait)
	defer cancel()
	if err := s.kv.Acquire(wait, 1); err != nil {
		return &mq.Error{
			Kind: mq.KindUnavailable, Code: "kv_pool_exhausted", Message: "the store is busy", RetryAfter: time.Second,
			Err: errKVBusy,
		}
	}
	defer s.kv.Release(1)
	if len(c.Keys()) == 0 {
		return translate(s.readKV(ctx, c))
	}
	ctx, cancel = s.detach(ctx)
	defer cancel()
	return retryStale(ctx, true, func() error {
		conn, err := s.acquire(ctx, s.hot)
		if err != nil {
			return err
		}
		defer conn.Release()
		err = writeKV(ctx, conn.Conn(), c)
		if err != nil || c.Failed != nil {
			// Without it the connection would be thrown away.
			_, rerr := conn.Exec(ctx, "rollback")
			err = errors.Join(err, rerr)
		}
		return err
	})
}

func (s *Store) readKV(ctx context.Context, c *mq.KVCall) error {
	var b batch
	queueKVLock(ctx, b.queries(), c)
	err := s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error { return readKVLock(br, c) })
	if err == nil {
		c.Evaluate()
	}
	return err
}

func writeKV(ctx context.Context, conn *pgx.Conn, c *mq.KVCall) error {
	var first batch
	first.Queue("begin")
	queueKVLock(ctx, first.queries(), c)
	err := send(ctx, conn, &first, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		return readKVLock(br, c)
	})
	if err != nil {
		return err
	}
	if c.Evaluate(); c.Failed != nil {
		return nil
	}
	var second batch
	queueKVWrites(ctx, second.queries(), c)
	second.Queue("commit")
	return send(ctx, conn, &second, func(br pgx.BatchResults) error {
		if err := readKVWrites(br, c); err != nil {
			return err
		}
		_, err := br.Exec()
		return err
	})
}

// send sends a batch within the transaction that it begins, is in or ends.
func send(ctx context.Context, conn *pgx.Conn, b *batch, read func(pgx.BatchResults) error) error {
	br := conn.SendBatch(ctx, &b.Batch)
	err := read(br)
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	return err
}

func newKVTurns(hot int) *semaphore.Weighted {
	return semaphore.NewWeighted(int64(max(hot/kvShare, 2)))
}

// KVNamespaces counts the rows of each namespace, expired ones included.
func (s *Store) KVNamespaces(ctx context.Context, tenant mq.UUID) ([]mq.KVNamespace, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	rows, err := db.New(s.cold).ListKVNamespaces(ctx, tenant)
	if err != nil {
		return nil, translate(err)
	}
	list := make([]mq.KVNamespace, len(rows))
	for i, r := range rows {
		list[i] = mq.KVNamespace{Name: r.Ns, Keys: r.Keys}
	}
	return list, nil
}

// PruneKV removes expired rows, up to a number, and says how many it were.
func (s *Store) PruneKV(ctx context.Context, limit int) (int, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	n, err := db.New(s.hot).PruneKV(ctx, int32(limit))
	return int(n), translate(err)
}

// Names of settings, and the two values of a switch.
const (
	settingKV            = "kv"
	settingTimerSchedule = "timers_schedule"
	settingTimerFire     = "timers_fire"
	settingOff           = "off"
	settingOn            = "on"
)

// ReadSwitches reads what the operator has turned off.
func (s *Store) ReadSwitches(ctx context.Context) (mq.Switches, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	rows, err := db.New(s.cold).ReadSettings(ctx)
	sw := mq.AllOn
	for _, r := range rows {
		switch r.Name {
		case settingKV:
			sw.KV = r.Value != settingOff
		case settingTimerSchedule:
			sw.TimerSchedule = r.Value != settingOff
		case settingTimerFire:
			sw.TimerFire = r.Value != settingOff
		}
	}
	return sw, translate(err)
}

// SaveSwitches stores those that change.
func (s *Store) SaveSwitches(ctx context.Context, change mq.SwitchChange) error {
	var p db.SaveSettingsParams
	for _, c := range []struct {
		name string
		to   *bool
	}{{settingKV, change.KV}, {settingTimerSchedule, change.TimerSchedule}, {settingTimerFire, change.TimerFire}} {
		if c.to == nil {
			continue
		}
		value := settingOff
		if *c.to {
			value = settingOn
		}
		p.Names, p.Values = append(p.Names, c.name), append(p.Values, value)
	}
	ctx, cancel := s.detach(ctx)
	defer cancel()
	return translate(db.New(s.cold).SaveSettings(ctx, p))
}
