package e2e

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// timerResult answers an operation on a timer.
type timerResult struct {
	OK        bool
	Status    string
	Queue     string
	TimerKey  string
	Txn       *string
	MessageID string
	DeliverAt time.Time
}

// timerRow is a pending timer as peek and list show it.
type timerRow struct {
	Found       bool
	TimerKey    string
	Partition   string
	DeliverAt   time.Time
	Txn         string
	MessageID   string
	Encrypted   bool
	ProducerSub *string
	Attempts    int
	LastError   *string
	Claimed     bool
	CreatedAt   time.Time
	UpdatedAt   time.Time
	Payload     *string
}

type op map[string]any

// schedule is an operation with the id txn-<key>; more overrides members.
func schedule(queue, key string, delay time.Duration, payload string, more ...any) op {
	o := op{
		"op": "schedule", "queue": queue, "timerKey": key, "delayMs": float64(delay.Microseconds()) / 1000,
		"txn": "txn-" + key, "payload": base64.StdEncoding.EncodeToString([]byte(payload)),
	}
	for i := 0; i+1 < len(more); i += 2 {
		o[more[i].(string)] = more[i+1]
	}
	return o
}

func cancel(queue, key string) op { return op{"op": "cancel", "queue": queue, "timerKey": key} }

// timers sends operations that have to be answered one by one.
func (b *Broker) timers(ops ...op) []timerResult {
	b.t.Helper()
	var out struct{ Results []timerResult }
	b.MustInto(&out, http.StatusOK, "POST", "/api/v1/timers", map[string]any{"operations": ops})
	if len(out.Results) != len(ops) {
		b.t.Fatalf("timers: %d results for %d operations", len(out.Results), len(ops))
	}
	return out.Results
}

func (b *Broker) peek(queue, key string) timerRow {
	b.t.Helper()
	var row timerRow
	b.MustInto(&row, http.StatusOK, "GET", "/api/v1/timers/"+Seg(queue)+"/"+Seg(key), nil)
	return row
}

func (b *Broker) cancelTimer(queue, key, query string) timerResult {
	b.t.Helper()
	var out timerResult
	b.MustInto(&out, http.StatusOK, "DELETE", "/api/v1/timers/"+Seg(queue)+"/"+Seg(key)+query, nil)
	return out
}

// wantTimerError sends a request that has to be refused.
func (b *Broker) wantTimerError(t testing.TB, status int, code, reason, method, path string, body any) http.Header {
	t.Helper()
	got, header, answer := b.Do(method, path, body)
	var e struct{ Error, Reason, Detail string }
	if err := json.Unmarshal(answer, &e); err != nil || got != status || e.Error != code || e.Detail == "" ||
		(reason == "QTIMER" && len(e.Reason) < 8 || reason != "QTIMER" && e.Reason != reason) {
		t.Errorf("%s %s %.200v: %d %s, want %d %s %s", method, path, body, got, answer, status, code, reason)
	}
	return header
}

// popUntil pops with auto-ack until n messages came.
func (b *Broker) popUntil(queue string, n int) []Message {
	b.t.Helper()
	var all []Message
	for end := time.Now().Add(30 * time.Second); len(all) < n; {
		if time.Now().After(end) {
			b.t.Fatalf("%s: %d messages, want %d", queue, len(all), n)
		}
		if p := b.Pop(queue, "wait=true&timeout=2000&autoAck=true&batch=1000&partitions=64"); p != nil {
			all = append(all, p.Messages...)
		}
	}
	return all
}

// quiet fails the test when a message is there.
func (b *Broker) quiet(queue string) {
	b.t.Helper()
	if p := b.Pop(queue, "batch=10"); p != nil {
		b.t.Fatalf("%s: unexpected %v", queue, p.IDs())
	}
}
