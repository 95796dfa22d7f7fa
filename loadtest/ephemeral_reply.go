package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// replyTrip is one way to ask and to answer. Both are called by many workers at once.
type replyTrip interface {
	// ask sends request n to the responders and returns the number in the reply, -1 when none came in time.
	ask(ctx context.Context, w *replyWorker, n int64) (int64, error)
	// respond takes some requests and answers them.
	respond(ctx context.Context, w *replyWorker) (int, error)
}

// replyWorker is a requester or a responder and its memory.
type replyWorker struct {
	index     int
	body, buf []byte
	batch     []ephemeralDelivery
	durable   []delivery
}

// replyRun is one phase.
type replyRun struct {
	trip     histogram
	answered atomic.Int64
	wrong    atomic.Int64 // the reply to another request
	lost     atomic.Int64 // no reply in time
	errors   errorCounts
}

// respondBatch is how many requests a responder takes at once.
const respondBatch = 10

func (r *ephemeralRun) measureReply(ctx context.Context, rep *ephemeralReport) error {
	rep.Reply = &replyReport{Requesters: r.c.requesters, Responders: r.c.responders}
	durable := r.newDurableTrip()
	for _, phase := range []struct {
		name string
		trip replyTrip
		to   **replyResult
	}{
		{"redis LPUSH/BRPOP", &redisTrip{r, r.prefix + ":before:"}, &rep.Reply.Before},
		{"ephemeral, inbox per request", r.newEphemeralTrip("fresh", true), &rep.Reply.Fresh},
		{"ephemeral, inbox per requester", r.newEphemeralTrip("own", false), &rep.Reply.Own},
		{"durable", durable, &rep.Reply.Durable},
		{"redis LPUSH/BRPOP", &redisTrip{r, r.prefix + ":after:"}, &rep.Reply.After},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if phase.trip == durable {
			if err := durable.setUp(ctx); err != nil {
				return err
			}
		}
		*phase.to = r.runReply(ctx, phase.trip)
		r.say("%-31s %8.0f/s  p50 %s  p99 %s", phase.name, (*phase.to).Rate, micros((*phase.to).Trip.P50), micros((*phase.to).Trip.P99))
	}
	return nil
}

func (r *ephemeralRun) runReply(ctx context.Context, trip replyTrip) *replyResult {
	run := &replyRun{}
	serving, stop := context.WithCancel(ctx)
	var responders, requesters sync.WaitGroup
	for i := range r.c.responders {
		responders.Go(func() {
			w := &replyWorker{index: i}
			for serving.Err() == nil {
				if _, err := trip.respond(serving, w); err != nil && serving.Err() == nil {
					run.errors.add(err)
					sleep(serving, 10*time.Millisecond)
				}
			}
		})
	}
	asking, cancel := context.WithTimeout(ctx, r.c.duration)
	defer cancel()
	start := time.Now()
	for i := range r.c.requesters {
		requesters.Go(func() {
			w := &replyWorker{index: i}
			for n := int64(i); asking.Err() == nil; n += int64(r.c.requesters) {
				run.one(ctx, trip, w, n)
			}
		})
	}
	requesters.Wait()
	took := time.Since(start)
	stop()
	responders.Wait()
	return run.result(took)
}

// one asks once; a request under way when the phase ends is finished.
func (run *replyRun) one(ctx context.Context, trip replyTrip, w *replyWorker, n int64) {
	began := time.Now()
	got, err := trip.ask(ctx, w, n)
	switch {
	case err != nil:
		run.errors.add(err)
	case got == n:
		run.trip.record(time.Since(began))
		run.answered.Add(1)
	case got < 0:
		run.lost.Add(1)
	default:
		run.wrong.Add(1)
	}
}

// ephemeralTrip is through the brokers.
type ephemeralTrip struct {
	*ephemeralRun
	queue, inbox string
	fresh        bool // an inbox for each request
	requests     string
}

func (r *ephemeralRun) newEphemeralTrip(name string, fresh bool) *ephemeralTrip {
	t := &ephemeralTrip{ephemeralRun: r, queue: r.prefix + "-rpc-" + name, inbox: r.prefix + "-inbox-" + name + "-", fresh: fresh}
	t.requests = ephemeralPopPath(t.queue, "responders", respondBatch, time.Second, false)
	r.queues = append(r.queues, t.queue)
	return t
}

func (t *ephemeralTrip) ask(ctx context.Context, w *replyWorker, n int64) (int64, error) {
	id := int64(w.index)
	if t.fresh {
		id = n
	}
	inbox := t.inbox + strconv.FormatInt(id, 10)
	w.body = closed(ephemeralMessage(ephemeralBody(w.body, t.queue), func(b []byte) []byte {
		b = append(append(b, '['), quote(inbox)...)
		return append(t.payloads.append(append(b, ','), 0, n, 0), ']')
	}))
	var err error
	if w.buf, err = t.pushEphemeral(ctx, w.body, w.buf); err != nil {
		return -1, err
	}
	if w.buf, _, err = t.client.do(ctx, "GET", ephemeralPopPath(inbox, "", 1, t.c.timeout, true), nil, w.buf); err != nil {
		return -1, err
	}
	if w.batch, err = scanEphemeralPop(w.buf, w.batch); err != nil || len(w.batch) == 0 {
		return -1, err
	}
	return w.batch[0].stamp.seq, nil
}

func (t *ephemeralTrip) respond(ctx context.Context, w *replyWorker) (int, error) {
	var err error
	if w.buf, _, err = t.client.do(ctx, "GET", t.requests, nil, w.buf); err != nil {
		return 0, err
	}
	if w.batch, err = scanEphemeralPop(w.buf, w.batch); err != nil || len(w.batch) == 0 {
		return 0, err
	}
	// What was taken is answered, also when the phase ends meanwhile.
	ctx = context.WithoutCancel(ctx)
	for i := range w.batch {
		d := &w.batch[i]
		w.body = closed(ephemeralMessage(ephemeralBody(w.body, string(d.inbox)), func(b []byte) []byte {
			return t.payloads.append(b, 0, d.stamp.seq, 0)
		}))
		if _, err := t.pushEphemeral(ctx, w.body, nil); err != nil {
			return i, err
		}
	}
	acked, body, _, err := t.ackEphemeral(ctx, t.queue, "responders", w.batch, w.body, nil)
	w.body = body
	if err == nil && acked != len(w.batch) {
		err = fmt.Errorf("%w: %d of %d", errNotAcked, acked, len(w.batch))
	}
	return acked, err
}

// redisTrip is two lists and nothing else.
type redisTrip struct {
	*ephemeralRun
	prefix string
}

func (t *redisTrip) ask(ctx context.Context, w *replyWorker, n int64) (int64, error) {
	inbox := t.prefix + "inbox:" + strconv.Itoa(w.index)
	w.body = append(append(w.body[:0], inbox...), ' ')
	w.body = t.payloads.append(w.body, 0, n, 0)
	if err := t.redis.LPush(ctx, t.prefix+"rpc", w.body).Err(); err != nil {
		return -1, err
	}
	got, err := t.redis.BRPop(ctx, max(t.c.timeout, time.Second), inbox).Result() // whole seconds is what it knows
	if errors.Is(err, redis.Nil) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	return seqOf([]byte(got[1]))
}

func (t *redisTrip) respond(ctx context.Context, w *replyWorker) (int, error) {
	got, err := t.redis.BRPop(ctx, time.Second, t.prefix+"rpc").Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	inbox, request, found := cutSpace(got[1])
	if !found {
		return 0, errScan
	}
	n, err := seqOf(request)
	if err != nil {
		return 0, err
	}
	w.body = t.payloads.append(w.body[:0], 0, n, 0)
	return 1, t.redis.LPush(context.WithoutCancel(ctx), inbox, w.body).Err()
}

func cutSpace(s string) (before string, after []byte, found bool) {
	for i := range len(s) {
		if s[i] == ' ' {
			return s[:i], []byte(s[i+1:]), true
		}
	}
	return s, nil, false
}

func seqOf(payload []byte) (int64, error) {
	var st stamp
	s := scanner{b: payload}
	if err := s.stamp(&st); err != nil || !st.ok {
		return -1, errors.Join(errScan, err)
	}
	return st.seq, nil
}
