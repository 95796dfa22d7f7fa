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

// stream is one way to get messages from producers to the consumers of one group.
type stream interface {
	// push stores count messages of a producer, numbered from first on.
	push(ctx context.Context, w *streamWorker, first int64, count int) error
	// pop takes messages and settles them. Numbers are written to seen.
	pop(ctx context.Context, w *streamWorker, seen func(lane, seq int64)) (int, error)
}

// streamWorker is a producer or a consumer and its memory.
type streamWorker struct {
	lane      int64 // producer
	name      string
	body, buf []byte
	batch     []ephemeralDelivery
	pushed    int64
	popTime   *histogram
	ackTime   *histogram
}

// streamRun is one phase.
type streamRun struct {
	r          *ephemeralRun
	batch      int
	start      time.Time
	pushed     atomic.Int64
	settled    atomic.Int64
	lastPush   atomic.Int64 // nanoseconds since the start
	lastSettle atomic.Int64
	full       atomic.Int64 // pushes refused because the queue was full
	duplicates atomic.Int64
	foreign    atomic.Int64
	done       atomic.Bool // producers have stopped
	push       histogram
	pop        histogram
	ack        histogram
	errors     errorCounts
	mu         sync.Mutex
	seen       []map[int64]bool // by producer
	producers  []*streamWorker
}

func (r *ephemeralRun) measureStream(ctx context.Context, batch int) (*streamReport, error) {
	rep := &streamReport{Batch: batch, Producers: r.c.producers, Consumers: r.c.consumers}
	queue := fmt.Sprintf("%s-stream-%d", r.prefix, batch)
	r.queues = append(r.queues, queue)
	for _, phase := range []struct {
		name string
		make func() (stream, error)
		to   **streamResult
	}{
		{"redis XADD/XREADGROUP", func() (stream, error) { return r.newRedisStream(ctx, fmt.Sprintf(":before:%d", batch), batch) }, &rep.Before},
		{"ephemeral", func() (stream, error) { return r.newEphemeralStream(queue, batch), nil }, &rep.Broker},
		{"redis XADD/XREADGROUP", func() (stream, error) { return r.newRedisStream(ctx, fmt.Sprintf(":after:%d", batch), batch) }, &rep.After},
	} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := phase.make()
		if err != nil {
			return nil, err
		}
		*phase.to = r.runStream(ctx, s, batch)
		r.say("%-31s batch %d: push %.0f/s  cycle %.0f/s", phase.name, batch, (*phase.to).Push, (*phase.to).Cycle)
	}
	return rep, nil
}

func (r *ephemeralRun) runStream(ctx context.Context, s stream, batch int) *streamResult {
	run := &streamRun{r: r, batch: batch, start: time.Now()}
	for i := range r.c.producers {
		run.seen = append(run.seen, map[int64]bool{})
		run.producers = append(run.producers, &streamWorker{lane: int64(i)})
	}
	producing, cancel := context.WithTimeout(ctx, r.c.duration)
	defer cancel()
	var producers, consumers sync.WaitGroup
	for i := range r.c.consumers {
		w := &streamWorker{name: "c" + strconv.Itoa(i), popTime: &run.pop, ackTime: &run.ack}
		consumers.Go(func() { run.consume(ctx, s, w) })
	}
	for _, w := range run.producers {
		producers.Go(func() { run.produce(ctx, producing, s, w) })
	}
	producers.Wait()
	run.done.Store(true)
	consumers.Wait()
	return run.result()
}

func (run *streamRun) produce(ctx, producing context.Context, s stream, w *streamWorker) {
	for producing.Err() == nil {
		if run.pushed.Load()-run.settled.Load() > run.r.c.maxLag {
			sleep(producing, 200*time.Microsecond)
			continue
		}
		began := time.Now()
		err := s.push(ctx, w, w.pushed, run.batch)
		if err != nil {
			if isFull(err) {
				run.full.Add(1)
			} else {
				// Stored or not: these numbers are not used again, and not missed.
				w.pushed += int64(run.batch)
				run.errors.add(err)
			}
			sleep(producing, time.Millisecond)
			continue
		}
		run.push.record(time.Since(began))
		w.pushed += int64(run.batch)
		run.pushed.Add(int64(run.batch))
		run.lastPush.Store(int64(time.Since(run.start)))
	}
}

// consume ends when everything is settled, or nothing comes for long.
func (run *streamRun) consume(ctx context.Context, s stream, w *streamWorker) {
	last := time.Now()
	for ctx.Err() == nil {
		n, err := s.pop(ctx, w, run.note)
		if err != nil {
			run.errors.add(err)
			sleep(ctx, time.Millisecond)
		}
		if n > 0 {
			last = time.Now()
			run.settled.Add(int64(n))
			run.lastSettle.Store(int64(time.Since(run.start)))
		}
		if run.done.Load() && (run.settled.Load() >= run.pushed.Load() || time.Since(last) > run.r.c.patience) {
			return
		}
	}
}

func (run *streamRun) note(lane, seq int64) {
	run.mu.Lock()
	defer run.mu.Unlock()
	switch {
	case lane < 0 || lane >= int64(len(run.seen)) || seq < 0:
		run.foreign.Add(1)
	case run.seen[lane][seq]:
		run.duplicates.Add(1)
	default:
		run.seen[lane][seq] = true
	}
}

// delivered counts different messages.
func (run *streamRun) delivered() (n int64) {
	for _, lane := range run.seen {
		n += int64(len(lane))
	}
	return n
}

// ephemeralStream is a queue of the brokers: leased pops, every batch acknowledged.
type ephemeralStream struct {
	*ephemeralRun
	queue, path string
}

const streamGroup = "group"

func (r *ephemeralRun) newEphemeralStream(queue string, batch int) *ephemeralStream {
	return &ephemeralStream{r, queue, ephemeralPopPath(queue, streamGroup, batch, 200*time.Millisecond, false)}
}

func (s *ephemeralStream) push(ctx context.Context, w *streamWorker, first int64, count int) error {
	w.body = ephemeralBody(w.body, s.queue)
	for i := range int64(count) {
		w.body = ephemeralMessage(w.body, func(b []byte) []byte { return s.payloads.append(b, w.lane, first+i, 0) })
	}
	w.body = closed(w.body)
	var err error
	w.buf, err = s.pushEphemeral(ctx, w.body, w.buf)
	return err
}

func (s *ephemeralStream) pop(ctx context.Context, w *streamWorker, seen func(lane, seq int64)) (acked int, err error) {
	began := time.Now()
	if w.buf, _, err = s.client.do(ctx, "GET", s.path, nil, w.buf); err != nil {
		return 0, err
	}
	if w.batch, err = scanEphemeralPop(w.buf, w.batch); err != nil || len(w.batch) == 0 {
		return 0, err
	}
	w.popTime.record(time.Since(began))
	for i := range w.batch {
		seen(w.batch[i].stamp.lane, w.batch[i].stamp.seq)
	}
	began = time.Now()
	acked, w.body, _, err = s.ackEphemeral(ctx, s.queue, streamGroup, w.batch, w.body, nil)
	if err == nil {
		w.ackTime.record(time.Since(began))
		if acked != len(w.batch) {
			err = fmt.Errorf("%w: %d of %d", errNotAcked, acked, len(w.batch))
		}
	}
	return acked, err
}

// redisStream is a stream and a consumer group, through the same client library as a broker uses.
type redisStream struct {
	*ephemeralRun
	key   string
	batch int64
}

// redisStreamKeep bounds the stream, so that it does not fill the memory: far above what producers run ahead.
const redisStreamKeep = 50_000

func (r *ephemeralRun) newRedisStream(ctx context.Context, name string, batch int) (*redisStream, error) {
	s := &redisStream{r, r.prefix + name, int64(batch)}
	if err := r.redis.XGroupCreateMkStream(ctx, s.key, streamGroup, "0").Err(); err != nil {
		return nil, fmt.Errorf("make stream: %w", err)
	}
	return s, nil
}

func (s *redisStream) push(ctx context.Context, w *streamWorker, first int64, count int) error {
	add := func(c redis.Cmdable, i int64) *redis.StringCmd {
		payload := s.payloads.append(nil, w.lane, first+i, 0)
		return c.XAdd(ctx, &redis.XAddArgs{Stream: s.key, MaxLen: redisStreamKeep, Approx: true, Values: []any{"p", payload}})
	}
	if count == 1 {
		return add(s.redis, 0).Err()
	}
	_, err := s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range int64(count) {
			add(pipe, i)
		}
		return nil
	})
	return err
}

func (s *redisStream) pop(ctx context.Context, w *streamWorker, seen func(lane, seq int64)) (int, error) {
	began := time.Now()
	got, err := s.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: streamGroup, Consumer: w.name, Streams: []string{s.key, ">"}, Count: s.batch, Block: 200 * time.Millisecond,
	}).Result()
	if errors.Is(err, redis.Nil) || err == nil && len(got) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	w.popTime.record(time.Since(began))
	ids := make([]string, 0, len(got[0].Messages))
	for _, m := range got[0].Messages {
		text, _ := m.Values["p"].(string)
		var st stamp
		sc := scanner{b: []byte(text)}
		if err := sc.stamp(&st); err != nil || !st.ok {
			return 0, errors.Join(errScan, err)
		}
		seen(st.lane, st.seq)
		ids = append(ids, m.ID)
	}
	began = time.Now()
	n, err := s.redis.XAck(ctx, s.key, streamGroup, ids...).Result()
	if err == nil {
		w.ackTime.record(time.Since(began))
	}
	return int(n), err
}
