package httpapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func TestRoutes_B15_Unmatched(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	const body = `{"error":"Not Found","code":"no_such_route"}`
	for _, c := range [][2]string{
		{"POST", "/api/v1/nope"},
		{"GET", "/api/v1/nope"},
		{"GET", "/"},
		{"POST", "/x"},
		{"GET", "/api/v1/push/"},
		{"GET", "/api//v1/pop"},
		{"GET", "/api/v1/pop/queue/a/b"},
		{"GET", "/x/../health"},
	} {
		call(h, c[0], c[1], "").want(t, 404, body)
	}
}

func TestRoutes_WrongMethodIs405(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	for _, c := range []struct{ method, path, allow string }{
		{"GET", "/api/v1/push", "POST"},
		{"POST", "/api/v1/pop", "GET"},
		{"PUT", "/api/v1/dlq", "GET, HEAD, DELETE"},
		{"POST", "/health", "GET, HEAD"},
	} {
		a := call(h, c.method, c.path, "")
		a.wantError(t, 405, "method_not_allowed", "")
		if a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, a.header.Get("Allow"))
		}
	}
}

func TestRoutes_HeadWorksWhereGetDoes(t *testing.T) {
	srv := httptest.NewServer(New(&fakeBroker{ping: func(context.Context) error { return nil }}, Options{Version: "1"}))
	defer srv.Close()
	resp, err := http.Head(srv.URL + "/health")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.ContentLength <= 0 {
		t.Errorf("%d, %d bytes", resp.StatusCode, resp.ContentLength)
	}
}

func TestHealth(t *testing.T) {
	var fault error
	draining := false
	h := New(&fakeBroker{ping: func(ctx context.Context) error {
		if d, ok := ctx.Deadline(); !ok || time.Until(d) > time.Second {
			t.Error("the round trip is not bounded by a second")
		}
		return fault
	}}, Options{Version: "v9", Draining: func() bool { return draining }})
	call(h, "GET", "/health", "").want(t, 200, `{"status":"healthy","database":"connected","engine":"queenmq-go","version":"v9"}`)
	call(h, "GET", "/readyz", "").want(t, 200, `{"status":"ready","engine":"queenmq-go"}`)
	fault = errors.New("no route to host")
	a := call(h, "GET", "/health", "")
	a.want(t, 503, `{"status":"unhealthy","database":"disconnected","engine":"queenmq-go","version":"v9"}`)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("headers: %v", a.header) // B17
	}
	call(h, "GET", "/readyz", "").want(t, 503, `{"status":"database unavailable","engine":"queenmq-go"}`)
	call(h, "GET", "/livez", "").want(t, 200, `{"status":"ok","engine":"queenmq-go"}`)
	call(h, "GET", "/status", "").want(t, 200, `{"status":"ok","engine":"queenmq-go"}`)
	fault, draining = nil, true
	a = call(h, "GET", "/readyz", "")
	a.want(t, 503, `{"status":"draining","engine":"queenmq-go"}`)
	if a.header.Get("Connection") != "close" {
		t.Error("a draining broker keeps its connections")
	}
}

func TestPrometheus(t *testing.T) {
	call(New(&fakeBroker{}, Options{}), "GET", "/metrics/prometheus", "").want(t, 404, "")
	h := New(&fakeBroker{}, Options{MetricsHandler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "1")
	})})
	if a := call(h, "GET", "/metrics/prometheus", ""); a.body != "1" || a.header.Get("Cache-Control") != "no-cache" {
		t.Errorf("%+v", a)
	}
}

// counted keeps what the handlers report.
type counted struct {
	mu       sync.Mutex
	requests []string
	messages map[string]int
}

func (c *counted) Request(method, route string, status int, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, fmt.Sprint(method, " ", route, " ", status))
}

func (c *counted) Messages(op string, n int) { c.messages[op] += n }

func TestMetrics_CountByTemplate(t *testing.T) {
	c := &counted{messages: map[string]int{}}
	var got mq.Push
	b := queued(&got)
	b.pop = func(_ context.Context, p mq.Pop) (*mq.Delivery, error) {
		if p.Queue == "panic" {
			panic("boom")
		}
		return delivery(), nil
	}
	b.ack = func(a mq.Ack) ([]mq.AckResult, error) { return make([]mq.AckResult, len(a.Items)), nil }
	h := New(b, Options{Metrics: c})
	call(h, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1},{"queue":"q","payload":1}]}`)
	call(h, "GET", "/api/v1/pop/queue/some", "")
	call(h, "POST", "/api/v1/ack", `{}`)
	call(h, "GET", "/api/v1/pop/queue/panic", "")
	call(h, "GET", "/nope", "")
	want := "POST /api/v1/push 201|GET /api/v1/pop/queue/{queue} 200|POST /api/v1/ack 200|GET /api/v1/pop/queue/{queue} 500|GET none 404"
	if got := strings.Join(c.requests, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if c.messages["push"] != 2 || c.messages["pop"] != 4 || c.messages["ack"] != 1 {
		t.Errorf("messages: %v", c.messages)
	}
}

func TestPanic_IsA500AndLogged(t *testing.T) {
	var log bytes.Buffer
	h := New(&fakeBroker{}, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	// The fake has no such use case, which panics.
	call(h, "GET", "/api/v1/consumer-groups", "").want(t, 500, "")
	if out := log.String(); !strings.Contains(out, "handler panicked") || !strings.Contains(out, "/api/v1/consumer-groups") {
		t.Errorf("log: %s", out)
	}
}

func TestBody_OverTheLimitIs413BeforeTheHandler(t *testing.T) {
	var got mq.Push
	h := New(queued(&got), Options{MaxBodyBytes: 64})
	item := func(n int) string {
		s := `{"items":[{"queue":"q","payload":1}]}`
		return s + strings.Repeat(" ", n-len(s))
	}
	call(h, "POST", "/api/v1/push", item(64)).want(t, 201, "")
	call(h, "POST", "/api/v1/push", item(65)).wantError(t, 413, "payload_too_large", "")
	for _, path := range []string{"/api/v1/lease/l/extend", "/api/v1/nope"} {
		call(h, "POST", path, item(65)).wantError(t, 413, "payload_too_large", "")
	}
	// Announced, never sent: the answer may not wait for the body.
	srv := httptest.NewServer(h)
	defer srv.Close()
	out := exchange(t, srv.Listener.Addr().String(), "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(out, "HTTP/1.1 413 ") {
		t.Errorf("answer: %q", out)
	}
}

// send posts a body of unknown length.
func send(h http.Handler, body io.Reader, header ...string) answer {
	r := httptest.NewRequest("POST", "/api/v1/push", body)
	r.ContentLength = -1
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func TestBody_ChunkedIsCutAtTheLimit(t *testing.T) {
	var got mq.Push
	h := New(queued(&got), Options{MaxBodyBytes: 1 << 20})
	item := func(n int) io.Reader {
		s := `{"items":[{"queue":"q","payload":"` + strings.Repeat("x", n-38) + `"}]}`
		return io.MultiReader(strings.NewReader(s[:n/2]), strings.NewReader(s[n/2:]))
	}
	send(h, item(1<<20)).want(t, 201, "")
	if len(got.Items[0].Payload) != 1<<20-36 {
		t.Errorf("payload of %d bytes", len(got.Items[0].Payload))
	}
	send(h, item(1<<20+1)).wantError(t, 413, "payload_too_large", "")
}

func TestBody_ContentEncoding(t *testing.T) {
	var got mq.Push
	h := New(queued(&got), Options{MaxBodyBytes: 1 << 16})
	zip := func(payload string) io.Reader {
		var b bytes.Buffer
		zw := gzip.NewWriter(&b)
		_, _ = io.WriteString(zw, `{"items":[{"queue":"q","payload":`+payload+`}]}`)
		_ = zw.Close()
		return &b
	}
	send(h, zip(numbersPayload), "Content-Encoding", "gzip").want(t, 201, "")
	if string(got.Items[0].Payload) != numbersPayload {
		t.Errorf("payload is %s", got.Items[0].Payload)
	}
	send(h, zip(`"`+strings.Repeat("x", 1<<20)+`"`), "Content-Encoding", "gzip").wantError(t, 413, "payload_too_large", "")
	send(h, strings.NewReader("not gzip at all"), "Content-Encoding", "gzip").wantError(t, 400, "bad_body", "")
	send(h, strings.NewReader(`{"items":[]}`), "Content-Encoding", "identity").want(t, 201, "")
	send(h, strings.NewReader(`{"items":[]}`), "Content-Encoding", "br").wantError(t, 415, "unsupported_encoding", "")
	send(h, strings.NewReader(`{"items":[]}`), "Content-Encoding", "gzip, gzip").wantError(t, 415, "unsupported_encoding", "")
}

func TestBody_BudgetFullIs429(t *testing.T) {
	started, finish := make(chan struct{}), make(chan struct{})
	b := &fakeBroker{push: func(_ context.Context, p mq.Push) ([]mq.PushResult, error) {
		close(started)
		<-finish
		return make([]mq.PushResult, len(p.Items)), nil
	}}
	s := &server{b: b, o: Options{MaxBodyBytes: 1 << 20, Draining: func() bool { return false }}, log: slog.New(slog.DiscardHandler), metrics: noMetrics{}, admit: newAdmission(60)}
	s.admit.wait = 50 * time.Millisecond
	h := s.router()
	const body = `{"items":[{"queue":"q","payload":1}]}`
	var wg sync.WaitGroup
	wg.Go(func() { call(h, "POST", "/api/v1/push", body).want(t, 201, "") })
	<-started
	begun := time.Now()
	a := call(h, "POST", "/api/v1/push", body)
	a.wantError(t, 429, "overloaded", "")
	if a.header.Get("Retry-After") != "1" || time.Since(begun) < s.admit.wait {
		t.Errorf("after %v: %v", time.Since(begun), a.header)
	}
	close(finish)
	wg.Wait()
	// Everything was given back, also by bodies larger than the whole budget.
	b.push = func(_ context.Context, p mq.Push) ([]mq.PushResult, error) {
		return make([]mq.PushResult, len(p.Items)), nil
	}
	for range 3 {
		call(h, "POST", "/api/v1/push", body+strings.Repeat(" ", 500)).want(t, 201, "")
		send(h, strings.NewReader(body)).want(t, 201, "")
		call(h, "POST", "/api/v1/push", "{").want(t, 400, "")
	}
	if !s.admit.sem.TryAcquire(60) {
		t.Error("some of the budget is lost")
	}
}

func TestBody_CutShortIs400(t *testing.T) {
	srv := httptest.NewServer(New(&fakeBroker{}, Options{}))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
	_ = conn.(*net.TCPConn).CloseWrite()
	out, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(out), "HTTP/1.1 400 ") {
		t.Errorf("answer: %q %v", out, err)
	}
}

// deadlineWriter records the read deadlines that a handler sets.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	reads []time.Time
}

func (w *deadlineWriter) SetReadDeadline(t time.Time) error {
	w.reads = append(w.reads, t)
	return nil
}

func TestBody_SlowOnesAreBounded(t *testing.T) {
	var got mq.Push
	w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
	New(queued(&got), Options{}).ServeHTTP(w, httptest.NewRequest("POST", "/api/v1/push", strings.NewReader(`{"items":[]}`)))
	if len(w.reads) != 2 || time.Until(w.reads[0]) > 31*time.Second || time.Until(w.reads[0]) < 25*time.Second || !w.reads[1].IsZero() {
		t.Errorf("deadlines: %v", w.reads)
	}
}
