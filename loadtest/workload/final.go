package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// configure makes the queues. The fleet may still be starting.
func (r *run) configure(ctx context.Context) error {
	w := r.worker("setup", 0)
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, l := range r.lanes {
		for _, q := range []struct {
			name  string
			dedup int
		}{{l.input, 3600}, {l.out, 3600}, {l.timed, 0}} {
			body := fmt.Appendf(nil, `{"queue":%q,"options":{"leaseTime":%d,"retryLimit":%d,"dedupWindowSeconds":%d}}`,
				q.name, int(r.cfg.Lease.Seconds()), retryLimit, q.dedup)
			pause := w.backoff()
			for {
				a := r.fleet.send(ctx, http.MethodPost, "/api/v1/configure", body, r.cfg.Timeout)
				if a.outcome == history.OK {
					break
				}
				if a.status/100 == 4 && a.status != 429 || !pause.wait(limit, a.later) {
					return fmt.Errorf("configure %s: status %d: %s", q.name, a.status, a.reason)
				}
			}
		}
	}
	return nil
}

// drain waits until every group has acknowledged everything, no timer waits, and nothing is under way beside.
// Messages that a consumer holds are not acknowledged yet, so they count in the depth.
func (r *run) drain() bool {
	w := r.worker("drain", 0)
	limit, cancel := context.WithTimeout(r.hard, r.cfg.Drain)
	defer cancel()
	for still := 0; still < 2; {
		if r.besides.Load() == 0 && w.empty() {
			still++
		} else {
			still = 0
		}
		if still < 2 && !sleep(limit, 250*time.Millisecond) {
			return false
		}
	}
	return true
}

type queueReader struct{ queue, group string }

func (l *lane) readers() []queueReader {
	return []queueReader{{l.input, leasedGroup}, {l.input, pipelineGroup}, {l.out, sinkGroup}, {l.timed, sinkGroup}}
}

// empty asks for all depths and timers once.
func (w *worker) empty() bool {
	for _, l := range w.lanes {
		for _, q := range l.readers() {
			if left, ok := w.depth(q.queue, q.group, false); !ok || left > 0 {
				return false
			}
		}
		if left, ok := w.waiting(l.timed, false); !ok || left > 0 {
			return false
		}
	}
	return true
}

// look reads something once and records it.
func (w *worker) look(op *history.Op, path string, read func([]byte) error) bool {
	op.Request, op.Try = w.request(), 1
	w.do(&call{op: op, method: http.MethodGet, path: path, read: read})
	return op.Outcome == history.OK
}

func (w *worker) depth(queue, group string, final bool) (left int64, ok bool) {
	op := &history.Op{Kind: history.Depth, Queue: queue, Group: group, Final: final}
	path := "/api/v1/resources/queues/" + url.PathEscape(queue) + "/depth?group=" + url.QueryEscape(group)
	ok = w.look(op, path, func(body []byte) error {
		var got struct {
			Pending int64 `json:"pending"`
		}
		err := json.Unmarshal(body, &got)
		op.Count = got.Pending
		return err
	})
	return op.Count, ok
}

// waiting counts the timers of a queue that have not fired, up to one page.
func (w *worker) waiting(queue string, final bool) (left int64, ok bool) {
	op := &history.Op{Kind: history.Pending, Queue: queue, Final: final}
	ok = w.look(op, "/api/v1/timers/"+url.PathEscape(queue)+"?limit=100", func(body []byte) error {
		var got struct {
			Rows []json.RawMessage `json:"rows"`
		}
		err := json.Unmarshal(body, &got)
		op.Count = int64(len(got.Rows))
		return err
	})
	return op.Count, ok
}

// letters counts the dead letters of a queue, up to one page.
func (w *worker) letters(queue string) bool {
	op := &history.Op{Kind: history.Letters, Queue: queue, Final: true}
	return w.look(op, "/api/v1/dlq?queue="+url.QueryEscape(queue), func(body []byte) error {
		var got struct {
			Messages []json.RawMessage `json:"messages"`
		}
		err := json.Unmarshal(body, &got)
		op.Count = int64(len(got.Messages))
		return err
	})
}

// readFinal reads what the fleet ended up with: depths, timers, dead letters, and all keys. It insists for a while.
func (r *run) readFinal() bool {
	w := r.worker("final", 0)
	limit, cancel := context.WithTimeout(r.hard, r.cfg.Drain)
	defer cancel()
	pause := w.backoff()
	insist := func(look func() bool) bool {
		for !look() {
			if !pause.wait(limit, 0) {
				return false
			}
		}
		return true
	}
	for _, look := range w.finalLooks() {
		if !insist(look) {
			return false
		}
	}
	for _, prefix := range []string{markerPrefix, "count:", "reg:"} {
		after, more := "", true
		for more {
			if !insist(func() bool {
				next, ok := w.page(prefix, after)
				if ok {
					after, more = next, next != ""
				}
				return ok
			}) {
				return false
			}
		}
	}
	return true
}

// finalLooks are the reads of everything but keys.
func (w *worker) finalLooks() []func() bool {
	var looks []func() bool
	for _, l := range w.lanes {
		for _, q := range l.readers() {
			looks = append(looks, func() bool { _, ok := w.depth(q.queue, q.group, true); return ok })
		}
		looks = append(looks, func() bool { _, ok := w.waiting(l.timed, true); return ok })
		for _, queue := range []string{l.input, l.out, l.timed} {
			looks = append(looks, func() bool { return w.letters(queue) })
		}
	}
	return looks
}

// page reads a page of keys as they are now.
func (w *worker) page(prefix, after string) (next string, ok bool) {
	op := &history.Op{Kind: history.KV, Request: w.request(), Try: 1, Final: true}
	body, err := json.Marshal(map[string]any{"operations": []map[string]any{
		{"op": "getPrefix", "ns": w.ns, "prefix": prefix, "after": after, "limit": 1000},
	}})
	if err != nil {
		panic(err) // strings
	}
	w.do(&call{op: op, method: http.MethodPost, path: "/api/v1/kv", body: body, read: func(body []byte) error {
		var got struct {
			Results []struct {
				Rows []struct {
					Key     string          `json:"key"`
					Value   json.RawMessage `json:"value"`
					Version int64           `json:"version"`
				} `json:"rows"`
				NextAfter string `json:"nextAfter"`
			} `json:"results"`
		}
		if err := json.Unmarshal(body, &got); err != nil {
			return err
		}
		if len(got.Results) != 1 {
			return fmt.Errorf("%d results on one operation", len(got.Results))
		}
		for _, row := range got.Results[0].Rows {
			if !strings.HasPrefix(row.Key, prefix) {
				return fmt.Errorf("key %q has not the prefix %q", row.Key, prefix)
			}
			op.Keys = append(op.Keys, history.KeyOp{
				Op: "get", Key: row.Key, Found: true, Value: string(row.Value), Version: row.Version,
			})
		}
		next = got.Results[0].NextAfter
		return nil
	}})
	return next, op.Outcome == history.OK
}

// cleanUp deletes the queues. The keys go away by themselves.
func (r *run) cleanUp() {
	for _, l := range r.lanes {
		for _, queue := range []string{l.input, l.out, l.timed} {
			r.fleet.send(r.hard, http.MethodDelete, "/api/v1/resources/queues/"+url.PathEscape(queue), nil, r.cfg.Timeout)
		}
	}
}
