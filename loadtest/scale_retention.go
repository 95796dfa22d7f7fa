package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The retention scenario removes 1.5 times what comes in: the queue that is written to keeps completed messages for
// the window, so that as much goes as comes; half as much again goes from queues that were filled before, one after
// the other of which gets its retention switched on.

const (
	agedShare     = 0.5
	agedPartition = 10
	// flatDisk and flatLatency say what is called flat: the median of the last quarter beside that of the second.
	flatDisk    = 1.1
	flatLatency = 1.25
)

func (s *scaleRun) retention(ctx context.Context) error {
	live, err := s.newBench(func(cfg *config) { cfg.partitions = int(s.c.size) })
	if err != nil {
		return err
	}
	before, err := s.measure(ctx, "without retention", live, s.c.baseline)
	if err != nil {
		return err
	}
	aged, err := s.fillAged(ctx)
	if err != nil {
		return err
	}
	if err := configureRetention(ctx, live.client, live.queues[0], "completedRetentionSeconds", s.c.window); err != nil {
		return err
	}
	s.watchDeletion(append([]string{live.queues[0]}, aged.queues...))
	removing, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() { failed = s.releaseAged(removing, aged) })
	again := live.again(nil)
	during, err := s.measure(ctx, "with retention", again, s.c.run.duration)
	stop()
	wg.Wait()
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	s.retentionOutcome(before, during)
	return nil
}

// agedQueues is how many steps the removal of the old messages is cut into.
func (s *scaleRun) agedQueues() int {
	return int(min(max(s.c.run.duration/(10*time.Second), 4), 120))
}

func (s *scaleRun) fillAged(ctx context.Context) (*bench, error) {
	aged, err := s.newBench(func(cfg *config) {
		cfg.queues, cfg.partitions, cfg.rate, cfg.noConsume, cfg.duration = s.agedQueues(), agedPartition, 0, true, 0
		cfg.messages = max(int64(agedShare*s.c.run.rate*s.c.run.duration.Seconds()), 1)
		cfg.batch, cfg.producers = 500, 8
	})
	if err != nil {
		return nil, err
	}
	_, err = s.phase(ctx, fmt.Sprintf("pushing %d that are to go", aged.cfg.messages), aged)
	return aged, err
}

// releaseAged lets one queue after the other go, spread over the phase.
func (s *scaleRun) releaseAged(ctx context.Context, aged *bench) error {
	each := (s.c.warmUp + s.c.run.duration) / time.Duration(len(aged.queues)+1)
	for _, queue := range aged.queues {
		err := configureRetention(ctx, aged.client, queue, "retentionSeconds", time.Second)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		sleep(ctx, each)
	}
	return nil
}

func configureRetention(ctx context.Context, c *client, queue, option string, keep time.Duration) error {
	body := fmt.Appendf(nil, `{"queue":%s,"options":{"retentionEnabled":true,%q:%d}}`, quote(queue), option, int(keep.Seconds()))
	if _, _, err := c.do(ctx, http.MethodPost, "/api/v1/configure", body, nil); err != nil {
		return fmt.Errorf("retention of %s: %w", queue, err)
	}
	return nil
}

// watchDeletion adds to the samples how much retention has removed and left.
func (s *scaleRun) watchDeletion(queues []string) {
	r := s.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	r.extra = func(t float64) {
		deleted, kept, err := r.sizes.retained(context.Background(), queues)
		if err != nil {
			r.failed("what retention has removed", err)
			return
		}
		r.put(panelDeleted, "removed", "messages", t, float64(deleted))
		r.put(panelDeleted, "kept", "messages", t, float64(kept))
	}
}

func (s *scaleRun) retentionOutcome(before, during *scalePhase) {
	from, to := during.Steady.From, during.Steady.From+during.Steady.Seconds
	removed := s.rec.values(panelDeleted, "removed", from, to)
	if len(removed) > 1 {
		rate := (removed[len(removed)-1] - removed[0]) / during.Steady.Seconds
		s.rep.add(outcome{What: "removed by retention, beside what was pushed", Unit: unitRate, Baseline: during.Steady.Push, Measured: rate, AtLeast: 1})
	}
	s.rep.add(outcome{
		What: "push p99, without retention and with", Unit: unitSeconds,
		Baseline: seconds(before.Steady.PushLatency.P99), Measured: seconds(during.Steady.PushLatency.P99),
	})
	quarter := (to - from) / 4
	flat := func(what, unit string, limit float64, values func(from, to float64) float64) {
		s.rep.add(outcome{
			What: what + ", second quarter of the time and last", Unit: unit, AtMost: limit,
			Baseline: values(from+quarter, from+2*quarter), Measured: values(to-quarter, to),
		})
	}
	flat("disk without message_ids", unitBytes, flatDisk, func(from, to float64) float64 {
		return s.rec.disk(from, to, func(table string) bool { return table != "message_ids" })
	})
	flat("disk of message_ids", unitBytes, 0, func(from, to float64) float64 {
		return s.rec.disk(from, to, func(table string) bool { return table == "message_ids" })
	})
	flat("push p99 of a second", unitSeconds, flatLatency, func(from, to float64) float64 {
		return median(s.rec.values(panelPush, "p99", from, to))
	})
	s.rep.note("message_ids are removed in slices of half an hour once the window of deduplication has passed: " +
		"they grow for an hour and a half and then go up and down")
}

// disk is the median size of some tables and their indexes.
func (r *recorder) disk(from, to float64, want func(table string) bool) float64 {
	r.mu.Lock()
	names := map[string]bool{}
	for _, s := range r.series {
		if (s.Panel == panelHeap || s.Panel == panelIndex) && want(s.Name) {
			names[s.Panel+"\x00"+s.Name] = true
		}
	}
	r.mu.Unlock()
	var sum float64
	for key := range names {
		panel, name, _ := strings.Cut(key, "\x00")
		sum += median(r.values(panel, name, from, to))
	}
	return sum
}
