package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// schedule is a timer operation as the wire has it.
func schedule(t *history.TimerOp, partition, by string) map[string]any {
	return map[string]any{
		"op": "schedule", "queue": t.Queue, "timerKey": t.Key, "partition": partition,
		"delayMs": float64(t.Delay) / 1000, "txn": t.ID,
		"payload": []byte(payload{ID: t.ID, By: by}.encode()), // base64, as encoding/json writes bytes
	}
}

// meddle cancels or replaces some of the timers that a transaction has set, at random moments around their time.
func (w *worker) meddle(s *step, op *history.Op) {
	for i := range op.Timers {
		t := op.Timers[i]
		h := hash(fmt.Sprintf("%d/meddle/%s", w.cfg.Seed, t.Key))
		replace, cancel := h%100 < 40, h/100%100 < 35
		if !replace && !cancel || w.produce.Err() != nil {
			continue
		}
		partition := s.messages[0].Partition
		w.beside("timer", func(other *worker) { other.meddleOne(t, partition, replace, cancel) })
	}
}

func (w *worker) meddleOne(t history.TimerOp, partition string, replace, cancel bool) {
	around := func(delay int64) {
		sleep(w.hard, time.Duration(w.rand.Int64N(max(delay, 1)*5/4+1000))*time.Microsecond)
	}
	limit, stop := context.WithTimeout(w.hard, 30*time.Second)
	defer stop()
	around(t.Delay)
	if replace {
		delay := int64(w.rand.IntN(1500)) * 1000
		w.insist(limit, func(request string, try int) *call { return w.reschedule(t, partition, delay, request, try) })
		around(delay)
	}
	if cancel {
		w.insist(limit, func(string, int) *call { return cancelling(t) })
	}
}

func (w *worker) reschedule(t history.TimerOp, partition string, delay int64, request string, try int) *call {
	by := fmt.Sprintf("%s.%d", request, try)
	next := history.TimerOp{Op: "schedule", Queue: t.Queue, Key: t.Key, ID: t.Key + "@" + by, Delay: delay}
	op := &history.Op{Kind: history.Timers, Queue: t.Queue, By: by, Timers: []history.TimerOp{next}}
	body, err := json.Marshal(map[string]any{"operations": []map[string]any{schedule(&next, partition, by)}})
	if err != nil {
		panic(err) // strings and numbers
	}
	return &call{op: op, method: http.MethodPost, path: "/api/v1/timers", body: body, read: func(body []byte) error {
		var got struct {
			Results []struct {
				OK        bool      `json:"ok"`
				Status    string    `json:"status"`
				DeliverAt time.Time `json:"deliverAt"`
			} `json:"results"`
		}
		if err := json.Unmarshal(body, &got); err != nil {
			return err
		}
		if len(got.Results) != 1 || !got.Results[0].OK {
			return fmt.Errorf("no schedule: %s", excerpt(body))
		}
		op.Timers[0].Status, op.Timers[0].Due = got.Results[0].Status, got.Results[0].DeliverAt.UnixMicro()
		return nil
	}}
}

func cancelling(t history.TimerOp) *call {
	op := &history.Op{
		Kind: history.Timers, Queue: t.Queue,
		Timers: []history.TimerOp{{Op: "cancel", Queue: t.Queue, Key: t.Key}},
	}
	path := "/api/v1/timers/" + url.PathEscape(t.Queue) + "/" + url.PathEscape(t.Key)
	return &call{op: op, method: http.MethodDelete, path: path, read: func(body []byte) error {
		var got struct {
			Status string  `json:"status"`
			Txn    *string `json:"txn"`
		}
		if err := json.Unmarshal(body, &got); err != nil {
			return err
		}
		op.Timers[0].Status = got.Status
		if got.Status == "cancelled" && got.Txn != nil {
			op.Timers[0].Gone = *got.Txn
		}
		return nil
	}}
}
