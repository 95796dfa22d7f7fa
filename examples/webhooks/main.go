// Command webhooks is a small application on top of the broker: it takes GitHub webhook deliveries from a file,
// pushes each to the queue of its event and the partition of its repository, lets two consumer groups read them, and
// compares what arrives byte for byte with what was sent.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := realMain(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "webhooks:", err)
		os.Exit(1)
	}
}

func realMain(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{groups: []string{"archive", "search"}, progress: terminal(os.Stderr)}
	base := os.Getenv("QUEEN_URL")
	if base == "" {
		base = "http://localhost:6632"
	}
	fs := flag.NewFlagSet("webhooks", flag.ContinueOnError)
	fs.StringVar(&cfg.url, "url", base, "broker `address`; QUEEN_URL sets the default")
	fs.IntVar(&cfg.batch, "batch", 50, "deliveries per request")
	fs.DurationVar(&cfg.timeout, "timeout", 2*time.Minute, "limit of the whole run")
	fs.Usage = func() {
		_, _ = fmt.Fprintln(fs.Output(), "usage: webhooks [flags] [deliveries.ndjson]")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 1 || cfg.batch < 1 {
		fs.Usage()
		return fmt.Errorf("want one file at the most and a batch of at least 1")
	}
	cfg.file = fs.Arg(0)

	began := time.Now()
	rep, err := run(ctx, cfg)
	if err != nil {
		return err
	}
	rep.print(out, time.Since(began))
	return rep.Err()
}

func (r *Report) print(w io.Writer, took time.Duration) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	p("pushed   %d deliveries to %d queues: %d queued, %d duplicates of an earlier run",
		r.Deliveries, r.Queues, r.Queued, r.Duplicates)
	for _, g := range r.Groups {
		p("%-8s received %d deliveries, %d bytes, %d redelivered, %d of others, %d problems",
			g.Group, g.Received, g.Bytes, g.Redelivered, g.Foreign, len(g.Problems))
	}
	p("took     %s", took.Round(time.Millisecond))
}
