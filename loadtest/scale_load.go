package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// smallBuffers is for scenarios with thousands of connections: what large buffers take would be taken from the
// broker on the same machine. Call it before the first request.
func (c *client) smallBuffers() {
	if t, ok := c.http.Transport.(*http.Transport); ok {
		t.WriteBufferSize, t.ReadBufferSize = 8<<10, 8<<10
	}
}

// slowest is how many messages the group has that has the fewest.
func (v *verifier) slowest() int64 {
	n := v.groups[0].unique.Load()
	for g := range v.groups {
		n = min(n, v.groups[g].unique.Load())
	}
	return n
}

// lagBelow lets producers go on while no group is further behind than limit. A closed loop that outruns its
// consumers would measure how a backlog grows.
func (b *bench) lagBelow(limit int64) func(ctx context.Context) bool {
	return func(ctx context.Context) bool {
		for b.verify.push.confirmed.Load()-b.verify.slowest() > limit {
			sleep(ctx, time.Millisecond)
			if ctx.Err() != nil {
				return false
			}
		}
		return true
	}
}

// fillEach pushes one message to each lane, some lanes in a request: the quickest way to make partitions.
func (b *bench) fillEach(perRequest int) func(ctx context.Context) {
	return func(ctx context.Context) {
		chunks := make(chan []*lane)
		var wg sync.WaitGroup
		for range b.cfg.producers {
			wg.Go(func() {
				p := &producer{bench: b}
				for lanes := range chunks {
					p.pushEach(lanes, time.Now())
				}
			})
		}
		for lanes := range slices.Chunk(b.lanes, perRequest) {
			if ctx.Err() != nil {
				break
			}
			chunks <- lanes
		}
		close(chunks)
		wg.Wait()
	}
}

// shuffleLanes makes producers go through the lanes in no order, so that neighbours in time are not neighbours in an
// index. The verifier keeps its own order.
func (b *bench) shuffleLanes() {
	b.lanes = slices.Clone(b.lanes)
	rand.Shuffle(len(b.lanes), func(i, j int) { b.lanes[i], b.lanes[j] = b.lanes[j], b.lanes[i] })
}

// waitEmpty produces nothing and waits until every group has everything, as long as they get anything.
func (b *bench) waitEmpty(patience time.Duration) func(ctx context.Context) {
	return func(ctx context.Context) {
		seen, at := int64(-1), time.Now()
		for ctx.Err() == nil && !b.verify.complete() {
			if n := b.verify.slowest(); n != seen {
				seen, at = n, time.Now()
			}
			if time.Since(at) > patience {
				b.verify.problems.add("nothing more arrived for %s", patience)
				return
			}
			sleep(ctx, 20*time.Millisecond)
		}
	}
}

// readAll runs a phase that reads what an earlier bench pushed. Its rate is what was read over the time until the
// last acknowledgement.
func (s *scaleRun) readAll(ctx context.Context, name string, filled *bench, change func(cfg *config)) (*bench, *scalePhase, error) {
	b := filled.again(func(cfg *config) {
		cfg.noConsume, cfg.messages, cfg.duration, cfg.drainTimeout = false, 0, 0, min(cfg.drainTimeout, time.Second)
		change(cfg)
	})
	b.oweFrom(filled)
	b.produce = b.waitEmpty(s.c.patience)
	p, err := s.runPhase(ctx, name, b, false)
	if err != nil {
		return nil, nil, err
	}
	// What it owes was pushed before, and how long that waited is no latency.
	p.Rates.Push, p.Latency.EndToEnd, p.Checks.Pushed = 0, percentiles{}, 0
	p.Memory = s.rec.memoryIn(p.From, p.To)
	return b, p, nil
}

const (
	settleTime = time.Minute
	// calmScrape is how quickly a broker answers that has nothing else to do.
	calmScrape = 100 * time.Millisecond
)

// settle waits until the brokers have got over consumers that left in their thousands: they count next to no
// parked pops and answer at once, twice in a row.
func (s *scaleRun) settle(ctx context.Context) {
	calm := 0
	_ = s.step("settling", func() error {
		for began := time.Now(); ctx.Err() == nil && calm < 2; sleep(ctx, time.Second) {
			if time.Since(began) > settleTime {
				s.rep.note("the brokers were still busy %s after the consumers left", settleTime)
				break
			}
			calm++
			for _, url := range s.c.run.urls {
				if !s.calm(ctx, url) {
					calm = 0
				}
			}
		}
		return nil
	})
}

func (s *scaleRun) calm(ctx context.Context, url string) bool {
	c, err := newClient([]string{url}, s.c.run.token, 1)
	if err != nil {
		return false
	}
	defer c.close()
	began := time.Now()
	_, parked, err := (&brokerGauges{client: c}).read(ctx)
	var status *statusError
	if errors.As(err, &status) {
		return true // it has no metrics to ask
	}
	return err == nil && parked < 10 && time.Since(began) < calmScrape
}
