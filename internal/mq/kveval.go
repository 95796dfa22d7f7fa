package mq

import (
	"slices"
	"time"
)

// kvForever is where lifetimes beyond the calendar end.
var kvForever = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

func expiryAt(now time.Time, ttl int64) time.Time {
	if ttl <= 0 {
		return time.Time{}
	}
	if ttl >= int64(kvForever.Sub(now)/time.Second) {
		return kvForever
	}
	return now.Add(time.Duration(ttl) * time.Second)
}

// kvState is the store as the operations of one call leave it.
type kvState struct {
	call    *KVCall
	live    map[KVAddress]*KVRow // what was touched, nil when absent
	changed map[KVAddress]bool
	spent   int64 // bytes of values printed by reads
	drawn   int
}

// Evaluate judges the call: first the single-key operations by (ns, key), ties
// by their place in the call, then the multi-key reads, which see the call's own
// writes. When a required operation does not apply, Failed says so and there is
// nothing to write.
func (c *KVCall) Evaluate() {
	c.Results = make([]KVResult, len(c.Ops))
	c.Puts, c.Deletes, c.Failed = nil, nil, nil
	s := kvState{call: c, live: map[KVAddress]*KVRow{}, changed: map[KVAddress]bool{}}
	for _, i := range c.applyOrder() {
		o, r := &c.Ops[i], &c.Results[i]
		r.Verb, r.Key = o.Verb, o.Key
		switch o.Verb {
		case KVGet:
			s.get(o, r)
		case KVPut, KVPutIfAbsent:
			s.put(o, r)
		case KVDelete:
			s.delete(o, r)
		case KVIncr:
			s.incr(o, r)
		case KVCheck:
			s.check(o, r)
		case KVGetMany:
			s.getMany(i, o, r)
		case KVGetPrefix:
			s.getPrefix(i, o, r)
		}
		if o.Required && !r.Applied {
			c.Puts, c.Deletes = nil, nil
			c.Failed = &KVFailure{Index: i, Reason: r.Reason, Version: r.Version, Value: r.Value}
			return
		}
	}
}

func (c *KVCall) applyOrder() []int {
	order := make([]int, len(c.Ops))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &c.Ops[i], &c.Ops[j]
		switch {
		case a.Verb.Many() && b.Verb.Many():
			return 0
		case a.Verb.Many():
			return 1
		case b.Verb.Many():
			return -1
		}
		return a.Compare(b.KVAddress)
	})
	return order
}

// row is the live row at an address, nil when there is none.
func (s *kvState) row(at KVAddress) *KVRow {
	if r, ok := s.live[at]; ok {
		return r
	}
	r := s.call.singles[at]
	if r != nil && r.ExpiredAt(s.call.Now) {
		r = nil
	}
	s.live[at] = r
	return r
}

func (s *kvState) get(o *KVOp, r *KVResult) {
	row := s.row(o.KVAddress)
	if row == nil {
		return
	}
	r.Found, r.Value, r.Version, r.ExpiresAt, r.UpdatedAt = true, row.Value, row.Version, row.ExpiresAt, row.UpdatedAt
	s.spent += int64(len(row.Value))
}

// lose fills in what a reader would see.
func lose(r *KVResult, reason string, row *KVRow) {
	r.Reason = reason
	if row != nil {
		r.Value, r.Version = row.Value, row.Version
	}
}

// condition judges expect; "" means that it holds.
func condition(o *KVOp, row *KVRow) string {
	switch {
	case !o.Conditional:
		return ""
	case o.Expect == 0 && row != nil:
		return KVExists
	case o.Expect == 0:
		return ""
	case row == nil:
		return KVAbsent
	case row.Version != o.Expect:
		return KVVersion
	}
	return ""
}

func (s *kvState) put(o *KVOp, r *KVResult) {
	row := s.row(o.KVAddress)
	if reason := condition(o, row); reason != "" {
		lose(r, reason, row)
		return
	}
	s.write(o.KVAddress, o.Value, expiryAt(s.call.Now, o.TTL), r)
}

// write replaces a row whole and reports it as applied.
func (s *kvState) write(at KVAddress, value []byte, expires time.Time, r *KVResult) {
	c := s.call
	version := c.Versions[s.drawn]
	s.drawn++
	c.Puts = append(c.Puts, KVWrite{KVAddress: at, Value: value, Version: version, ExpiresAt: expires})
	s.live[at] = &KVRow{Key: at.Key, Value: value, Version: version, ExpiresAt: expires, UpdatedAt: c.Now}
	s.changed[at] = true
	r.Applied, r.Value, r.Version = true, value, version
}

func (s *kvState) delete(o *KVOp, r *KVResult) {
	row := s.row(o.KVAddress)
	switch {
	case row == nil:
		r.Reason = KVAbsent
		if s.call.singles[o.KVAddress] != nil { // expired, and still in the way
			s.call.Deletes = append(s.call.Deletes, o.KVAddress)
		}
	case o.Conditional && o.Expect != row.Version:
		lose(r, KVVersion, row)
	default:
		s.call.Deletes = append(s.call.Deletes, o.KVAddress)
		s.live[o.KVAddress], s.changed[o.KVAddress] = nil, true
		r.Applied = true
	}
}

func (s *kvState) incr(o *KVOp, r *KVResult) {
	row := s.row(o.KVAddress)
	var current Decimal
	expires := expiryAt(s.call.Now, o.TTL)
	if row != nil {
		var ok bool
		if current, ok = ParseDecimal(row.Value); !ok {
			lose(r, KVType, row)
			r.Value = []byte("0")
			return
		}
		expires = row.ExpiresAt
	}
	sum := current.Add(o.Delta)
	if o.Min != nil && sum.Cmp(*o.Min) < 0 || o.Max != nil && sum.Cmp(*o.Max) > 0 || sum.tooLong() {
		lose(r, KVLimit, row)
		r.Value = current.Append(nil)
		return
	}
	s.write(o.KVAddress, sum.Append(nil), expires, r)
}

func (s *kvState) check(o *KVOp, r *KVResult) {
	row := s.row(o.KVAddress)
	if reason := condition(o, row); reason != "" {
		lose(r, reason, row)
		return
	}
	r.Applied = true
	if row != nil {
		r.Version = row.Version
	}
}

// print adds a row to a read, unless the bytes that a call may read are used up.
func (s *kvState) print(r *KVResult, row KVRow, keysOnly bool) bool {
	if row.Cut || !keysOnly && s.spent >= s.call.Budget() {
		r.Truncated = true
		return false
	}
	if !keysOnly {
		s.spent += int64(len(row.Value))
	}
	r.Rows = append(r.Rows, row)
	return true
}

func (s *kvState) getMany(i int, o *KVOp, r *KVResult) {
	read := make(map[string]*KVRow, len(s.call.many[i]))
	for j := range s.call.many[i] {
		row := &s.call.many[i][j]
		read[row.Key] = row
	}
	keys := slices.Clone(o.Keys)
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		row := read[key]
		if at := (KVAddress{o.Namespace, key}); s.changed[at] {
			row = s.live[at]
		}
		if row == nil || row.ExpiredAt(s.call.Now) {
			r.Missing = append(r.Missing, key)
			continue
		}
		if !r.Truncated {
			s.print(r, *row, false)
		}
	}
}

func (s *kvState) getPrefix(i int, o *KVOp, r *KVResult) {
	r.KeysOnly = o.KeysOnly
	r.NextAfter = o.After
	more := false
	for _, row := range s.overlay(i) {
		if len(r.Rows) == o.Limit {
			more = true
			break
		}
		if !s.print(r, row, o.KeysOnly) {
			break
		}
		r.NextAfter = row.Key
	}
	if r.Truncated = r.Truncated || more; !r.Truncated {
		r.NextAfter = ""
	}
}

// overlay is what a getPrefix read, with the rows that the call wrote instead
// of those they replaced. Rows beyond the last one that was read must not come
// in when the read stopped there: others that nobody read lie in between.
func (s *kvState) overlay(i int) []KVRow {
	o, read, limits := &s.call.Ops[i], s.call.many[i], s.call.Range(i)
	rows := make([]KVRow, 0, len(read))
	for _, row := range read {
		if !s.changed[KVAddress{o.Namespace, row.Key}] {
			rows = append(rows, row)
		}
	}
	end := limits.End
	if len(read) == limits.Limit {
		end = read[len(read)-1].Key + "\x01"
	}
	for at := range s.changed {
		row := s.live[at]
		if row != nil && at.Namespace == o.Namespace && at.Key >= limits.First && at.Key < end {
			rows = append(rows, *row)
		}
	}
	slices.SortFunc(rows, func(a, b KVRow) int { return KVAddress{"", a.Key}.Compare(KVAddress{"", b.Key}) })
	return rows
}
