package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

const (
	opaquePayload  = `{"nul":"\u0000","lone":"\ud800","ok":"\ud83d\ude00","nfd":"e\u0301","esc":"\/"}`
	numbersPayload = `{ "b":1, "n":9007199254740993, "d":1.10, "e":1E2, "z":-0, "h":"<&>", "b":2 }`
)

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

func TestPush_AnswersOneElementPerItem(t *testing.T) {
	h := New(&fakeBroker{push: func(_ context.Context, p mq.Push) ([]mq.PushResult, error) {
		return []mq.PushResult{
			{MessageID: mq.UUID{15: 1}, TransactionID: "a\"b", Offset: 12},
			{Status: mq.PushDuplicate, TransactionID: "t2", Offset: 3},
			{Status: mq.PushError, MessageID: mq.UUID{15: 3}, TransactionID: "t3", Error: "refused"},
		}, nil
	}}, Options{})
	call(h, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1,"transactionId":"a\"b"},
		{"queue":"q","payload":1,"transactionId":"t2"},{"queue":"é&<","payload":1,"transactionId":"t3"}]}`).want(t, 201,
		`[{"index":0,"message_id":"00000000-0000-0000-0000-000000000001","transaction_id":"a\"b","queueName":"q","status":"queued","offset":12},`+
			`{"index":1,"message_id":"00000000-0000-0000-0000-000000000000","transaction_id":"t2","queueName":"q","status":"duplicate","offset":3},`+
			`{"index":2,"message_id":"00000000-0000-0000-0000-000000000003","transaction_id":"t3","queueName":"é&<","status":"error","error":"refused"}]`)
}

func TestPush_B19_EmptyItems(t *testing.T) {
	call(New(&fakeBroker{}, Options{}), "POST", "/api/v1/push", `{"items":[]}`).want(t, 201, `[]`)
}

func TestPush_DecodesNamesAndDefaults(t *testing.T) {
	var got mq.Push
	h := New(queued(&got), Options{})
	call(h, "POST", "/api/v1/push", `{"bufferMs":5,"items":[
		{"queue":"q\u00e9\u002f","partition":null,"transactionId":null,"payload":null,"data":[1]},
		{"\u0071ueue":"","partition":"p","transactionId":"","payload":"x","traceId":"01a1c0de-7000-7abc-8def-000000000001","producerSub":"me"},
		{"queue":"","partition":"p","payload":{},"traceId":{"any":1}}]}`).want(t, 201, "")
	trace, _ := mq.ParseUUID("01a1c0de-7000-7abc-8def-000000000001")
	want := []mq.PushItem{
		{Queue: "qé/", Partition: "Default", Payload: []byte("null")},
		{Queue: "", Partition: "p", Payload: []byte(`"x"`), TraceID: trace},
		{Queue: "", Partition: "p", Payload: []byte("{}")},
	}
	if g, w := fmt.Sprintf("%q", got.Items), fmt.Sprintf("%q", want); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
	if got.Tenant != mq.DefaultTenant || got.ProducerSub != "" {
		t.Errorf("caller is %v %q", got.Tenant, got.ProducerSub)
	}
}

func TestPush_B11_SubjectComesFromTheCaller(t *testing.T) {
	var got mq.Push
	h := New(queued(&got), Options{})
	r := httptest.NewRequest("POST", "/api/v1/push", strings.NewReader(`{"items":[{"queue":"q","payload":1,"producerSub":"forged"}]}`))
	r = r.WithContext(WithCaller(r.Context(), Caller{Tenant: mq.UUID{1}, Subject: "alice"}))
	h.ServeHTTP(httptest.NewRecorder(), r)
	if got.ProducerSub != "alice" || got.Tenant != (mq.UUID{1}) {
		t.Errorf("caller is %v %q", got.Tenant, got.ProducerSub)
	}
}

func TestPush_A1_A2_PayloadBytesAreKept(t *testing.T) {
	for payload, sum := range map[string]string{
		opaquePayload:  "7788ea7ebf988ce810edf3e2bdabca9e8d61a9fa45fa834b88e60e9666fc74d4",
		numbersPayload: "6997aa688017de9cd827b7483df61b15d88587f4dccf2423485ab57bbc2c58b0",
		nested(512):    "",
		"[\n 1 ,\t2 ]": "",
	} {
		var got mq.Push
		call(New(queued(&got), Options{}), "POST", "/api/v1/push", `{"items":[{"queue":"q","payload": `+payload+` }]}`).want(t, 201, "")
		if len(got.Items) != 1 || string(got.Items[0].Payload) != payload {
			t.Fatalf("payload came through as %.100q", got.Items)
		}
		if s := sha256.Sum256(got.Items[0].Payload); sum != "" && hex.EncodeToString(s[:]) != sum {
			t.Errorf("%s is not the documented payload", payload)
		}
	}
}

// Nothing of what is wrong here may reach the broker: the fake has no Push.
func TestPush_A3_HostileBodiesStopAtTheEdge(t *testing.T) {
	item := func(second string) string { return `{"items":[{"queue":"q","payload":1},` + second + `]}` }
	cases := []struct{ name, body, code, field string }{
		{"empty", "", "bad_body", ""},
		{"blank", " \n", "bad_body", ""},
		{"not an object", "[]", "bad_body", ""},
		{"cut", `{"items":[{"queue":"q"`, "bad_body", "items[0]"},
		{"byte order mark", "\ufeff{}", "bad_body", ""},
		{"0xFF in a payload", item("{\"queue\":\"q\",\"payload\":{\"a\":[\"\xff\"]}}"), "bad_body", "items[1].payload"},
		{"0xFF in a name", item("{\"queue\":\"\xff\",\"payload\":1}"), "bad_body", "items[1].queue"},
		{"0xFF after a lone surrogate", item("{\"payload\":\"\\ud800\",\"queue\":\"\xff\"}"), "bad_body", "items[1].queue"},
		{"NUL in a queue", item(`{"queue":"a\u0000","payload":1}`), "bad_request", "items[1].queue"},
		{"control in a partition", item(`{"queue":"a","partition":"\n","payload":1}`), "bad_request", "items[1].partition"},
		{"control in a transaction id", item(`{"queue":"a","transactionId":"\u001f","payload":1}`), "bad_request", "items[1].transactionId"},
		{"lone surrogate in a queue", item(`{"queue":"\ud800","payload":1}`), "bad_body", "items[1].queue"},
		{"lone low surrogate in an id", item(`{"queue":"q","transactionId":"\udc00x","payload":1}`), "bad_body", "items[1].transactionId"},
		{"513 arrays", item(`{"queue":"q","payload":` + nested(513) + `}`), "bad_request", "items[1].payload"},
		{"10,001 arrays", item(`{"queue":"q","payload":` + nested(10001) + `}`), "bad_request", "items[1].payload"},
		{"10,001 arrays elsewhere", `{"x":` + nested(10001) + `,"items":[]}`, "bad_body", "x[0][0]"},
		{"items twice", `{"items":[],"items":[]}`, "bad_body", "items"},
		{"items twice, once escaped", `{"items":[],"\u0069tems":[]}`, "bad_body", "items"},
		{"queue twice", item(`{"queue":"q","queue":"q","payload":1}`), "bad_body", "items[1].queue"},
		{"payload twice", item(`{"queue":"q","payload":2,"payload":1}`), "bad_body", "items[1].payload"},
		{"second value", `{"items":[]}{}`, "bad_body", ""},
		{"rubbish behind", `{"items":[]} x`, "bad_body", ""},
		{"ITEMS", `{"ITEMS":[]}`, "bad_request", "items"},
		{"items null", `{"items":null}`, "bad_body", "items"},
		{"items an object", `{"items":{}}`, "bad_body", "items"},
		{"item a number", item(`5`), "bad_body", "items[1]"},
		{"no queue", item(`{"payload":1}`), "bad_request", "items[1].queue"},
		{"queue null", item(`{"queue":null,"payload":1}`), "bad_request", "items[1].queue"},
		{"queue a number", item(`{"queue":5,"payload":1}`), "bad_body", "items[1].queue"},
		{"partition a number", item(`{"queue":"q","partition":5,"payload":1}`), "bad_body", "items[1].partition"},
		{"transaction id a boolean", item(`{"queue":"q","transactionId":true,"payload":1}`), "bad_body", "items[1].transactionId"},
		{"transaction id too long", item(`{"queue":"q","transactionId":"` + strings.Repeat("x", 65536) + `","payload":1}`), "bad_request", "items[1].transactionId"},
		{"bad literal in a payload", item(`{"queue":"q","payload":[tru]}`), "bad_body", "items[1].payload"},
		{"trailing comma", `{"items":[],}`, "bad_body", ""},
		{"NaN", item(`{"queue":"q","payload":NaN}`), "bad_body", "items[1].payload"},
	}
	h := New(&fakeBroker{}, Options{})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			call(h, "POST", "/api/v1/push", c.body).wantError(t, 400, c.code, c.field)
		})
	}
}

func TestPush_B21_MissingPayloadIs400(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	call(h, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1},{"queue":"q","data":1}]}`).wantError(t, 400, "bad_request", "items[1].payload")
}

func TestPush_NamesTooLongAre413(t *testing.T) {
	var got mq.Push
	h := New(queued(&got), Options{})
	push := func(queue, partition int) answer {
		return call(h, "POST", "/api/v1/push", `{"items":[{"queue":"`+strings.Repeat("q", queue)+`","partition":"`+strings.Repeat("p", partition)+`","payload":1}]}`)
	}
	push(400, 11).want(t, 201, "")
	push(400, 12).wantError(t, 413, "name_too_long", "items[0].queue")
}

func TestPush_LongestTransactionIDIsTaken(t *testing.T) {
	var got mq.Push
	id := strings.Repeat("x", 65535)
	call(New(queued(&got), Options{}), "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1,"transactionId":"`+id+`"}]}`).want(t, 201, "")
	if got.Items[0].TransactionID != id {
		t.Error("the id was changed")
	}
}

// After an error a batch may still read the payloads, so the memory must not
// carry the next body.
func TestPush_PayloadsSurviveAnError(t *testing.T) {
	var kept [][]byte
	b := &fakeBroker{push: func(_ context.Context, p mq.Push) ([]mq.PushResult, error) {
		kept = append(kept, p.Items[0].Payload)
		return nil, context.DeadlineExceeded
	}}
	h := New(b, Options{})
	for i := range 50 {
		call(h, "POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"q","payload":%d}]}`, 1000+i)).wantError(t, 503, "timeout", "")
	}
	for i, p := range kept {
		if string(p) != fmt.Sprint(1000+i) {
			t.Errorf("payload %d became %s", i, p)
		}
	}
}

func TestPush_WrongNumberOfResultsIs500(t *testing.T) {
	h := New(&fakeBroker{push: func(context.Context, mq.Push) ([]mq.PushResult, error) { return nil, nil }}, Options{})
	call(h, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`).wantError(t, 500, "internal", "")
}

func TestErrors_KindsAndStatuses(t *testing.T) {
	cases := []struct {
		err    error
		status int
		code   string
		retry  string
	}{
		{&mq.Error{Kind: mq.KindBusy, Code: "retry", Message: "busy"}, 503, "retry", "1"},
		{&mq.Error{Kind: mq.KindUnavailable, Message: "away", RetryAfter: 1500 * time.Millisecond}, 503, "retry", "2"},
		{mq.Unavailable(nil), 503, "retry", "1"},
		{&mq.Error{Kind: mq.KindTimeout, Message: "late"}, 503, "timeout", "1"},
		{&mq.Error{Kind: mq.KindUnknown, Message: "lost"}, 503, "outcome_unknown", "1"},
		{&mq.Error{Kind: mq.KindOverloaded, Message: "full", RetryAfter: 5 * time.Second}, 429, "overloaded", "5"},
		{&mq.Error{Kind: mq.KindTooLarge, Code: "name_too_long", Message: "long"}, 413, "name_too_long", ""},
		{&mq.Error{Kind: mq.KindConflict, Message: "no"}, 409, "conflict", ""},
		{fmt.Errorf("wrapped: %w", mq.NotFound("gone")), 404, "not_found", ""},
		{mq.Invalid("", "B14 \"quoted\\ \x01 \xff"), 400, "bad_request", ""},
		{&mq.Error{Kind: mq.KindInternal, Code: "secret", Message: "secret"}, 500, "internal", ""},
		{fmt.Errorf("secret"), 500, "internal", ""},
	}
	for _, c := range cases {
		h := New(&fakeBroker{push: func(context.Context, mq.Push) ([]mq.PushResult, error) { return nil, c.err }}, Options{})
		a := call(h, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`)
		a.wantError(t, c.status, c.code, "")
		if got := a.header.Get("Retry-After"); got != c.retry {
			t.Errorf("%v: Retry-After is %q, want %q", c.err, got, c.retry)
		}
		if strings.Contains(a.body, "secret") {
			t.Errorf("the text of a fault leaked: %s", a.body)
		}
	}
}
