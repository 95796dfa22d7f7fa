// Package workload drives a fleet with work that exercises its promises all at once, through any fault, and records
// what every client did and saw. It speaks HTTP and knows nothing else of the fleet; package history judges the record.
package workload

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// Config says what to run.
type Config struct {
	URLs     []string
	Seed     uint64
	Duration time.Duration
	History  string
	JSON     string
	Check    string

	Queues     int
	Partitions int
	Producers  int
	Consumers  int
	Rate       float64
	Backlog    int64

	Lease   time.Duration
	Timeout time.Duration
	Drain   time.Duration

	Prefix string
	Keep   bool
	Token  string
	Quiet  bool
}

const usage = `usage: loadtest verify --url URL[,URL...] [flags]
       loadtest verify --check FILE.jsonl

Drives a fleet with a seeded workload that goes on through 429, 503, cut connections and lost answers, drains it,
reads the final state, and decides from the recorded history whether every promise was kept.

Exit codes: 0 all kept, 1 a promise broken, 2 bad flags, 3 the run did not work.

`

// Parse reads the flags.
func Parse(args []string, errOut io.Writer) (*Config, error) {
	cfg := &Config{}
	var urls string
	fs := flag.NewFlagSet("loadtest verify", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.Usage = func() {
		_, _ = io.WriteString(errOut, usage)
		fs.PrintDefaults()
	}
	fs.StringVar(&urls, "url", "http://localhost:6632", "brokers, comma separated, used in turn; or one balancer")
	fs.Uint64Var(&cfg.Seed, "seed", 1, "what every choice follows from")
	fs.DurationVar(&cfg.Duration, "duration", 30*time.Second, "how long to produce")
	fs.StringVar(&cfg.History, "history", "", "write the history to this `file`")
	fs.StringVar(&cfg.JSON, "json", "", "write a summary to this `file`")
	fs.StringVar(&cfg.Check, "check", "", "run nothing, check the history in this `file`")
	fs.IntVar(&cfg.Queues, "queues", 1, "input queues; each has an output queue and one for timers")
	fs.IntVar(&cfg.Partitions, "partitions", 8, "partitions of an input queue")
	fs.IntVar(&cfg.Producers, "producers", 3, "producers in all")
	fs.IntVar(&cfg.Consumers, "consumers", 4, "consumers of a group and queue")
	fs.Float64Var(&cfg.Rate, "rate", 200, "messages a second in all, at the most")
	fs.Int64Var(&cfg.Backlog, "max-backlog", 1000, "producers pause when a group is this many messages behind")
	fs.DurationVar(&cfg.Lease, "lease", 5*time.Second, "lease time; clients that crash or dawdle cost one each")
	fs.DurationVar(&cfg.Timeout, "timeout", 10*time.Second, "limit of one request, the long poll not counted")
	fs.DurationVar(&cfg.Drain, "drain-timeout", time.Minute, "limit for consuming the rest once producers stopped")
	fs.StringVar(&cfg.Prefix, "queue-prefix", "", "queue name prefix (default verify.<run>)")
	fs.BoolVar(&cfg.Keep, "keep", false, "leave the queues behind")
	fs.StringVar(&cfg.Token, "token", "", "bearer token")
	fs.BoolVar(&cfg.Quiet, "quiet", false, "no progress lines")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	for part := range strings.SplitSeq(urls, ",") {
		if part = strings.TrimRight(strings.TrimSpace(part), "/"); part != "" {
			cfg.URLs = append(cfg.URLs, part)
		}
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return cfg, nil
}

func (c *Config) validate() error {
	if len(c.URLs) == 0 {
		return errors.New("--url is empty")
	}
	for _, base := range c.URLs {
		if !strings.HasPrefix(base, "http://") && !strings.HasPrefix(base, "https://") {
			return fmt.Errorf("--url %q: want http://host:port", base)
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"queues", c.Queues},
		{"partitions", c.Partitions},
		{"producers", c.Producers},
		{"consumers", c.Consumers},
	} {
		if n.value < 1 {
			return fmt.Errorf("--%s %d: must be at least 1", n.name, n.value)
		}
	}
	if c.Duration <= 0 || c.Timeout <= 0 || c.Drain <= 0 || c.Rate <= 0 || c.Backlog < 1 {
		return errors.New("durations, --rate and --max-backlog must be above 0")
	}
	if c.Lease < time.Second || c.Lease%time.Second != 0 {
		return errors.New("--lease must be whole seconds, at least 1s")
	}
	return nil
}
