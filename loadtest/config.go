package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	modeRun   = "run"
	modeFloor = "floor"

	ackBatch  = "batch"
	ackSingle = "single"
	ackAuto   = "auto"
)

type config struct {
	mode string
	urls []string

	duration    time.Duration
	messages    int64
	rate        float64
	maxInFlight int

	producers     int
	consumers     int
	batch         int
	popBatch      int
	popPartitions int
	partitions    int
	queues        int
	groups        int

	payloadSize int
	dataFile    string
	dedup       bool
	ack         string
	noConsume   bool

	wait         time.Duration
	lease        time.Duration
	timeout      time.Duration
	drainTimeout time.Duration

	prefix   string
	keep     bool
	token    string
	jsonFile string
	quiet    bool

	databaseURL   string
	withFloor     bool
	floorDuration time.Duration
	floorPushers  int
	floorPoppers  int

	command []string
}

type urlList struct{ to *[]string }

func (u urlList) String() string { return "" }

func (u urlList) Set(v string) error {
	for part := range strings.SplitSeq(v, ",") {
		if part = strings.TrimSpace(part); part != "" {
			*u.to = append(*u.to, part)
		}
	}
	return nil
}

const usage = `usage: loadtest [run|floor] [flags]

  run     (default) drive a broker over HTTP and check every message
  floor   run the broker's own SQL statements straight against PostgreSQL, without HTTP

Closed loop: --producers workers push one request after the other.
Open loop:   --rate messages per second, each request at its scheduled instant; what does not fit under
             --max-in-flight is shed and counted, never queued, and latency counts from the scheduled instant.

`

func parseFlags(args []string, errOut io.Writer) (*config, error) {
	cfg := &config{mode: modeRun, command: args}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		cfg.mode, args = args[0], args[1:]
	}
	var dedup string
	fs := flag.NewFlagSet("loadtest", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.Usage = func() {
		_, _ = io.WriteString(errOut, usage)
		fs.PrintDefaults()
	}
	fs.Var(urlList{&cfg.urls}, "url", "broker `address`, repeatable or comma separated; used in turn (default http://localhost:6632)")
	fs.DurationVar(&cfg.duration, "duration", 0, "how long to produce (default 10s unless --messages is given)")
	fs.Int64Var(&cfg.messages, "messages", 0, "produce this many messages instead of a duration")
	fs.Float64Var(&cfg.rate, "rate", 0, "open loop: messages per second in all")
	fs.IntVar(&cfg.maxInFlight, "max-in-flight", 256, "open loop: push requests in flight before shedding")
	fs.IntVar(&cfg.producers, "producers", 4, "closed loop: number of producers")
	fs.IntVar(&cfg.consumers, "consumers", 4, "consumers per group")
	fs.IntVar(&cfg.batch, "batch", 10, "messages per push request, all for one partition")
	fs.IntVar(&cfg.popBatch, "pop-batch", 100, "messages per pop")
	fs.IntVar(&cfg.popPartitions, "pop-partitions", 1, "partitions one pop may claim")
	fs.IntVar(&cfg.partitions, "partitions", 100, "partitions per queue")
	fs.IntVar(&cfg.queues, "queues", 1, "number of queues")
	fs.IntVar(&cfg.groups, "groups", 1, "consumer groups, each receives every message")
	fs.IntVar(&cfg.payloadSize, "payload-size", 256, "payload `bytes`, padded with incompressible text")
	fs.StringVar(&cfg.dataFile, "data", "", "take payloads from the lines of this NDJSON `file` instead")
	fs.StringVar(&dedup, "dedup", "on", "on: send transaction ids and a window of an hour; off: neither")
	fs.StringVar(&cfg.ack, "ack", ackBatch, "batch, single, or auto (committed at delivery)")
	fs.BoolVar(&cfg.noConsume, "no-consume", false, "push only")
	fs.DurationVar(&cfg.wait, "wait", time.Second, "long poll for this long, 0 polls without waiting")
	fs.DurationVar(&cfg.lease, "lease", time.Minute, "lease time of the queues")
	fs.DurationVar(&cfg.timeout, "timeout", 30*time.Second, "limit of one request, the long poll not counted")
	fs.DurationVar(&cfg.drainTimeout, "drain-timeout", time.Minute, "limit for consuming the rest once producers stopped")
	fs.StringVar(&cfg.prefix, "queue-prefix", "", "queue name prefix (default loadtest.<run>)")
	fs.BoolVar(&cfg.keep, "keep", false, "leave the queues behind")
	fs.StringVar(&cfg.token, "token", "", "bearer token")
	fs.StringVar(&cfg.jsonFile, "json", "", "write the report to this `file`")
	fs.BoolVar(&cfg.quiet, "quiet", false, "no progress lines")
	fs.StringVar(&cfg.databaseURL, "database-url", "", "PostgreSQL for floor and --with-floor; the schema must be migrated")
	fs.BoolVar(&cfg.withFloor, "with-floor", false, "run the floor before and after the run and print the ratio")
	fs.DurationVar(&cfg.floorDuration, "floor-duration", 5*time.Second, "length of each floor run of --with-floor")
	fs.IntVar(&cfg.floorPushers, "floor-pushers", 4, "connections that push in a floor run")
	fs.IntVar(&cfg.floorPoppers, "floor-poppers", 4, "connections that pop and acknowledge in a floor run")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	switch dedup {
	case "on":
		cfg.dedup = true
	case "off":
	default:
		return nil, fmt.Errorf("--dedup %q: want on or off", dedup)
	}
	if len(cfg.urls) == 0 {
		cfg.urls = []string{"http://localhost:6632"}
	}
	if cfg.duration == 0 && cfg.messages == 0 {
		cfg.duration = 10 * time.Second
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return cfg, nil
}

func (c *config) validate() error {
	if c.mode != modeRun && c.mode != modeFloor {
		return fmt.Errorf("unknown mode %q: want run or floor", c.mode)
	}
	if !slices.Contains([]string{ackBatch, ackSingle, ackAuto}, c.ack) {
		return fmt.Errorf("--ack %q: want batch, single or auto", c.ack)
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"producers", c.producers},
		{"consumers", c.consumers},
		{"batch", c.batch},
		{"pop-batch", c.popBatch},
		{"pop-partitions", c.popPartitions},
		{"partitions", c.partitions},
		{"queues", c.queues},
		{"groups", c.groups},
		{"max-in-flight", c.maxInFlight},
		{"floor-pushers", c.floorPushers},
		{"floor-poppers", c.floorPoppers},
	} {
		if n.value < 1 {
			return fmt.Errorf("--%s %d: must be at least 1", n.name, n.value)
		}
	}
	if c.duration < 0 || c.messages < 0 || c.rate < 0 || c.wait < 0 || c.payloadSize < 0 {
		return errors.New("durations, counts, rates and sizes must not be negative")
	}
	if c.duration > 0 && c.messages > 0 {
		return errors.New("give --duration or --messages, not both")
	}
	if c.rate == 0 && c.producers > c.lanes() {
		// A partition belongs to one producer; the rest would have nothing to write to.
		return fmt.Errorf("--producers %d: more than the %d partitions there are", c.producers, c.lanes())
	}
	if c.mode == modeRun && !c.noConsume && c.consumers < c.queues {
		return fmt.Errorf("--consumers %d: each of the %d queues needs one", c.consumers, c.queues)
	}
	if c.lease < time.Second {
		return errors.New("--lease must be at least 1s")
	}
	if (c.withFloor || c.mode == modeFloor) && c.databaseURL == "" {
		return errors.New("--database-url is needed for the floor")
	}
	if c.withFloor && (c.groups > 1 || c.rate > 0 || c.ack != ackBatch) {
		return errors.New("--with-floor compares like with like: one group, a closed loop and batch acks")
	}
	return nil
}

// lanes is the number of partitions over all queues.
func (c *config) lanes() int { return c.partitions * c.queues }
