package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeBroker keeps one list per queue and one position per (queue, group), and hands everything out at once.
type fakeBroker struct {
	mu     sync.Mutex
	queues map[string][]message
	ids    map[string]bool
	read   map[string]int
	acks   map[string]int // by status
	change func(messages []message)
	status string
}

func startFake(t *testing.T) (*fakeBroker, string) {
	t.Helper()
	f := &fakeBroker{queues: map[string][]message{}, ids: map[string]bool{}, read: map[string]int{}, acks: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/push", f.push)
	mux.HandleFunc("GET /api/v1/pop/queue/{queue}", f.pop)
	mux.HandleFunc("POST /api/v1/ack/batch", f.ackBatch)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return f, s.URL
}

func (f *fakeBroker) push(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Items []struct {
			Queue, Partition, TransactionID string
			Payload                         json.RawMessage
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, `{"error":"bad"}`, http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []map[string]any
	for i, it := range body.Items {
		status := "queued"
		if f.ids[it.TransactionID] {
			status = "duplicate"
		} else {
			f.queues[it.Queue] = append(f.queues[it.Queue], message{
				TransactionID: it.TransactionID, PartitionID: "id-" + it.Partition, Partition: it.Partition, Data: it.Payload,
			})
		}
		f.ids[it.TransactionID] = true
		if f.status != "" {
			status = f.status
		}
		out = append(out, map[string]any{"index": i, "status": status, "offset": i})
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(out)
}

func (f *fakeBroker) pop(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("subscriptionMode") != "all" {
		http.Error(w, `{"error":"mode"}`, http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := r.PathValue("queue") + "/" + r.URL.Query().Get("consumerGroup")
	messages := slices.Clone(f.queues[r.PathValue("queue")][f.read[key]:])
	if len(messages) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	f.read[key] += len(messages)
	if f.change != nil {
		f.change(messages)
	}
	// Written by hand: an encoder would compact the payloads.
	_, _ = io.WriteString(w, `{"success":true,"messages":[`)
	for i, m := range messages {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}
		_, _ = fmt.Fprintf(w, `{"transactionId":%s,"partitionId":%s,"partition":%s,"leaseId":"l","deliveryAttempt":1,"data":%s}`,
			quote(m.TransactionID), quote(m.PartitionID), quote(m.Partition), m.Data)
	}
	_, _ = io.WriteString(w, `]}`)
}

func (f *fakeBroker) ackBatch(w http.ResponseWriter, r *http.Request) {
	var body struct{ Acknowledgments []ack }
	_ = json.NewDecoder(r.Body).Decode(&body)
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []map[string]any{}
	for _, a := range body.Acknowledgments {
		f.acks[a.Status]++
		out = append(out, map[string]any{"success": a.LeaseID == "l"})
	}
	_ = json.NewEncoder(w).Encode(out)
}

func testConfig(url string) config {
	return config{url: url, groups: []string{"archive", "search"}, batch: 5, timeout: 5 * time.Second}
}

func TestRunDeliversTheSampleToBothGroups(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	rep, err := run(t.Context(), testConfig(url))
	if err != nil || rep.Err() != nil {
		t.Fatal(err, rep.Err())
	}
	if rep.Queued != 12 || rep.Duplicates != 0 || rep.Queues < 5 || f.acks["completed"] != 24 {
		t.Errorf("%+v, acks %v", rep, f.acks)
	}
	for _, g := range rep.Groups {
		if g.Received != 12 || g.Bytes == 0 {
			t.Errorf("%+v", g)
		}
	}
	again, err := run(t.Context(), testConfig(url))
	if err != nil || again.Queued != 0 || again.Duplicates != 12 || again.Groups[0].Received != 0 {
		t.Errorf("second run: %+v %v", again, err)
	}
}

func TestRunFindsAChangedByte(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte) []byte{
		"number spelled anew": func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("1.10,"), []byte("1.1,")) },
		"big number rounded":  func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("740993"), []byte("740992")) },
		"escape resolved":     func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`\/`), []byte(`/`)) },
		"html escaped":        func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`<`), []byte(`\u003c`)) },
		"compacted": func(b []byte) []byte {
			var out bytes.Buffer
			_ = json.Compact(&out, b)
			return out.Bytes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, url := startFake(t)
			f.change = func(messages []message) {
				for i := range messages {
					messages[i].Data = change(messages[i].Data)
				}
			}
			rep, err := run(t.Context(), testConfig(url))
			if err != nil {
				t.Fatal(err)
			}
			if rep.Err() == nil || f.acks["dlq"] != 2 {
				t.Errorf("problems %v, acks %v, want one dead letter a group", rep.Err(), f.acks)
			}
		})
	}
}

func TestRunFindsDisorderAndForeignMessages(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	f.queues["github.issues"] = []message{{TransactionID: "someone's", Partition: "p", Data: json.RawMessage("1")}}
	f.change = func(messages []message) { slices.Reverse(messages) }
	rep, err := run(t.Context(), testConfig(url))
	if err != nil {
		t.Fatal(err)
	}
	if rep.Err() == nil || !strings.Contains(rep.Err().Error(), "came after") || rep.Groups[0].Foreign != 1 {
		t.Errorf("%v, %+v", rep.Err(), rep.Groups)
	}
}

func TestRunGivesUpOnALostDelivery(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	cfg := testConfig(url)
	cfg.timeout = 300 * time.Millisecond
	f.change = func(messages []message) {
		if messages[0].Partition == "acme/tools" {
			messages[0].TransactionID = "another"
		}
	}
	if _, err := run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("error %v, want one that names what is missing", err)
	}
}

func TestRunReportsRefusals(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	f.status = "error"
	if _, err := run(t.Context(), testConfig(url)); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("refused push: %v", err)
	}
	if _, err := run(t.Context(), testConfig("http://127.0.0.1:1")); err == nil {
		t.Error("no broker, no error")
	}
}

func TestReadDeliveriesKeepsBytes(t *testing.T) {
	t.Parallel()
	line := `{"event":"e","repository":"r","payload":{ "b":1, "n":9007199254740993, "d":1.10, "h":"<&>\/" , "b":2 }}`
	got, err := readDeliveries(strings.NewReader(line + "\n\n" + line))
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if want := `{ "b":1, "n":9007199254740993, "d":1.10, "h":"<&>\/" , "b":2 }`; string(got[0].Payload) != want {
		t.Errorf("payload %s", got[0].Payload)
	}
	if got[0].id == got[1].id || got[1].Line != 3 {
		t.Errorf("equal lines share an id or number: %+v", got)
	}
	for _, bad := range []string{"", "{", `{"event":"e","repository":"r"}`, `{"repository":"r","payload":1}`} {
		if _, err := readDeliveries(strings.NewReader(bad)); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestProgramTakesAFile(t *testing.T) {
	t.Parallel()
	_, url := startFake(t)
	file := filepath.Join(t.TempDir(), "one.ndjson")
	if err := os.WriteFile(file, []byte(`{"event":"e","action":"a","repository":"r","payload":null}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := realMain(t.Context(), []string{"--url", url, file}, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "1 deliveries to 1 queues: 1 queued") {
		t.Error(out.String())
	}
	if err := realMain(t.Context(), []string{"--url", url, file + ".missing"}, &out); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestBar(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := newBar(&out, "push", 4)
	b.add(1)
	b.add(3)
	b.finish()
	if s := out.String(); !strings.Contains(s, " 25% 1/4") || !strings.HasSuffix(s, "100% 4/4\n") {
		t.Errorf("%q", s)
	}
	quiet := newBar(nil, "push", 4)
	quiet.add(4)
	quiet.finish()
}
