package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// A permit is a row of the key/value store: who creates it holds it, its version
// is the token, its lifetime the lease. There is no other state.

// Locks runs operations on locks, each by itself. They spend one write together.
func (b *Broker) Locks(ctx context.Context, tenant mq.UUID, ops []mq.LockOp) ([]mq.LockResult, error) {
	if err := b.kvAllowed(ctx, tenant, b.SpendKVWrite); err != nil {
		return nil, err
	}
	results := make([]mq.LockResult, len(ops))
	for i := range ops {
		res, err := b.lock(ctx, tenant, &ops[i])
		if err != nil {
			return nil, err
		}
		res.Verb, res.Name = ops[i].Verb, ops[i].Name
		slices.SortFunc(res.Holders, func(a, b mq.LockHolder) int { return a.Slot - b.Slot })
		results[i] = res
	}
	return results, nil
}

func (b *Broker) lock(ctx context.Context, tenant mq.UUID, op *mq.LockOp) (mq.LockResult, error) {
	switch {
	case op.Verb == mq.LockAcquire && op.Limit > 1:
		return b.acquirePermit(ctx, tenant, op)
	case op.Verb == mq.LockAcquire:
		return b.acquireLock(ctx, tenant, op)
	case op.Verb == mq.LockRenew:
		return b.renewLock(ctx, tenant, op)
	case op.Verb == mq.LockRelease:
		return b.releaseLock(ctx, tenant, op)
	default:
		return b.getLock(ctx, tenant, op)
	}
}

// permit is what the value of a row says.
type permit struct {
	owner string
	since string // as it was written
}

// readPermit reads a value that anybody may have written by hand.
func readPermit(value []byte) permit {
	var members map[string]json.RawMessage
	var p permit
	if json.Unmarshal(value, &members) == nil {
		_ = json.Unmarshal(members["owner"], &p.owner) // not a string: no owner
		_ = json.Unmarshal(members["since"], &p.since)
	}
	return p
}

func (p permit) value() []byte {
	text := func(s string) []byte {
		if s == "" {
			return []byte("null")
		}
		var buf bytes.Buffer
		enc := json.NewEncoder(&buf)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(s) // a string can be encoded
		return bytes.TrimRight(buf.Bytes(), "\n")
	}
	v := append([]byte(`{"owner":`), text(p.owner)...)
	if p.since != "" {
		v = append(append(v, `,"since":`...), text(p.since)...)
	}
	return append(v, '}')
}

// lockOp runs one operation on the row of a permit.
func (b *Broker) lockOp(ctx context.Context, tenant mq.UUID, op mq.KVOp) (*mq.KVResult, error) {
	c := &mq.KVCall{Tenant: tenant, Ops: []mq.KVOp{op}}
	if err := b.runKV(ctx, c); err != nil {
		return nil, err
	}
	return &c.Results[0], nil
}

// take creates the row of a permit.
func (b *Broker) take(ctx context.Context, tenant mq.UUID, op *mq.LockOp, slot int) (*mq.KVResult, error) {
	return b.lockOp(ctx, tenant, mq.KVOp{
		Verb: mq.KVPutIfAbsent, KVAddress: mq.LockAddress(op.Name, slot), Conditional: true,
		Value: permit{owner: op.Owner}.value(), TTL: op.TTL,
	})
}

func acquired(op *mq.LockOp, slot int, token int64, already bool) mq.LockResult {
	return mq.LockResult{OK: true, Slot: slot, Token: token, Owner: op.Owner, Already: already}
}

func (b *Broker) acquireLock(ctx context.Context, tenant mq.UUID, op *mq.LockOp) (mq.LockResult, error) {
	r, err := b.take(ctx, tenant, op, 0)
	if err != nil {
		return mq.LockResult{}, err
	}
	if r.Applied {
		return acquired(op, 0, r.Version, false), nil
	}
	holder := readPermit(r.Value)
	if op.Owner != "" && holder.owner == op.Owner {
		return acquired(op, 0, r.Version, true), nil
	}
	return mq.LockResult{Reason: mq.LockHeld, Holders: []mq.LockHolder{{Slot: 0, Owner: holder.owner}}}, nil
}

// lockTries and renewTries bound how often a lost race is run again.
const (
	lockTries  = 4
	renewTries = 2
)

// acquirePermit takes a random free permit, so that a crowd does not fight for
// the first one.
func (b *Broker) acquirePermit(ctx context.Context, tenant mq.UUID, op *mq.LockOp) (mq.LockResult, error) {
	var held []mq.LockHolder
	for range lockTries {
		var err error
		if held, err = b.holders(ctx, tenant, op.Name, op.Limit); err != nil {
			return mq.LockResult{}, err
		}
		taken := make([]bool, op.Limit)
		for i := range held {
			taken[held[i].Slot] = true
			if op.Owner != "" && held[i].Owner == op.Owner {
				return acquired(op, held[i].Slot, held[i].Token, true), nil
			}
		}
		var free []int
		for slot, t := range taken {
			if !t {
				free = append(free, slot)
			}
		}
		if len(free) == 0 {
			return mq.LockResult{Reason: mq.LockHeld, Holders: held}, nil
		}
		slot := free[rand.N(len(free))]
		r, err := b.take(ctx, tenant, op, slot)
		if err != nil {
			return mq.LockResult{}, err
		}
		if r.Applied {
			return acquired(op, slot, r.Version, false), nil
		}
	}
	return mq.LockResult{Reason: mq.LockContended, Holders: held}, nil
}

// holders reads the permits of a lock that are held, below a number of slots.
func (b *Broker) holders(ctx context.Context, tenant mq.UUID, name string, slots int) ([]mq.LockHolder, error) {
	var list []mq.LockHolder
	// All keys of the lock, some of which may be no permits: page by page.
	for after := ""; ; {
		r, err := b.lockOp(ctx, tenant, mq.KVOp{
			Verb: mq.KVGetPrefix, KVAddress: mq.KVAddress{Namespace: mq.LockNamespace}, Prefix: name + "#", After: after, Limit: mq.MaxKVPage,
		})
		if err != nil {
			return nil, err
		}
		for i := range r.Rows {
			if slot, ok := mq.LockSlot(name, r.Rows[i].Key); ok && slot < slots {
				list = append(list, lockHolder(slot, &r.Rows[i]))
			}
		}
		if !r.Truncated || r.NextAfter == after {
			return list, nil
		}
		after = r.NextAfter
	}
}

func lockHolder(slot int, row *mq.KVRow) mq.LockHolder {
	p := readPermit(row.Value)
	h := mq.LockHolder{
		Slot: slot, Owner: p.owner, Token: row.Version, Since: row.UpdatedAt, ExpiresAt: row.ExpiresAt, RenewedAt: row.UpdatedAt,
	}
	if since, err := time.Parse(time.RFC3339Nano, p.since); err == nil {
		h.Since = since
	}
	return h
}

// sinceLayout is how the instant of the acquire is kept in the row.
const sinceLayout = "2006-01-02T15:04:05.000000Z"

// renewLock replaces the row by one with a new token and a new lifetime. A
// token that is out of date is good enough from the owner itself: its renewal
// went through and only the answer was lost.
func (b *Broker) renewLock(ctx context.Context, tenant mq.UUID, op *mq.LockOp) (mq.LockResult, error) {
	at := mq.LockAddress(op.Name, op.Slot)
	var lost mq.LockResult
	for range renewTries {
		row, err := b.lockOp(ctx, tenant, mq.KVOp{Verb: mq.KVGet, KVAddress: at})
		if err != nil {
			return mq.LockResult{}, err
		}
		lost = lockLost(op.Slot, row)
		p := readPermit(row.Value)
		if !row.Found || row.Version != op.Token && (op.Owner == "" || p.owner != op.Owner) {
			return lost, nil
		}
		value := row.Value
		if p.since == "" {
			value = permit{owner: p.owner, since: row.UpdatedAt.UTC().Format(sinceLayout)}.value()
		}
		r, err := b.lockOp(ctx, tenant, mq.KVOp{
			Verb: mq.KVPut, KVAddress: at, Value: value, TTL: op.TTL, Conditional: true, Expect: row.Version,
		})
		if err != nil {
			return mq.LockResult{}, err
		}
		if r.Applied {
			return mq.LockResult{OK: true, Slot: op.Slot, Token: r.Version}, nil
		}
		lost = lockLost(op.Slot, r)
	}
	return lost, nil
}

// lockLost names who holds the permit now, if anybody does.
func lockLost(slot int, r *mq.KVResult) mq.LockResult {
	res := mq.LockResult{Reason: mq.LockLost, Slot: slot}
	if r.Version > 0 {
		res.Holders = []mq.LockHolder{{Slot: slot, Owner: readPermit(r.Value).owner}}
	}
	return res
}

func (b *Broker) releaseLock(ctx context.Context, tenant mq.UUID, op *mq.LockOp) (mq.LockResult, error) {
	r, err := b.lockOp(ctx, tenant, mq.KVOp{
		Verb: mq.KVDelete, KVAddress: mq.LockAddress(op.Name, op.Slot), Conditional: true, Expect: op.Token,
	})
	if err != nil {
		return mq.LockResult{}, err
	}
	if r.Applied {
		return mq.LockResult{OK: true, Slot: op.Slot}, nil
	}
	return lockLost(op.Slot, r), nil
}

func (b *Broker) getLock(ctx context.Context, tenant mq.UUID, op *mq.LockOp) (mq.LockResult, error) {
	held, err := b.holders(ctx, tenant, op.Name, mq.MaxLockSlots)
	return mq.LockResult{OK: len(held) > 0, Holders: held}, err
}
