package node

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

// freeAddress is one that refuses connections until somebody listens there.
func freeAddress(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func startNode(t *testing.T, redisURL string) *httptest.Server {
	t.Helper()
	cfg, err := config.Load([]string{"DATABASE_URL=" + pgtest.New(t).URL, "DB_POOL_SIZE=4", "REDIS_URL=" + redisURL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := Open(t.Context(), cfg, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(n.Handler())
	t.Cleanup(func() {
		begin := time.Now()
		n.Drain()
		srv.Close()
		n.Close()
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%v to stop", took)
		}
	})
	return srv
}

// ask sends a request and checks the status and how long it took.
func ask(t *testing.T, srv *httptest.Server, method, path, body string, status int, limit time.Duration) (string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != status {
		t.Errorf("%s %s: %d %s, want %d", method, path, resp.StatusCode, text, status)
	}
	if took := time.Since(begin); took > limit {
		t.Errorf("%s %s took %v", method, path, took)
	}
	return string(text), resp.Header
}

// durable checks everything that a missing Redis must not touch.
func durable(t *testing.T, srv *httptest.Server) {
	t.Helper()
	const soon = 2 * time.Second
	ask(t, srv, "GET", "/health", "", 200, soon)
	ask(t, srv, "GET", "/readyz", "", 200, soon)
	ask(t, srv, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, 201, soon)
	if text, _ := ask(t, srv, "GET", "/api/v1/pop/queue/q?autoAck=true&wait=true&timeout=5000", "", 200, soon); !strings.Contains(text, `"data":1`) {
		t.Errorf("popped %s", text)
	}
	ask(t, srv, "POST", "/api/v1/kv", `[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]`, 200, soon)
}

const ephemeralPush = `{"queue":"q","messages":[{"payload":1}]}`

// refused checks that the family is unavailable, and says when to come again.
func refused(t *testing.T, srv *httptest.Server, limit time.Duration) {
	t.Helper()
	text, head := ask(t, srv, "POST", "/api/v1/ephemeral/push", ephemeralPush, 503, limit)
	if !strings.Contains(text, `"code":"ephemeral_unavailable"`) || head.Get("Retry-After") == "" {
		t.Errorf("refused with %s, Retry-After %q", text, head.Get("Retry-After"))
	}
}

// TestRedisAway_R5: a Redis that is not there when the broker starts concerns
// the ephemeral queues only, and they work as soon as it is there.
func TestRedisAway_R5(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	srv := startNode(t, "redis://"+address)
	durable(t, srv)
	refused(t, srv, 2*time.Second)

	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(address); err != nil {
		t.Fatal(err)
	}
	working := func() bool {
		resp, err := srv.Client().Post(srv.URL+"/api/v1/ephemeral/push", "application/json", strings.NewReader(ephemeralPush))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode == 201
	}
	deadline := time.Now().Add(10 * time.Second)
	for !working() {
		if time.Now().After(deadline) {
			t.Fatal("not found again")
		}
		time.Sleep(50 * time.Millisecond)
	}
	server.Close()
	refused(t, srv, 2*time.Second)
	durable(t, srv)
}

// TestRedisSilent_R5: neither does one that takes connections and says nothing.
func TestRedisSilent_R5(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	srv := startNode(t, "redis://"+ln.Addr().String())
	durable(t, srv)
	refused(t, srv, 8*time.Second)
	durable(t, srv)
}

func TestWithoutRedis(t *testing.T) {
	t.Parallel()
	srv := startNode(t, "")
	durable(t, srv)
	refused(t, srv, time.Second)
}
