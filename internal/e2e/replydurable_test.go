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
)

// replies is requests and replies through durable queues. A responder commits
// its ack, the reply and a marker in one transaction.
type replies struct {
	t    *testing.T
	list []*Broker
	dead atomic.Bool // the first broker
	turn atomic.Int64
	lost atomic.Int64 // calls without an answer
}

// until sends a request, to whoever is there, until it is answered so.
func (r *replies) until(want int, method, path string, body any) []byte {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && !r.t.Failed(); {
		status, answer := r.try(method, path, body)
		if status == want {
			return answer
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Errorf("%s %s: never %d", method, path, want)
	return []byte("{}")
}

func (r *replies) try(method, path string, body any) (status int, answer []byte) {
	b := r.list[int(r.turn.Add(1))%len(r.list)]
	if r.dead.Load() {
		b = r.list[1]
	}
	status, _, answer, err := b.Try(context.Background(), method, path, body)
	if err != nil {
		r.lost.Add(1)
		return 0, nil
	}
	return status, answer
}

// respond answers requests until ctx ends.
func (r *replies) respond(ctx context.Context) {
	for ctx.Err() == nil && !r.t.Failed() {
		var got PopAnswer
		status, raw := r.try("GET", "/api/v1/pop/queue/requests?leaseSeconds=2&wait=true&timeout=300", nil)
		if status != http.StatusOK || json.Unmarshal(raw, &got) != nil {
			continue
		}
		for _, m := range got.Messages {
			body, err := json.Marshal(struct {
				bundle
				KV []any `json:"kv"`
			}{ops([]AckItem{m.Ack("completed", "")}, Item{
				Queue: "replies", Partition: m.Partition, TransactionID: "reply:" + m.TransactionID, Payload: json.RawMessage(quoted(m.TransactionID)),
			}), []any{op{"op": "putIfAbsent", "ns": "replied", "key": m.TransactionID, "value": 1, "forever": true, "required": true}}})
			if err != nil {
				r.t.Error(err)
				return
			}
			// Without an answer nothing is lost: the lease ends, and the marker tells.
			if status, answer := r.try("POST", transactionPath, body); status != http.StatusOK && status != 0 && status != http.StatusServiceUnavailable {
				r.t.Errorf("transaction: %d %.300s", status, answer)
			}
		}
	}
}

// session makes requests and waits for the reply to each.
func (r *replies) session(s, n int) {
	partition := fmt.Sprint("session-", s)
	for i := range n {
		id := fmt.Sprintf("%d-%d", s, i)
		r.until(http.StatusCreated, "POST", "/api/v1/push", PushBody(Item{Queue: "requests", Partition: partition, TransactionID: id}))
		for reply := ""; reply != "reply:"+id && !r.t.Failed(); {
			path := "/api/v1/pop/queue/replies/partition/" + partition + "?consumerGroup=sessions&subscriptionMode=all&leaseSeconds=2&wait=true&timeout=2000"
			status, raw := r.try("GET", path, nil)
			var got PopAnswer
			if status != http.StatusOK || json.Unmarshal(raw, &got) != nil {
				continue
			}
			reply = got.Messages[0].TransactionID
			if reply != "reply:"+id && !slices.Contains(ids(fmt.Sprint("reply:", s), 0, i), reply) {
				r.t.Errorf("request %s was answered %s", id, reply)
			}
			r.until(http.StatusOK, "POST", "/api/v1/ack/batch", map[string]any{
				"consumerGroup": "sessions", "acknowledgments": []AckItem{got.Messages[0].Ack("completed", "")},
			})
		}
	}
}

// durableReplies kills a broker while five responders serve eight sessions.
func durableReplies(t *testing.T, bin string) {
	f := Start(t, Options{})
	doomed := serve(t, bin, f.DB.URL)
	r := &replies{t: t, list: []*Broker{doomed.Broker, f.One()}}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var responders, sessions sync.WaitGroup
	for range 5 {
		responders.Go(func() { r.respond(ctx) })
	}
	const many, each = 8, 12
	for s := range many {
		sessions.Go(func() { r.session(s, each) })
	}
	pool := f.DB.Pool(t)
	markers := func() (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM queen.kv WHERE ns = 'replied'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, func() bool { return markers() >= many*each/3 }, "some replies")
	if err := doomed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	doomed.ended(10 * time.Second)
	r.dead.Store(true)
	sessions.Wait()
	stop()
	responders.Wait()
	var got []string
	for _, m := range stored(f.One().In(t), "replies") {
		got = append(got, m.TransactionID)
		if m.Partition != fmt.Sprint("session-", m.TransactionID[len("reply:")]-'0') {
			t.Errorf("%s is in %s", m.TransactionID, m.Partition)
		}
	}
	var want []string
	for s := range many {
		want = append(want, ids(fmt.Sprint("reply:", s), 0, each)...)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d replies stored, want %d", len(got), len(want))
	}
	if n := markers(); n != many*each {
		t.Errorf("%d markers", n)
	}
	t.Logf("%d replies, %d calls without an answer", len(got), r.lost.Load())
}
