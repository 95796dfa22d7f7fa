package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

func TestTimer_T14_ServerOwnedMembers(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, name := range []string{
		"_x", "_tenant", "producerSub", "producer_sub", "messageId", "message_id", "tenant", "tenantId", "tenant_id",
		"deliverAt", "deliver_at", "delaySeconds", "delay_seconds", "attempts", "claimToken", "claim_token", "claimedUntil",
	} {
		body := map[string]any{"operations": []op{schedule("q", "good", time.Hour, `1`), schedule("q", "bad", time.Hour, `1`, name, nil)}}
		b.wantTimerError(t, 400, "timers_bad_request", "timers_server_owned_field", "POST", "/api/v1/timers", body)
	}
	if b.peek("q", "good").Found {
		t.Error("part of a refused call was carried out")
	}
}

func TestTimer_T15_Limits(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	const day = 24 * time.Hour
	big := strings.Repeat("x", 1<<20)
	b.timers(schedule("q", "far", 90*day, `1`), schedule("q", "big", time.Hour, big))
	one := func(o op) map[string]any { return map[string]any{"operations": []op{o}} }
	b.wantTimerError(t, 403, "timer_horizon_exceeded", "timers_horizon", "POST", "/api/v1/timers", one(schedule("q", "k", 90*day+time.Millisecond, `1`)))
	b.wantTimerError(t, 403, "timer_horizon_exceeded", "timers_horizon", "POST", "/api/v1/timers", `[{"op":"schedule","queue":"q","timerKey":"k","txn":"t","payload":"","delayMs":1e300}]`)
	b.wantTimerError(t, 413, "payload_too_large", "timers_payload_too_large", "POST", "/api/v1/timers", one(schedule("q", "k", time.Hour, big+"x")))
	for _, bad := range []string{"*", "YQ", "YQ=", "Y Q==", "YQ==\n", "_-8="} {
		b.wantTimerError(t, 400, "timers_bad_request", "timers_payload_not_base64", "POST", "/api/v1/timers", one(schedule("q", "k", time.Hour, "", "payload", bad)))
	}
}

func TestTimer_T16_Malformed(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for body, reason := range map[string]string{
		`{`: "timers_bad_body", `7`: "timers_bad_body", `{}`: "timers_bad_body", `{"operations":{}}`: "timers_bad_body",
		`{"operations":null}`: "timers_bad_body", ``: "timers_bad_body", `[7]`: "timers_bad_op", `[{}]`: "timers_bad_op",
		`[{"op":"fire","queue":"q","timerKey":"k"}]`:                                                           "QTIMER",
		`[{"op":"cancel","timerKey":"k"}]`:                                                                     "timers_queue_required",
		`[{"op":"cancel","queue":"","timerKey":"k"}]`:                                                          "timers_queue_required",
		`[{"op":"cancel","queue":"q"}]`:                                                                        "QTIMER",
		`[{"op":"cancel","queue":"q","timerKey":7}]`:                                                           "QTIMER",
		`[{"op":"schedule","queue":"q","timerKey":"k","txn":"t","payload":""}]`:                                "timers_delay_required",
		`[{"op":"schedule","queue":"q","timerKey":"k","txn":"t","payload":"","delayMs":"5"}]`:                  "timers_delay_required",
		`[{"op":"schedule","queue":"q","timerKey":"k","txn":"t","delayMs":5}]`:                                 "timers_payload_required",
		`[{"op":"schedule","queue":"q","timerKey":"k","txn":"t","delayMs":5,"payload":{}}]`:                    "timers_payload_required",
		`[{"op":"schedule","queue":"q","timerKey":"k","delayMs":5,"payload":""}]`:                              "QTIMER",
		`[{"op":"schedule","queue":"q","txn":"t","delayMs":5,"payload":""}]`:                                   "QTIMER",
		`[{"op":"schedule","queue":"q","timerKey":"k","txn":"t","delayMs":5,"payload":"","partition":""}]`:     "QTIMER",
		`[{"op":"schedule","queue":"q","timerKey":"k","txn":"t","delayMs":5,"payload":"","payloadZstd":true}]`: "",
		`[{"op":"cancel","queue":"q","timerKey":"a"},{"op":"cancel","queue":"q","timerKey":"a"}]`:              "QTIMER",
		`[{"op":"cancel","queue":"q\u0001","timerKey":"a"}]`:                                                   "QTIMER",
		`[{"op":"cancel","queue":"q","timerKey":"a\u0000"}]`:                                                   "QTIMER",
	} {
		if reason == "" {
			b.Must(http.StatusOK, "POST", "/api/v1/timers", body) // nothing, packed or not, is nothing
			continue
		}
		b.wantTimerError(t, 400, "timers_bad_request", reason, "POST", "/api/v1/timers", body)
	}
	many := make([]op, 257)
	for i := range many {
		many[i] = cancel("q", fmt.Sprint(i))
	}
	b.wantTimerError(t, 400, "timers_bad_request", "timers_too_many_ops", "POST", "/api/v1/timers", map[string]any{"operations": many})
	b.timers(many[:256]...)
	for _, body := range []string{`[]`, `{"operations":[]}`} {
		if got := string(b.Must(200, "POST", "/api/v1/timers", body)); got != `{"results":[]}` {
			t.Errorf("%s: %s", body, got)
		}
	}
}

func TestTimer_Payloads(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	pack := func(s []byte) string {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(w.EncodeAll(s, nil))
	}
	b.timers(
		schedule("q", "json", 0, ` {"a": 1.50 }`), schedule("q", "bytes", 0, "\x00\xff"), schedule("q", "none", 0, ""),
		schedule("q", "deep", 0, strings.Repeat("[", 600)+strings.Repeat("]", 600)),
		schedule("q", "packed", 0, "", "payload", pack([]byte(`{"packed":true}`)), "payloadZstd", true),
	)
	want := map[string]string{
		"json": `{"a": 1.50 }`, "bytes": `{"_raw_b64":"AP8="}`, "none": `{"_raw_b64":""}`, "packed": `{"packed":true}`,
		"deep": `{"_raw_b64":"` + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("[", 600)+strings.Repeat("]", 600))) + `"}`,
	}
	for _, m := range b.popUntil("q", 5) {
		if got := strings.TrimSpace(string(m.Data)); got != want[strings.TrimPrefix(m.TransactionID, "txn-")] {
			t.Errorf("%s: %s", m.TransactionID, got)
		}
	}
	bomb := schedule("q", "bomb", 0, "", "payload", pack(bytes.Repeat([]byte{'x'}, 200<<20)), "payloadZstd", true)
	b.wantTimerError(t, 413, "payload_too_large", "timers_payload_too_large", "POST", "/api/v1/timers", []op{bomb})
	fake := schedule("q", "fake", 0, "not packed", "payloadZstd", true)
	b.wantTimerError(t, 400, "timers_bad_request", "QTIMER", "POST", "/api/v1/timers", []op{fake})
	// What a producer encrypted goes to a queue that does not encrypt itself.
	b.timers(schedule("plain", "k", time.Hour, "x", "encrypted", true))
	if !b.peek("plain", "k").Encrypted {
		t.Error("not marked")
	}
}

func TestTimer_T17_T18_Paused(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.timers(schedule("q", "running", 400*time.Millisecond, `1`), schedule("q", "doomed", time.Hour, `1`))
	b.Must(200, "POST", "/api/v1/system/kv-timers", `{"timersSchedule":false}`)
	mixed := []op{cancel("q", "doomed"), schedule("q", "new", time.Hour, `1`)}
	h := b.wantTimerError(t, 503, "timers_disabled", "timers_disabled", "POST", "/api/v1/timers", mixed)
	if h.Get("Retry-After") == "" || !strings.Contains(h.Get("x-queen-timers-hint"), "DELETE") {
		t.Errorf("%v", h)
	}
	if !b.peek("q", "doomed").Found {
		t.Error("part of a refused call was carried out")
	}
	if r := b.timers(cancel("q", "doomed"))[0]; r.Status != "cancelled" {
		t.Errorf("%+v", r)
	}
	if r := b.cancelTimer("q", "new", ""); r.Status != "absent" || r.Txn != nil {
		t.Errorf("%+v", r)
	}
	b.popUntil("q", 1)

	b.Must(200, "POST", "/api/v1/system/kv-timers", `{"timersSchedule":true,"timersFire":false}`)
	b.timers(schedule("p", "second", -time.Second, `2`), schedule("p", "third", 0, `3`), schedule("p", "first", -2*time.Second, `1`))
	time.Sleep(1500 * time.Millisecond)
	b.quiet("p")
	b.Must(200, "POST", "/api/v1/system/kv-timers", `{"timersFire":true}`)
	var got string
	for _, m := range b.popUntil("p", 3) {
		got += string(m.Data)
	}
	if got != "123" {
		t.Errorf("drained in the order %s", got)
	}
}
