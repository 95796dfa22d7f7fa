package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

var listening = regexp.MustCompile(`broker is listening.* url=(\S+)`)

// broker starts a broker with a database of its own.
func broker(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "verify")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// The database may run under another account than this test.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "queen")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/queen").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(bin, "dev", "--data-dir", filepath.Join(dir, "data"))
	cmd.Env = append(os.Environ(), "PORT=0", "HOST=127.0.0.1", "DATABASE_URL=", "REDIS_URL=")
	logs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text lockedBuffer
	address, ended := make(chan string, 1), make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(logs); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				address <- m[1]
			}
			_, _ = io.WriteString(&text, lines.Text()+"\n")
		}
		ended <- fmt.Sprint(cmd.Wait())
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			t.Error("the broker did not stop")
		}
		if t.Failed() {
			t.Logf("log of the broker:\n%s", text.String())
		}
	})
	select {
	case at := <-address:
		return at
	case how := <-ended:
		ended <- how
		t.Fatalf("the broker ended: %s\n%s", how, text.String())
	case <-time.After(60 * time.Second):
		t.Fatalf("the broker did not start\n%s", text.String())
	}
	return ""
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestLive runs the workload on a broker that keeps its promises, and through proxies that break one each.
func TestLive(t *testing.T) {
	t.Parallel()
	at := broker(t)
	for _, c := range []struct {
		name string
		lie  lie
		want history.Guarantee // empty: no violation
		more []string
	}{
		{"an honest proxy", lie{}, "", nil},
		{"a proxy that loses answers", lie{after: loseAnswer}, "", nil},
		{"acks are confirmed and not carried out", lie{before: swallowAck}, history.Cursor, nil},
		{"pushes are confirmed and not stored", lie{before: swallowPush}, history.NoLoss, nil},
		{"messages are dropped on their way out", lie{after: dropFirst}, history.NoLoss, nil},
		{"leases are shorter than granted", lie{change: shortLease}, history.Exclusive, []string{"--duration", "10s"}},
		{"committed transactions are called refused", lie{after: denyCommit}, history.Effect, nil},
		{"timers fire at once", lie{change: rushTimers}, history.Timer, nil},
		{"payloads are altered", lie{after: alterPayload}, history.NoInvention, nil},
		{"counters are misread", lie{after: misreadCounter}, history.Linear, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proxy := httptest.NewServer(c.lie.handler(t, at))
			defer proxy.Close()
			var out strings.Builder
			summary := filepath.Join(t.TempDir(), "summary.json")
			code := Main(append([]string{
				"--url", proxy.URL, "--seed", "5", "--duration", "5s", "--partitions", "4", "--consumers", "2", "--rate", "60",
				"--lease", "2s", "--drain-timeout", "90s", "--quiet", "--json", summary,
			}, c.more...), &out, &out)
			text, err := os.ReadFile(summary)
			if err != nil {
				t.Fatalf("exit %d, %v\n%s", code, err, out.String())
			}
			var got Summary
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			if got.Messages[history.Input] < 30 {
				t.Errorf("only %d messages came through", got.Messages[history.Input])
			}
			if c.want == "" && code != exitOK || c.want != "" && (code != exitFailed || got.By[c.want] == 0) {
				t.Errorf("exit %d, want %q\n%s", code, c.want, out.String())
			}
			t.Logf("%v, %s", got.By, strings.TrimSpace(out.String()[strings.LastIndex(out.String(), "verify: seed"):]))
		})
	}
}

// lie is what a proxy does wrong: answer instead of the broker, change the request, or change the answer.
type lie struct {
	before func(w http.ResponseWriter, r *http.Request, body []byte) bool
	change func(r *http.Request, body []byte) []byte
	after  func(r *http.Request, body []byte) ([]byte, bool)
}

func (l lie) handler(t *testing.T, to string) http.Handler {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	proxy.ModifyResponse = func(res *http.Response) error {
		if l.after == nil || res.StatusCode/100 != 2 || res.StatusCode == http.StatusNoContent {
			return nil
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		changed, keep := l.after(res.Request, body)
		if !keep {
			return io.ErrUnexpectedEOF
		}
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
		res.Header.Del("Content-Length")
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if l.before != nil && l.before(w, r, body) {
			return
		}
		if l.change != nil {
			body = l.change(r, body)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		proxy.ServeHTTP(w, r)
	})
}

func loseAnswer(r *http.Request, body []byte) ([]byte, bool) {
	return body, strings.HasPrefix(r.URL.Path, "/api/v1/resources") || rand.IntN(10) > 0
}

func swallowAck(w http.ResponseWriter, r *http.Request, body []byte) bool {
	if r.URL.Path != "/api/v1/ack/batch" || rand.IntN(5) > 0 {
		return false
	}
	var request struct {
		Acknowledgments []ack `json:"acknowledgments"`
	}
	_ = json.Unmarshal(body, &request)
	results := []ackResult{}
	for _, a := range request.Acknowledgments {
		results = append(results, ackResult{TransactionID: a.TransactionID, Success: true, LeaseReleased: true})
	}
	_ = json.NewEncoder(w).Encode(results)
	return true
}

func swallowPush(w http.ResponseWriter, r *http.Request, body []byte) bool {
	var request struct {
		Items []item `json:"items"`
	}
	if r.URL.Path != "/api/v1/push" || json.Unmarshal(body, &request) != nil || len(request.Items) > 1 || rand.IntN(3) > 0 {
		return false
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode([]stored{{TransactionID: request.Items[0].TransactionID, Status: "queued"}})
	return true
}

func shortLease(r *http.Request, body []byte) []byte {
	r.URL.RawQuery = strings.Replace(r.URL.RawQuery, "leaseSeconds=2", "leaseSeconds=1", 1)
	return body
}

func rushTimers(_ *http.Request, body []byte) []byte {
	return regexp.MustCompile(`"delayMs":[0-9.]+`).ReplaceAll(body, []byte(`"delayMs":0`))
}

func dropFirst(r *http.Request, body []byte) ([]byte, bool) {
	if !strings.HasPrefix(r.URL.Path, "/api/v1/pop/") || rand.IntN(3) > 0 {
		return body, true
	}
	var answer map[string]json.RawMessage
	var messages []json.RawMessage
	if json.Unmarshal(body, &answer) != nil || json.Unmarshal(answer["messages"], &messages) != nil || len(messages) < 2 {
		return body, true
	}
	answer["messages"], _ = json.Marshal(messages[1:])
	changed, _ := json.Marshal(answer)
	return changed, true
}

func denyCommit(r *http.Request, body []byte) ([]byte, bool) {
	if r.URL.Path != "/api/v1/transaction" || !bytes.Contains(body, []byte(`"success":true,"results"`)) || rand.IntN(5) > 0 {
		return body, true
	}
	return []byte(`{"success":false,"reason":"rejected_ack","error":"a lie","results":[]}`), true
}

func alterPayload(r *http.Request, body []byte) ([]byte, bool) {
	if !strings.HasPrefix(r.URL.Path, "/api/v1/pop/") {
		return body, true
	}
	return bytes.Replace(body, []byte(`"pad":"`), []byte(`"pad":"!`), 1), true
}

// misreadCounter answers a read of a counter with what is one off. The reads of the end are left alone.
func misreadCounter(r *http.Request, body []byte) ([]byte, bool) {
	if r.URL.Path != "/api/v1/kv" || !bytes.Contains(body, []byte(`"op":"get","found":true,"key":"count:`)) {
		return body, true
	}
	return regexp.MustCompile(`"value":(\d)`).ReplaceAll(body, []byte(`"value":9$1`)), true
}
