package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeBroker is a small in-memory broker with the wire of the contract, and with faults a test can switch on. It
// keeps one cursor and one lease per (partition, group) and dedups by transaction id.
type fakeBroker struct {
	mu         sync.Mutex
	partitions map[string]*fakePartition // queue + "\x00" + partition
	order      []*fakePartition
	leases     int
	pushes     int
	deleted    []string
	configured map[string]map[string]any
	waiting    atomic.Int64 // pops

	// faults; each sees the running number of its request or the stored message
	failPush func(n int) (status int, stored bool)
	swallow  func(m *fakeMessage) bool
	deliver  func(batch []*fakeMessage) []*fakeMessage
	dropPop  func() bool // the claim is made, its answer is not
	refuse   func(r *http.Request) bool
	noOffset bool
}

type fakePartition struct {
	queue, name, id string
	log             []*fakeMessage
	ids             map[string]*fakeMessage
	groups          map[string]*fakeCursor
}

type fakeCursor struct {
	committed int
	lease     string
	end       int
	attempts  int
	attemptAt int
}

type fakeMessage struct {
	partition *fakePartition
	offset    int
	id        string
	payload   json.RawMessage
}

func startFake(t *testing.T) (*fakeBroker, string) {
	t.Helper()
	f := &fakeBroker{partitions: map[string]*fakePartition{}, configured: map[string]map[string]any{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/configure", f.configure)
	mux.HandleFunc("POST /api/v1/push", f.push)
	mux.HandleFunc("GET /api/v1/pop/queue/{queue}", f.pop)
	mux.HandleFunc("POST /api/v1/ack", f.ack)
	mux.HandleFunc("POST /api/v1/ack/batch", f.ackBatch)
	mux.HandleFunc("GET /metrics/prometheus", f.metrics)
	mux.HandleFunc("DELETE /api/v1/resources/queues/{queue}", f.delete)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return f, server.URL
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (f *fakeBroker) configure(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Queue   string         `json:"queue"`
		Options map[string]any `json:"options"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.configured[body.Queue] = body.Options
	answer(w, http.StatusOK, map[string]any{"configured": true})
}

func (f *fakeBroker) delete(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleted = append(f.deleted, r.PathValue("queue"))
	answer(w, http.StatusOK, map[string]any{"deleted": true})
}

type fakeItem struct {
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	TransactionID string          `json:"transactionId"`
	Payload       json.RawMessage `json:"payload"`
}

func (f *fakeBroker) push(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Items []fakeItem `json:"items"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		answer(w, http.StatusBadRequest, map[string]any{"error": err.Error(), "code": "bad_body"})
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pushes++
	fail, keep := 0, true
	if f.failPush != nil {
		fail, keep = f.failPush(f.pushes)
	}
	var out []map[string]any
	if fail == 0 || keep {
		for i, item := range body.Items {
			out = append(out, f.store(i, item))
		}
	}
	if fail != 0 {
		answer(w, fail, map[string]any{"error": "injected", "code": "retry"})
		return
	}
	answer(w, http.StatusCreated, out)
}

func (f *fakeBroker) store(index int, item fakeItem) map[string]any {
	key := item.Queue + "\x00" + item.Partition
	p := f.partitions[key]
	if p == nil {
		p = &fakePartition{
			queue: item.Queue, name: item.Partition, id: fmt.Sprintf("part-%d", len(f.order)),
			ids: map[string]*fakeMessage{}, groups: map[string]*fakeCursor{},
		}
		f.partitions[key] = p
		f.order = append(f.order, p)
	}
	id := item.TransactionID
	if id == "" {
		id = fmt.Sprintf("minted-%s-%d", p.id, len(p.log))
	}
	status := "queued"
	m := p.ids[id]
	if m != nil {
		status = "duplicate"
	} else {
		m = &fakeMessage{partition: p, offset: len(p.log), id: id, payload: item.Payload}
		p.ids[id] = m
		if f.swallow == nil || !f.swallow(m) {
			p.log = append(p.log, m)
		}
	}
	out := map[string]any{"index": index, "transaction_id": id, "status": status}
	if !f.noOffset {
		out["offset"] = m.offset
	}
	return out
}

// metrics says what a broker of 10 MB with 30 KB for each waiting pop would.
func (f *fakeBroker) metrics(w http.ResponseWriter, _ *http.Request) {
	n := f.waiting.Load()
	_, _ = fmt.Fprintf(w, "# TYPE queen_process_resident_memory_bytes gauge\nqueen_process_resident_memory_bytes %g\n"+
		"queen_parked_long_polls{queue=\"a\"} %d\nqueen_uptime_seconds 1\n", 10e6+30e3*float64(n), n)
}

func (f *fakeBroker) pop(w http.ResponseWriter, r *http.Request) {
	if f.refuse != nil && f.refuse(r) {
		answer(w, http.StatusServiceUnavailable, map[string]any{"error": "injected", "code": "retry"})
		return
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	q := r.URL.Query()
	batch, _ := strconv.Atoi(q.Get("batch"))
	limit, _ := strconv.Atoi(q.Get("partitions"))
	wait, _ := strconv.Atoi(q.Get("timeout"))
	deadline := time.Now().Add(time.Duration(wait) * time.Millisecond)
	for r.Context().Err() == nil { // one that is gone must not take a lease: there is nothing here that ends leases
		messages := f.claim(r.PathValue("queue"), q.Get("consumerGroup"), batch, limit, q.Get("autoAck") == "true")
		if len(messages) > 0 {
			answer(w, http.StatusOK, map[string]any{"success": true, "messages": messages})
			return
		}
		if time.Now().After(deadline) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (f *fakeBroker) claim(queue, group string, batch, limit int, auto bool) []map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leases++
	lease := fmt.Sprintf("lease-%d", f.leases)
	var out []map[string]any
	for _, p := range f.order {
		if p.queue != queue || limit == 0 || len(out) >= batch {
			continue
		}
		c := p.groups[group]
		if c == nil {
			c = &fakeCursor{committed: -1}
			p.groups[group] = c
		}
		if c.lease != "" || c.committed+1 >= len(p.log) {
			continue
		}
		limit--
		end := min(len(p.log), c.committed+1+batch-len(out))
		taken := p.log[c.committed+1 : end]
		if c.attemptAt != c.committed+1 {
			c.attemptAt, c.attempts = c.committed+1, 0
		}
		c.attempts++
		if auto {
			c.committed = end - 1
		} else {
			c.lease, c.end = lease, end-1
		}
		if f.deliver != nil {
			taken = f.deliver(append([]*fakeMessage(nil), taken...))
		}
		if f.dropPop != nil && f.dropPop() {
			c.lease = ""
			continue
		}
		for _, m := range taken {
			out = append(out, m.wire(lease, c.attempts, f.noOffset))
		}
	}
	return out
}

func (m *fakeMessage) wire(lease string, attempt int, noOffset bool) map[string]any {
	out := map[string]any{
		"transactionId": m.id, "partitionId": m.partition.id, "partition": m.partition.name,
		"leaseId": lease, "data": m.payload, "traceId": nil,
	}
	if !noOffset {
		out["offset"], out["deliveryAttempt"] = m.offset, attempt
	}
	return out
}

type fakeAck struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
	Status        string `json:"status"`
	ConsumerGroup string `json:"consumerGroup"`
}

func (f *fakeBroker) ack(w http.ResponseWriter, r *http.Request) {
	var body fakeAck
	_ = json.NewDecoder(r.Body).Decode(&body)
	answer(w, http.StatusOK, f.settle(body.ConsumerGroup, []fakeAck{body}))
}

func (f *fakeBroker) ackBatch(w http.ResponseWriter, r *http.Request) {
	var body struct {
		ConsumerGroup   string    `json:"consumerGroup"`
		Acknowledgments []fakeAck `json:"acknowledgments"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	answer(w, http.StatusOK, f.settle(body.ConsumerGroup, body.Acknowledgments))
}

func (f *fakeBroker) settle(group string, acks []fakeAck) []map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []map[string]any
	for i, a := range acks {
		item := map[string]any{"index": i, "transactionId": a.TransactionID, "success": false, "error": "unresolvable: no such message"}
		for _, p := range f.order {
			m := p.ids[a.TransactionID]
			c := p.groups[group]
			if p.id != a.PartitionID || m == nil || c == nil {
				continue
			}
			if m.offset <= c.committed || c.lease == a.LeaseID {
				item["success"], item["error"] = true, nil
			}
			if c.lease == a.LeaseID && m.offset > c.committed {
				c.committed = m.offset
				if c.committed >= c.end {
					c.lease = ""
				}
			}
		}
		out = append(out, item)
	}
	return out
}

// runAgainst runs the whole program against the fake and returns its report.
func runAgainst(t *testing.T, url string, flags ...string) *report {
	t.Helper()
	args := append([]string{"--url", url, "--quiet", "--drain-timeout", "2s", "--wait", "20ms"}, flags...)
	cfg, err := parseFlags(args, t.Output())
	if err != nil {
		t.Fatalf("flags %s: %v", strings.Join(args, " "), err)
	}
	rep, err := measure(t.Context(), cfg, t.Output())
	if err != nil {
		t.Fatalf("measure: %v", err)
	}
	return rep
}
