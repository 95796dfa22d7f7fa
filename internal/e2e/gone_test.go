package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// detached is how long to wait for a parked pop to have left the HTTP server.
const detached = 250 * time.Millisecond

// leaver is a consumer that may drop its connection at any time.
type leaver struct {
	conn net.Conn
	read *bufio.Reader
}

func leavingPop(t testing.TB, b *Broker, path string) *leaver {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: q\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	return &leaver{conn: conn, read: bufio.NewReader(conn)}
}

func TestGone_A9_B76_AParkedClientTakesNothing(t *testing.T) {
	t.Parallel()
	eachScene(t, deaf, func(t testing.TB, s *scene) {
		s.mustNothing("")
		path := "/api/v1/pop/queue/" + s.queue
		if s.pinned {
			path += "/partition/" + partition
		}
		for i, query := range []string{"", "autoAck=true"} {
			l := leavingPop(t, s.consumer, path+"?"+s.query(query+"&wait=true&timeout=30000"))
			parked(t, s.consumer, s.queue, 1)
			time.Sleep(time.Duration(i) * detached)
			_ = l.conn.Close()
			parkedNone(t, s.consumer, s.queue)
			next := async(func() *PopAnswer { return s.popBy(s.third, "wait=true&timeout=15000&autoAck=true") })
			parked(t, s.third, s.queue, 1)
			start := time.Now()
			s.push(1)
			p := await(t, next, "the next consumer")
			within(t, "delivery to the next consumer", time.Since(start), 0, prompt)
			if !slices.Equal(p.IDs(), ids("m", 0, 1)) || p.Messages[0].DeliveryAttempt != 1 {
				t.Errorf("got %+v", p)
			}
			s.producer.Configure(s.queue, map[string]any{"dedupWindowSeconds": 0})
		}
	})
}

func TestGone_A9_AClientThatLeavesBetweenClaimAndAnswer(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/v1/pop/queue/n.q", "/api/v1/pop/queue/n.q/partition/p", "/api/v1/pop"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			f := Start(t, Options{Brokers: 2, Env: []string{"DB_POOL_SIZE=4"}})
			a, b := f.Brokers[0].In(t), f.Brokers[1].In(t)
			a.Pop("n.q", "")
			a.PushN("n.q", "p", "m", 3)
			// The claim is granted at the end of a slow commit.
			slowCommit(t, f, "queen.cursors", "UPDATE", "NEW.lease_id IS NOT NULL AND OLD.lease_id IS NULL AND NEW.attempt_count = 1 AND pg_sequence_last_value('queen.test_once') IS NULL AND nextval('queen.test_once') > 0", 0.5)
			if _, err := f.DB.Pool(t).Exec(t.Context(), "CREATE SEQUENCE queen.test_once"); err != nil {
				t.Fatal(err)
			}
			l := leavingPop(t, a, path+"?namespace=n&batch=2")
			committing(t, f)
			_ = l.conn.Close()
			start := time.Now()
			p := b.Pop("n.q", "wait=true&timeout=15000&batch=2")
			within(t, "being available again", time.Since(start), 0, prompt) // after the commit a few ms alone
			if !slices.Equal(p.IDs(), ids("m", 0, 2)) || p.Messages[0].DeliveryAttempt != 1 {
				t.Errorf("got %q, %+v", p.IDs(), p)
			}
		})
	}
}

func TestGone_AnExtraAttemptOfAnOldBatchIsTakenBackToo(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.PushN("q", "p", "m", 2)
	p := b.Pop("q", "")
	b.Ack("", p.Messages[0].Ack("retry", ""))
	if _, err := f.DB.Pool(t).Exec(t.Context(), "CREATE SEQUENCE queen.test_once"); err != nil {
		t.Fatal(err)
	}
	slowCommit(t, f, "queen.cursors", "UPDATE", "NEW.lease_id IS NOT NULL AND pg_sequence_last_value('queen.test_once') IS NULL AND nextval('queen.test_once') > 0", 0.3)
	l := leavingPop(t, b, "/api/v1/pop/queue/q")
	committing(t, f)
	_ = l.conn.Close()
	if p := b.Pop("q", "wait=true&timeout=10000"); p == nil || p.Messages[0].DeliveryAttempt != 2 {
		t.Errorf("got %+v", p)
	}
}

func TestGone_ARequestThatIsCancelledLeavesTheConnectionUsable(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Env: deaf})
	b := f.One()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _, _, _ = b.Try(ctx, "GET", "/api/v1/pop/queue/q?wait=true&timeout=30000", nil) }()
		parked(t, b, "q", 1)
		cancel()
		parkedNone(t, b, "q")
	}
	b.PushN("q", "p", "m", 1)
	if p := b.Pop("q", ""); p == nil || p.Messages[0].DeliveryAttempt != 1 {
		t.Errorf("got %+v", p)
	}
}

func TestGone_StoppingAnswersTheParked(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Env: deaf})
	b := f.One()
	l := leavingPop(t, b, "/api/v1/pop/queue/n.q?wait=true&timeout=60000")
	d := leavingPop(t, b, "/api/v1/pop?namespace=n&wait=true&timeout=60000")
	time.Sleep(detached)
	late := leavingPop(t, b, "/api/v1/pop/queue/n.q?wait=true&timeout=60000") // still the server's
	parked(t, b, "n.q", 2)
	start := time.Now()
	b.Node.Drain()
	for _, c := range []*leaver{l, d, late} {
		line, err := c.read.ReadString('\n')
		if err != nil && err != io.EOF || !strings.Contains(line, "204") {
			t.Errorf("answered %q, %v", line, err)
		}
	}
	within(t, "draining", time.Since(start), 0, 5*time.Second)
}

// TestGone_AParkedConnectionIsUsedAgain parks pops long enough to be taken out of
// the HTTP server, again and again over one connection, with other requests in
// between.
func TestGone_AParkedConnectionIsUsedAgain(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	var dials atomic.Int32
	client := &http.Client{Transport: &http.Transport{
		MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	}}
	defer client.CloseIdleConnections()
	get := func(path string) (int, string) {
		resp, err := client.Get(b.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	big := json.RawMessage(strconv.Quote(strings.Repeat("x", 200_000)))
	for i := range 4 {
		id := fmt.Sprint("m", i)
		if i%2 == 0 {
			time.AfterFunc(2*detached, func() { b.Push(Item{Queue: "q", TransactionID: id, Payload: big}) })
		}
		status, body := get("/api/v1/pop/queue/q?autoAck=true&wait=true&timeout=1000")
		if i%2 == 0 && (status != 200 || !strings.Contains(body, id) || len(body) < 200_000) || i%2 == 1 && (status != 204 || body != "") {
			t.Errorf("%d: %d, %d bytes", i, status, len(body))
		}
		if status, _ := get("/health"); status != 200 {
			t.Errorf("%d: health %d", i, status)
		}
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// parkedNone waits until nobody stands in line for a queue.
func parkedNone(t testing.TB, b *Broker, queue string) {
	t.Helper()
	eventually(t, func() bool {
		return !strings.Contains(string(b.Must(200, "GET", "/metrics/prometheus", nil)), fmt.Sprintf("queen_parked_long_polls{queue=%q} ", queue))
	}, "the pop on %s to be given up", queue)
}
