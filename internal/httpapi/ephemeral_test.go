package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// fakeEphemeral answers with what a test sets, like fakeBroker.
type fakeEphemeral struct {
	Ephemeral
	push      func(*mq.EphemeralPush) error
	pop       func(context.Context, *mq.EphemeralPop) (*mq.EphemeralDelivery, error)
	handBack  func(context.Context, *mq.EphemeralDelivery)
	ack       func(*mq.EphemeralAck) ([]mq.EphemeralOutcome, error)
	configure func(string, mq.EphemeralOptions) error
	reset     func(string) (int64, error)
	remove    func(string) (bool, bool, error)
	queues    func() ([]mq.EphemeralQueue, int64, error)
	depth     func(queue, group string) (*mq.EphemeralDepth, error)
	status    func() (mq.EphemeralStatus, error)
	enable    func(bool) error
}

func (f *fakeEphemeral) Push(_ context.Context, p *mq.EphemeralPush) error { return f.push(p) }

func (f *fakeEphemeral) Pop(ctx context.Context, p *mq.EphemeralPop) (*mq.EphemeralDelivery, error) {
	return f.pop(ctx, p)
}

func (f *fakeEphemeral) HandBack(ctx context.Context, d *mq.EphemeralDelivery) { f.handBack(ctx, d) }

func (f *fakeEphemeral) Ack(_ context.Context, a *mq.EphemeralAck) ([]mq.EphemeralOutcome, error) {
	return f.ack(a)
}

func (f *fakeEphemeral) Configure(_ context.Context, _ mq.UUID, q string, o mq.EphemeralOptions) error {
	return f.configure(q, o)
}

func (f *fakeEphemeral) Reset(_ context.Context, _ mq.UUID, q string) (int64, error) {
	return f.reset(q)
}

func (f *fakeEphemeral) Delete(_ context.Context, _ mq.UUID, q string) (deleted, declared bool, err error) {
	return f.remove(q)
}

func (f *fakeEphemeral) Queues(context.Context, mq.UUID) ([]mq.EphemeralQueue, int64, error) {
	return f.queues()
}

func (f *fakeEphemeral) Depth(_ context.Context, _ mq.UUID, q, g string) (*mq.EphemeralDepth, error) {
	return f.depth(q, g)
}

func (f *fakeEphemeral) Status(context.Context) (mq.EphemeralStatus, error) { return f.status() }

func (f *fakeEphemeral) SetEnabled(_ context.Context, on bool) error { return f.enable(on) }

func ephemeralHandler(f *fakeEphemeral) http.Handler {
	return New(&fakeBroker{}, Options{Ephemeral: f, MaxBodyBytes: 8 << 20})
}

// pushed stores everything and remembers it.
func pushed(into *mq.EphemeralPush) http.Handler {
	return ephemeralHandler(&fakeEphemeral{push: func(p *mq.EphemeralPush) error {
		*into = *p
		into.Payloads = nil
		for _, b := range p.Payloads {
			into.Payloads = append(into.Payloads, []byte(string(b))) // the buffer is used again
		}
		return nil
	}})
}

const ephemeralAt = "/api/v1/ephemeral"

func TestEphemeralPush(t *testing.T) {
	t.Parallel()
	var got mq.EphemeralPush
	h := pushed(&got)
	for body, partition := range map[string]string{
		`{"queue":"q","partition":"zone-4","messages":[{"payload":7,"ttl":1}]}`: "zone-4",
		`{"queue":"q","partition":null,"messages":[{"payload":7}]}`:             "Default",
		`{"queue":"q","partition":"","messages":[{"payload":7}]}`:               "Default",
		`{"messages":[{"payload":7}],"other":[{}],"queue":"q"}`:                 "Default",
	} {
		call(h, "POST", ephemeralAt+"/push", body).want(t, 201, `{"pushed":1}`)
		if got.Queue != "q" || got.Partition != partition || got.Tenant != mq.DefaultTenant || string(got.Payloads[0]) != "7" {
			t.Errorf("%s: %+v", body, got)
		}
	}
	for body, field := range map[string]string{
		``:                              "",
		`[]`:                            "",
		`{"queue":"q"`:                  "",
		`{}`:                            "queue",
		`{"messages":[]}`:               "queue",
		`{"queue":"","messages":[]}`:    "queue",
		`{"queue":7,"messages":[]}`:     "queue",
		`{"queue":"q"}`:                 "messages",
		`{"queue":"q","messages":null}`: "messages",
		`{"queue":"q","messages":{}}`:   "messages",
		`{"queue":"q","messages":[{}]}`: "messages[0].payload",
		`{"queue":"q","messages":[{"payload":1},7]}`:                    "messages[1]",
		`{"queue":"q","queue":"r","messages":[]}`:                       "queue",
		`{"queue":"q","messages":[]} {}`:                                "",
		`{"queue":"q","partition":"\u0007","messages":[{"payload":1}]}`: "partition",
	} {
		call(h, "POST", ephemeralAt+"/push", body).wantError(t, 400, "ephemeral_bad_request", field)
	}
}

// TestEphemeralPush_E24: a payload is what was sent, byte for byte.
func TestEphemeralPush_E24(t *testing.T) {
	t.Parallel()
	var got mq.EphemeralPush
	h := pushed(&got)
	large := `"` + strings.Repeat("x", 1<<20) + `"`
	payloads := []string{`{"b":1,"a":2.50}`, `null`, `"text \u00e9 é"`, `{ "a" : [ 1 ,2 ], "a":1e400 }`, `12345678901234567890.10`, `false`, large}
	call(h, "POST", ephemeralAt+"/push", `{"queue":"q","messages":[{"payload":`+strings.Join(payloads, `},{"payload":`)+`}]}`).
		want(t, 201, fmt.Sprintf(`{"pushed":%d}`, len(payloads)))
	for i, want := range payloads {
		if string(got.Payloads[i]) != want {
			t.Errorf("%.40s became %.40s", want, got.Payloads[i])
		}
	}
	d := &mq.EphemeralDelivery{}
	for i := range payloads {
		d.Messages = append(d.Messages, mq.EphemeralMessage{ID: "e:1:p:1", Partition: "p", Attempts: 1, Payload: got.Payloads[i]})
	}
	h = ephemeralHandler(&fakeEphemeral{pop: func(context.Context, *mq.EphemeralPop) (*mq.EphemeralDelivery, error) { return d, nil }})
	const each = `{"id":"e:1:p:1","partition":"p","attempts":1,"payload":`
	call(h, "GET", ephemeralAt+"/pop?queue=q", "").want(t, 200, `{"queue":"q","messages":[`+each+strings.Join(payloads, `},`+each)+`}]}`)
}

// TestEphemeral_E26: limits of the number of elements.
func TestEphemeral_E26(t *testing.T) {
	t.Parallel()
	var got mq.EphemeralPush
	h := pushed(&got)
	list := func(element string, n int) string { return strings.TrimSuffix(strings.Repeat(element+",", n), ",") }
	push := func(n int) answer {
		return call(h, "POST", ephemeralAt+"/push", `{"queue":"q","messages":[`+list(`{"payload":1}`, n)+`]}`)
	}
	push(0).want(t, 201, `{"pushed":0}`)
	push(10_000).want(t, 201, `{"pushed":10000}`)
	if len(got.Payloads) != 10_000 {
		t.Errorf("%d payloads", len(got.Payloads))
	}
	push(10_001).wantError(t, 400, "ephemeral_bad_request", "messages")

	h = ephemeralHandler(&fakeEphemeral{ack: func(a *mq.EphemeralAck) ([]mq.EphemeralOutcome, error) {
		return make([]mq.EphemeralOutcome, len(a.Items)), nil
	}})
	ack := func(n int) answer {
		return call(h, "POST", ephemeralAt+"/ack", `{"queue":"q","acks":[`+list(`{"id":"x"}`, n)+`]}`)
	}
	ack(0).want(t, 200, `{"results":[]}`)
	ack(10_000).want(t, 200, "")
	ack(10_001).wantError(t, 400, "ephemeral_bad_request", "acks")
}

func TestEphemeralPop_Parameters(t *testing.T) {
	t.Parallel()
	var got mq.EphemeralPop
	h := ephemeralHandler(&fakeEphemeral{pop: func(_ context.Context, p *mq.EphemeralPop) (*mq.EphemeralDelivery, error) {
		got = *p
		return &mq.EphemeralDelivery{Pop: p}, nil
	}})
	for query, want := range map[string]mq.EphemeralPop{
		"":                                     {Batch: 1},
		"&partition=zone-4&group=ui-3":         {Batch: 1, Partition: "zone-4", Group: "ui-3"},
		"&partition=&group=":                   {Batch: 1},
		"&group=__QUEUE_MODE__":                {Batch: 1, Group: "__QUEUE_MODE__"},
		"&batch=20000":                         {Batch: 10_000},
		"&batch=0":                             {Batch: 1},
		"&batch=-5":                            {Batch: 1},
		"&batch=ten":                           {Batch: 1},
		"&batch=":                              {Batch: 1},
		"&batch=99999999999999999999":          {Batch: 10_000},
		"&batch=-99999999999999999999":         {Batch: 1},
		"&timeout=5000":                        {Batch: 1},
		"&wait=true":                           {Batch: 1, Wait: 30 * time.Second},
		"&wait=false&timeout=5000":             {Batch: 1},
		"&wait=true&timeout=5000":              {Batch: 1, Wait: 5 * time.Second},
		"&wait=true&timeout=0":                 {Batch: 1},
		"&wait=true&timeout=-1":                {Batch: 1},
		"&wait=true&timeout=soon":              {Batch: 1, Wait: 30 * time.Second},
		"&wait=true&timeout=1.5":               {Batch: 1, Wait: 30 * time.Second},
		"&wait=true&timeout=300001":            {Batch: 1, Wait: 300 * time.Second},
		"&commitOnDelivery=true":               {Batch: 1, AutoCommit: true},
		"&autoAck=true":                        {Batch: 1, AutoCommit: true},
		"&autoAck=true&commitOnDelivery=false": {Batch: 1, AutoCommit: true},
		"&autoAck=false&commitOnDelivery=1":    {Batch: 1, AutoCommit: true},
	} {
		call(h, "GET", ephemeralAt+"/pop?queue=rides"+query, "").want(t, 200, `{"queue":"rides","messages":[]}`)
		want.Queue, want.Tenant = "rides", mq.DefaultTenant
		if got != want {
			t.Errorf("%s: got %+v, want %+v", query, got, want)
		}
	}
	for query, field := range map[string]string{
		"": "queue", "queue=": "queue", "queue=q%00": "queue", "queue=q%FF": "queue", "queue=q&group=%1f": "group",
		"queue=q&partition=%7f": "partition", "queue=q&wait=maybe": "wait", "queue=q&autoAck=x": "autoAck", "queue=%zz": "",
	} {
		call(h, "GET", ephemeralAt+"/pop?"+query, "").wantError(t, 400, "ephemeral_bad_request", field)
	}
	// A HEAD would take messages and show them to nobody.
	call(h, "HEAD", ephemeralAt+"/pop?queue=q", "").want(t, 405, "")
}

func TestEphemeralPop_HandsBackWhatReachedNobody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		query string
		count int
		want  int
	}{{"", 2, 1}, {"", 0, 0}, {"&autoAck=true", 2, 0}} {
		d := &mq.EphemeralDelivery{Messages: make([]mq.EphemeralMessage, c.count)}
		back := 0
		ctx, leave := context.WithCancel(t.Context())
		h := ephemeralHandler(&fakeEphemeral{
			pop: func(context.Context, *mq.EphemeralPop) (*mq.EphemeralDelivery, error) {
				leave() // the client goes away while the answer is on its way to it
				return d, nil
			},
			handBack: func(ctx context.Context, got *mq.EphemeralDelivery) {
				if back++; got != d || ctx.Err() != nil {
					t.Errorf("handed back %p with %v, want %p", got, ctx.Err(), d)
				}
			},
		})
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", ephemeralAt+"/pop?queue=q"+c.query, http.NoBody))
		if back != c.want {
			t.Errorf("%+v: handed back %d times", c, back)
		}
	}
}

func TestEphemeralPop_HandsBackWhatCannotBeWritten(t *testing.T) {
	t.Parallel()
	back := 0
	h := ephemeralHandler(&fakeEphemeral{
		pop: func(context.Context, *mq.EphemeralPop) (*mq.EphemeralDelivery, error) {
			return &mq.EphemeralDelivery{Messages: make([]mq.EphemeralMessage, 1)}, nil
		},
		handBack: func(context.Context, *mq.EphemeralDelivery) { back++ },
	})
	for name, w := range map[string]*brokenWriter{
		"write": {ResponseRecorder: httptest.NewRecorder(), fail: true},
		"flush": {ResponseRecorder: httptest.NewRecorder(), failFlush: true},
	} {
		back = 0
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", ephemeralAt+"/pop?queue=q", http.NoBody))
		if back != 1 {
			t.Errorf("%s fails: handed back %d times", name, back)
		}
	}
}

func TestEphemeralAck(t *testing.T) {
	t.Parallel()
	var got mq.EphemeralAck
	all := []mq.EphemeralOutcome{mq.EphemeralAcked, mq.EphemeralRedelivered, mq.EphemeralStale, mq.EphemeralUnknown}
	h := ephemeralHandler(&fakeEphemeral{ack: func(a *mq.EphemeralAck) ([]mq.EphemeralOutcome, error) {
		got = *a
		return all[:len(a.Items)], nil
	}})
	call(h, "POST", ephemeralAt+"/ack", `{"queue":"rides","group":"ui-3","acks":[{"id":"e:7c1f:zone-4:41"},`+
		`{"id":"e:7c1f:eu:west:1:42","status":"retry","error":"later"},{"id":"","status":"completed"},{"id":"\ud800\u0000"}]}`).
		want(t, 200, `{"results":[{"id":"e:7c1f:zone-4:41","outcome":"acked"},{"id":"e:7c1f:eu:west:1:42","outcome":"redelivered"},`+
			`{"id":"","outcome":"stale"},{"id":"`+"\uFFFD"+`\u0000","outcome":"unknown"}]}`)
	if got.Queue != "rides" || got.Group != "ui-3" || got.Tenant != mq.DefaultTenant || got.Items[1].ID != "e:7c1f:eu:west:1:42" {
		t.Errorf("%+v", got)
	}
	for status, want := range map[string]mq.EphemeralVerdict{
		`null`: mq.EphemeralCompleted, `"completed"`: mq.EphemeralCompleted, `"success"`: mq.EphemeralCompleted,
		`"acked"`: mq.EphemeralCompleted, `"ok"`: mq.EphemeralCompleted,
		`"retry"`: mq.EphemeralRetry, `"failed"`: mq.EphemeralRetry, `"Completed"`: mq.EphemeralRetry, `""`: mq.EphemeralRetry,
	} {
		call(h, "POST", ephemeralAt+"/ack", `{"queue":"q","group":null,"acks":[{"status":`+status+`,"id":"x"}]}`).want(t, 200, "")
		if got.Items[0].Verdict != want || got.Group != "" {
			t.Errorf("%s: %+v, want %v", status, got, want)
		}
	}
	for body, field := range map[string]string{
		`{}`: "queue", `{"queue":"q"}`: "acks", `{"queue":"q","acks":7}`: "acks", `{"queue":"q","acks":[7]}`: "acks[0]",
		`{"queue":"q","acks":[{"id":"x"},{"status":"ok"}]}`: "acks[1].id", `{"queue":"q","acks":[{"id":7}]}`: "acks[0].id",
		`{"queue":"q","acks":[{"id":"x","status":true}]}`: "acks[0].status", `{"queue":"q","group":"\u0001","acks":[]}`: "group",
	} {
		call(h, "POST", ephemeralAt+"/ack", body).wantError(t, 400, "ephemeral_bad_request", field)
	}
}

// TestEphemeralConfigure_E22: the list of options is closed, numbers are
// integers from zero on, and the echo is what was sent.
func TestEphemeralConfigure_E22(t *testing.T) {
	t.Parallel()
	declared := 0
	h := ephemeralHandler(&fakeEphemeral{configure: func(string, mq.EphemeralOptions) error { declared++; return nil }})
	for options, echo := range map[string]string{
		``:                `{}`,
		`,"options":null`: `{}`,
		`,"options":{}`:   `{}`,
		`,"options":{"ttlSeconds":20,"policy":"dropOldest","maxLength":500}`:                         `{"maxLength":500,"policy":"dropOldest","ttlSeconds":20}`,
		`,"options":{"maxBytes":9007199254740991,"leaseSeconds":0,"retryLimit":0,"policy":"reject"}`: `{"maxBytes":9007199254740991,"policy":"reject","leaseSeconds":0,"retryLimit":0}`,
		`,"options":{"maxBytes":null,"policy":null,"windowBuffer":null,"retryLimit":1}`:              `{"retryLimit":1}`,
		`,"options":{"windowBuffer":{}}`:                                                             `{"windowBuffer":{}}`,
		`,"options":{"windowBuffer":{"ms":400,"count":5}}`:                                           `{"windowBuffer":{"ms":400,"count":5}}`,
		`,"options":{"windowBuffer":{"count":5,"ms":null}}`:                                          `{"windowBuffer":{"count":5}}`,
	} {
		declared = 0
		call(h, "POST", ephemeralAt+"/configure", `{"queue":"rides"`+options+`}`).want(t, 201, `{"queue":"rides","options":`+echo+`}`)
		if declared != 1 {
			t.Errorf("%s: declared %d times", options, declared)
		}
	}
	declared = 0
	for options, field := range map[string]string{
		`7`: "options", `[]`: "options", `{"maxLenght":5}`: "options", `{"maxlength":5}`: "options",
		`{"maxLength":1.5}`: "options.maxLength", `{"maxLength":-1}`: "options.maxLength", `{"maxLength":"5"}`: "options.maxLength",
		`{"maxLength":9007199254740992}`: "options.maxLength", `{"ttlSeconds":1e3}`: "options.ttlSeconds", `{"ttlSeconds":true}`: "options.ttlSeconds",
		`{"policy":"drop"}`: "options.policy", `{"policy":1}`: "policy", `{"windowBuffer":5}`: "windowBuffer",
		`{"windowBuffer":{"maxMs":5}}`: "options.windowBuffer", `{"windowBuffer":{"ms":-1}}`: "options.windowBuffer.ms",
		`{"maxLength":1,"maxLength":2}`: "maxLength",
	} {
		call(h, "POST", ephemeralAt+"/configure", `{"queue":"q","options":`+options+`}`).wantError(t, 400, "ephemeral_bad_request", field)
	}
	call(h, "POST", ephemeralAt+"/configure", `{"options":{}}`).wantError(t, 400, "ephemeral_bad_request", "queue")
	if a := call(h, "POST", ephemeralAt+"/configure", `{"queue":"q","options":{"maxLenght":5}}`); !strings.Contains(a.body, "maxLenght") {
		t.Errorf("the unknown option is not named: %s", a.body)
	}
	if declared != 0 {
		t.Error("a refused declaration reached the store")
	}
}

// TestEphemeral_E25: names have 512 bytes each, no control character, and may
// hold anything else.
func TestEphemeral_E25(t *testing.T) {
	t.Parallel()
	var seen []string
	h := ephemeralHandler(&fakeEphemeral{
		push: func(p *mq.EphemeralPush) error { seen = append(seen, p.Queue, p.Partition); return nil },
		pop: func(_ context.Context, p *mq.EphemeralPop) (*mq.EphemeralDelivery, error) {
			seen = append(seen, p.Queue, p.Partition, p.Group)
			return &mq.EphemeralDelivery{}, nil
		},
		remove: func(q string) (bool, bool, error) { seen = append(seen, q); return true, false, nil },
		depth: func(q, g string) (*mq.EphemeralDepth, error) {
			seen = append(seen, q, g)
			return &mq.EphemeralDepth{}, nil
		},
	})
	call(h, "DELETE", ephemeralAt+"/queue/a%2Fb%20c", "").want(t, 200, `{"queue":"a/b c","deleted":true,"declared":false}`)
	call(h, "GET", ephemeralAt+"/queues/a%2Fb/depth?group=g%2Fh", "").want(t, 200, "")
	call(h, "GET", ephemeralAt+"/queues/queues/depth", "").want(t, 200, "")
	if got := strings.Join(seen, "|"); got != "a/b c|a/b|g/h|queues|" {
		t.Errorf("names %s", got)
	}
	for length, status := range map[int]int{512: 0, 513: 400} {
		// Two bytes a letter but for the last: bytes count, not letters.
		name := strings.Repeat("é", length/2) + strings.Repeat("x", length%2)
		ok := func(s int) int { return max(status, s) }
		for _, a := range []struct {
			answer
			want int
		}{
			{call(h, "POST", ephemeralAt+"/push", `{"queue":"`+name+`","messages":[]}`), ok(201)},
			{call(h, "POST", ephemeralAt+"/push", `{"queue":"q","partition":"`+name+`","messages":[]}`), ok(201)},
			{call(h, "GET", ephemeralAt+"/pop?queue="+name, ""), ok(200)},
			{call(h, "GET", ephemeralAt+"/pop?queue=q&partition="+name, ""), ok(200)},
			{call(h, "GET", ephemeralAt+"/pop?queue=q&group="+name, ""), ok(200)},
			{call(h, "DELETE", ephemeralAt+"/queue/"+name, ""), ok(200)},
			{call(h, "GET", ephemeralAt+"/queues/"+name+"/depth", ""), ok(200)},
			{call(h, "GET", ephemeralAt+"/queues/q/depth?group="+name, ""), ok(200)},
		} {
			if a.status != a.want {
				t.Errorf("%d bytes: %d %.100s, want %d", length, a.status, a.body, a.want)
			}
		}
	}
	for _, bad := range []string{"%00", "%1F", "%7F", "%C2%85", "%FF", ""} {
		call(h, "DELETE", ephemeralAt+"/queue/"+bad, "").wantError(t, 400, "ephemeral_bad_request", "queue")
		call(h, "GET", ephemeralAt+"/queues/"+bad+"/depth", "").wantError(t, 400, "ephemeral_bad_request", "queue")
	}
}
