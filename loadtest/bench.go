package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// bench is one run against a broker: its queues and lanes, the workers' shared counters, and the verifier.
type bench struct {
	cfg      *config
	client   *client
	run      int64
	start    time.Time
	queues   []string
	groups   []string
	lanes    []*lane
	payloads *payloads
	verify   *verifier
	budget   atomic.Int64
	counts   counts
	latency  latencies

	// What a scale scenario changes: the queues are there already, a producer's way of waiting for its turn (false
	// ends it), and another way to produce.
	ready   bool
	gate    func(ctx context.Context) bool
	produce func(ctx context.Context)
}

type counts struct {
	scheduled    atomic.Int64
	shed         atomic.Int64
	inFlight     atomic.Int64
	retries      atomic.Int64
	pushRequests atomic.Int64
	popRequests  atomic.Int64
	popEmpty     atomic.Int64
	ackRequests  atomic.Int64
	acked        atomic.Int64
	ackRefused   atomic.Int64
	lastDelivery atomic.Int64 // nanoseconds since the start
	lastAck      atomic.Int64
	pushErrors   errorCounts
	popErrors    errorCounts
	ackErrors    errorCounts
}

type latencies struct {
	push, pop, ack, endToEnd histogram
}

func newBench(cfg *config, run int64) (*bench, error) {
	workers := cfg.producers
	if cfg.rate > 0 {
		workers = cfg.maxInFlight
	}
	c, err := newClient(cfg.urls, cfg.token, workers+cfg.consumers*cfg.groups)
	if err != nil {
		return nil, err
	}
	p, err := newPayloads(run, cfg.payloadSize, cfg.dataFile)
	if err != nil {
		return nil, err
	}
	b := &bench{cfg: cfg, client: c, run: run, payloads: p}
	b.budget.Store(cfg.messages)
	prefix := cfg.prefix
	if prefix == "" {
		prefix = "loadtest." + strconv.FormatInt(run, 36)
	}
	for q := range cfg.queues {
		name := fmt.Sprintf("%s.%d", prefix, q)
		b.queues = append(b.queues, name)
		for n := range cfg.partitions {
			partition := fmt.Sprintf("p%06d", n)
			b.lanes = append(b.lanes, &lane{
				queue: name, partition: partition, index: int64(len(b.lanes)), lastOffset: -1,
				quoted: fmt.Appendf(nil, `{"queue":%s,"partition":%s`, quote(name), quote(partition)),
			})
		}
	}
	for g := range cfg.groups {
		b.groups = append(b.groups, fmt.Sprintf("group-%d", g))
	}
	b.verify = newVerifier(run, b.lanes, len(b.groups), cfg.ack != ackAuto)
	return b, nil
}

// phases are the instants a report needs.
type phases struct {
	produced time.Duration // how long producers ran
	total    time.Duration // until the last group had everything, or the drain gave up
	drained  bool
}

// execute runs producers and consumers, then drains.
func (b *bench) execute(ctx context.Context, progress io.Writer) (phases, error) {
	var ph phases
	if err := b.setUp(ctx); err != nil {
		return ph, err
	}
	b.start = time.Now()
	stopProgress := b.reportProgress(progress)
	defer stopProgress()

	consuming, stopConsumers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopConsumers()
	var consumers sync.WaitGroup
	if !b.cfg.noConsume {
		b.startConsumers(consuming, &consumers)
	}

	producing := ctx
	if b.cfg.duration > 0 {
		var cancel context.CancelFunc
		producing, cancel = context.WithTimeout(ctx, b.cfg.duration)
		defer cancel()
	}
	switch {
	case b.produce != nil:
		b.produce(producing)
	case b.cfg.rate > 0:
		b.openLoop(producing)
	default:
		b.closedLoop(producing)
	}
	ph.produced = time.Since(b.start)

	ph.drained = b.cfg.noConsume || b.drain()
	ph.total = time.Since(b.start)
	stopConsumers()
	consumers.Wait()
	if !b.cfg.noConsume && ph.drained {
		b.settle(ctx)
	}
	return ph, nil
}

func (b *bench) setUp(ctx context.Context) error {
	if b.ready {
		return nil
	}
	for _, queue := range b.queues {
		if err := b.client.configure(ctx, queue, b.cfg.lease, b.cfg.dedup); err != nil {
			return err
		}
	}
	b.ready = true
	return nil
}

func (b *bench) startConsumers(ctx context.Context, wg *sync.WaitGroup) {
	for g := range b.groups {
		for n := range b.cfg.consumers {
			c := b.newConsumer(g, n%len(b.queues), b.cfg.wait)
			wg.Go(func() { c.loop(ctx) })
		}
	}
}

// drain waits until every group has everything. An interrupt ends producing but not the drain: what was pushed
// is still checked.
func (b *bench) drain() bool {
	deadline := time.Now().Add(b.cfg.drainTimeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !b.verify.complete() {
		if time.Now().After(deadline) {
			b.verify.problems.add("drain: gave up after %s", b.cfg.drainTimeout)
			return false
		}
		<-tick.C
	}
	return true
}

// settle pops once more from everywhere: whatever comes now, every group already had.
func (b *bench) settle(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	for g := range b.groups {
		for q := range b.queues {
			c := b.newConsumer(g, q, 0)
			for range maxSettlePops {
				if n, err := c.once(ctx); n == 0 || err != nil {
					break
				}
			}
		}
	}
}

const maxSettlePops = 1000

// cleanup deletes the queues of the run.
func (b *bench) cleanup(ctx context.Context) error {
	defer b.client.close()
	if b.cfg.keep {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.timeout)
	defer cancel()
	var errs []error
	for _, queue := range b.queues {
		errs = append(errs, b.client.deleteQueue(ctx, queue))
	}
	return errors.Join(errs...)
}
