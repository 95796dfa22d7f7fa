// Package e2e tests the broker from outside, over HTTP: one broker, or a fleet
// of them on one database. Brokers run in the test's process, so that the race
// detector sees them; tests that kill one start real processes.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/longpoll"
	"github.com/queenmq-go/queenmq/internal/node"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// Options of a fleet.
type Options struct {
	Brokers int      // default 1
	Redis   bool     // hints travel over a real Redis instead of notifications
	Env     []string // NAME=value, as for a real broker
}

// Fleet is some brokers on a database of their own.
type Fleet struct {
	t       testing.TB
	DB      *pgtest.DB
	Brokers []*Broker
}

// Broker is one broker of a fleet.
type Broker struct {
	t       testing.TB
	URL     string
	Node    *node.Node
	server  *httptest.Server
	waiting *longpoll.Listener
	client  *http.Client
}

// Start runs a fleet until the test ends.
func Start(t testing.TB, o Options) *Fleet {
	t.Helper()
	f := &Fleet{t: t, DB: pgtest.New(t)}
	env := append([]string{"DATABASE_URL=" + f.DB.URL, "DB_POOL_SIZE=16"}, o.Env...)
	if o.Redis {
		// All fleets of a run share one Redis.
		env = append(env, "REDIS_URL="+pgtest.Redis(t), "QUEEN_REDIS_PREFIX="+f.DB.Name+":")
	}
	for range max(o.Brokers, 1) {
		f.Brokers = append(f.Brokers, f.start(env))
	}
	return f
}

func (f *Fleet) start(env []string) *Broker {
	f.t.Helper()
	cfg, err := config.Load(env, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	n, err := node.Open(context.Background(), cfg, "test", slog.New(slog.NewTextHandler(logWriter{f.t}, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		f.t.Fatal(err)
	}
	b := &Broker{t: f.t, Node: n, server: httptest.NewUnstartedServer(n.Handler())}
	b.waiting = longpoll.Listen(b.server.Listener, time.Minute)
	b.server.Listener, b.server.Config.BaseContext = b.waiting, b.waiting.BaseContext
	b.server.Start()
	b.URL = b.server.URL
	b.client = &http.Client{Timeout: 90 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	f.t.Cleanup(b.Stop)
	return b
}

// Stop drains the broker and takes it apart. It may be called early, and again.
func (b *Broker) Stop() {
	if b.Node == nil {
		return
	}
	b.Node.Drain()
	b.client.CloseIdleConnections()
	b.server.Close()
	limit, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := b.waiting.Wait(limit); err != nil {
		b.t.Errorf("parked requests at the end: %v", err)
	}
	b.Node.Close()
	b.Node = nil
}

// logWriter sends a broker's log to the test's.
type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// One is the first broker, for tests that need no other.
func (f *Fleet) One() *Broker { return f.Brokers[0] }

// Do sends a request and returns what came back. A string or []byte body goes
// as it is, anything else as JSON.
func (b *Broker) Do(method, path string, body any) (status int, header http.Header, answer []byte) {
	b.t.Helper()
	status, header, answer, err := b.Try(context.Background(), method, path, body)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	return status, header, answer
}

// Try is Do for callers that expect failures of the connection.
func (b *Broker) Try(ctx context.Context, method, path string, body any) (int, http.Header, []byte, error) {
	var r io.Reader
	switch v := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(v)
	case []byte:
		r = bytes.NewReader(v)
	default:
		raw, err := json.Marshal(v)
		if err != nil {
			return 0, nil, nil, err
		}
		r = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, b.URL+path, r)
	if err != nil {
		return 0, nil, nil, err
	}
	res, err := b.client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, answer, err
}

// Seg escapes a name for a place in a path.
func Seg(name string) string { return url.PathEscape(name) }
