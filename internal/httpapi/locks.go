package httpapi

import (
	"fmt"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Limits of a call.
const (
	maxLockOps   = 64
	maxLockSlots = 4096
	maxLockName  = 256
)

var lockMembers = append([]string{"op", "name", "ttlSeconds", "forever", "owner", "limit", "token", "slot"}, tenantMembers...)

func (s *server) locks(w *response, r *http.Request) error {
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.free()
	if err := s.b.KVEnabled(r.Context()); err != nil {
		return err
	}
	list, err := batchOps(body.data)
	if err != nil {
		return err
	}
	ops, err := decodeLockOps(list)
	if err != nil {
		return err
	}
	var results []mq.LockResult
	if len(ops) > 0 {
		if results, err = s.b.Locks(r.Context(), callerOf(r).Tenant, ops); err != nil {
			return err
		}
	}
	if len(results) != len(ops) {
		return fmt.Errorf("locks: %d results for %d operations", len(results), len(ops))
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "results"), '[')
		for i := range results {
			b = num(key(append(elem(b), '{'), "index"), i)
			b = append(appendLockResult(b, &results[i]), '}')
		}
		return append(b, "]}"...)
	})
}

func decodeLockOps(list []byte) ([]mq.LockOp, error) {
	var ops []mq.LockOp
	names := map[string]bool{}
	slots := 0
	err := decode(list, func(d *decoder) error {
		return d.list(place{key: "operations"}, func(i int) error {
			if i >= maxLockOps {
				return mq.KVInvalid("locks_too_many_ops", "more than %d operations in a call", maxLockOps)
			}
			at := place{list: "operations", index: i}
			if k := d.dec.PeekKind(); k != '{' && k != 0 {
				return badRequest(at.String(), "%s must be an object", at)
			}
			m, err := readMembers(d, at, lockMembers)
			if err != nil {
				return err
			}
			op, bad := m.lockOp()
			if bad == nil && names[op.Name] {
				bad = mq.KVInvalid("locks_duplicate_in_call", "another operation of the call names the same lock")
			}
			if bad != nil {
				bad.Field, bad.Message = at.String(), at.String()+": "+bad.Message
				return bad
			}
			names[op.Name] = true
			slots += op.Slots()
			ops = append(ops, op)
			return nil
		})
	})
	if err == nil && slots > maxLockSlots {
		err = mq.KVInvalid("locks_too_many_keys", "the call names %d slots, the limit is %d", slots, maxLockSlots)
	}
	return ops, err
}

func (m members) lockOp() (op mq.LockOp, bad *mq.Error) {
	if m.tenantLike() {
		return op, mq.KVInvalid("locks_tenant_not_an_input", "the tenant comes from the request, not from its body")
	}
	verb, _ := m.label("op")
	op.Verb = mq.LockVerb(verb)
	read, known := map[mq.LockVerb][]func(*mq.LockOp) *mq.Error{
		mq.LockAcquire: {m.lockTTL, m.lockOwner, m.lockLimit},
		mq.LockRenew:   {m.lockToken, m.lockTTL, m.lockSlot, m.lockOwner},
		mq.LockRelease: {m.lockToken, m.lockSlot},
		mq.LockGet:     nil,
	}[op.Verb]
	if !known {
		return op, mq.KVInvalid("locks_unknown_op", "op is none of acquire, renew, release, get")
	}
	// A call that forbids the end of a lease is told so before anything else.
	if (op.Verb == mq.LockAcquire || op.Verb == mq.LockRenew) && m.has("forever") {
		return op, mq.KVInvalid("locks_ttl_required", "a lock ends: ttlSeconds is required and forever refused")
	}
	var ok bool
	if op.Name, ok = m.label("name"); !ok || !lockText(op.Name) || containsHash(op.Name) {
		return op, mq.KVInvalid("locks_bad_name", "name must have 1 to %d bytes, no control character and no #", maxLockName)
	}
	for _, f := range read {
		if bad := f(&op); bad != nil {
			return op, bad
		}
	}
	return op, nil
}

// lockText reports whether a name or an owner may be this.
func lockText(s string) bool {
	if s == "" || len(s) > maxLockName || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < 0x20 || r == 0x7F || r >= 0x80 && r < 0xA0 {
			return false
		}
	}
	return true
}

func containsHash(s string) bool {
	for i := range len(s) {
		if s[i] == '#' {
			return true
		}
	}
	return false
}

func (m members) lockTTL(op *mq.LockOp) *mq.Error {
	if !m.has("ttlSeconds") {
		return mq.KVInvalid("locks_ttl_required", "ttlSeconds is required")
	}
	n, ok := m.integer("ttlSeconds")
	if op.TTL = n; !ok || n <= 0 {
		return mq.KVInvalid("locks_bad_ttl", "ttlSeconds must be an integer above 0")
	}
	return nil
}

func (m members) lockOwner(op *mq.LockOp) *mq.Error {
	if !m.has("owner") || string(m["owner"]) == "null" {
		return nil
	}
	var ok bool
	if op.Owner, ok = m.label("owner"); !ok || !lockText(op.Owner) {
		return mq.KVInvalid("locks_bad_owner", "owner must have 1 to %d bytes and no control character", maxLockName)
	}
	return nil
}

func (m members) lockLimit(op *mq.LockOp) *mq.Error {
	op.Limit = 1
	if !m.has("limit") {
		return nil
	}
	n, ok := m.integer("limit")
	if !ok || n < 1 || n > mq.MaxLockSlots {
		return mq.KVInvalid("locks_bad_limit", "limit must be an integer from 1 to %d", mq.MaxLockSlots)
	}
	op.Limit = int(n)
	return nil
}

func (m members) lockToken(op *mq.LockOp) *mq.Error {
	if !m.has("token") {
		return mq.KVInvalid("locks_token_required", "token is required")
	}
	n, ok := m.integer("token")
	if op.Token = n; !ok || n <= 0 {
		return mq.KVInvalid("locks_bad_token", "token must be an integer above 0")
	}
	return nil
}

func (m members) lockSlot(op *mq.LockOp) *mq.Error {
	if !m.has("slot") {
		return nil
	}
	n, ok := m.integer("slot")
	if !ok || n < 0 || n >= mq.MaxLockSlots {
		return mq.KVInvalid("locks_bad_slot", "slot must be an integer from 0 to %d", mq.MaxLockSlots-1)
	}
	op.Slot = int(n)
	return nil
}

func appendLockResult(b []byte, r *mq.LockResult) []byte {
	b = str(key(b, "op"), string(r.Verb))
	b = str(key(b, "name"), r.Name)
	b = boolean(key(b, map[mq.LockVerb]string{
		mq.LockAcquire: "acquired", mq.LockRenew: "renewed", mq.LockRelease: "released", mq.LockGet: "held",
	}[r.Verb]), r.OK)
	if r.Verb == mq.LockGet {
		return appendHolders(b, r)
	}
	if !r.OK {
		b = str(key(b, "reason"), r.Reason)
		if r.Verb != mq.LockAcquire {
			b = num(key(b, "slot"), r.Slot)
		}
		return appendHolders(b, r)
	}
	b = num(key(b, "slot"), r.Slot)
	if r.Verb == mq.LockRelease {
		return b
	}
	b = num(key(b, "token"), r.Token)
	if r.Verb == mq.LockAcquire {
		b = strOrNull(key(b, "owner"), r.Owner)
	}
	if r.Already {
		b = boolean(key(b, "already"), true)
	}
	return appendGuard(key(b, "guard"), r)
}

// appendGuard adds an operation that holds as long as the permit does, to be
// put into a transaction.
func appendGuard(b []byte, r *mq.LockResult) []byte {
	b = str(key(append(b, '{'), "op"), string(mq.KVCheck))
	b = str(key(b, "ns"), mq.LockNamespace)
	b = str(key(b, "key"), r.Name+"#"+strconv.Itoa(r.Slot))
	b = num(key(b, "expect"), r.Token)
	return append(boolean(key(b, "required"), true), '}')
}

func appendHolders(b []byte, r *mq.LockResult) []byte {
	b = append(key(b, "holders"), '[')
	for i := range r.Holders {
		h := &r.Holders[i]
		b = num(key(append(elem(b), '{'), "slot"), h.Slot)
		b = strOrNull(key(b, "owner"), h.Owner)
		if r.Verb == mq.LockGet {
			b = num(key(b, "token"), h.Token)
			b = instant(key(b, "since"), h.Since)
			b = instantOrNull(key(b, "expiresAt"), h.ExpiresAt)
			b = instant(key(b, "renewedAt"), h.RenewedAt)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}
