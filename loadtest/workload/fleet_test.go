package workload

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// TestOutcomes: what a client may conclude from each way in which a request can end.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		want   history.Outcome
		later  time.Duration
	}{
		{"200", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }, history.OK, 0},
		{"204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, history.OK, 0},
		{"400", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }, history.Fail, 0},
		{"429", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(429)
		}, history.Fail, 3 * time.Second},
		{"500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, history.Unknown, 0},
		{"502", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, history.Unknown, 0},
		{"503", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(503)
		}, history.Unknown, time.Second},
		{"closed without an answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, history.Unknown, 0},
		{"cut in the middle", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
			panic(http.ErrAbortHandler)
		}, history.Unknown, 0},
		{"no answer in time", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then is the end of the connection noticed
			<-r.Context().Done()
		}, history.Unknown, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(c.answer)
			defer server.Close()
			f := newFleet(&Config{URLs: []string{server.URL}}, 1)
			a := f.send(t.Context(), http.MethodPost, "/", []byte("{}"), 300*time.Millisecond)
			if a.outcome != c.want || a.later != c.later {
				t.Errorf("%+v, want %s later %v", a, c.want, c.later)
			}
		})
	}
}

// TestNobodyThere: a request that reached nobody did not happen.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	f := newFleet(&Config{URLs: []string{"http://" + l.Addr().String()}}, 1)
	if a := f.send(t.Context(), http.MethodPost, "/", nil, time.Second); a.outcome != history.Fail {
		t.Errorf("%+v", a)
	}
}

// testRun is a run on a server, with its history in a file.
func testRun(t *testing.T, serve http.HandlerFunc) *run {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	cfg := &Config{URLs: []string{server.URL}, Timeout: time.Second, Lease: time.Second, Producers: 1, Partitions: 1, Queues: 1}
	rec, err := newRecorder(filepath.Join(t.TempDir(), "h.jsonl"), &history.Run{})
	if err != nil {
		t.Fatal(err)
	}
	return &run{
		cfg: cfg, fleet: newFleet(cfg, 1), rec: rec,
		produce: t.Context(), finish: t.Context(), settle: t.Context(), hard: t.Context(),
	}
}

// TestInsist: refusals and lost answers are sent again, no sooner than asked for; a verdict ends it.
func TestInsist(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	r := testRun(t, func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case 1:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
		case 2:
			panic(http.ErrAbortHandler)
		default:
			_, _ = io.WriteString(w, `[{"index":0,"transaction_id":"a","status":"duplicate","offset":4}]`)
		}
	})
	began := time.Now()
	op := r.worker("w", 0).push([]item{{"q", "p", "a", payload{ID: "a"}.encode()}})
	if op.Outcome != history.OK || op.Try != 3 || op.Pushed[0].Offset != 4 || op.Pushed[0].Status != "duplicate" {
		t.Errorf("%+v", op)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("it did not wait the second it was asked to, only %v", took)
	}
	if err := r.rec.close(history.End{}); err != nil {
		t.Fatal(err)
	}
	h, err := load(r.rec.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	var got []history.Outcome
	for _, op := range h.Ops {
		got = append(got, op.Outcome)
	}
	if len(got) != 3 || got[0] != history.Fail || got[1] != history.Unknown || got[2] != history.OK {
		t.Errorf("recorded %v", got)
	}
	if c := count(h); c != r.rec.snapshot() || c.Retries != 2 || c.Unknown != 1 || c.Failed != 1 {
		t.Errorf("counted %+v and %+v", c, r.rec.snapshot())
	}
}

// TestInsistEnds: a refusal for good, or the end of the time, ends it.
func TestInsistEnds(t *testing.T) {
	t.Parallel()
	status := http.StatusBadRequest
	r := testRun(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	one := []item{{"q", "p", "a", payload{ID: "a"}.encode()}}
	if op := r.worker("w", 0).push(one); op.Outcome != history.Fail || op.Try != 1 {
		t.Errorf("%+v", op)
	}
	status = http.StatusServiceUnavailable
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r.settle = ctx
	if op := r.worker("w", 1).push(one); op.Outcome != history.Unknown || op.Try < 2 {
		t.Errorf("%+v", op)
	}
}

// TestAnswersThatAreNone: an answer that does not fit its request is of no use, and says so.
func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{`, `{}`, `[]`, `[{"transaction_id":"b","status":"queued","offset":1}]`,
		`[{"transaction_id":"a","status":"queued"},{"transaction_id":"a","status":"queued"}]`,
	} {
		r := testRun(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.settle = ctx
		op := r.worker("w", 0).push([]item{{"q", "p", "a", payload{ID: "a"}.encode()}})
		if op.Outcome != history.Unknown || !strings.HasPrefix(op.Reason, history.Unreadable) {
			t.Errorf("%s: %+v", text, op)
		}
	}
}

// TestSeedDecides: the choices of a worker follow from the seed and its name.
func TestSeedDecides(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64, kind string) [4]int {
		w := (&run{cfg: &Config{Seed: seed}}).worker(kind, 0)
		var out [4]int
		for i := range out {
			out[i] = w.rand.IntN(1 << 30)
		}
		return out
	}
	first, again := draw(1, "a"), draw(1, "a")
	if first != again || first == draw(2, "a") || first == draw(1, "b") {
		t.Error("the same choices for different seeds or workers, or different ones for the same")
	}
}

// TestUnreachable: a fleet that nobody reaches in the end is no violation, and no success.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/configure" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	var out strings.Builder
	file := filepath.Join(t.TempDir(), "h.jsonl")
	code := Main([]string{
		"--url", server.URL, "--duration", "1s", "--drain-timeout", "1s", "--lease", "1s", "--quiet", "--history", file,
	}, &out, &out)
	if code != exitError {
		t.Errorf("exit %d\n%s", code, out.String())
	}
	h, err := load(file)
	if err != nil {
		t.Fatal(err)
	}
	if h.End.Reached || h.End.Drained || len(h.Ops) == 0 {
		t.Errorf("%d operations, end %+v", len(h.Ops), h.End)
	}
	if code := Main([]string{"--check", file}, &out, &out); code != exitError {
		t.Errorf("checked again: exit %d\n%s", code, out.String())
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"--url ,", "--url localhost:1", "--queues 0", "--consumers -1", "--duration 0s", "--lease 1500ms", "--lease 0s", "--rate 0",
		"--max-backlog 0", "--nope", "stray", "--seed x",
	} {
		if code := Main(strings.Fields(args), io.Discard, io.Discard); code != exitUsage {
			t.Errorf("%s: exit %d", args, code)
		}
	}
	if code := Main([]string{"-h"}, io.Discard, io.Discard); code != exitOK {
		t.Errorf("help: exit %d", code)
	}
	if code := Main([]string{"--check", filepath.Join(t.TempDir(), "none")}, io.Discard, io.Discard); code != exitError {
		t.Errorf("no such history: exit %d", code)
	}
}
