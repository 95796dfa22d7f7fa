package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

type scaleConfig struct {
	scenario *scenario
	run      config // what phases have in common
	size     int64
	baseline time.Duration
	warmUp   time.Duration
	maxLag   int64
	window   time.Duration
	patience time.Duration
	reserve  int64
	svgFile  string

	parkedQueues int
}

const scaleUsage = `usage: loadtest scale <scenario> [flags]

`

func writeScaleUsage(w io.Writer) {
	_, _ = io.WriteString(w, scaleUsage)
	for _, s := range scenarios() {
		_, _ = fmt.Fprintf(w, "  %-11s %s (--size: %s)\n", s.name, s.asks, s.size)
	}
	_, _ = io.WriteString(w, "\nEvery phase checks every message. --database-url adds the sizes of tables and indexes.\n\n")
}

// parseScaleFlags reads a scenario and its flags; what is not given has the scenario's default.
func parseScaleFlags(args []string, errOut io.Writer) (*scaleConfig, error) {
	run, err := parseFlags(nil, errOut)
	if err != nil {
		return nil, err
	}
	c := &scaleConfig{run: *run, warmUp: 3 * time.Second, maxLag: 50_000, window: time.Minute, patience: time.Minute, reserve: 5 << 30, parkedQueues: 100}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		writeScaleUsage(errOut)
		if len(args) > 0 && strings.TrimLeft(args[0], "-") == "help" || len(args) > 0 && args[0] == "-h" {
			return nil, flag.ErrHelp
		}
		return nil, errors.New("scale: name a scenario")
	}
	for _, s := range scenarios() {
		if s.name == args[0] {
			c.scenario = s
		}
	}
	if c.scenario == nil {
		return nil, fmt.Errorf("scale: no scenario %q", args[0])
	}
	c.run.command = append([]string{"scale"}, args...)
	c.run.urls = nil
	c.run.duration = time.Minute
	c.run.drainTimeout = 10 * time.Minute
	c.scenario.defaults(c)
	fs := c.flags(errOut)
	if err := fs.Parse(args[1:]); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if len(c.run.urls) == 0 {
		c.run.urls = []string{"http://localhost:6632"}
	}
	if c.baseline == 0 {
		c.baseline = min(c.run.duration, time.Minute)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *scaleConfig) flags(errOut io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet("scale "+c.scenario.name, flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.Usage = func() {
		writeScaleUsage(errOut)
		fs.PrintDefaults()
	}
	r := &c.run
	fs.Var(urlList{&r.urls}, "url", "broker `address`, repeatable or comma separated; used in turn (default http://localhost:6632)")
	fs.StringVar(&r.databaseURL, "database-url", r.databaseURL, "the broker's PostgreSQL, for sizes of tables and indexes")
	fs.Int64Var(&c.size, "size", c.size, "the large number: "+c.scenario.size)
	fs.DurationVar(&r.duration, "duration", r.duration, "length of the measured phase")
	fs.DurationVar(&c.baseline, "baseline-duration", c.baseline, "length of each phase it is compared with (default the measured phase's, at most 1m)")
	fs.DurationVar(&c.warmUp, "warm-up", c.warmUp, "start of each of these phases that is not counted")
	fs.Int64Var(&c.maxLag, "max-lag", c.maxLag, "closed loop: producers wait while the slowest group is this many messages behind")
	fs.DurationVar(&c.window, "window", c.window, "retention: how long messages are kept")
	fs.IntVar(&c.parkedQueues, "parked-queues", c.parkedQueues, "parked: over how many queues the parked pops are spread")
	fs.DurationVar(&c.patience, "patience", c.patience, "reading a backlog ends when nothing arrives for so long")
	fs.Int64Var(&c.reserve, "disk-reserve", c.reserve, "stop filling when fewer `bytes` are free where the database is (if it is on this machine)")
	fs.Float64Var(&r.rate, "rate", r.rate, "open loop: messages per second in all; 0 is a closed loop")
	fs.IntVar(&r.maxInFlight, "max-in-flight", r.maxInFlight, "open loop: push requests in flight before shedding")
	fs.IntVar(&r.producers, "producers", r.producers, "closed loop: number of producers")
	fs.IntVar(&r.consumers, "consumers", r.consumers, "consumers of a group, where the scenario does not say")
	fs.IntVar(&r.batch, "batch", r.batch, "messages per push request, all for one partition")
	fs.IntVar(&r.popBatch, "pop-batch", r.popBatch, "messages per pop")
	fs.IntVar(&r.popPartitions, "pop-partitions", r.popPartitions, "partitions one pop may claim")
	fs.IntVar(&r.partitions, "partitions", r.partitions, "partitions, where the scenario does not say")
	fs.IntVar(&r.payloadSize, "payload-size", r.payloadSize, "payload `bytes`, padded with incompressible text")
	fs.BoolVar(&r.dedup, "dedup", r.dedup, "send transaction ids and a window of an hour")
	fs.DurationVar(&r.timeout, "timeout", r.timeout, "limit of one request, the long poll not counted")
	fs.DurationVar(&r.drainTimeout, "drain-timeout", r.drainTimeout, "limit for consuming the rest of a phase")
	fs.BoolVar(&r.keep, "keep", false, "leave the queues behind")
	fs.StringVar(&r.token, "token", "", "bearer token")
	fs.StringVar(&r.jsonFile, "json", "", "write the report, with a sample a second, to this `file`")
	fs.StringVar(&c.svgFile, "svg", "", "write the plots to this `file`")
	fs.BoolVar(&r.quiet, "quiet", false, "no progress lines")
	return fs
}

func (c *scaleConfig) check() error {
	switch {
	case c.size < 1 || c.size > 1<<31:
		return fmt.Errorf("--size %d: want at least 1", c.size)
	case c.run.duration < 100*time.Millisecond || c.baseline < 100*time.Millisecond:
		return errors.New("--duration and --baseline-duration must be at least 100ms")
	case c.warmUp < 0 || c.patience < 0 || c.window < time.Second || c.maxLag < 1 || c.reserve < 0:
		return errors.New("--warm-up, --patience and --disk-reserve must not be negative, --window at least 1s, --max-lag at least 1")
	case c.parkedQueues < 1:
		return errors.New("--parked-queues must be at least 1")
	case c.scenario.needsDB && c.run.databaseURL == "":
		return fmt.Errorf("scale %s needs --database-url", c.scenario.name)
	}
	cfg := c.run
	cfg.producers = min(cfg.producers, cfg.lanes())
	return cfg.validate()
}
