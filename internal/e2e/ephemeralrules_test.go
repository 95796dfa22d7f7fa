package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func ephemeralOptions(t *testing.T, f *EphemeralFleet) {
	for options, named := range map[string]string{
		`{"maxLength":5,"ttl":3}`:            "ttl",
		`{"windowBuffer":{"ms":1,"size":2}}`: "size",
		`{"maxLength":1.5}`:                  "maxLength",
		`{"maxBytes":-1}`:                    "maxBytes",
		`{"leaseSeconds":"30"}`:              "leaseSeconds",
		`{"policy":"drop"}`:                  "policy",
	} {
		text, _ := ephemeralRefused(t, f.Next(t), 400, "ephemeral_bad_request", "POST", ephemeralAt+"configure", `{"queue":"undeclared","options":`+options+`}`)
		if !strings.Contains(text, named) {
			t.Errorf("%s: %q does not name it", options, text)
		}
	}
	if q := f.Next(t).EphemeralQueue("undeclared"); q != nil {
		t.Errorf("refused and there: %+v", q)
	}
	f.Next(t).Must(http.StatusCreated, "POST", ephemeralAt+"configure", `{"queue":"plain"}`)
	if q := f.Next(t).EphemeralQueue("plain"); q == nil || q.Tier != "declared" {
		t.Errorf("%+v", q)
	}

	sent := `{"maxBytes":99999999999,"maxLength":7,"policy":"dropOldest","ttlSeconds":9,"leaseSeconds":3,"retryLimit":0,"windowBuffer":{"ms":5}}`
	if got := string(f.Next(t).EphemeralConfigure("opts", sent)); got != `{"queue":"opts","options":`+sent+`}` {
		t.Errorf("echo %s", got)
	}
	want := map[string]any{
		"maxBytes": 16777216., "maxLength": 7., "policy": "dropOldest", "ttlSeconds": 9., "leaseSeconds": 3., "retryLimit": 0.,
		"windowBuffer": map[string]any{"ms": 5., "count": 0.},
	}
	wantOptions(t, f, "opts", want)
	// What is not sent again is the default again.
	f.Next(t).EphemeralConfigure("opts", `{"maxLength":8,"retryLimit":null}`)
	maps.Copy(want, map[string]any{
		"maxLength": 8., "policy": "reject", "ttlSeconds": 0., "leaseSeconds": 30., "retryLimit": 5., "windowBuffer": map[string]any{"ms": 0., "count": 0.},
	})
	wantOptions(t, f, "opts", want)
}

// wantOptions waits until every broker lists a queue with these options. Those
// who did not make a declaration hear of it.
func wantOptions(t *testing.T, f *EphemeralFleet, queue string, want map[string]any) {
	t.Helper()
	for _, b := range f.Brokers {
		b = b.In(t)
		eventually(t, func() bool { return fmt.Sprint(b.EphemeralQueue(queue).Options) == fmt.Sprint(want) }, "%v", want)
	}
}

func ephemeralResetAndDelete(t *testing.T, f *EphemeralFleet) {
	f.Next(t).EphemeralConfigure("r", `{"maxLength":50}`)
	f.Next(t).EphemeralPush("r", "", "1", "2", "3")
	m := f.Next(t).EphemeralPop("r", "batch=2")
	if got := string(f.Next(t).Must(200, "POST", ephemeralAt+"reset", `{"queue":"r"}`)); got != `{"queue":"r","dropped":3}` {
		t.Errorf("reset: %s", got)
	}
	if got := f.Next(t).EphemeralAck("r", "", "", m...); !slices.Equal(got, []string{"unknown", "unknown"}) {
		t.Errorf("acks after the reset: %v", got)
	}
	if d := f.Next(t).EphemeralDepth("r"); d.Pending != 0 || d.Bytes != 0 || d.Tier != "declared" {
		t.Errorf("%+v", d)
	}
	if q := f.Next(t).EphemeralQueue("r"); q == nil || q.Options["maxLength"] != 50. {
		t.Errorf("%+v", q)
	}
	f.Next(t).EphemeralPush("r", "", "4")
	if m := f.Next(t).EphemeralPop("r", "batch=9"); !slices.Equal(payloadsOf(m), []string{"4"}) || m[0].Attempts != 1 {
		t.Errorf("after the reset: %+v", m)
	}
	for _, want := range []string{`{"queue":"r","deleted":true,"declared":true}`, `{"queue":"r","deleted":false,"declared":false}`} {
		if got := string(f.Next(t).Must(200, "DELETE", ephemeralAt+"queue/r", nil)); got != want {
			t.Errorf("delete: %s", got)
		}
	}
	for _, b := range f.Brokers {
		b = b.In(t)
		eventually(t, func() bool { return b.EphemeralQueue("r") == nil }, "the end of the queue")
	}
	ephemeralRefused(t, f.Next(t), 404, "ephemeral_queue_not_found", "GET", ephemeralAt+"queues/r/depth", nil)
	f.Next(t).EphemeralPush("implicit", "", "1")
	if got := string(f.Next(t).Must(200, "DELETE", ephemeralAt+"queue/implicit", nil)); got != `{"queue":"implicit","deleted":true,"declared":false}` {
		t.Errorf("delete: %s", got)
	}
	// Made again, under its default options.
	f.Next(t).EphemeralPush("r", "", "5")
	if q := f.Next(t).EphemeralQueue("r"); q == nil || q.Tier != "implicit" || q.Options["maxLength"] != 10000. {
		t.Errorf("made again: %+v", q)
	}
}

func ephemeralBytes(t *testing.T, f *EphemeralFleet) {
	payloads := []string{
		`{"b":1,"a":2.50}`, `null`, `"text"`, `""`, `0`, `-0.0`, `1e400`, `123456789012345678901234567890`, `true`, `[ 1 , 2 ]`, "{ \"x\" :\n\t[ ] }",
		`"\u00e9\/\ud83d\ude00"`, `"é😀"`, `"` + strings.Repeat("x1", 512<<10-1) + `"`,
	}
	want := 0
	for _, p := range payloads {
		want += len(p)
	}
	f.Next(t).EphemeralPush("bytes", "", payloads...)
	if d := f.Next(t).EphemeralDepth("bytes"); d.Bytes != int64(want) {
		t.Errorf("%d bytes held, want %d", d.Bytes, want)
	}
	m := f.Next(t).EphemeralPop("bytes", "batch=100")
	for i, got := range payloadsOf(m) {
		if got != payloads[i] {
			t.Errorf("payload %d: got %.100q, want %.100q", i, got, payloads[i])
		}
	}
	if len(m) != len(payloads) {
		t.Errorf("%d messages", len(m))
	}
}

func ephemeralNames(t *testing.T, f *EphemeralFleet) {
	longest := strings.Repeat("é", 256) // 512 bytes
	for _, name := range []string{"a/b", "a b", "a%2Fb", "eu:west:1", "{tag}:x", "q?x=1&y#z", longest, "..", "日本"} {
		f.Next(t).EphemeralPush(name, name, "1")
		query := "group=" + url.QueryEscape(name)
		m := f.Next(t).EphemeralPop(name, query+"&partition="+url.QueryEscape(name))
		if len(m) != 1 || m[0].Partition != name {
			t.Errorf("%.20q: got %+v", name, m)
			continue
		}
		if d := f.Next(t).EphemeralDepth(name); d.Pending != 1 || d.Groups[0].Group != name {
			t.Errorf("%.20q: %+v", name, d)
		}
		if got := f.Next(t).EphemeralAck(name, name, "", m...); got[0] != "acked" {
			t.Errorf("%.20q: ack %v", name, got)
		}
		var gone struct{ Deleted bool }
		f.Next(t).MustInto(&gone, 200, "DELETE", ephemeralAt+"queue/"+Seg(name), nil)
		if !gone.Deleted || f.Next(t).EphemeralQueue(name) != nil {
			t.Errorf("%.20q: not deleted", name)
		}
	}
	for _, name := range []string{longest + "x", "a\x01b", "a\nb", "\x7f", ""} {
		bad := func(method, path string, body any) {
			t.Helper()
			ephemeralRefused(t, f.Next(t), 400, "ephemeral_bad_request", method, ephemeralAt+path, body)
		}
		bad("POST", "push", EphemeralPushBody(name, "", "1"))
		bad("GET", "pop?queue="+url.QueryEscape(name), nil)
		bad("POST", "ack", ephemeralAckBody(name, "", "", "x"))
		bad("POST", "configure", map[string]any{"queue": name})
		bad("POST", "reset", map[string]any{"queue": name})
		if name == "" {
			continue // no partition and no group are fine, and no path has an empty segment
		}
		bad("DELETE", "queue/"+Seg(name), nil)
		bad("GET", "queues/"+Seg(name)+"/depth", nil)
		bad("POST", "push", EphemeralPushBody("q", name, "1"))
		bad("GET", "pop?queue=q&partition="+url.QueryEscape(name), nil)
		bad("GET", "pop?queue=q&group="+url.QueryEscape(name), nil)
		bad("POST", "ack", ephemeralAckBody("q", name, "", "x"))
	}
}

func ephemeralLimits(t *testing.T, f *EphemeralFleet) {
	many := slices.Repeat([]string{"7"}, 10_001)
	ephemeralRefused(t, f.Next(t), 400, "ephemeral_bad_request", "POST", ephemeralAt+"push", EphemeralPushBody("full", "", many...))
	f.Next(t).EphemeralPush("full", "", many[:10_000]...)
	m := f.Next(t).EphemeralPop("full", "batch=20000")
	if len(m) != 10_000 {
		t.Fatalf("%d messages", len(m))
	}
	ids := make([]string, 0, 10_001)
	for i := range m {
		ids = append(ids, m[i].ID)
	}
	ephemeralRefused(t, f.Next(t), 400, "ephemeral_bad_request", "POST", ephemeralAt+"ack", ephemeralAckBody("full", "", "", append(ids, "x")...))
	if got := f.Next(t).EphemeralAckIDs("full", "", "", ids...); len(slices.Compact(got)) != 1 || got[0] != "acked" {
		t.Errorf("acks: %.5q …", got)
	}
	f.Next(t).EphemeralPush("batch", "", "1", "2", "3", "4", "5", "6")
	for query, want := range map[string]int{"batch=0": 1, "batch=x": 1, "batch=-4": 1, "batch=": 1} {
		if m := f.Next(t).EphemeralPop("batch", query); len(m) != want {
			t.Errorf("%s: %d messages", query, len(m))
		}
	}
	for _, body := range []string{
		``, `{`, `[]`, `{"queue":"q"}`, `{"messages":[]}`, `{"queue":"q","messages":[{}]}`, `{"queue":"q","messages":{}}`, `{"queue":"q","messages":[1]}`,
		`{"queue":3,"messages":[]}`, "{\"queue\":\"q\",\"messages\":[{\"payload\":\"\x01\"}]}",
	} {
		ephemeralRefused(t, f.Next(t), 400, "ephemeral_bad_request", "POST", ephemeralAt+"push", body)
	}
	if q := f.Next(t).EphemeralQueue("q"); q != nil {
		t.Errorf("refused and there: %+v", q)
	}
	f.Next(t).Must(201, "POST", ephemeralAt+"push", `{"queue":"lenient","messages":[{"payload":1,"transactionId":"x","note":[1]}],"extra":true}`)
}

func ephemeralAllPartitions(t *testing.T, f *EphemeralFleet) {
	var want []string
	for i := range 12 {
		want = append(want, fmt.Sprintf(`"p%02d"`, i))
	}
	for _, i := range []int{7, 3, 11, 0, 5, 1, 10, 2, 9, 4, 8, 6} {
		f.Next(t).EphemeralPush("spread", fmt.Sprintf("p%02d", i), want[i])
	}
	for i := range f.Brokers {
		m := f.Brokers[i].In(t).EphemeralPop("spread", fmt.Sprint("batch=100&group=g", i))
		if !slices.Equal(payloadsOf(m), want) { // by name
			t.Errorf("broker %d: %v", i, payloadsOf(m))
		}
	}
	// One at a time, each from another broker.
	for i := range want {
		if m := f.Next(t).EphemeralPop("spread", "group=one"); len(m) != 1 || m[0].Partition != fmt.Sprintf("p%02d", i) {
			t.Errorf("pop %d: %+v", i, m)
		}
	}
}

func ephemeralNamespaces(t *testing.T, f *EphemeralFleet) {
	f.Next(t).EphemeralPush("orders", "p", `"quick"`)
	if got := f.Next(t).Pop("orders", ""); got != nil {
		t.Errorf("an ephemeral message in the durable queue: %+v", got)
	}
	f.Next(t).Push(Item{Queue: "orders", Partition: "p", TransactionID: "o", Payload: json.RawMessage(`"slow"`)})
	if d := f.Next(t).EphemeralDepth("orders"); d.Pending != 1 {
		t.Errorf("%+v", d)
	}
	if m := f.Next(t).EphemeralPop("orders", "batch=10"); !slices.Equal(payloadsOf(m), []string{`"quick"`}) {
		t.Errorf("got %+v", m)
	}
	got := f.Next(t).Pop("orders", "wait=true&timeout=5000")
	if !slices.Equal(got.IDs(), []string{"o"}) {
		t.Errorf("the durable one: %+v", got)
	}
	f.Next(t).Must(200, "DELETE", ephemeralAt+"queue/orders", nil)
	f.Next(t).AckAll(got)
}
