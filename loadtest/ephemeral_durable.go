package main

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// durableTrip is the same through durable queues: a partition for each requester, and the reply in one transaction
// with the ack of the request.
type durableTrip struct {
	*ephemeralRun
	requests, replies, pop string
}

func (r *ephemeralRun) newDurableTrip() *durableTrip {
	t := &durableTrip{ephemeralRun: r, requests: r.prefix + ".requests", replies: r.prefix + ".replies"}
	q := url.Values{
		"batch": {strconv.Itoa(respondBatch)}, "partitions": {strconv.Itoa(respondBatch)}, "consumerGroup": {"responders"},
		"subscriptionMode": {"all"}, "wait": {"true"}, "timeout": {"1000"},
	}
	t.pop = "/api/v1/pop/queue/" + t.requests + "?" + q.Encode()
	return t
}

func (t *durableTrip) setUp(ctx context.Context) error {
	for _, q := range []string{t.requests, t.replies} {
		if err := t.client.configure(ctx, q, time.Minute, false); err != nil {
			return err
		}
		t.durable = append(t.durable, q)
	}
	return nil
}

// appendItem writes an item of a push.
func (t *durableTrip) appendItem(b []byte, queue string, partition []byte, n int64) []byte {
	b = append(append(b, `{"queue":`...), quote(queue)...)
	b = append(append(b, `,"partition":"`...), partition...)
	b = append(b, `","payload":`...)
	return append(t.payloads.append(b, 0, n, 0), '}')
}

func (t *durableTrip) ask(ctx context.Context, w *replyWorker, n int64) (int64, error) {
	partition := "s" + strconv.Itoa(w.index)
	w.body = t.appendItem(append(w.body[:0], `{"items":[`...), t.requests, []byte(partition), n)
	w.body = closed(w.body)
	var err error
	if w.buf, _, err = t.client.do(ctx, http.MethodPost, "/api/v1/push", w.body, w.buf); err != nil {
		return -1, err
	}
	path := "/api/v1/pop/queue/" + t.replies + "/partition/" + partition +
		"?consumerGroup=requesters&subscriptionMode=all&autoAck=true&wait=true&timeout=" + strconv.FormatInt(t.c.timeout.Milliseconds(), 10)
	status := 0
	if w.buf, status, err = t.client.do(ctx, http.MethodGet, path, nil, w.buf); err != nil || status == http.StatusNoContent {
		return -1, err
	}
	if w.durable, err = scanPop(w.buf, w.durable); err != nil || len(w.durable) == 0 {
		return -1, err
	}
	return w.durable[0].stamp.seq, nil
}

func (t *durableTrip) respond(ctx context.Context, w *replyWorker) (int, error) {
	status := 0
	var err error
	if w.buf, status, err = t.client.do(ctx, http.MethodGet, t.pop, nil, w.buf); err != nil || status == http.StatusNoContent {
		return 0, err
	}
	if w.durable, err = scanPop(w.buf, w.durable); err != nil || len(w.durable) == 0 {
		return 0, err
	}
	w.body = append(w.body[:0], `{"operations":[{"type":"push","items":[`...)
	for i := range w.durable {
		if i > 0 {
			w.body = append(w.body, ',')
		}
		w.body = t.appendItem(w.body, t.replies, w.durable[i].partition, w.durable[i].stamp.seq)
	}
	w.body = closed(w.body)
	for i := range w.durable {
		w.body = appendAck(append(w.body, ','), &w.durable[i])
		w.body = append(w.body, `,"type":"ack","consumerGroup":"responders"}`...)
	}
	w.body = closed(w.body)
	answer, _, err := t.client.do(context.WithoutCancel(ctx), http.MethodPost, "/api/v1/transaction", w.body, nil)
	if err != nil {
		return 0, err
	}
	return len(w.durable), committed(answer)
}

// committed fails unless a transaction took effect.
func committed(answer []byte) error {
	s := scanner{b: answer}
	success := false
	err := s.object(func(key []byte) (err error) {
		if string(key) != "success" {
			return s.skip(0)
		}
		success, err = s.boolean()
		return err
	})
	if err == nil && !success {
		err = errNotAcked
	}
	return err
}
