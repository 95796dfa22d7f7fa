package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

// queen runs one command in this process.
func queen(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	var buf bytes.Buffer
	code = execute(args, &buf, &buf)
	return buf.String(), code
}

func wantOutput(t *testing.T, out string, code, wantCode int, parts ...string) {
	t.Helper()
	if code != wantCode {
		t.Errorf("exit code %d, want %d: %s", code, wantCode, out)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			t.Errorf("%q is missing in:\n%s", part, out)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	out, code := queen(t, "version")
	wantOutput(t, out, code, 0, "queen ", "schema ")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := "--database-url=" + pgtest.NewEmpty(t).URL
	out, code := queen(t, "migrate", "status", url)
	wantOutput(t, out, code, 0, "00001_", "pending")
	out, code = queen(t, "migrate", "up", url)
	wantOutput(t, out, code, 0, "applied 00001_")
	out, code = queen(t, "migrate", "up", url)
	wantOutput(t, out, code, 0, "nothing to apply")
	out, code = queen(t, "migrate", "status", url)
	wantOutput(t, out, code, 0, "00001_", time.Now().UTC().Format("2006-"))
	out, code = queen(t, "migrate", "down", url)
	wantOutput(t, out, code, 0, "took back ")
	out, code = queen(t, "migrate", "up", "--database-url=postgres://127.0.0.1:1/none")
	wantOutput(t, out, code, 1, "queen: ")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	redis := "--redis-url=" + pgtest.Redis(t)
	out, code := queen(t, "check", redis, "--database-url="+pgtest.New(t).URL)
	wantOutput(t, out, code, 0, "configuration", "schema", "redis eviction", "noeviction", "maxmemory is not set", "fsync is off")
	if strings.Contains(out, "pooler") {
		t.Errorf("a pooler where there is none: %s", out)
	}
	out, code = queen(t, "check", redis, "--database-url="+pgtest.NewEmpty(t).URL)
	wantOutput(t, out, code, 1, "queen migrate up", "check failed: 1 of")
	out, code = queen(t, "check", "--redis-url=redis://127.0.0.1:1", "--database-url=postgres://u:s3cr3t@127.0.0.1:1/none")
	wantOutput(t, out, code, 1, "check failed: 2 of")
	if strings.Contains(out, "s3cr3t") {
		t.Errorf("password printed: %s", out)
	}
	out, code = queen(t, "check", "--port=x")
	wantOutput(t, out, code, 1, "--port")
}

func TestCheckReady(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
	}))
	defer srv.Close()
	port := "--port=" + srv.URL[strings.LastIndex(srv.URL, ":")+1:]
	out, code := queen(t, "check", "--ready", "--bind-addr=127.0.0.1", port)
	wantOutput(t, out, code, 0)
	status = http.StatusServiceUnavailable
	out, code = queen(t, "check", "--ready", "--bind-addr=127.0.0.1", port)
	wantOutput(t, out, code, 1, "503")
	srv.Close()
	out, code = queen(t, "check", "--ready", "--bind-addr=127.0.0.1", port)
	wantOutput(t, out, code, 1, "queen: ")
}

func TestServeRefusesAnOldSchema(t *testing.T) {
	t.Parallel()
	out, code := queen(t, "serve", "--port=0", "--database-url="+pgtest.NewEmpty(t).URL)
	wantOutput(t, out, code, 1, "queen migrate up")
}

func TestServeRefusesGarbage(t *testing.T) {
	t.Parallel()
	out, code := queen(t, "serve", "--retention-interval=5s")
	wantOutput(t, out, code, 1, "--retention-interval", "whole number")
}

func TestServeGivesUpOnAWrongDatabaseName(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	begin := time.Now()
	out, code := queen(t, "serve", "--port=0", "--database-url="+strings.Replace(db.URL, db.Name, "no_such_database", 1))
	wantOutput(t, out, code, 1, "no_such_database")
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("took %v to find out", took)
	}
}

// buffer is a bytes.Buffer that another goroutine may write to.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// startDev runs `queen dev` and waits for its first steps.
func startDev(t *testing.T, dir string) (url string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var out, log buffer
	root := newRoot()
	root.SetArgs([]string{"dev", "--port=0", "--data-dir=" + dir})
	root.SetOut(&out)
	root.SetErr(&log)
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	find := regexp.MustCompile(`ready at (http://\S+)\.`)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			t.Fatalf("ended early: %v\n%s%s", err, &out, &log)
		case <-tick.C:
		}
		if m := find.FindStringSubmatch(out.String()); m != nil {
			return m[1], func() error { cancel(); return <-ended }
		}
	}
}

func TestDevKeepsItsDataAndStopsItsDatabase(t *testing.T) {
	t.Parallel()
	base, err := os.MkdirTemp("", "queen-dev-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(base, "data")
	for range 2 {
		url, stop := startDev(t, dir)
		if !strings.HasPrefix(url, "http://127.0.0.1:") {
			t.Errorf("listens on %s, want this machine only", url)
		}
		resp, err := http.Get(url + "/metrics/prometheus")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if !strings.Contains(string(body), "queen_db_pool_size") {
			t.Errorf("metrics answer %s", resp.Status)
		}
		if err := stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "data", "postmaster.pid")); !os.IsNotExist(err) {
			t.Errorf("database still runs: %v", err)
		}
	}
}

// TestFirstStepsCanBePasted runs the printed lines in a shell, against a
// server that answers a pop like a broker and checks the ack that follows.
func TestFirstStepsCanBePasted(t *testing.T) {
	t.Parallel()
	const want = `{"consumerGroup":"billing","status":"completed","leaseId":"l-1","partitionId":"p-1","transactionId":"t-1"}`
	var seen []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Method+" "+r.URL.Path)
		switch r.URL.Path {
		case "/api/v1/pop/queue/orders":
			_, _ = io.WriteString(w, `{"success":true,"partitionId":"p-1","leaseId":"l-1","messages":[{"transactionId":"t-1",`+
				`"data":{"text":"a\\nb"},"partitionId":"p-1","leaseId":"l-1","consumerGroup":"billing"}]}`)
		case "/api/v1/ack":
			if string(body) != want {
				t.Errorf("ack %s, want %s", body, want)
			}
		}
	}))
	defer srv.Close()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", commandsOf(firstSteps(srv.URL))).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.Join(seen, ", "); got != "POST /api/v1/push, GET /api/v1/pop/queue/orders, POST /api/v1/ack" {
		t.Errorf("requests: %s", got)
	}
}

// commandsOf leaves out the sentences around the commands.
func commandsOf(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "curl") || strings.HasPrefix(line, "POP=") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
