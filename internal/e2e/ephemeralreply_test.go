package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// rpc is requests and replies through ephemeral queues: requests in one queue
// that responders share, replies in an inbox for each request.
type rpc struct {
	t       *testing.T
	f       *EphemeralFleet
	brokers []*Broker // with connections for a crowd
	served  atomic.Int64
}

type rpcRequest struct {
	N       int    `json:"n"`
	ReplyTo string `json:"replyTo"`
}

type rpcReply struct {
	N      int `json:"n"`
	Square int `json:"square"`
}

func newRPC(t *testing.T, env ...string) *rpc {
	// A crowd on a machine that runs other tests as well may wait for seconds
	// to be connected, which is no outage.
	env = append(env, "REDIS_URL="+pgtest.Redis(t)+"?dial_timeout=20s&read_timeout=20s&write_timeout=20s")
	r := &rpc{t: t, f: StartEphemeral(t, 2, env...)}
	for _, b := range r.f.Brokers {
		c := *b
		crowd := &http.Transport{MaxIdleConnsPerHost: 1500}
		c.client = &http.Client{Timeout: 2 * time.Minute, Transport: crowd}
		t.Cleanup(crowd.CloseIdleConnections)
		r.brokers = append(r.brokers, &c)
	}
	return r
}

// serve answers requests until ctx ends. lost says which acks never arrive.
func (r *rpc) serve(ctx context.Context, b *Broker, lost func() bool) {
	for ctx.Err() == nil {
		for _, m := range b.EphemeralPop("rpc", "group=responders&batch=10&wait=true&timeout=300") {
			var q rpcRequest
			if err := json.Unmarshal(m.Payload, &q); err != nil {
				r.t.Error(err)
				return
			}
			b.EphemeralPush(q.ReplyTo, "", fmt.Sprintf(`{"n":%d,"square":%d}`, q.N, q.N*q.N))
			r.served.Add(1)
			if lost == nil || !lost() {
				b.EphemeralAck("rpc", "responders", "", m)
			}
		}
	}
}

// responders starts n of them and return what stops them.
func (r *rpc) responders(n int, lost func() bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { r.serve(ctx, r.brokers[i%2], lost) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *rpc) send(n int, inbox string) {
	raw, err := json.Marshal(rpcRequest{n, inbox})
	if err != nil {
		panic(err) // numbers and a name
	}
	r.brokers[n%2].EphemeralPush("rpc", "", string(raw))
}

// receive is all replies in an inbox by the deadline, none when there was none.
func (r *rpc) receive(n int, inbox string, timeout time.Duration) []rpcReply {
	m := r.brokers[(n/2)%2].EphemeralPop(inbox, fmt.Sprint("autoAck=true&batch=10&wait=true&timeout=", timeout.Milliseconds()))
	replies := make([]rpcReply, len(m))
	for i := range m {
		if err := json.Unmarshal(m[i].Payload, &replies[i]); err != nil {
			r.t.Error(err)
		}
	}
	return replies
}

// ask is one request as a client makes it.
func (r *rpc) ask(n int, inbox string, timeout time.Duration) []rpcReply {
	r.send(n, inbox)
	return r.receive(n, inbox, timeout)
}

// baseline waits until nothing is left, of queues and of keys.
func (r *rpc) baseline() {
	r.t.Helper()
	var st struct{ Queues, CellBytes int }
	start := time.Now()
	for end := start.Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		r.f.One().MustInto(&st, 200, "GET", "/api/v1/system/ephemeral", nil)
		if st.Queues == 0 || time.Now().After(end) {
			break
		}
	}
	r.t.Logf("nothing left after %v", time.Since(start))
	if list, cell := r.f.One().EphemeralQueues(); len(list) != 0 || cell != 0 || st.CellBytes != 0 {
		r.t.Errorf("%d queues left, %d bytes, %+v", len(list), cell, st)
	}
	if keys := r.keys(); !slices.Equal(keys, []string{r.f.Prefix + "ephemeral:epoch"}) {
		r.t.Errorf("%d keys left: %.20q", len(keys), keys)
	}
}

func (r *rpc) keys() (keys []string) {
	r.t.Helper()
	c := redisClient(r.t, r.f.RedisURL)
	for it := c.Scan(r.t.Context(), 0, r.f.Prefix+"*", 1000).Iterator(); it.Next(r.t.Context()); {
		keys = append(keys, it.Val())
	}
	return keys
}

// TestPattern_P3_Crowds runs what keeps both brokers busy, one after the other.
func TestPattern_P3_Crowds(t *testing.T) {
	t.Parallel()
	t.Run("a thousand requesters", thousandRequesters)
	t.Run("R7 ten thousand inboxes", oneUseInboxes)
}

// thousandRequesters ask five responders at once.
func thousandRequesters(t *testing.T) {
	r := newRPC(t, "QUEEN_EPHEMERAL_IMPLICIT_IDLE_S=2")
	const requesters = 1000
	var wg sync.WaitGroup
	var answered atomic.Int64
	took := make([]time.Duration, requesters)
	ready := make(chan struct{})
	for n := range requesters {
		wg.Go(func() {
			inbox := fmt.Sprint("rpc-inbox-", n)
			<-ready
			if n%4 == 0 { // the reply is there before anybody waits for it
				time.Sleep(10 * time.Millisecond)
			}
			start := time.Now()
			replies := r.ask(n, inbox, time.Minute)
			took[n] = time.Since(start)
			if len(replies) != 1 || replies[0] != (rpcReply{n, n * n}) {
				t.Errorf("request %d was answered %v", n, replies)
				return
			}
			answered.Add(1)
		})
	}
	stop := r.responders(5, nil)
	close(ready)
	wg.Wait()
	stop()
	slices.Sort(took)
	t.Logf("%d of %d answered, p50 %v, p99 %v", answered.Load(), requesters, took[requesters/2], took[requesters*99/100])
	if r.served.Load() != requesters {
		t.Errorf("%d requests served", r.served.Load())
	}
	r.baseline()
}

// TestPattern_P3_ResponderKilled has a responder die with the request.
func TestPattern_P3_ResponderKilled(t *testing.T) {
	t.Parallel()
	r := newRPC(t, "QUEEN_EPHEMERAL_LEASE_S=3", "QUEEN_EPHEMERAL_IMPLICIT_IDLE_S=2", "QUEEN_EPHEMERAL_UNREAD_S=5")
	first := async(func() []rpcReply {
		start := time.Now()
		replies := r.ask(7, "first", 700*time.Millisecond)
		within(t, "the deadline", time.Since(start), 700*time.Millisecond, 2500*time.Millisecond)
		return replies
	})
	m := r.brokers[1].EphemeralPop("rpc", "group=responders&wait=true&timeout=10000")
	if len(m) != 1 { // and that was the last of this responder
		t.Fatalf("got %+v", m)
	}
	if replies := await(t, first, "the deadline of the first request"); len(replies) != 0 {
		t.Errorf("answered %v", replies)
	}
	stop := r.responders(2, nil)
	for n, inbox := range []string{"second", "third", "fourth"} {
		// A responder slower than its lease answers twice, as it may.
		if replies := slices.Compact(r.ask(n, inbox, 20*time.Second)); !slices.Equal(replies, []rpcReply{{n, n * n}}) {
			t.Errorf("%s was answered %v", inbox, replies)
		}
	}
	// The first is redelivered and answered too. Its inbox is where that ends up.
	if replies := slices.Compact(r.receive(7, "first", 20*time.Second)); !slices.Equal(replies, []rpcReply{{7, 49}}) {
		t.Errorf("late answer %v", replies)
	}
	stop()
	r.baseline()
}

// TestPattern_P3_AckLost answers every request twice, because the first ack of
// each is lost.
func TestPattern_P3_AckLost(t *testing.T) {
	t.Parallel()
	r := newRPC(t, "QUEEN_EPHEMERAL_LEASE_S=1", "QUEEN_EPHEMERAL_IMPLICIT_IDLE_S=1", "QUEEN_EPHEMERAL_UNREAD_S=3")
	const requests = 60
	var acks atomic.Int64
	stop := r.responders(3, func() bool { return acks.Add(1) <= requests })
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for i := range 2 * requests / 6 {
				n := w*1000 + i
				replies := r.ask(n, fmt.Sprint("inbox-", n), 20*time.Second)
				for _, reply := range replies {
					if reply != (rpcReply{n, n * n}) {
						t.Errorf("request %d was answered %v", n, replies)
					}
				}
				if len(replies) == 0 {
					t.Errorf("request %d was not answered", n)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, func() bool { return r.served.Load() >= 3*requests }, "every second answer")
	stop()
	r.baseline() // the second answers as well
}

// oneUseInboxes uses ten thousand queues once each.
func oneUseInboxes(t *testing.T) {
	r := newRPC(t, "QUEEN_EPHEMERAL_IMPLICIT_IDLE_S=1")
	inboxes := 10_000
	if testing.Short() {
		inboxes = 1000
	}
	var wg sync.WaitGroup
	var next atomic.Int64
	for w := range 16 {
		wg.Go(func() {
			for n := int(next.Add(1)); n <= inboxes && !t.Failed(); n = int(next.Add(1)) {
				inbox := fmt.Sprint("rpc-inbox-", n)
				r.brokers[w%2].EphemeralPush(inbox, "", fmt.Sprint(n))
				if m := r.brokers[n%2].EphemeralPop(inbox, "autoAck=true&wait=true&timeout=30000"); len(m) != 1 || string(m[0].Payload) != fmt.Sprint(n) {
					t.Errorf("inbox %d: %+v", n, m)
				}
			}
		})
	}
	wg.Wait()
	r.baseline()
}
