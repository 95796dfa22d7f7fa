package e2e

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestKV_C3C4C8_ForTheConsole(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Env: fast})
	b := f.One()
	value := strconv.Quote(strings.Repeat("v", 65534))
	for i := range 70 {
		b.KV1(`{"op":"put","ns":"big","key":"k_%02d","value":%s,"forever":true}`, i, value)
	}
	type page struct {
		Rows      []KVRow
		Truncated bool
		NextAfter *string
		Bytes     int
	}
	list := func(body string) (p page) {
		t.Helper()
		b.MustInto(&p, 200, "POST", "/api/v1/resources/kv/list", body)
		return p
	}
	if p := list(`{"namespace":"big"}`); len(p.Rows) != 64 || !p.Truncated || p.NextAfter == nil || *p.NextAfter != "k_63" || p.Bytes != 64*65536 {
		t.Errorf("%d rows, %v, %v, %d bytes", len(p.Rows), p.Truncated, p.NextAfter, p.Bytes)
	}
	if p := list(`{"namespace":"big","after":"k_63"}`); len(p.Rows) != 6 || p.Truncated || p.NextAfter != nil {
		t.Errorf("%d rows, %v, %v", len(p.Rows), p.Truncated, p.NextAfter)
	}
	if p := list(`{"namespace":"big","keysOnly":true,"limit":5000}`); len(p.Rows) != 70 || p.Bytes != 0 || p.Rows[0].Value != nil {
		t.Errorf("%d rows, %d bytes", len(p.Rows), p.Bytes)
	}
	for body, want := range map[string]int{
		`{"namespace":"big","prefix":"k_6","keysOnly":true}`: 10, `{"namespace":"big","prefix":"k%","keysOnly":true}`: 0,
		`{"namespace":"big","prefix":"__","keysOnly":true}`: 0, `{"namespace":"none"}`: 0,
	} {
		if p := list(body); len(p.Rows) != want || p.Rows == nil {
			t.Errorf("%s: %d rows, want %d", body, len(p.Rows), want)
		}
	}
	for body, want := range map[string]string{
		`{}`: "kv_bad_namespace", `{"namespace":"N"}`: "kv_bad_namespace", `7`: "kv_bad_body",
		`{"namespace":"n","limit":"x"}`: "kv_bad_request", `{"namespace":"n","includeExpired":1}`: "kv_bad_request",
	} {
		if e := b.KVRefused(400, "POST", "/api/v1/resources/kv/list", body); e.Reason != want {
			t.Errorf("%s: %+v, want %s", body, e, want)
		}
	}
	b.Must(200, "POST", "/api/v1/system/kv-timers", `{"kv":false}`)
	b.Stop()
	again := f.start([]string{"DATABASE_URL=" + f.DB.URL, "DB_POOL_SIZE=8"})
	if e := again.KVRefused(503, "GET", "/api/v1/kv/big/k_00", ""); e.Error != "kv_disabled" {
		t.Errorf("a restart turned the store on: %+v", e)
	}
}

// What a prune removes nobody misses, and what was written again it leaves.
func TestKV_ExpiredRowsAreRemoved(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	b := f.One()
	b.KV1(`{"op":"put","ns":"n","key":"a","value":1,"ttlSeconds":1}`)
	b.KV1(`{"op":"put","ns":"n","key":"b","value":1,"forever":true}`)
	pool := f.DB.Pool(t)
	for end := time.Now().Add(40 * time.Second); ; time.Sleep(250 * time.Millisecond) {
		var keys int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM queen.kv").Scan(&keys); err != nil {
			t.Fatal(err)
		}
		if keys == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("still there")
		}
	}
	wantKV(t, b.KV1(`{"op":"get","ns":"n","key":"b"}`), "1")
}

// A database that does not answer is our trouble: 503, and no verdict.
func TestKV_TroubleIsA503(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Env: append([]string{"QUEEN_STMT_TIMEOUT_MS=1500"}, fast...)})
	b := f.One()
	b.KV1(`{"op":"put","ns":"n","key":"k","value":1,"forever":true}`)
	tx, err := f.DB.Pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE queen.kv"); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{
		{"GET", "/api/v1/kv/n/k", ""},
		{"PUT", "/api/v1/kv/n/k", `{"value":2,"forever":true}`},
		{"POST", "/api/v1/locks", `[{"op":"acquire","name":"l","ttlSeconds":60}]`},
	} {
		status, header, body := b.Do(c[0], c[1], c[2])
		var e StateError
		if err := json.Unmarshal(body, &e); err != nil || status != 503 || e.Error != "kv_unavailable" || e.Reason != "kv_timeout" || header.Get("Retry-After") != "1" {
			t.Errorf("%s %s: %d %v %s", c[0], c[1], status, header, body)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantKV(t, b.KV1(`{"op":"incr","ns":"n","key":"k","delta":1,"forever":true}`), "2")
}
