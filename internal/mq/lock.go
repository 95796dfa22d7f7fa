package mq

import (
	"strconv"
	"time"
)

// LockNamespace is where permits live: one row each, key name#slot.
const LockNamespace = "queen-locks"

// MaxLockSlots is how many permits a lock may have.
const MaxLockSlots = 1024

// LockVerb is what an operation on a lock does.
type LockVerb string

// The verbs.
const (
	LockAcquire LockVerb = "acquire"
	LockRenew   LockVerb = "renew"
	LockRelease LockVerb = "release"
	LockGet     LockVerb = "get"
)

// Why a lock was not had.
const (
	LockHeld      = "held"
	LockContended = "contended"
	LockLost      = "lost"
)

// LockOp is one operation on a lock.
type LockOp struct {
	Verb  LockVerb
	Name  string
	TTL   int64  // seconds
	Owner string // empty is none
	Limit int    // acquire: permits of the lock
	Token int64  // renew, release
	Slot  int
}

// LockHolder is a permit that is held. Owner is empty for none.
type LockHolder struct {
	Slot      int
	Owner     string
	Token     int64
	Since     time.Time
	ExpiresAt time.Time // zero: never
	RenewedAt time.Time
}

// LockResult is what became of one operation.
type LockResult struct {
	Verb    LockVerb
	Name    string
	OK      bool // acquired, renewed, released, held
	Reason  string
	Already bool
	Slot    int
	Token   int64
	Owner   string
	Holders []LockHolder
}

// LockAddress is the row of a permit.
func LockAddress(name string, slot int) KVAddress {
	return KVAddress{LockNamespace, name + "#" + strconv.Itoa(slot)}
}

// LockSlot is the permit that a key stands for, if it is one of the lock.
func LockSlot(name, key string) (int, bool) {
	if len(key) < len(name)+2 || key[:len(name)] != name || key[len(name)] != '#' {
		return 0, false
	}
	digits := key[len(name)+1:]
	slot, err := strconv.Atoi(digits)
	// One spelling only: n#07 and n#+7 are no permits.
	return slot, err == nil && slot >= 0 && slot < MaxLockSlots && strconv.Itoa(slot) == digits
}

// Slots is how many permits the operation may look at.
func (o *LockOp) Slots() int {
	switch o.Verb {
	case LockAcquire:
		return o.Limit
	case LockGet:
		return MaxKVPage
	default:
		return 1
	}
}
