package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// The floor is what the database gives without a broker in front of it: the broker's own statements, one
// transaction per push, no gathering, on --floor-pushers and --floor-poppers connections. A run through HTTP is
// read as a share of it.

type floorRun struct {
	Messages int64       `json:"messages"`
	Seconds  float64     `json:"seconds"`
	Rates    rates       `json:"ratesPerSecond"`
	Push     percentiles `json:"pushMicros"`
	Pop      percentiles `json:"popMicros"`
	Ack      percentiles `json:"ackMicros"`
}

type floorReport struct {
	Pushers int       `json:"pushers"`
	Poppers int       `json:"poppers"`
	Before  *floorRun `json:"before,omitempty"`
	After   *floorRun `json:"after,omitempty"`
	// Drift is how much faster the machine was after the run than before it, by the floor's own rate.
	Drift float64 `json:"drift,omitempty"`
	// PushRatio and CycleRatio are the broker's rates as shares of the mean of both floors.
	PushRatio  float64 `json:"pushRatio,omitempty"`
	CycleRatio float64 `json:"cycleRatio,omitempty"`
}

// floor is one run of the statements.
type floor struct {
	cfg      *config
	stmts    *statements
	start    time.Time
	payloads *payloads
	queue    floorQueue
	names    []string
	budget   atomic.Int64
	pushed   atomic.Int64
	acked    atomic.Int64
	lastPush atomic.Int64 // nanoseconds since the start
	lastAck  atomic.Int64
	done     atomic.Bool // pushers have stopped
	push     histogram
	pop      histogram
	ack      histogram
	progress io.Writer
	errOnce  sync.Once
	err      error
	cancel   context.CancelFunc
}

func floorOnly(ctx context.Context, cfg *config, progress io.Writer) (*report, error) {
	run, err := measureFloor(ctx, cfg, cfg.duration, progress)
	if err != nil {
		return nil, err
	}
	return &report{
		Version: buildVersion(), Started: time.Now().UTC(), Command: append([]string{"loadtest"}, cfg.commandLine()...),
		Machine: thisMachine(), Loop: modeFloor, OK: true,
		Floor: &floorReport{Pushers: cfg.floorPushers, Poppers: cfg.floorPoppers, Before: run},
	}, nil
}

// measureFloor pushes for the given time, or --messages when it is 0, and consumes everything.
func measureFloor(ctx context.Context, cfg *config, length time.Duration, progress io.Writer) (*floorRun, error) {
	stmts, err := loadStatements()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run := time.Now().UnixMicro()
	p, err := newPayloads(run, cfg.payloadSize, cfg.dataFile)
	if err != nil {
		return nil, err
	}
	f := &floor{cfg: cfg, stmts: stmts, payloads: p, progress: progress, cancel: cancel}
	f.budget.Store(cfg.messages)
	for n := range cfg.lanes() {
		f.names = append(f.names, fmt.Sprintf("p%06d", n))
	}
	conn, err := pgx.Connect(ctx, cfg.databaseURL)
	if err != nil {
		return nil, fmt.Errorf("floor: connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if f.queue, err = f.setUp(ctx, conn, fmt.Sprintf("loadtest.floor.%d", run)); err != nil {
		return nil, fmt.Errorf("floor: set up: %w", err)
	}
	err = f.execute(ctx, length)
	if !cfg.keep {
		err = errors.Join(err, f.tearDown(context.WithoutCancel(ctx), conn))
	}
	if err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	return f.result(), nil
}

func (f *floor) execute(ctx context.Context, length time.Duration) error {
	f.start = time.Now()
	stop := f.reportProgress()
	defer stop()
	pushing := ctx
	if length > 0 {
		var cancel context.CancelFunc
		pushing, cancel = context.WithTimeout(ctx, length)
		defer cancel()
	}
	var pushers, poppers sync.WaitGroup
	if !f.cfg.noConsume {
		for range f.cfg.floorPoppers {
			f.worker(ctx, &poppers, func(conn *pgx.Conn) error { return f.popLoop(ctx, conn) })
		}
	}
	for n := range f.cfg.floorPushers {
		f.worker(ctx, &pushers, func(conn *pgx.Conn) error { return f.pushLoop(ctx, pushing, conn, n) })
	}
	pushers.Wait()
	f.done.Store(true)
	poppers.Wait()
	return f.err
}

// worker runs a loop on a connection of its own. The first error stops all of them.
func (f *floor) worker(ctx context.Context, wg *sync.WaitGroup, loop func(*pgx.Conn) error) {
	wg.Go(func() {
		conn, err := connectHot(ctx, f.cfg.databaseURL)
		if err == nil {
			err = loop(conn)
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		if err != nil {
			f.errOnce.Do(func() {
				f.err = err
				f.cancel()
			})
		}
	})
}

func (f *floor) reportProgress() (stop func()) {
	if f.progress == nil {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var pushed, acked int64
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				p, a := f.pushed.Load(), f.acked.Load()
				_, _ = fmt.Fprintf(f.progress, "%4.0fs  floor  push %7d/s  ack %7d/s\n",
					now.Sub(f.start).Seconds(), p-pushed, a-acked)
				pushed, acked = p, a
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

func (f *floor) result() *floorRun {
	total := time.Since(f.start)
	r := &floorRun{
		Messages: f.pushed.Load(), Seconds: total.Seconds(),
		Push: f.push.snapshot().table(), Pop: f.pop.snapshot().table(), Ack: f.ack.snapshot().table(),
	}
	r.Rates.Push = perSecond(f.pushed.Load(), f.lastPush.Load())
	r.Rates.Ack = perSecond(f.acked.Load(), f.lastAck.Load())
	r.Rates.Deliver = r.Rates.Ack
	r.Rates.Cycle = r.Rates.Ack
	return r
}

func compareFloor(cfg *config, before, after *floorRun, broker rates) *floorReport {
	r := &floorReport{Pushers: cfg.floorPushers, Poppers: cfg.floorPoppers, Before: before, After: after}
	share := func(rate, a, b float64) float64 {
		if a+b == 0 {
			return 0
		}
		return 2 * rate / (a + b)
	}
	r.PushRatio = share(broker.Push, before.Rates.Push, after.Rates.Push)
	r.CycleRatio = share(broker.Cycle, before.Rates.Cycle, after.Rates.Cycle)
	if before.Rates.Push > 0 {
		r.Drift = after.Rates.Push / before.Rates.Push
	}
	return r
}

func (r *floorReport) print(p func(string, ...any)) {
	p("")
	for _, row := range []struct {
		name string
		run  *floorRun
	}{{"floor", r.Before}, {"after", r.After}} {
		if row.run != nil {
			p("%-9s push %.0f/s   cycle %.0f/s   p99 push %s pop %s ack %s   (%d messages, %d pushers, %d poppers)",
				row.name, row.run.Rates.Push, row.run.Rates.Cycle,
				micros(row.run.Push.P99), micros(row.run.Pop.P99), micros(row.run.Ack.P99),
				row.run.Messages, r.Pushers, r.Poppers)
		}
	}
	if r.After != nil {
		p("ratio     push %.2f   cycle %.2f   (machine drift during the run %.2f)", r.PushRatio, r.CycleRatio, r.Drift)
	}
}

// connectHot opens a session the way the broker opens those of its hot paths:
// one plan for good, made of index look-ups. A plan chosen while the tables were
// small would not survive them growing.
func connectHot(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `SELECT set_config('plan_cache_mode', 'force_generic_plan', false),
		set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
		set_config('enable_mergejoin', 'off', false), set_config('enable_bitmapscan', 'off', false),
		set_config('jit', 'off', false)`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}
