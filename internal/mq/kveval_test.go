package mq

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var kvNow = time.Date(2027, 3, 4, 5, 6, 7, 0, time.UTC)

// evaluate judges ops on a store of rows "key=value", versions 1 and up in their
// order; a row whose key begins with ! expired a moment ago. Fresh versions are
// 101 and up.
func evaluate(ops []KVOp, rows ...string) *KVCall {
	c := &KVCall{Ops: ops}
	c.Reset()
	c.Now = kvNow
	for i := range c.VersionsNeeded() {
		c.Versions = append(c.Versions, int64(101+i))
	}
	slices.SortStableFunc(rows, func(a, b string) int { return strings.Compare(strings.TrimPrefix(a, "!"), strings.TrimPrefix(b, "!")) })
	for i, text := range rows {
		key, value, _ := strings.Cut(text, "=")
		row := KVRow{Key: strings.TrimPrefix(key, "!"), Value: []byte(value), Version: int64(i + 1), UpdatedAt: kvNow}
		if row.Key != key {
			row.ExpiresAt = kvNow // the first instant at which it is absent
		}
		for j := range ops {
			switch o := &ops[j]; {
			case o.Verb == KVGetMany && slices.Contains(o.Keys, row.Key):
				c.LoadMany(j, row)
			case o.Verb == KVGetPrefix:
				if r := c.Range(j); row.Key >= r.First && row.Key < r.End && row.ExpiresAt.IsZero() && len(c.many[j]) < r.Limit {
					c.LoadMany(j, row)
				}
			case o.Key == row.Key:
				c.LoadSingle("n", row)
			}
		}
	}
	c.Evaluate()
	return c
}

func kvOp(verb KVVerb, key string) KVOp {
	return KVOp{Verb: verb, KVAddress: KVAddress{"n", key}}
}

func put(key, value string) KVOp {
	o := kvOp(KVPut, key)
	o.Value = []byte(value)
	return o
}

func expecting(o KVOp, version int64) KVOp {
	o.Conditional, o.Expect = true, version
	return o
}

func incr(key, delta string, limits ...string) KVOp {
	o := kvOp(KVIncr, key)
	o.Delta, _ = ParseDecimal([]byte(delta))
	for i, l := range limits {
		if d, ok := ParseDecimal([]byte(l)); ok {
			if i == 0 {
				o.Min = &d
			} else {
				o.Max = &d
			}
		}
	}
	return o
}

func show(r *KVResult) string {
	if r.Applied || r.Found {
		return fmt.Sprintf("%s@%d", r.Value, r.Version)
	}
	return fmt.Sprintf("%s %s@%d", r.Reason, r.Value, r.Version)
}

func TestKVEvaluate_SingleOperations(t *testing.T) {
	t.Parallel()
	rows := []string{"a=1", "!e=5", "o={}", "!x=[]"} // versions 1 to 4
	for _, c := range []struct {
		name string
		op   KVOp
		want string
		puts int
		dels int
	}{
		{"K1 get", kvOp(KVGet, "a"), "1@1", 0, 0},
		{"K8 get expired", kvOp(KVGet, "e"), " @0", 0, 0},
		{"put", put("a", "2"), "2@101", 1, 0},
		{"K3 putIfAbsent lost", expecting(put("a", "2"), 0), "exists 1@1", 0, 0},
		{"K7 expect 0 on expired", expecting(put("e", "2"), 0), "2@101", 1, 0},
		{"K5 expect N on none", expecting(put("z", "2"), 9), "absent @0", 0, 0},
		{"K5 expect N on expired", expecting(put("e", "2"), 2), "absent @0", 0, 0},
		{"K6 expect old", expecting(put("a", "2"), 9), "version 1@1", 0, 0},
		{"expect held", expecting(put("a", "2"), 1), "2@101", 1, 0},
		{"delete", kvOp(KVDelete, "a"), "@0", 0, 1},
		{"delete none", kvOp(KVDelete, "z"), "absent @0", 0, 0},
		{"delete expired removes it", kvOp(KVDelete, "e"), "absent @0", 0, 1},
		{"delete old", expecting(kvOp(KVDelete, "a"), 9), "version 1@1", 0, 0},
		{"delete expect 0", expecting(kvOp(KVDelete, "a"), 0), "version 1@1", 0, 0},
		{"delete expect 0 of none", expecting(kvOp(KVDelete, "z"), 0), "absent @0", 0, 0},
		{"K12 incr", incr("a", "1.5"), "2.5@101", 1, 0},
		{"K12 incr of none over max", incr("z", "10", "", "5"), "limit 0@0", 0, 0},
		{"K12 incr at max", incr("a", "1", "", "2"), "2@101", 1, 0},
		{"K12 incr over max", incr("a", "1.1", "", "2"), "limit 1@1", 0, 0},
		{"K14 incr under min", incr("a", "-2", "0"), "limit 1@1", 0, 0},
		{"K8 incr of expired", incr("e", "3"), "3@101", 1, 0},
		{"K13 incr of object", incr("o", "1"), "type 0@3", 0, 0},
		{"K13 incr of expired array", incr("x", "1"), "1@101", 1, 0},
		{"K30 check", expecting(kvOp(KVCheck, "a"), 1), "@1", 0, 0},
		{"K30 check none", expecting(kvOp(KVCheck, "z"), 0), "@0", 0, 0},
		{"K30 check lost", expecting(kvOp(KVCheck, "a"), 2), "version 1@1", 0, 0},
		{"K30 check exists", expecting(kvOp(KVCheck, "a"), 0), "exists 1@1", 0, 0},
		{"K30 check expired", expecting(kvOp(KVCheck, "e"), 2), "absent @0", 0, 0},
	} {
		call := evaluate([]KVOp{c.op}, rows...)
		if got := show(&call.Results[0]); got != c.want || len(call.Puts) != c.puts || len(call.Deletes) != c.dels {
			t.Errorf("%s: %s, %d puts, %d deletes; want %s", c.name, got, len(call.Puts), len(call.Deletes), c.want)
		}
		c.op.Required = c.op.Verb != KVGet
		call = evaluate([]KVOp{put("0", "0"), c.op}, rows...)
		lost := c.op.Required && strings.Contains(c.want, " ") // a reason before the value
		if lost != (call.Failed != nil) || lost && (len(call.Puts)+len(call.Deletes) > 0 || call.Failed.Index != 1) {
			t.Errorf("%s, required: %+v, %d puts", c.name, call.Failed, len(call.Puts))
		}
	}
}

func TestKVEvaluate_K11_Lifetimes(t *testing.T) {
	t.Parallel()
	end := kvNow.Add(5 * time.Second)
	c := &KVCall{Ops: []KVOp{incr("live", "1"), incr("new", "1"), put("live2", "1")}, Versions: []int64{1, 2, 3}, Now: kvNow}
	for i := range c.Ops {
		c.Ops[i].TTL = 60
	}
	c.LoadSingle("n", KVRow{Key: "live", Value: []byte("1"), ExpiresAt: end})
	c.LoadSingle("n", KVRow{Key: "live2", Value: []byte("1"), ExpiresAt: end})
	c.Evaluate()
	for i, want := range []time.Time{end, kvNow.Add(time.Minute), kvNow.Add(time.Minute)} {
		at := slices.IndexFunc(c.Puts, func(w KVWrite) bool { return w.Key == c.Ops[i].Key })
		if got := c.Puts[at].ExpiresAt; !got.Equal(want) {
			t.Errorf("%s ends at %v, want %v", c.Ops[i].Key, got, want)
		}
	}
	if got := expiryAt(kvNow, 1<<62); got.Year() != 9999 {
		t.Errorf("for ever and a day: %v", got)
	}
	if !expiryAt(kvNow, 0).IsZero() {
		t.Error("forever ends")
	}
}

func TestKVEvaluate_K18K19K21_Order(t *testing.T) {
	t.Parallel()
	many := KVOp{Verb: KVGetMany, KVAddress: KVAddress{Namespace: "n"}, Keys: []string{"b", "a", "q", "b"}}
	c := evaluate([]KVOp{many, kvOp(KVGet, "b"), put("b", "2"), kvOp(KVGet, "b"), kvOp(KVDelete, "a")}, "a=1", "b=1")
	if show(&c.Results[1]) != "1@2" || show(&c.Results[3]) != "2@101" {
		t.Errorf("before %s, after %s", show(&c.Results[1]), show(&c.Results[3]))
	}
	r := &c.Results[0]
	if len(r.Rows) != 1 || string(r.Rows[0].Value) != "2" || !slices.Equal(r.Missing, []string{"a", "q"}) {
		t.Errorf("%+v", r)
	}
	lost := func(key string) KVOp {
		o := expecting(put(key, "0"), 0)
		o.Required = true
		return o
	}
	if c = evaluate([]KVOp{lost("b"), lost("a")}, "a=1", "b=1"); c.Failed == nil || c.Failed.Index != 1 || string(c.Failed.Value) != "1" {
		t.Errorf("%+v", c.Failed)
	}
}

func TestKVEvaluate_K22_PagesWithOwnWrites(t *testing.T) {
	t.Parallel()
	page := func(limit int, after string) KVOp {
		return KVOp{Verb: KVGetPrefix, KVAddress: KVAddress{Namespace: "n"}, Prefix: "p", Limit: limit, After: after}
	}
	for _, c := range []struct {
		name string
		ops  []KVOp
		want string
		next string
	}{
		{"first page", []KVOp{page(2, "")}, "p1 p2", "p2"},
		{"last page", []KVOp{page(2, "p4")}, "p5", ""},
		{"exactly the rest", []KVOp{page(2, "p3")}, "p4 p5", ""},
		{"own row in between", []KVOp{page(2, ""), put("p11", "0")}, "p1 p11", "p11"},
		{"own row beyond the page", []KVOp{page(2, ""), put("p9", "0")}, "p1 p2", "p2"},
		{"own row at the end", []KVOp{page(9, ""), put("p9", "0")}, "p1 p2 p3 p4 p5 p9", ""},
		{"deleted rows make room", []KVOp{page(2, ""), kvOp(KVDelete, "p1"), kvOp(KVDelete, "p2")}, "p3 p4", "p4"},
		{"all but one deleted", []KVOp{page(1, "p3"), kvOp(KVDelete, "p4")}, "p5", ""},
		{"rows of others", []KVOp{page(9, ""), put("q", "0")}, "p1 p2 p3 p4 p5", ""},
	} {
		call := evaluate(c.ops, "p1=1", "p2=2", "p3=3", "p4=4", "p5=5", "o=0", "q=0")
		var keys []string
		for _, row := range call.Results[0].Rows {
			keys = append(keys, row.Key)
		}
		r := &call.Results[0]
		if got := strings.Join(keys, " "); got != c.want || r.NextAfter != c.next || r.Truncated != (c.next != "") {
			t.Errorf("%s: %s, next %q, truncated %v; want %s, %q", c.name, got, r.NextAfter, r.Truncated, c.want, c.next)
		}
	}
}

func TestKVEvaluate_K23_Budget(t *testing.T) {
	t.Parallel()
	many := func(keys ...string) KVOp {
		return KVOp{Verb: KVGetMany, KVAddress: KVAddress{Namespace: "n"}, Keys: keys}
	}
	ops := []KVOp{many("a", "b", "c", "z"), many("a")}
	c := &KVCall{Ops: ops, Now: kvNow, ReadBudget: 5}
	for _, key := range []string{"a", "b", "c"} {
		c.LoadMany(0, KVRow{Key: key, Value: []byte("1234")})
	}
	c.LoadMany(1, KVRow{Key: "a", Value: []byte("1234")})
	c.Evaluate()
	if r := &c.Results[0]; len(r.Rows) != 2 || !r.Truncated || !slices.Equal(r.Missing, []string{"z"}) {
		t.Errorf("the row that goes over the budget is kept, then the read stops: %+v", r)
	}
	if r := &c.Results[1]; len(r.Rows) != 0 || !r.Truncated || r.Missing != nil {
		t.Errorf("%+v", r)
	}
}

func TestKVCall_LocksInOneOrder(t *testing.T) {
	t.Parallel()
	forth := &KVCall{Ops: []KVOp{put("a", "1"), put("b", "1"), expecting(kvOp(KVCheck, "c"), 1), kvOp(KVGet, "d")}}
	back := &KVCall{Ops: []KVOp{expecting(kvOp(KVCheck, "c"), 1), put("b", "1"), put("a", "1")}}
	if h := forth.Hashes(); len(h) != 3 || !slices.IsSorted(h) || !slices.Equal(h, back.Hashes()) {
		t.Errorf("%v, %v", h, back.Hashes())
	}
	other := &KVCall{Tenant: UUID{1}, Ops: forth.Ops}
	if slices.Equal(forth.Hashes(), other.Hashes()) {
		t.Error("two tenants lock the same")
	}
	read := &KVCall{Ops: []KVOp{kvOp(KVGet, "a"), expecting(kvOp(KVCheck, "c"), 1)}}
	if read.Keys() != nil {
		t.Errorf("a call that reads locks %v", read.Keys())
	}
	if read.Locked = true; len(read.Keys()) != 1 {
		t.Errorf("a guard in a transaction locks %v", read.Keys())
	}
}

func TestKVRange_PrefixEnds(t *testing.T) {
	t.Parallel()
	const top = "\U0010ffff"
	for prefix, want := range map[string]string{
		"a": "b", "a" + top: "b", "\uD7FF": "\uE000", "é": "ê", "\x7f": "\u0080", "\uffff": "\U00010000", "b\x01": "b\x02",
	} {
		if got := prefixEnd(prefix); got != want {
			t.Errorf("%q ends at %q, want %q", prefix, got, want)
		}
	}
	if got := prefixEnd(top + top); got <= strings.Repeat(top, 128) {
		t.Errorf("%d bytes: a key may lie above", len(got))
	}
	c := &KVCall{Ops: []KVOp{{Verb: KVGetPrefix, Prefix: "p", After: "p7", Limit: 3}, {Verb: KVGetPrefix, Prefix: "p", After: "a", Limit: 3}}}
	if r := c.Range(0); r.First != "p7\x01" || r.Limit != 4 {
		t.Errorf("%+v", r)
	}
	if r := c.Range(1); r.First != "p" {
		t.Errorf("%+v", r)
	}
}

func TestLockSlot(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{"n#0": 0, "n#1023": 1023, "n#1024": -1, "n#07": -1, "n#+7": -1, "n#-1": -1, "n#x": -1, "n#": -1, "m#1": -1, "nn#1": -1} {
		slot, ok := LockSlot("n", key)
		if ok != (want >= 0) || ok && slot != want {
			t.Errorf("%s: %d %v", key, slot, ok)
		}
	}
}
