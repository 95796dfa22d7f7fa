package main

import (
	"context"
	"fmt"
	"time"
)

func scenarios() []*scenario {
	return []*scenario{
		{
			name: "partitions", asks: "is a queue of a million partitions as fast as one of a hundred?", size: "partitions",
			defaults: func(c *scaleConfig) {
				c.size = 1_000_000
				c.run.producers, c.run.consumers, c.run.popPartitions = 16, 16, 10
			},
			run: (*scaleRun).partitions,
		},
		{
			name: "queues", asks: "are ten thousand queues with a consumer each as fast as a hundred?", size: "queues",
			defaults: func(c *scaleConfig) {
				c.size = 10_000
				c.run.producers, c.run.wait, c.maxLag = 16, 30*time.Second, 20_000
				c.warmUp = 30 * time.Second // for all consumers to connect and ask
			},
			run: (*scaleRun).queues,
		},
		{
			name: "groups", asks: "do two hundred groups of a queue get as much together as one?", size: "groups",
			defaults: func(c *scaleConfig) {
				c.size, c.maxLag, c.run.wait = 200, 5_000, 5*time.Second
				c.run.producers, c.run.consumers = 16, 16
			},
			run: (*scaleRun).groups,
		},
		{
			name: "parked", asks: "what do twenty thousand parked pops cost a push, and in memory?", size: "parked pops",
			defaults: func(c *scaleConfig) {
				c.size, c.run.rate = 20_000, 2_000
			},
			run: (*scaleRun).parked,
		},
		{
			name: "backlog", asks: "how fast is a backlog of fifty million messages read?", size: "messages",
			defaults: func(c *scaleConfig) {
				c.size = 50_000_000
				c.run.partitions, c.run.batch, c.run.producers, c.run.consumers = 1000, 500, 8, 16
				c.run.popBatch, c.run.popPartitions = 1000, 10
			},
			run: (*scaleRun).backlog,
		},
		{
			name: "snapshot", asks: "how much does a snapshot held open for ten minutes slow things down?", size: "partitions",
			needsDB: true,
			defaults: func(c *scaleConfig) {
				c.size = 100
				c.run.producers, c.run.consumers, c.run.duration = 16, 16, 10*time.Minute
			},
			run: (*scaleRun).snapshot,
		},
		{
			name: "retention", asks: "do disk and latency stay flat while retention removes 1.5 times what comes in?",
			size: "partitions", needsDB: true,
			defaults: func(c *scaleConfig) {
				c.size, c.run.rate, c.run.duration = 100, 5_000, time.Hour
			},
			run: (*scaleRun).retention,
		},
	}
}

// comparison is how a ratio is made: the small number before and after the large one, so that a machine that gets
// slower or faster meanwhile shows.
type comparison struct {
	small, large string // names of the phases
	goal         float64
}

// between measures base, large and base again, and adds the ratio of what was acknowledged.
func (s *scaleRun) between(ctx context.Context, base, large *bench, c comparison) error {
	before, err := s.measure(ctx, c.small, base, s.c.baseline)
	if err != nil {
		return err
	}
	return s.after(ctx, before, base, large, c)
}

func (s *scaleRun) after(ctx context.Context, before *scalePhase, base, large *bench, c comparison) error {
	big, err := s.measure(ctx, c.large, large, s.c.run.duration)
	if err != nil {
		return err
	}
	s.settle(ctx)
	again, err := s.measure(ctx, c.small+", again", base.again(nil), s.c.baseline)
	if err != nil {
		return err
	}
	rate := (before.Steady.Ack + again.Steady.Ack) / 2
	s.rep.add(outcome{What: "acknowledged", Unit: unitRate, Baseline: rate, Measured: big.Steady.Ack, AtLeast: c.goal})
	s.rep.add(outcome{What: "pushed", Unit: unitRate, Baseline: (before.Steady.Push + again.Steady.Push) / 2, Measured: big.Steady.Push})
	s.rep.add(outcome{
		What: "push p99", Unit: unitSeconds, Measured: seconds(big.Steady.PushLatency.P99),
		Baseline: seconds(before.Steady.PushLatency.P99+again.Steady.PushLatency.P99) / 2,
	})
	s.rep.add(outcome{What: "drift of the machine (baseline again / before)", Unit: unitRate, Baseline: before.Steady.Ack, Measured: again.Steady.Ack})
	s.rep.addMemory("broker memory", before, big)
	return nil
}

func seconds(micros int64) float64 { return (time.Duration(micros) * time.Microsecond).Seconds() }

func (s *scaleRun) partitions(ctx context.Context) error {
	few := int(min(100, s.c.size))
	base, err := s.newBench(func(cfg *config) { cfg.partitions = few })
	if err != nil {
		return err
	}
	small := fmt.Sprintf("%d partitions", few)
	before, err := s.measure(ctx, small, base, s.c.baseline)
	if err != nil {
		return err
	}
	wide, err := s.newBench(func(cfg *config) {
		cfg.partitions, cfg.noConsume, cfg.duration = int(s.c.size), true, 0
	})
	if err != nil {
		return err
	}
	wide.produce = wide.fillEach(1000)
	if _, err := s.phase(ctx, fmt.Sprintf("making %d partitions", s.c.size), wide); err != nil {
		return err
	}
	// The group comes to partitions that are there, so its registration is in this phase too.
	read, _, err := s.readAll(ctx, "first read of each", wide, func(cfg *config) { cfg.popPartitions, cfg.popBatch = 64, 1000 })
	if err != nil {
		return err
	}
	large := read.again(func(cfg *config) { cfg.popPartitions, cfg.popBatch = s.c.run.popPartitions, s.c.run.popBatch })
	large.shuffleLanes()
	err = s.after(ctx, before, base, large, comparison{small, fmt.Sprintf("%d partitions", s.c.size), 0.7})
	s.rep.note("%d of the partitions were written to in the measured phase", written(large))
	return err
}

// written counts the lanes that got more than the message that made them.
func written(b *bench) (n int) {
	for _, l := range b.lanes {
		if l.next > 1 {
			n++
		}
	}
	return n
}

func (s *scaleRun) queues(ctx context.Context) error {
	few := int(min(100, s.c.size))
	shape := func(n int) func(cfg *config) {
		return func(cfg *config) { cfg.queues, cfg.partitions, cfg.consumers = n, 1, n }
	}
	base, err := s.newBench(shape(few))
	if err != nil {
		return err
	}
	wide, err := s.newBench(func(cfg *config) {
		shape(int(s.c.size))(cfg)
		cfg.noConsume, cfg.duration = true, 0
	})
	if err != nil {
		return err
	}
	if _, err := allowFiles(uint64(s.c.size) + 200); err != nil {
		return err
	}
	if err := s.step(fmt.Sprintf("configuring %d queues", s.c.size), func() error { return wide.setUp(ctx) }); err != nil {
		return err
	}
	// Each queue is a transaction of its own to the broker, so a request of many would only wait for itself.
	wide.produce = wide.fillEach(10)
	if _, err := s.phase(ctx, "first message of each", wide); err != nil {
		return err
	}
	// The groups are registered here, by all consumers coming at once.
	read, _, err := s.readAll(ctx, "first read of each", wide, func(*config) {})
	if err != nil {
		return err
	}
	s.settle(ctx)
	large := read.again(nil)
	large.shuffleLanes()
	return s.between(ctx, base, large, comparison{
		small: fmt.Sprintf("%d queues", few), large: fmt.Sprintf("%d queues", s.c.size),
	})
}

func (s *scaleRun) groups(ctx context.Context) error {
	base, err := s.newBench(func(*config) {})
	if err != nil {
		return err
	}
	large, err := s.newBench(func(cfg *config) { cfg.groups, cfg.consumers = int(s.c.size), 1 })
	if err != nil {
		return err
	}
	return s.between(ctx, base, large, comparison{small: "1 group", large: fmt.Sprintf("%d groups", s.c.size)})
}

// backlog fills and reads a small backlog and then a large one.
func (s *scaleRun) backlog(ctx context.Context) error {
	var rates []float64
	for _, n := range []int64{max(s.c.size/50, 1), s.c.size} {
		b, err := s.newBench(func(cfg *config) { cfg.noConsume, cfg.messages, cfg.duration = true, n, 0 })
		if err != nil {
			return err
		}
		if _, err := s.phase(ctx, fmt.Sprintf("pushing %d", n), b); err != nil {
			return err
		}
		pushed := b.verify.push.confirmed.Load()
		name := fmt.Sprintf("reading %d", pushed)
		_, p, err := s.readAll(ctx, name, b, func(*config) {})
		if err != nil {
			return err
		}
		rates = append(rates, p.Rates.Ack)
		if len(rates) > 1 {
			s.backlogHolds(p)
		}
	}
	s.rep.add(outcome{What: "read and acknowledged, small backlog and large", Unit: unitRate, Baseline: rates[0], Measured: rates[1]})
	return nil
}

// backlogHolds compares the first and the last quarter of the reading.
func (s *scaleRun) backlogHolds(p *scalePhase) {
	quarter := (p.To - p.From) / 4
	if quarter < 3 {
		return // a second more or less decides
	}
	s.rep.add(outcome{
		What: "delivered, first quarter of the time and last", Unit: unitRate,
		Baseline: median(s.rec.values(panelRate, "deliver", p.From, p.From+quarter)),
		Measured: median(s.rec.values(panelRate, "deliver", p.To-quarter, p.To)),
	})
}
