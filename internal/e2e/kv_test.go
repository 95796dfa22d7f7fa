package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fast lifts the rates, for tests that send more calls than a tenant may.
var fast = []string{"QUEEN_KV_WRITE_RATE=0", "QUEEN_KV_READ_RATE=0"}

func wantKV(t *testing.T, r KVResult, want string) {
	t.Helper()
	if got := r.String(); got != want {
		t.Errorf("%s %s: %s, want %s", r.Op, r.Key, got, want)
	}
}

func TestKV_K1_PutGetDelete(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	put := b.KV1(`{"op":"put","ns":"n","key":"k","value":{"a":1},"ttlSeconds":60}`)
	if !put.OK() || put.Version <= 0 {
		t.Fatalf("%+v", put)
	}
	get := b.KV1(`{"op":"get","ns":"n","key":"k"}`)
	wantKV(t, get, `{"a":1}`)
	expires, err := time.Parse("2006-01-02T15:04:05.000000Z", *get.ExpiresAt)
	if updated, err2 := time.Parse("2006-01-02T15:04:05.000000Z", get.UpdatedAt); err != nil || err2 != nil || expires.Sub(updated) != time.Minute {
		t.Errorf("from %s to %s", get.UpdatedAt, *get.ExpiresAt)
	}
	if get.Version != put.Version {
		t.Errorf("version %d, put as %d", get.Version, put.Version)
	}
	wantKV(t, b.KV1(`{"op":"delete","ns":"n","key":"k"}`), "null")
	wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"k"}`), "absent")
	wantKV(t, b.KV1(`{"op":"delete","ns":"n","key":"k"}`), "absent null")
	if answer := b.Must(200, "POST", "/api/v1/kv", `{"operations":[]}`); string(answer) != `{"results":[]}` {
		t.Errorf("no operations: %s", answer)
	}
}

func TestKV_K2_NullIsAValue(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.KV1(`{"op":"put","ns":"n","key":"k","value":null,"forever":true}`)
	get := b.KV1(`{"op":"get","ns":"n","key":"k"}`)
	if wantKV(t, get, "null"); get.ExpiresAt != nil {
		t.Errorf("expires at %s", *get.ExpiresAt)
	}
	if e := b.KVRefused(400, "POST", "/api/v1/kv", `[{"op":"put","ns":"n","key":"k","forever":true}]`); e.Error != "kv_bad_request" || e.Reason != "kv_bad_request" {
		t.Errorf("%+v", e)
	}
}

func TestKV_K3K5K6_Conditions(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	first := b.KV1(`{"op":"putIfAbsent","ns":"n","key":"k","value":1,"forever":true}`)
	second := b.KV1(`{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true}`)
	if wantKV(t, second, "exists 1"); second.Version != first.Version {
		t.Errorf("version %d, want %d", second.Version, first.Version)
	}
	wantKV(t, b.KV1(`{"op":"put","ns":"n","key":"none","value":1,"forever":true,"expect":5}`), "absent null")
	wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"none"}`), "absent")
	third := b.KV1(`{"op":"put","ns":"n","key":"k","value":3,"forever":true,"expect":%d}`, first.Version)
	wantKV(t, third, "3")
	lost := b.KV1(`{"op":"put","ns":"n","key":"k","value":4,"forever":true,"expect":%d}`, first.Version)
	if wantKV(t, lost, "version 3"); lost.Version != third.Version {
		t.Errorf("version %d, want %d", lost.Version, third.Version)
	}
	wantKV(t, b.KV1(`{"op":"delete","ns":"n","key":"k","expect":0}`), "version 3")
	wantKV(t, b.KV1(`{"op":"delete","ns":"n","key":"k","expect":%d}`, first.Version), "version 3")
	wantKV(t, b.KV1(`{"op":"delete","ns":"n","key":"k","expect":%d}`, third.Version), "null")
}

func TestKV_K7K8K10_ExpiredIsAbsent(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: fast}).One()
	b.KV(
		`{"op":"put","ns":"n","key":"a","value":{"x":1},"ttlSeconds":3600}`,
		`{"op":"put","ns":"n","key":"b","value":9,"ttlSeconds":1}`,
		`{"op":"put","ns":"n","key":"c","value":9,"ttlSeconds":1}`,
		`{"op":"put","ns":"n","key":"d","value":9,"ttlSeconds":1}`,
	)
	b.KV1(`{"op":"put","ns":"n","key":"a","value":{"x":2},"ttlSeconds":1}`) // not an hour any more
	time.Sleep(1200 * time.Millisecond)
	r := b.KV(
		`{"op":"get","ns":"n","key":"a"}`, `{"op":"getMany","ns":"n","keys":["c","b","c"]}`,
		`{"op":"getPrefix","ns":"n","prefix":"a"}`, `{"op":"check","ns":"n","key":"a","expect":0}`,
	)
	wantKV(t, r[0], "absent")
	if len(r[1].Rows) != 0 || strings.Join(r[1].Missing, " ") != "b c" || len(r[2].Rows) != 0 {
		t.Errorf("%+v %+v", r[1], r[2])
	}
	if !r[3].OK() {
		t.Errorf("check: %+v", r[3])
	}
	wantKV(t, b.KV1(`{"op":"put","ns":"n","key":"a","value":3,"forever":true,"expect":0}`), "3")
	wantKV(t, b.KV1(`{"op":"incr","ns":"n","key":"b","delta":2,"forever":true}`), "2")
	wantKV(t, b.KV1(`{"op":"delete","ns":"n","key":"c"}`), "absent null")
	var ns struct {
		Namespaces []struct {
			Namespace string
			Keys      int
		}
	}
	b.MustInto(&ns, 200, "GET", "/api/v1/resources/kv/namespaces", nil)
	if len(ns.Namespaces) != 1 || ns.Namespaces[0].Namespace != "n" || ns.Namespaces[0].Keys != 3 {
		t.Errorf("%+v: c was to be removed, d to be counted", ns)
	}
	var list struct {
		Rows  []KVRow
		Bytes int
	}
	b.MustInto(&list, 200, "POST", "/api/v1/resources/kv/list", `{"namespace":"n","includeExpired":true}`)
	if len(list.Rows) != 3 || list.Rows[0].Expired || !list.Rows[2].Expired || list.Bytes != 3 {
		t.Errorf("%+v", list)
	}
	list.Rows = nil
	if b.MustInto(&list, 200, "POST", "/api/v1/resources/kv/list", `{"namespace":"n"}`); len(list.Rows) != 2 {
		t.Errorf("%+v", list)
	}
}

func TestKV_K9_EveryWriteSaysHowLong(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for expiry, want := range map[string]string{
		`"x":1`: "kv_expiry_not_specified", `"ttlSeconds":5,"forever":true`: "kv_expiry_not_specified",
		`"forever":false`: "kv_expiry_not_specified", `"ttlSeconds":0`: "kv_bad_ttl", `"ttlSeconds":-1`: "kv_bad_ttl",
		`"ttlSeconds":1.5`: "kv_bad_ttl", `"ttlSeconds":null`: "kv_bad_ttl", `"ttlSeconds":"5"`: "kv_bad_ttl",
		`"ttlSeconds":1e30`: "kv_bad_ttl",
	} {
		for _, op := range []string{`"put","value":1`, `"putIfAbsent","value":1`, `"incr","delta":1`} {
			if e := b.KVRefused(400, "POST", "/api/v1/kv", `[{"ns":"n","key":"k",`+expiry+`,"op":`+op+`}]`); e.Reason != want || e.Error != "kv_bad_request" {
				t.Errorf("%s %s: %+v", op, expiry, e)
			}
		}
	}
	for _, ttl := range []string{"30.0", "3e1", "9223372036854775807"} {
		wantKV(t, b.KV1(`{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":%s}`, ttl), "1")
	}
}

func TestKV_K11K12K13_Counters(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	incr := func(key, rest string) KVResult {
		return b.KV1(`{"op":"incr","ns":"n","key":%q,"ttlSeconds":2,%s}`, key, rest)
	}
	wantKV(t, incr("over", `"delta":10,"max":5`), "limit 0")
	wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"over"}`), "absent")
	for _, want := range []string{"1", "2", "limit 2"} {
		wantKV(t, incr("m", `"delta":1,"max":2`), want)
	}
	wantKV(t, incr("m", `"delta":-3,"min":0`), "limit 2")
	b.KV1(`{"op":"put","ns":"n","key":"o","value":{"a":1},"ttlSeconds":1}`)
	wantKV(t, incr("o", `"delta":1`), "type 0")
	end := time.Now().Add(3 * time.Second)
	last, restarts := int64(0), 0
	for i := 0; time.Now().Before(end); i++ {
		n, _ := strconv.ParseInt(incr("w", `"delta":1`).String(), 10, 64)
		if n == 1 && i > 0 {
			restarts++
		} else if n != last+1 {
			t.Fatalf("%d after %d", n, last)
		}
		last = n
		time.Sleep(150 * time.Millisecond)
	}
	if restarts != 1 {
		t.Errorf("%d restarts: a live counter has to keep its end", restarts)
	}
	wantKV(t, incr("o", `"delta":1`), "1")
}

func TestKV_K14_CountingIsExact(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	var last KVResult
	for range 10 {
		last = b.KV1(`{"op":"incr","ns":"n","key":"k","delta":0.1,"forever":true}`)
	}
	wantKV(t, last, "1")
	b.KV1(`{"op":"put","ns":"n","key":"k","value":9223372036854775807,"forever":true}`)
	wantKV(t, b.KV1(`{"op":"incr","ns":"n","key":"k","delta":1,"forever":true}`), "9223372036854775808")
	wantKV(t, b.KV1(`{"op":"incr","ns":"n","key":"k","delta":-1e20,"min":0,"forever":true}`), "limit 9223372036854775808")
}

func TestKV_K17_OneBadOperationStopsTheCall(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	e := b.KVRefused(400, "POST", "/api/v1/kv", `{"operations":[{"op":"put","ns":"n","key":"a","value":1,"forever":true},{"op":"put","ns":"N!","key":"b","value":1,"forever":true}]}`)
	if e.Reason != "kv_bad_namespace" || !strings.Contains(e.Detail, "operations[1]") {
		t.Errorf("%+v", e)
	}
	wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"a"}`), "absent")
}

func TestKV_K18K19_OrderWithinACall(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	e := b.KVRefused(400, "POST", "/api/v1/kv", `[{"op":"put","ns":"n","key":"a","value":1,"forever":true},{"op":"delete","ns":"n","key":"a"}]`)
	if e.Reason != "kv_duplicate_key_in_call" {
		t.Errorf("%+v", e)
	}
	r := b.KV(
		`{"op":"getMany","ns":"n","keys":["z","a","x"]}`, `{"op":"get","ns":"n","key":"z"}`,
		`{"op":"put","ns":"n","key":"z","value":26,"forever":true}`, `{"op":"get","ns":"n","key":"z"}`,
		`{"op":"put","ns":"n","key":"a","value":1,"forever":true}`, `{"op":"getPrefix","ns":"n","prefix":"z"}`,
	)
	wantKV(t, r[1], "absent")
	wantKV(t, r[3], "26")
	if len(r[0].Rows) != 2 || r[0].Rows[0].Key != "a" || r[0].Rows[1].Version != r[2].Version || r[0].Missing[0] != "x" {
		t.Errorf("%+v", r[0])
	}
	if len(r[5].Rows) != 1 || string(r[5].Rows[0].Value) != "26" {
		t.Errorf("%+v", r[5])
	}
	if r[4].Version >= r[2].Version {
		t.Errorf("a is applied first: %d, %d", r[4].Version, r[2].Version)
	}
}

type kvLoss struct {
	OK          *bool
	Reason      string
	FailedIndex int
	KVReason    string `json:"kvReason"`
	Version     int64
	Value       json.RawMessage
	Results     json.RawMessage
}

func TestKV_K20K21_RequiredLoserRollsBack(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	held := b.KV(`{"op":"put","ns":"n","key":"b","value":"b","forever":true}`, `{"op":"put","ns":"n","key":"c","value":"c","forever":true}`)
	var loss kvLoss
	b.MustInto(&loss, 200, "POST", "/api/v1/kv", `[
		{"op":"put","ns":"n","key":"a","value":1,"forever":true},
		{"op":"putIfAbsent","ns":"n","key":"c","value":1,"forever":true,"required":true},
		{"op":"putIfAbsent","ns":"n","key":"b","value":1,"forever":true,"required":true}]`)
	if loss.OK == nil || *loss.OK || loss.Reason != "kv_precondition" || loss.FailedIndex != 2 || loss.KVReason != "exists" ||
		loss.Version != held[0].Version || string(loss.Value) != `"b"` || loss.Results != nil {
		t.Errorf("%+v", loss)
	}
	wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"a"}`), "absent")
	b.MustInto(&loss, 200, "PUT", "/api/v1/kv/n/b", fmt.Sprintf(`{"value":1,"forever":true,"expect":%d,"required":true}`, held[1].Version))
	if loss.KVReason != "version" || loss.FailedIndex != 0 {
		t.Errorf("%+v", loss)
	}
	b.MustInto(&loss, 200, "DELETE", "/api/v1/kv/n/none", `{"required":true}`)
	if loss.KVReason != "absent" || loss.Version != 0 || string(loss.Value) != "null" {
		t.Errorf("%+v", loss)
	}
	// The connections are whole.
	for range 20 {
		wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"b"}`), `"b"`)
	}
}

func TestKV_K22_PagesByPrefix(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	var puts []string
	for _, k := range []string{"p1", "p2", "p3", "p4", "p5", "a_1", "ab1", "a%1", "q\U0010ffff", "q\U0010ffffx", "q\ud7ffx"} {
		puts = append(puts, fmt.Sprintf(`{"op":"put","ns":"n","key":"%s","value":0,"forever":true}`, k))
	}
	b.KV(puts...)
	var pages []string
	for after := ""; ; {
		r := b.KV1(`{"op":"getPrefix","ns":"n","prefix":"p","limit":2,"after":%q}`, after)
		var keys []string
		for _, row := range r.Rows {
			keys = append(keys, row.Key)
		}
		pages = append(pages, strings.Join(keys, "+"))
		if !r.Truncated {
			break
		}
		after = r.NextAfter
	}
	if got := strings.Join(pages, " "); got != "p1+p2 p3+p4 p5" {
		t.Errorf("pages %s", got)
	}
	for prefix, want := range map[string]int{"a_": 1, "a%": 1, "a": 3, "p": 5, "q\U0010ffff": 2, "\U0010ffff": 0, "q\ud7ff": 1} {
		if r := b.KV1(`{"op":"getPrefix","ns":"n","prefix":"%s","limit":900,"keysOnly":true}`, prefix); len(r.Rows) != want || r.Truncated {
			t.Errorf("%q: %+v", prefix, r)
		}
	}
	if r := b.KV1(`{"op":"getPrefix","ns":"n","prefix":"p","limit":0}`); len(r.Rows) != 1 {
		t.Errorf("limit 0: %+v", r)
	}
	if r := b.KV1(`{"op":"getPrefix","ns":"n","prefix":"p","limit":5000}`); len(r.Rows) != 5 {
		t.Errorf("limit 5000: %+v", r)
	}
	if e := b.KVRefused(400, "POST", "/api/v1/kv", `[{"op":"getPrefix","ns":"n","prefix":""}]`); e.Reason != "kv_prefix_required" {
		t.Errorf("%+v", e)
	}
}

func TestKV_K23_BytesOfARead(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: fast}).One()
	value := strconv.Quote(strings.Repeat("v", 65534))
	keys := make([]string, 100)
	for i := range keys {
		key := fmt.Sprintf("k%03d", i)
		keys[i] = strconv.Quote(key)
		b.KV1(`{"op":"put","ns":"n","key":%q,"value":%s,"forever":true}`, key, value)
	}
	r := b.KV(`{"op":"getPrefix","ns":"n","prefix":"k","limit":100}`)[0]
	if !r.Truncated || len(r.Rows) != 64 || r.NextAfter != "k063" {
		t.Errorf("%d rows, truncated %v, next %q", len(r.Rows), r.Truncated, r.NextAfter)
	}
	if r = b.KV1(`{"op":"getPrefix","ns":"n","prefix":"k","limit":100,"after":"k063"}`); r.Truncated || len(r.Rows) != 36 {
		t.Errorf("%d rows, truncated %v", len(r.Rows), r.Truncated)
	}
	if r = b.KV1(`{"op":"getPrefix","ns":"n","prefix":"k","limit":100,"keysOnly":true}`); r.Truncated || len(r.Rows) != 100 || r.Rows[0].Value != nil {
		t.Errorf("%d rows, truncated %v", len(r.Rows), r.Truncated)
	}
	if r = b.KV1(`{"op":"getMany","ns":"n","keys":["x",%s]}`, strings.Join(keys, ",")); !r.Truncated || len(r.Rows) != 64 || len(r.Missing) != 1 {
		t.Errorf("%d rows, truncated %v, missing %v", len(r.Rows), r.Truncated, r.Missing)
	}
}

func TestKV_K28K29_ValuesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	full := strconv.Quote(strings.Repeat("v", 65534))
	wantKV(t, b.KV1(`{"op":"put","ns":"n","key":"k","value":   %s  ,"forever":true}`, full), full)
	e := b.KVRefused(413, "POST", "/api/v1/kv", `[{"op":"put","ns":"n","key":"k","value":"v`+full[1:]+`,"forever":true}]`)
	if e.Error != "payload_too_large" || e.Reason != "kv_value_too_large" {
		t.Errorf("%+v", e)
	}
	deep := strings.Repeat("[", 512) + strings.Repeat("]", 512)
	for sent, want := range map[string]string{
		`"a\u0000b"`: `"a\u0000b"`, `{"a":1, "a":2}`: `{"a":1,"a":2}`, `1e400`: `1e400`, `[1.10, -0]`: `[1.10,-0]`,
		`9007199254740993`: `9007199254740993`, `"\ud800 <é\u00e9>"`: `"\ud800 <é\u00e9>"`, deep: deep,
	} {
		wantKV(t, b.KV1(`{"op":"put","ns":"n","key":"v","value":%s,"forever":true}`, sent), want)
		if answer := b.Must(200, "GET", "/api/v1/kv/n/v", nil); !strings.Contains(string(answer), `"value":`+want+`,"version"`) {
			t.Errorf("%s: %s", sent, answer)
		}
	}
	if e := b.KVRefused(400, "POST", "/api/v1/kv", `[{"op":"put","ns":"n","key":"v","value":[`+deep+`],"forever":true}]`); e.Error != "kv_bad_request" {
		t.Errorf("%+v", e)
	}
}

func TestKV_K30_Check(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	put := b.KV1(`{"op":"put","ns":"n","key":"k","value":"v","forever":true}`)
	answer := b.Must(200, "POST", "/api/v1/kv", fmt.Sprintf(`[{"op":"check","ns":"n","key":"k","expect":%d},{"op":"check","ns":"n","key":"none","expect":0}]`, put.Version))
	want := fmt.Sprintf(`{"results":[{"index":0,"op":"check","applied":true,"key":"k","version":%d},{"index":1,"op":"check","applied":true,"key":"none","version":0}]}`, put.Version)
	if string(answer) != want {
		t.Errorf("%s, want %s", answer, want)
	}
	wantKV(t, b.KV1(`{"op":"check","ns":"n","key":"k","expect":0}`), `exists "v"`)
	wantKV(t, b.KV1(`{"op":"check","ns":"n","key":"k","expect":%d}`, put.Version+1), `version "v"`)
	if e := b.KVRefused(400, "POST", "/api/v1/kv", `[{"op":"check","ns":"n","key":"k"}]`); e.Reason != "kv_bad_expect" {
		t.Errorf("%+v", e)
	}
	var loss kvLoss
	b.MustInto(&loss, 200, "POST", "/api/v1/kv", `[{"op":"put","ns":"n","key":"a","value":1,"forever":true},{"op":"check","ns":"n","key":"k","expect":999999,"required":true}]`)
	if loss.FailedIndex != 1 || loss.KVReason != "version" {
		t.Errorf("%+v", loss)
	}
	wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"a"}`), "absent")
}

func TestKV_K31_TurnedOff(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b, other := f.Brokers[0], f.Brokers[1]
	b.KV1(`{"op":"put","ns":"n","key":"k","value":1,"forever":true}`)
	other.KV1(`{"op":"get","ns":"n","key":"k"}`)
	answer := b.Must(200, "POST", "/api/v1/system/kv-timers", `{"kv":false}`)
	if want := `{"kvEnabled":false,"timersScheduleEnabled":true,"timersFireEnabled":true,"quotaTenants":0,"quotaAgeMs":0,"quotaHot":0,"mirrored":true}`; string(answer) != want {
		t.Errorf("%s", answer)
	}
	time.Sleep(2 * time.Second)
	for _, b := range f.Brokers {
		for _, c := range [][3]string{
			{"POST", "/api/v1/kv", `[{"op":"get","ns":"n","key":"k"}]`},
			{"GET", "/api/v1/kv/n/k"},
			{"PUT", "/api/v1/kv/n/k", `{"value":2,"forever":true}`},
			{"DELETE", "/api/v1/kv/n/k"},
			{"POST", "/api/v1/locks", `[{"op":"get","name":"x"}]`},
			{"GET", "/api/v1/resources/kv/namespaces"},
			{"POST", "/api/v1/resources/kv/list", `{"namespace":"n"}`},
		} {
			status, header, body := b.Do(c[0], c[1], c[2])
			var e StateError
			if err := json.Unmarshal(body, &e); err != nil || status != http.StatusServiceUnavailable || e.Error != "kv_disabled" ||
				e.Reason != "kv_disabled" || header.Get("Retry-After") != "1" {
				t.Errorf("%s %s: %d %v %s", c[0], c[1], status, header, body)
			}
		}
	}
	other.Must(200, "POST", "/api/v1/system/kv-timers", `{"kv":true,"timersFire":false}`)
	wantKV(t, other.KV1(`{"op":"get","ns":"n","key":"k"}`), "1")
	// About a second, and a little more while somebody else looks.
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		status, _, _ := b.Do("GET", "/api/v1/kv/n/k", nil)
		if status == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the other broker does not hear of it")
		}
	}
	wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"k"}`), "1")
	if answer := b.Must(200, "GET", "/api/v1/system/kv-timers", nil); !strings.Contains(string(answer), `"kvEnabled":true,"timersScheduleEnabled":true,"timersFireEnabled":false`) {
		t.Errorf("%s", answer)
	}
	b.Must(400, "POST", "/api/v1/system/kv-timers", `{}`)
}

func TestKV_K32_Rates(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: []string{"QUEEN_KV_WRITE_RATE=1", "QUEEN_KV_READ_RATE=1"}}).One()
	// Two of each: a call that reads and writes is a writing one.
	mixed := `[{"op":"get","ns":"n","key":"k"},{"op":"put","ns":"n","key":"k","value":1,"forever":true}]`
	b.Must(200, "POST", "/api/v1/kv", mixed)
	b.Must(200, "POST", "/api/v1/locks", `[{"op":"get","name":"x"}]`)
	status, header, body := b.Do("POST", "/api/v1/kv", mixed)
	if status != http.StatusTooManyRequests || header.Get("Retry-After") != "1" || !strings.Contains(string(body), `"error":"rate_limited"`) {
		t.Errorf("%d %v %s", status, header, body)
	}
	b.Must(200, "GET", "/api/v1/kv/n/k", nil)
	b.Must(200, "POST", "/api/v1/kv", `[{"op":"check","ns":"n","key":"k","expect":0}]`)
	b.Must(429, "GET", "/api/v1/kv/n/k", nil)
	time.Sleep(1100 * time.Millisecond)
	b.Must(200, "GET", "/api/v1/kv/n/k", nil)
}

func TestKV_K34K35_LimitsOfACall(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	ops := make([]string, 257)
	for i := range ops {
		ops[i] = fmt.Sprintf(`{"op":"put","ns":"n","key":"k%d","value":%d,"forever":true}`, i, i)
	}
	b.KV(ops[:256]...)
	refused := func(want string, ops ...string) {
		t.Helper()
		if e := b.KVRefused(400, "POST", "/api/v1/kv", "["+strings.Join(ops, ",")+"]"); e.Reason != want {
			t.Errorf("%+v, want %s", e, want)
		}
	}
	refused("kv_too_many_ops", ops...)
	page := `{"op":"getPrefix","ns":"n","prefix":"k","keysOnly":true,"limit":5000}`
	many := `{"op":"getMany","ns":"n","keys":[` + strings.TrimSuffix(strings.Repeat(`"k1",`, 24), ",") + `]}`
	b.KV(page, many)
	refused("kv_too_many_keys", page, many, `{"op":"get","ns":"n","key":"k"}`)
	r := b.KV(`{"op":"putIfAbsent","ns":"n","key":"k1","value":0,"forever":true}`, `{"op":"get","ns":"n","key":"k1"}`)
	wantKV(t, r[0], "exists 1")
	wantKV(t, r[1], "1")
}
