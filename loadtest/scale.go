package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Scale mode asks what a large number does to the speed: of partitions, queues, groups, parked pops, of messages
// waiting, of row versions an old snapshot keeps, of messages retention removes. Each scenario has the small number
// in the same run, because figures of two runs cannot be compared.

type scenario struct {
	name string
	// asks is the question in one line; size says what --size counts.
	asks, size string
	needsDB    bool
	defaults   func(c *scaleConfig)
	run        func(s *scaleRun, ctx context.Context) error
}

// scaleRun is one scenario under way.
type scaleRun struct {
	c       *scaleConfig
	rec     *recorder
	rep     *scaleReport
	benches []*bench // whose queues are to be removed
}

// leaveTime is what a broker is given to see that consumers have left.
const leaveTime = 500 * time.Millisecond

// cleanupTime is the limit for removing the queues of a bench.
const cleanupTime = 15 * time.Minute

var (
	errInterrupted = errors.New("interrupted")
	errNoWindow    = errors.New("the phase ended before its warm-up did")
)

func scaleMain(args []string, out, errOut io.Writer) int {
	c, err := parseScaleFlags(args, errOut)
	if code, ok := flagsTaken(err, errOut); !ok {
		return code
	}
	ctx, stop := untilInterrupted()
	defer stop()

	rep, err := runScale(ctx, c, errOut)
	if rep == nil {
		_, _ = fmt.Fprintln(errOut, "loadtest:", err)
		return exitError
	}
	if err != nil {
		rep.note("ended early: %v", err)
	}
	rep.print(out)
	if err := errors.Join(rep.writeFiles(c.run.jsonFile, c.svgFile), err); err != nil {
		_, _ = fmt.Fprintln(errOut, "loadtest:", err)
		return exitError
	}
	if !rep.OK {
		return exitFailed
	}
	return exitOK
}

// runScale runs the scenario and removes its queues. Once it has begun there is a report of as far as it came, also
// beside an error.
func runScale(ctx context.Context, c *scaleConfig, errOut io.Writer) (*scaleReport, error) {
	var progress io.Writer
	if !c.run.quiet {
		progress = errOut
	}
	rec, err := newRecorder(ctx, c, progress)
	if err != nil {
		return nil, err
	}
	s := &scaleRun{c: c, rec: rec, rep: newScaleReport(c)}
	s.rep.Database = rec.database
	s.rep.Before = rec.readSizes(ctx)
	rec.start()
	err = c.scenario.run(s, ctx)
	s.rep.After = rec.readSizes(context.WithoutCancel(ctx))
	rec.stop()
	s.rep.finish(rec)
	s.rep.Complete = err == nil
	for _, b := range s.benches {
		// A million partitions or ten thousand queues take their time.
		b.cfg.timeout = max(b.cfg.timeout, cleanupTime)
		if err := b.cleanup(ctx); err != nil {
			_, _ = fmt.Fprintln(errOut, "loadtest: clean up:", err)
		}
	}
	return s.rep, err
}

// newBench makes a bench with the run's settings and the changes a phase needs.
func (s *scaleRun) newBench(change func(cfg *config)) (*bench, error) {
	cfg := s.c.run
	change(&cfg)
	cfg.producers = min(cfg.producers, cfg.lanes())
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b, err := newBench(&cfg, time.Now().UnixMicro())
	if err != nil {
		return nil, err
	}
	b.client.smallBuffers()
	s.benches = append(s.benches, b)
	return b, nil
}

// again goes on with the queues of a bench, its lanes and the numbers of their messages. The counters start at zero.
func (b *bench) again(change func(cfg *config)) *bench {
	cfg := *b.cfg
	if change != nil {
		change(&cfg)
	}
	old := b.verify
	n := &bench{
		cfg: &cfg, client: b.client, run: b.run, queues: b.queues, groups: b.groups, lanes: b.lanes,
		payloads: b.payloads, ready: true,
	}
	n.verify = &verifier{
		run: old.run, lanes: old.lanes, views: old.views, exclusive: old.exclusive,
		groups: make([]groupCounts, len(old.groups)),
	}
	n.budget.Store(cfg.messages)
	return n
}

// oweFrom makes a bench expect the messages an earlier one pushed and nobody has read.
func (b *bench) oweFrom(earlier *bench) {
	b.verify.push.confirmed.Store(earlier.verify.push.confirmed.Load())
	b.verify.push.uncertain.Store(earlier.verify.push.uncertain.Load())
}

// phase runs a bench that pushes, as far as the disk allows, and keeps what it found.
func (s *scaleRun) phase(ctx context.Context, name string, b *bench) (*scalePhase, error) {
	return s.runPhase(ctx, name, b, true)
}

func (s *scaleRun) runPhase(ctx context.Context, name string, b *bench, fills bool) (*scalePhase, error) {
	if ctx.Err() != nil {
		return nil, errInterrupted
	}
	if err := b.setUp(ctx); err != nil {
		return nil, err
	}
	guarded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	diskLow := func() {
		if fills {
			cancel(errDiskLow)
		}
	}
	p := &scalePhase{Name: name, Settings: settingsOf(b.cfg), From: s.rec.begin(name, b, diskLow)}
	times, err := b.execute(guarded, nil)
	p.To = s.rec.end()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if !fills && ctx.Err() != nil {
		return nil, errInterrupted // what it had not read yet is not lost
	}
	if errors.Is(context.Cause(guarded), errDiskLow) {
		s.rep.note("%s: stopped at %d messages, because less than %s of the disk are free",
			name, b.verify.push.confirmed.Load(), bytesText(float64(s.c.reserve)))
	}
	p.take(b.report(times))
	if !b.cfg.noConsume {
		// A poll that was cut short may still be waiting at the broker. It shall not take what the next phase pushes.
		sleep(ctx, leaveTime)
	}
	p.Tables = s.rec.readSizes(context.WithoutCancel(ctx))
	s.rep.Phases = append(s.rep.Phases, p)
	return p, nil
}

// step is a stretch of time in which no bench runs.
func (s *scaleRun) step(name string, do func() error) error {
	s.rec.begin(name, nil, nil)
	defer s.rec.end()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// measure runs a phase for a given time and counts what happens once the warm-up is over and before the producers
// stop: consumers that are still connecting and the emptying at the end are not what is asked about.
func (s *scaleRun) measure(ctx context.Context, name string, b *bench, length time.Duration) (*scalePhase, error) {
	b.cfg.duration, b.cfg.messages, b.cfg.drainTimeout = s.c.warmUp+length, 0, s.c.run.drainTimeout
	b.gate = b.lagBelow(s.c.maxLag)
	var from, to progressMark
	b.produce = func(ctx context.Context) {
		warm := make(chan struct{})
		go func() {
			defer close(warm)
			sleep(ctx, s.c.warmUp)
			from = b.mark(time.Now())
		}()
		if b.cfg.rate > 0 {
			b.openLoop(ctx)
		} else {
			b.closedLoop(ctx)
		}
		<-warm
		to = b.mark(time.Now())
	}
	p, err := s.phase(ctx, name, b)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return p, errInterrupted
	}
	if p.Steady = steadyOf(&from, &to); p.Steady.Seconds < length.Seconds()/2 {
		return p, fmt.Errorf("%s: %w", name, errNoWindow)
	}
	p.Steady.From = p.From + s.c.warmUp.Seconds()
	p.Memory = s.rec.memoryIn(p.Steady.From, p.Steady.From+p.Steady.Seconds)
	return p, nil
}
