package httpapi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func kvServer() *server { return &server{o: Options{KV: mq.DefaultKVLimits}} }

func TestDecodeKVOps_Refusals(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{`[7]`, "kv_bad_request"},
		{`[{}]`, "kv_unknown_op"},
		{`[{"op":"Get","ns":"n","key":"k"}]`, "kv_unknown_op"},
		{`[{"op":"get","ns":"n","key":"k","_tenant":1}]`, "kv_tenant_not_an_input"},
		{`[{"op":"get","key":"k"}]`, "kv_bad_namespace"},
		{`[{"op":"get","ns":"-n","key":"k"}]`, "kv_bad_namespace"},
		{`[{"op":"get","ns":"` + strings.Repeat("n", 65) + `","key":"k"}]`, "kv_bad_namespace"},
		{`[{"op":"get","ns":["n"],"key":"k"}]`, "kv_bad_namespace"},
		{`[{"op":"get","ns":"n"}]`, "kv_bad_key"},
		{`[{"op":"get","ns":"n","key":null}]`, "kv_bad_key"},
		{`[{"op":"get","ns":"n","key":"a\u0000"}]`, "kv_bad_key"},
		{`[{"op":"get","ns":"n","key":"\ud800"}]`, "kv_bad_key"},
		{`[{"op":"get","ns":"n","key":{}}]`, "kv_bad_key"},
		{`[{"op":"get","ns":"n","key":"` + strings.Repeat("k", 513) + `"}]`, "kv_key_too_large"},
		{`[{"op":"get","ns":"n","key":"k","key":"k"}]`, "kv_bad_request"},
		{`[{"op":"getMany","ns":"n","keys":"k"}]`, "kv_bad_request"},
		{`[{"op":"getMany","ns":"n","keys":null}]`, "kv_bad_request"},
		{`[{"op":"getMany","ns":"n","keys":["k",""]}]`, "kv_bad_key"},
		{`[{"op":"getMany","ns":"n","keys":["k",[]]}]`, "kv_bad_key"},
		{`[{"op":"getPrefix","ns":"n"}]`, "kv_prefix_required"},
		{`[{"op":"getPrefix","ns":"n","prefix":"p","limit":1.5}]`, "kv_bad_request"},
		{`[{"op":"getPrefix","ns":"n","prefix":"p","keysOnly":null}]`, "kv_bad_request"},
		{`[{"op":"getPrefix","ns":"n","prefix":"p","after":[]}]`, "kv_bad_request"},
		{`[{"op":"put","ns":"n","key":"k","forever":true}]`, "kv_bad_request"},
		{`[{"op":"put","ns":"n","key":"k","value":1,"forever":true,"required":"yes"}]`, "kv_bad_request"},
		{`[{"op":"put","ns":"n","key":"k","value":1,"forever":true,"expect":-1}]`, "kv_bad_expect"},
		{`[{"op":"put","ns":"n","key":"k","value":1,"forever":true,"expect":null}]`, "kv_bad_expect"},
		{`[{"op":"put","ns":"n","key":"k","value":1,"forever":true,"expect":1.5}]`, "kv_bad_expect"},
		{`[{"op":"putIfAbsent","ns":"n","key":"k","value":1,"forever":true,"expect":1}]`, "kv_bad_expect"},
		{`[{"op":"incr","ns":"n","key":"k","delta":1,"forever":true,"expect":1}]`, "kv_bad_request"},
		{`[{"op":"incr","ns":"n","key":"k","forever":true}]`, "kv_bad_request"},
		{`[{"op":"incr","ns":"n","key":"k","delta":"1","forever":true}]`, "kv_bad_request"},
		{`[{"op":"incr","ns":"n","key":"k","delta":1,"min":null,"forever":true}]`, "kv_bad_request"},
		{`[{"op":"incr","ns":"n","key":"k","delta":1e999999999,"forever":true}]`, "kv_bad_request"},
		{`[{"op":"incr","ns":"n","key":"k","delta":1}]`, "kv_expiry_not_specified"},
		{`[{"op":"check","ns":"n","key":"k"}]`, "kv_bad_expect"},
		{`[{"op":"delete","ns":"n","key":"k"},{"op":"delete","ns":"n","key":"k"}]`, "kv_duplicate_key_in_call"},
		{`[{"op":"get","ns":"n","key":"k"}`, "bad_body"},
		{`{}`, "bad_body"},
		{"[{\"op\":\"get\",\"ns\":\"n\",\"key\":\"\xff\"}]", "bad_body"},
	} {
		_, err := kvServer().decodeKVOps([]byte(c[0]), false)
		if ref := refusalOf(err); err == nil || ref.code != c[1] || ref.status >= 500 {
			t.Errorf("%.90s: %v (%s), want %s", c[0], err, ref.code, c[1])
		}
	}
}

func TestDecodeKVOps_Transaction(t *testing.T) {
	t.Parallel()
	get := `{"op":"get","ns":"n","key":"k"}`
	list := func(op string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(op+",", n), ",") + "]"
	}
	keys := func(n int) string {
		return `[{"op":"getMany","ns":"n","keys":` + list(`"k"`, n) + `}]`
	}
	for _, c := range [][2]string{
		{list(get, 64), ""},
		{list(get, 65), "kv_too_many_ops"},
		{keys(256), ""},
		{keys(257), "kv_too_many_keys"},
		{`[{"op":"getPrefix","ns":"n","prefix":"p"}]`, "kv_get_prefix_not_allowed_in_transaction"},
	} {
		_, err := kvServer().decodeKVOps([]byte(c[0]), true)
		if got := refusalOf(err).code; err == nil && c[1] != "" || err != nil && got != c[1] {
			t.Errorf("%.60s: %v, want %q", c[0], err, c[1])
		}
	}
}

func TestDecodeKVOps_Scalars(t *testing.T) {
	t.Parallel()
	ops, err := kvServer().decodeKVOps([]byte(`[{"op":"get","ns":7,"key":true},{"op":"getMany","ns":"n","keys":[1.50,"\u00e9"]},
		{"op":"getPrefix","ns":"n","prefix":"p","limit":null,"after":""},{"op":"put","ns":"n","key":"k","value": { "b" : 1.0 } ,"ttlSeconds":3e1,"expect":5.0}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	put := ops[3]
	if ops[0].Namespace != "7" || ops[0].Key != "true" || ops[1].Keys[0] != "1.50" || ops[1].Keys[1] != "é" || ops[2].Limit != 100 ||
		string(put.Value) != `{"b":1.0}` || put.TTL != 30 || !put.Conditional || put.Expect != 5 {
		t.Errorf("%+v", ops)
	}
}

func TestRefuseState(t *testing.T) {
	t.Parallel()
	of := func(kind mq.Kind, code string) error { return &mq.Error{Kind: kind, Code: code, Message: "m"} }
	for _, c := range []struct {
		family string
		err    error
		status int
		code   string
		reason string
	}{
		{"kv", mq.KVInvalid("kv_bad_ttl", "x"), 400, "kv_bad_request", "kv_bad_ttl"},
		{"locks", mq.KVInvalid("locks_bad_ttl", "x"), 400, "locks_bad_request", "locks_bad_ttl"},
		{"kv", badBody("", "x"), 400, "kv_bad_request", "kv_bad_body"},
		{"locks", badRequest("", "x"), 400, "locks_bad_request", "locks_bad_request"},
		{"kv", of(mq.KindTooLarge, "kv_value_too_large"), 413, "payload_too_large", "kv_value_too_large"},
		{"kv", tooLarge(1), 413, "payload_too_large", ""},
		{"kv", of(mq.KindOverloaded, "rate_limited"), 429, "rate_limited", ""},
		{"locks", of(mq.KindUnavailable, "kv_disabled"), 503, "kv_disabled", "kv_disabled"},
		{"locks", of(mq.KindUnavailable, "kv_pool_exhausted"), 503, "kv_unavailable", "kv_pool_exhausted"},
		{"kv", of(mq.KindUnavailable, mq.CodeRetry), 503, "kv_unavailable", "connection"},
		{"kv", of(mq.KindUnknown, mq.CodeOutcomeUnknown), 503, "kv_unavailable", "connection"},
		{"kv", of(mq.KindTimeout, mq.CodeTimeout), 503, "kv_unavailable", "kv_timeout"},
		{"locks", of(mq.KindBusy, mq.CodeRetry), 503, "kv_unavailable", "kv_timeout"},
		{"kv", errors.New("secret"), 500, "kv_error", ""},
	} {
		got := refuseState(c.family, c.err)
		if got.status != c.status || got.code != c.code || got.reason != c.reason || strings.Contains(got.message, "secret") {
			t.Errorf("%v: %d %s %q", c.err, got.status, got.code, got.reason)
		}
		if wait := got.retryAfter > 0; wait != (c.status == 429 || c.status == 503) {
			t.Errorf("%v: retry after %v", c.err, got.retryAfter)
		}
	}
}

func FuzzDecodeKVOps(f *testing.F) {
	for _, s := range []string{
		`[]`, `[{"op":"put","ns":"n","key":"k","value":` + opaquePayload + `,"ttlSeconds":30.0,"expect":0,"required":true}]`,
		`[{"op":"incr","ns":"n","key":"k","delta":-1.5e3,"min":0,"max":1e9,"forever":true},{"op":"getMany","ns":"n","keys":["a",7]}]`,
		`[{"op":"getPrefix","ns":"n","prefix":"p","limit":5000,"after":"p1","keysOnly":true},{"op":"check","ns":"n","key":"k","expect":9}]`,
		`[{"op":"get","ns":7,"key":true}]`, `[{"op":"delete","ns":"n","key":"\ud800"}]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		ops, err := kvServer().decodeKVOps(body, false)
		if string(body) != before {
			t.Fatal("the body was written to")
		}
		if err != nil {
			if ref := refusalOf(err); ref.status != 400 && ref.status != 413 {
				t.Fatalf("refused with %d: %v", ref.status, err)
			}
			return
		}
		checkAccepted(t, body)
		c := &mq.KVCall{Ops: ops}
		for i := range ops {
			o := &ops[i]
			if bad := o.Check(mq.DefaultKVLimits); bad != nil {
				t.Fatalf("accepted %+v: %v", o, bad)
			}
			if o.Value != nil && (!json.Valid(o.Value) || len(o.Value) > 65536) {
				t.Fatalf("value %q", o.Value)
			}
		}
		for range c.VersionsNeeded() {
			c.Versions = append(c.Versions, 1)
		}
		c.Evaluate()
		if c.Failed != nil {
			if out := appendKVFailure(nil, c.Failed); !json.Valid(out) {
				t.Fatalf("answer %s", out)
			}
			return
		}
		for i := range c.Results {
			if out := append(appendKVResult([]byte{'{'}, &c.Results[i]), '}'); !json.Valid(out) {
				t.Fatalf("answer %s", out)
			}
		}
	})
}

func FuzzDecodeLockOps(f *testing.F) {
	for _, s := range []string{
		`[{"op":"acquire","name":"l","ttlSeconds":30,"owner":"o","limit":3}]`, `[{"op":"renew","name":"l","token":5,"ttlSeconds":30,"slot":2}]`,
		`[{"op":"release","name":7,"token":1.0},{"op":"get","name":"m"}]`, `[{"op":"acquire","ttlSeconds":30,"forever":true}]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		ops, err := decodeLockOps(body)
		if err != nil {
			var bad *mq.Error
			if ref := refusalOf(err); ref.status != 400 || errors.As(err, &bad) && !strings.HasPrefix(bad.Code, "locks_") {
				t.Fatalf("refused with %d: %v", ref.status, err)
			}
			return
		}
		checkAccepted(t, body)
		for i := range ops {
			o := &ops[i]
			key := mq.LockAddress(o.Name, o.Slot).Key
			if slot, ok := mq.LockSlot(o.Name, key); !ok || slot != o.Slot || len(key) > mq.MaxKVKeyBytes {
				t.Fatalf("%+v has key %q", o, key)
			}
		}
	})
}
