package httpapi

import (
	"bytes"
	"errors"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// members are the known members of an object as they were sent, nil where one
// is missing.
type members map[string][]byte

// readMembers reads an object. Known members may come once, others are passed
// over; those forbidden are left to the caller.
func readMembers(d *decoder, at place, known []string) (members, error) {
	if d.dec.PeekKind() != '{' {
		return nil, d.mismatch(at, "an object")
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return nil, d.syntax(err)
	}
	m := members{}
	for d.dec.PeekKind() != '}' {
		i, err := d.member(len(known), func(i int) string { return known[i] })
		if err != nil {
			return nil, err
		}
		if i < 0 {
			if err := d.dec.SkipValue(); err != nil {
				return nil, d.syntax(err)
			}
			continue
		}
		at.key = known[i]
		if _, twice := m[known[i]]; twice {
			return nil, badRequest(at.String(), "%s is given twice", at)
		}
		v, err := d.payload(at)
		if err != nil {
			return nil, err
		}
		m[known[i]] = v
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return nil, d.syntax(err)
	}
	return m, nil
}

func (m members) has(name string) bool { return m[name] != nil }

// label reads what names something. Numbers and booleans stand for their own
// text; a null counts as missing.
func (m members) label(name string) (string, bool) { return labelOf(m[name]) }

func labelOf(v []byte) (string, bool) {
	switch {
	case len(v) == 0 || v[0] == 'n':
		return "", true
	case v[0] == '"':
		s, err := jsontext.AppendUnquote(nil, v)
		return string(s), err == nil
	case v[0] == '{' || v[0] == '[':
		return "", false
	}
	return string(v), true
}

// flag reads a boolean.
func (m members) flag(name string) (v, ok bool) {
	switch string(m[name]) {
	case "true":
		return true, true
	case "false", "":
		return false, true
	}
	return false, false
}

// integer reads a number without a fraction: 30.0 and 3e1 are integers too.
func (m members) integer(name string) (int64, bool) {
	text := m[name]
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return n, true
	}
	d, ok := mq.ParseDecimal(text)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(d.String(), 10, 64)
	return n, err == nil
}

var (
	tenantMembers = []string{"tenant", "tenantId", "_tenant"}
	kvMembers     = append([]string{
		"op", "ns", "key", "keys", "prefix", "after", "limit", "keysOnly", "value", "ttlSeconds", "forever", "expect",
		"required", "delta", "min", "max",
	}, tenantMembers...)
)

func (m members) tenantLike() bool {
	for _, name := range tenantMembers {
		if m.has(name) {
			return true
		}
	}
	return false
}

// decodeKVOps reads a JSON array of operations and judges them, each by itself
// and then together. The operations keep nothing of raw.
func (s *server) decodeKVOps(raw []byte, inTransaction bool) ([]mq.KVOp, error) {
	limits := s.o.KV
	if inTransaction {
		limits = limits.InTransaction()
	}
	var ops []mq.KVOp
	err := decode(raw, func(d *decoder) error {
		return d.list(place{key: "operations"}, func(i int) error {
			if i >= limits.Ops {
				return mq.KVInvalid("kv_too_many_ops", "more than %d operations in a call", limits.Ops)
			}
			op, err := decodeKVOp(d, place{list: "operations", index: i}, limits)
			ops = append(ops, op)
			return err
		})
	})
	var ref *refusal
	if errors.As(err, &ref) && ref.code == mq.CodeBadRequest {
		// Here the code is the stable reason.
		return nil, mq.KVInvalid("kv_bad_request", "%s", ref.message)
	}
	if err != nil {
		return nil, err
	}
	if err := mq.CheckKVOps(ops, limits); err != nil {
		return nil, err
	}
	return ops, nil
}

func decodeKVOp(d *decoder, at place, limits mq.KVLimits) (mq.KVOp, error) {
	if k := d.dec.PeekKind(); k != '{' && k != 0 {
		return mq.KVOp{}, badRequest(at.String(), "%s must be an object", at)
	}
	m, err := readMembers(d, at, kvMembers)
	if err != nil {
		return mq.KVOp{}, err
	}
	op, bad := m.kvOp(limits)
	if bad != nil {
		bad.Field, bad.Message = at.String(), at.String()+": "+bad.Message
		return op, bad
	}
	return op, nil
}

// kvOp reads the members that count for the operation's verb, and no others.
func (m members) kvOp(limits mq.KVLimits) (op mq.KVOp, bad *mq.Error) {
	if m.tenantLike() {
		return op, mq.KVInvalid("kv_tenant_not_an_input", "the tenant comes from the request, not from its body")
	}
	verb, _ := m.label("op")
	op.Verb = mq.KVVerb(verb)
	switch op.Verb {
	case mq.KVGet, mq.KVGetMany, mq.KVGetPrefix, mq.KVPut, mq.KVPutIfAbsent, mq.KVDelete, mq.KVIncr, mq.KVCheck:
	default:
		return op, mq.KVInvalid("kv_unknown_op", "op is none of get, getMany, getPrefix, put, putIfAbsent, delete, incr, check")
	}
	for _, l := range []struct {
		name string
		to   *string
	}{{"ns", &op.Namespace}, {"key", &op.Key}, {"prefix", &op.Prefix}} {
		var ok bool
		if *l.to, ok = m.label(l.name); !ok {
			reason := "kv_bad_key"
			if l.name == "ns" {
				reason = "kv_bad_namespace"
			}
			return op, mq.KVInvalid(reason, "%s must be a string", l.name)
		}
	}
	if bad = m.kvVerb(&op); bad == nil {
		bad = op.Check(limits)
	}
	return op, bad
}

func (m members) kvVerb(op *mq.KVOp) *mq.Error {
	switch op.Verb {
	case mq.KVGetMany:
		return m.kvKeys(op)
	case mq.KVGetPrefix:
		return m.kvPage(op)
	case mq.KVGet:
		return nil
	}
	var ok bool
	if op.Required, ok = m.flag("required"); !ok {
		return mq.KVInvalid("kv_bad_request", "required must be a boolean")
	}
	if bad := m.kvExpect(op); bad != nil {
		return bad
	}
	switch op.Verb {
	case mq.KVPut, mq.KVPutIfAbsent:
		if !m.has("value") {
			return mq.KVInvalid("kv_bad_request", "value is required; it may be null")
		}
		op.Value = compact(m["value"])
		return m.kvLifetime(op)
	case mq.KVIncr:
		if bad := m.kvNumbers(op); bad != nil {
			return bad
		}
		return m.kvLifetime(op)
	}
	return nil
}

func (m members) kvKeys(op *mq.KVOp) *mq.Error {
	if !m.has("keys") {
		return nil
	}
	bad := mq.KVInvalid("kv_bad_request", "keys must be an array")
	if m["keys"][0] != '[' {
		return bad
	}
	// The array was read once as a value, so it is well formed.
	dec := jsontext.NewDecoder(bytes.NewBuffer(m["keys"]), lenientNames, lenientUTF8)
	if _, err := dec.ReadToken(); err != nil {
		return bad
	}
	for dec.PeekKind() != ']' {
		v, err := dec.ReadValue()
		if err != nil {
			return bad
		}
		k, ok := labelOf(v)
		if !ok {
			return mq.KVInvalid("kv_bad_key", "each of keys must be a string")
		}
		op.Keys = append(op.Keys, k)
	}
	return nil
}

func (m members) kvPage(op *mq.KVOp) *mq.Error {
	var ok bool
	if op.KeysOnly, ok = m.flag("keysOnly"); !ok {
		return mq.KVInvalid("kv_bad_request", "keysOnly must be a boolean")
	}
	if op.After, ok = m.label("after"); !ok || !utf8.ValidString(op.After) {
		return mq.KVInvalid("kv_bad_request", "after must be a string")
	}
	op.Limit = mq.DefaultKVPage
	if m.has("limit") && string(m["limit"]) != "null" {
		n, ok := m.integer("limit")
		if !ok {
			return mq.KVInvalid("kv_bad_request", "limit must be an integer")
		}
		op.Limit = int(min(max(n, 1), mq.MaxKVPage))
	}
	return nil
}

func (m members) kvExpect(op *mq.KVOp) *mq.Error {
	if op.Verb == mq.KVPutIfAbsent {
		op.Conditional = true
	}
	if !m.has("expect") {
		if op.Verb == mq.KVCheck {
			return mq.KVInvalid("kv_bad_expect", "check needs expect")
		}
		return nil
	}
	if op.Verb == mq.KVIncr {
		return mq.KVInvalid("kv_bad_request", "incr takes no expect")
	}
	n, ok := m.integer("expect")
	if !ok || n < 0 {
		return mq.KVInvalid("kv_bad_expect", "expect must be an integer, 0 or a version")
	}
	if op.Verb == mq.KVPutIfAbsent && n != 0 {
		return mq.KVInvalid("kv_bad_expect", "putIfAbsent expects 0")
	}
	op.Conditional, op.Expect = true, n
	return nil
}

func (m members) kvNumbers(op *mq.KVOp) *mq.Error {
	if !m.has("delta") {
		return mq.KVInvalid("kv_bad_request", "delta is required")
	}
	for _, name := range []string{"delta", "min", "max"} {
		if !m.has(name) {
			continue
		}
		n, ok := mq.ParseDecimal(m[name])
		if !ok {
			return mq.KVInvalid("kv_bad_request", "%s must be a number, within 4096 digits of its point", name)
		}
		switch name {
		case "delta":
			op.Delta = n
		case "min":
			op.Min = &n
		case "max":
			op.Max = &n
		}
	}
	return nil
}

// kvLifetime reads the lifetime, which every write declares.
func (m members) kvLifetime(op *mq.KVOp) *mq.Error {
	if m.has("ttlSeconds") {
		n, ok := m.integer("ttlSeconds")
		if !ok || n <= 0 {
			return mq.KVInvalid("kv_bad_ttl", "ttlSeconds must be an integer above 0")
		}
		op.TTL = n
	}
	forever, ok := m.flag("forever")
	if !ok {
		return mq.KVInvalid("kv_bad_request", "forever must be a boolean")
	}
	if forever == m.has("ttlSeconds") {
		return mq.KVInvalid("kv_expiry_not_specified", "exactly one of ttlSeconds and forever:true is needed")
	}
	return nil
}

// compact is a copy without the spaces between the tokens. Everything else
// stays as it was sent: numbers, escapes, members named twice.
func compact(value []byte) []byte {
	v := jsontext.Value(bytes.Clone(value))
	_ = v.Compact() // it was read as a value before
	return v
}
