package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// fakeRings is enough of ephemeral and durable queues for a run, and can break a promise.
type fakeRings struct {
	mu    sync.Mutex
	rings map[string][]json.RawMessage
	n     int
	// mangle says what becomes of a payload: nothing, one, or more of them.
	mangle func(ring string, n int, payload json.RawMessage) []json.RawMessage
}

func (f *fakeRings) push(ring string, payload json.RawMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	all := []json.RawMessage{payload}
	if f.mangle != nil {
		all = f.mangle(ring, f.n, payload)
	}
	f.rings[ring] = append(f.rings[ring], all...)
}

// pop waits for messages of one ring, or of those that begin like it.
func (f *fakeRings) pop(ring string, anyOf bool, batch int, wait time.Duration) (from string, out []json.RawMessage) {
	for end := time.Now().Add(wait); ; time.Sleep(100 * time.Microsecond) {
		f.mu.Lock()
		for name, list := range f.rings {
			if name == ring || anyOf && strings.HasPrefix(name, ring) {
				n := min(batch, len(list))
				from, out, f.rings[name] = name, list[:n:n], list[n:]
				if n > 0 {
					break
				}
			}
		}
		f.mu.Unlock()
		if len(out) > 0 || time.Now().After(end) {
			return from, out
		}
	}
}

func startRings(t *testing.T) (*fakeRings, string) {
	t.Helper()
	f := &fakeRings{rings: map[string][]json.RawMessage{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/ephemeral/push", f.ephemeralPush)
	mux.HandleFunc("GET /api/v1/ephemeral/pop", f.ephemeralPop)
	mux.HandleFunc("POST /api/v1/ephemeral/ack", f.ephemeralAck)
	for _, path := range []string{"DELETE /api/v1/ephemeral/queue/{queue}", "DELETE /api/v1/resources/queues/{queue}", "POST /api/v1/configure"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, map[string]any{}) })
	}
	mux.HandleFunc("POST /api/v1/push", f.durablePush)
	mux.HandleFunc("POST /api/v1/transaction", f.durablePush)
	mux.HandleFunc("GET /api/v1/pop/queue/{queue}", f.durablePop)
	mux.HandleFunc("GET /api/v1/pop/queue/{queue}/partition/{partition}", f.durablePop)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return f, server.URL
}

func waitOf(r *http.Request) time.Duration {
	d, _ := time.ParseDuration(r.FormValue("timeout") + "ms")
	return d
}

func (f *fakeRings) ephemeralPush(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Queue    string
		Messages []struct{ Payload json.RawMessage }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		answer(w, 400, map[string]any{"error": err.Error()})
		return
	}
	for _, m := range body.Messages {
		f.push(body.Queue, m.Payload)
	}
	answer(w, 201, map[string]any{"pushed": len(body.Messages)})
}

func (f *fakeRings) ephemeralPop(w http.ResponseWriter, r *http.Request) {
	batch := 0
	_, _ = fmt.Sscan(r.FormValue("batch"), &batch)
	_, list := f.pop(r.FormValue("queue"), false, batch, waitOf(r))
	messages := []map[string]any{}
	for i, p := range list {
		messages = append(messages, map[string]any{"id": fmt.Sprint("e:0:p:", i), "partition": "p", "attempts": 1, "payload": p})
	}
	answer(w, 200, map[string]any{"queue": r.FormValue("queue"), "messages": messages})
}

func (f *fakeRings) ephemeralAck(w http.ResponseWriter, r *http.Request) {
	var body struct{ Acks []struct{ ID string } }
	_ = json.NewDecoder(r.Body).Decode(&body)
	results := []map[string]any{}
	for _, a := range body.Acks {
		results = append(results, map[string]any{"id": a.ID, "outcome": "acked"})
	}
	answer(w, 200, map[string]any{"results": results})
}

// durablePush takes the items of a push, and those of a transaction.
func (f *fakeRings) durablePush(w http.ResponseWriter, r *http.Request) {
	type items []struct {
		Queue, Partition string
		Payload          json.RawMessage
	}
	var body struct {
		Items      items
		Operations []struct{ Items items }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		answer(w, 400, map[string]any{"error": err.Error()})
		return
	}
	for _, o := range body.Operations {
		body.Items = append(body.Items, o.Items...)
	}
	for _, it := range body.Items {
		f.push(it.Queue+"/"+it.Partition, it.Payload)
	}
	answer(w, 201, map[string]any{"success": true})
}

func (f *fakeRings) durablePop(w http.ResponseWriter, r *http.Request) {
	partition := r.PathValue("partition")
	from, list := f.pop(r.PathValue("queue")+"/"+partition, partition == "", 10, waitOf(r))
	if len(list) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	_, partition, _ = strings.Cut(from, "/")
	messages := []map[string]any{}
	for _, p := range list {
		messages = append(messages, map[string]any{"transactionId": "t", "partitionId": "1", "partition": partition, "leaseId": "l", "offset": 0, "data": p})
	}
	answer(w, 200, map[string]any{"success": true, "messages": messages})
}

func runEphemeral(t *testing.T, url string, more ...string) (code int, rep ephemeralReport, out string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	var text bytes.Buffer
	args := append([]string{
		"ephemeral", "--url", url, "--redis-url", "redis://" + miniredis.RunT(t).Addr(), "--duration", "150ms", "--timeout", "400ms", "--patience", "400ms",
		"--requesters", "6", "--batches", "1,20", "--quiet", "--json", file,
	}, more...)
	code = realMain(args, &text, &text)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: %s", err, text.String())
	}
	if err := json.Unmarshal(raw, &rep); err != nil {
		t.Fatal(err)
	}
	return code, rep, text.String()
}

func TestEphemeralModeComparesWithRedis(t *testing.T) {
	t.Parallel()
	_, url := startRings(t)
	code, rep, out := runEphemeral(t, url)
	if code != exitOK || !rep.OK {
		t.Fatalf("code %d:\n%s", code, out)
	}
	p := rep.Reply
	for name, res := range map[string]*replyResult{"before": p.Before, "fresh": p.Fresh, "own": p.Own, "durable": p.Durable, "after": p.After} {
		if res.Answered < 6 || res.Trip.P50 <= 0 {
			t.Errorf("%s: %+v", name, res)
		}
	}
	if p.FreshP50Ratio <= 0 || p.DurableP50Ratio <= 0 || len(rep.Stream) != 2 || rep.Stream[1].Batch != 20 {
		t.Errorf("%+v", rep)
	}
	for _, s := range rep.Stream {
		for _, res := range []*streamResult{s.Before, s.Broker, s.After} {
			if res.Pushed == 0 || res.Delivered != res.Pushed || res.Cycle <= 0 {
				t.Errorf("batch %d: %+v", s.Batch, res)
			}
		}
		if s.CycleRatio <= 0 || s.PushRatio <= 0 {
			t.Errorf("%+v", s)
		}
	}
	if !strings.Contains(out, "ratio     push") || !strings.HasSuffix(out, "\nOK\n") {
		t.Errorf("printed\n%s", out)
	}
}

func TestEphemeralModeFindsBrokenPromises(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		parts  string
		mangle func(ring string, n int, payload json.RawMessage) []json.RawMessage
		found  func(r *ephemeralReport) bool
	}{
		"loss": {"stream", func(_ string, n int, p json.RawMessage) []json.RawMessage {
			if n == 30 {
				return nil
			}
			return []json.RawMessage{p}
		}, func(r *ephemeralReport) bool { return r.Stream[0].Broker.Lost == 1 }},
		"duplicate": {"stream", func(_ string, n int, p json.RawMessage) []json.RawMessage {
			if n == 30 {
				return []json.RawMessage{p, p}
			}
			return []json.RawMessage{p}
		}, func(r *ephemeralReport) bool { return r.Stream[0].Broker.Duplicates == 1 }},
		"reply of another": {"reply", func(ring string, n int, p json.RawMessage) []json.RawMessage {
			if strings.Contains(ring, "inbox-own-") && n%5 == 0 {
				return []json.RawMessage{json.RawMessage(`{"r":1,"l":0,"s":123456789,"t":0}`)}
			}
			return []json.RawMessage{p}
		}, func(r *ephemeralReport) bool { return r.Reply.Own.Wrong > 0 && r.Reply.Fresh.Wrong == 0 }},
		"no reply": {"reply", func(ring string, _ int, p json.RawMessage) []json.RawMessage {
			if strings.HasSuffix(ring, "inbox-fresh-7") { // the second request of the second requester
				return nil
			}
			return []json.RawMessage{p}
		}, func(r *ephemeralReport) bool { return r.Reply.Fresh.Lost == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, url := startRings(t)
			f.mangle = c.mangle
			code, rep, out := runEphemeral(t, url, "--parts", c.parts, "--batches", "10")
			if code != exitFailed || rep.OK || !c.found(&rep) {
				t.Errorf("code %d:\n%s", code, out)
			}
		})
	}
}

func TestEphemeralFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--batches", "0"}, {"--batches", "x"}, {"--parts", "all"}, {"--requesters", "0"}, {"--max-lag", "20000"}, {"more"}, {"--duration", "0s"}} {
		if _, err := parseEphemeralFlags(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v accepted", args)
		}
	}
	c, err := parseEphemeralFlags([]string{"--url", "http://a,http://b", "--url2", "http://c", "--batches", "1, 7"}, &bytes.Buffer{})
	if err != nil || len(c.urls) != 3 || len(c.batches) != 2 || c.batches[1] != 7 {
		t.Errorf("%+v %v", c, err)
	}
}
