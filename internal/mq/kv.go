package mq

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// KVVerb is what an operation on the key/value store does, by its name on the
// wire.
type KVVerb string

// The verbs.
const (
	KVGet         KVVerb = "get"
	KVGetMany     KVVerb = "getMany"
	KVGetPrefix   KVVerb = "getPrefix"
	KVPut         KVVerb = "put"
	KVPutIfAbsent KVVerb = "putIfAbsent"
	KVDelete      KVVerb = "delete"
	KVIncr        KVVerb = "incr"
	KVCheck       KVVerb = "check"
)

// Writes reports whether the verb may change a row.
func (v KVVerb) Writes() bool {
	return v == KVPut || v == KVPutIfAbsent || v == KVDelete || v == KVIncr
}

// Many reports whether the verb reads several keys.
func (v KVVerb) Many() bool { return v == KVGetMany || v == KVGetPrefix }

// Why an operation on the store did not apply.
const (
	KVExists  = "exists"
	KVAbsent  = "absent"
	KVVersion = "version"
	KVLimit   = "limit"
	KVType    = "type"
)

// KVAddress names a row of a tenant.
type KVAddress struct{ Namespace, Key string }

// Compare orders addresses by the bytes of namespace and key.
func (a KVAddress) Compare(b KVAddress) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Key, b.Key))
}

// KVOp is one operation. Which fields count depends on the verb.
type KVOp struct {
	Verb KVVerb
	KVAddress
	Keys           []string // getMany
	Prefix, After  string   // getPrefix
	Limit          int      // getPrefix, clamped
	KeysOnly       bool     // getPrefix
	IncludeExpired bool     // getPrefix, never from the wire of the store
	Value          []byte   // put: compact JSON text
	TTL            int64    // seconds; 0 is forever
	Expect         int64    // a version, or 0 for "no row"
	Conditional    bool     // Expect counts
	Required       bool
	Delta          Decimal
	Min, Max       *Decimal
}

// KVRow is a row as a reader sees it. ExpiresAt is zero when it never does.
type KVRow struct {
	Key       string
	Value     []byte
	Version   int64
	ExpiresAt time.Time
	UpdatedAt time.Time
	// Cut: the read stopped before this row; it has no value.
	Cut bool
}

// ExpiredAt reports whether the row counts as absent.
func (r *KVRow) ExpiredAt(now time.Time) bool {
	return !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(now)
}

// KVResult is what became of one operation.
type KVResult struct {
	Verb      KVVerb
	Key       string
	Found     bool   // get
	Applied   bool   // writes and checks
	Reason    string // why not
	Value     []byte // nil is a JSON null
	Version   int64
	ExpiresAt time.Time
	UpdatedAt time.Time
	Rows      []KVRow // getMany, getPrefix
	Missing   []string
	Truncated bool
	NextAfter string
	KeysOnly  bool
}

// KVFailure is a required operation that did not apply: nothing is written.
type KVFailure struct {
	Index   int // of the operation in its call
	Reason  string
	Version int64
	Value   []byte // nil is a JSON null
}

// KVWrite is a row to be written.
type KVWrite struct {
	KVAddress
	Value     []byte
	Version   int64
	ExpiresAt time.Time // zero: never
}

// KVNamespace is a namespace and how many rows it has, expired ones included.
type KVNamespace struct {
	Name string
	Keys int64
}

// Switches are what an operator can turn off while brokers run.
type Switches struct {
	KV            bool
	TimerSchedule bool
	TimerFire     bool
}

// SwitchChange changes those that are not nil.
type SwitchChange struct{ KV, TimerSchedule, TimerFire *bool }

// AllOn is what holds while nothing is stored.
var AllOn = Switches{KV: true, TimerSchedule: true, TimerFire: true}

// KVCall is a list of operations that happen together. A store fills the slots
// below Ops in this order: lock the keys in the order of Hashes, then read what
// Singles and Ranges name into Load and Now, then draw as many versions as
// VersionsNeeded says. Evaluate then judges everything without any I/O, and
// leaves what is to be written.
type KVCall struct {
	Tenant UUID
	Ops    []KVOp
	// Locked: the call is part of something that writes, so that what it
	// checks has to stay as it is. A call that writes locks by itself.
	Locked bool
	// ReadBudget is how many bytes of values the reads print; 0 is the default.
	ReadBudget int64

	Now      time.Time
	Versions []int64
	singles  map[KVAddress]*KVRow
	many     map[int][]KVRow

	Results []KVResult // in the order of Ops
	Puts    []KVWrite
	Deletes []KVAddress
	Failed  *KVFailure
}

// DefaultKVReadBytes bounds the values that one call reads.
const DefaultKVReadBytes = 4 << 20

// Budget is the bytes of values the reads of the call may print.
func (c *KVCall) Budget() int64 {
	if c.ReadBudget > 0 {
		return c.ReadBudget
	}
	return DefaultKVReadBytes
}

// Writes reports whether the call may change something.
func (c *KVCall) Writes() bool {
	return slices.ContainsFunc(c.Ops, func(o KVOp) bool { return o.Verb.Writes() })
}

// Keys are the rows to be locked, in ascending order: those written, and those
// checked, because a condition has to hold until the commit. A call that only
// reads locks nothing.
func (c *KVCall) Keys() []KVAddress {
	if !c.Locked && !c.Writes() {
		return nil
	}
	var keys []KVAddress
	for i := range c.Ops {
		if o := &c.Ops[i]; o.Verb.Writes() || o.Verb == KVCheck {
			keys = append(keys, o.KVAddress)
		}
	}
	slices.SortFunc(keys, KVAddress.Compare)
	return slices.Compact(keys)
}

// Hashes are the numbers to lock for the keys, in ascending order. Two keys of
// one number wait for each other, which is harmless.
func (c *KVCall) Hashes() []int64 {
	keys := c.Keys()
	hashes := make([]int64, len(keys))
	for i, k := range keys {
		h := sha256.New()
		h.Write(c.Tenant[:])
		h.Write([]byte(k.Namespace))
		h.Write([]byte{0})
		h.Write([]byte(k.Key))
		hashes[i] = int64(binary.BigEndian.Uint64(h.Sum(nil)))
	}
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// VersionsNeeded is how many fresh versions the call can use.
func (c *KVCall) VersionsNeeded() int {
	n := 0
	for i := range c.Ops {
		if v := c.Ops[i].Verb; v.Writes() && v != KVDelete {
			n++
		}
	}
	return n
}

// Singles are the rows that single-key operations need.
func (c *KVCall) Singles() []KVAddress {
	var keys []KVAddress
	for i := range c.Ops {
		if !c.Ops[i].Verb.Many() {
			keys = append(keys, c.Ops[i].KVAddress)
		}
	}
	slices.SortFunc(keys, KVAddress.Compare)
	return slices.Compact(keys)
}

// KVRange is a run of keys, First included and End not.
type KVRange struct {
	Namespace, First, End string
	Limit                 int
}

// maxKey is above every key: keys have 512 bytes at the most.
var maxKey = strings.Repeat(string(utf8.MaxRune), MaxKVKeyBytes/4+1)

// Range says what a getPrefix has to read. It is one row more than asked for,
// to know whether there is another page, and one for each row that the call
// itself may have deleted.
func (c *KVCall) Range(i int) KVRange {
	o := &c.Ops[i]
	r := KVRange{Namespace: o.Namespace, First: o.Prefix, End: prefixEnd(o.Prefix), Limit: o.Limit + 1}
	if o.After != "" && o.After >= o.Prefix {
		// No key holds a NUL, so nothing is between a key and this.
		r.First = o.After + "\x01"
	}
	for j := range c.Ops {
		if c.Ops[j].Verb == KVDelete {
			r.Limit++
		}
	}
	return r
}

// prefixEnd is the least text above everything that starts with the prefix. It
// has to be valid UTF-8; in UTF-8 the order of bytes is that of code points.
func prefixEnd(prefix string) string {
	for p := prefix; p != ""; {
		r, n := utf8.DecodeLastRuneInString(p)
		p = p[:len(p)-n]
		switch r {
		case utf8.MaxRune:
			continue
		case 0xD7FF: // surrogates are next
			r = 0xE000
		default:
			r++
		}
		return p + string(r)
	}
	return maxKey
}

// Reset forgets what was read, before a call is tried again.
func (c *KVCall) Reset() {
	c.Now, c.Versions, c.singles, c.many = time.Time{}, nil, nil, nil
	c.Results, c.Puts, c.Deletes, c.Failed = nil, nil, nil, nil
}

// LoadSingle takes a row that Singles named.
func (c *KVCall) LoadSingle(namespace string, r KVRow) {
	if c.singles == nil {
		c.singles = map[KVAddress]*KVRow{}
	}
	c.singles[KVAddress{namespace, r.Key}] = &r
}

// LoadMany takes a row of the multi-key read at an index, in key order.
func (c *KVCall) LoadMany(index int, r KVRow) {
	if c.many == nil {
		c.many = map[int][]KVRow{}
	}
	c.many[index] = append(c.many[index], r)
}
