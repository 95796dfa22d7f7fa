package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

type config struct {
	url    string
	file   string // empty: the sample
	groups []string
	batch  int
	// timeout bounds the whole run: a broker that lost a delivery would be waited for forever.
	timeout  time.Duration
	progress io.Writer // nil: no bar
}

// Report is what a run did.
type Report struct {
	Deliveries int
	Queues     int
	Queued     int
	Duplicates int // already stored by an earlier run
	Groups     []GroupReport
}

// GroupReport is what one consumer group received.
type GroupReport struct {
	Group       string
	Received    int // deliveries of this file, each counted once
	Redelivered int
	Foreign     int // messages of somebody else in the same queues
	Bytes       int64
	Problems    []string
}

// Err tells what went wrong in the deliveries, nil when every byte came back in order.
func (r *Report) Err() error {
	var errs []error
	for _, g := range r.Groups {
		for _, p := range g.Problems {
			errs = append(errs, fmt.Errorf("group %s: %s", g.Group, p))
		}
	}
	return errors.Join(errs...)
}

const (
	popWait = time.Second
	// maxProblems keeps a broken broker from flooding the terminal.
	maxProblems = 10
)

// run pushes every delivery and consumes it with every group.
func run(ctx context.Context, cfg config) (Report, error) {
	var rep Report
	ctx, cancel := context.WithTimeout(ctx, cfg.timeout)
	defer cancel()
	in, err := open(cfg.file)
	if err != nil {
		return rep, err
	}
	deliveries, err := readDeliveries(in)
	_ = in.Close()
	if err != nil {
		return rep, err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := &client{base: strings.TrimRight(cfg.url, "/"), http: &http.Client{Transport: transport}}

	queues := make(map[string][]*delivery)
	for i := range deliveries {
		queues[deliveries[i].queue()] = append(queues[deliveries[i].queue()], &deliveries[i])
	}
	rep.Deliveries, rep.Queues = len(deliveries), len(queues)

	queued, err := pushAll(ctx, c, cfg, deliveries, &rep)
	if err != nil {
		return rep, err
	}
	bar := newBar(cfg.progress, "consume", rep.Queued*len(cfg.groups))
	defer bar.finish()
	rep.Groups = make([]GroupReport, len(cfg.groups))
	errs := make([]error, len(cfg.groups))
	var wg sync.WaitGroup
	for i, group := range cfg.groups {
		wg.Go(func() {
			g := &reader{client: c, batch: cfg.batch, bar: bar, report: &rep.Groups[i]}
			g.report.Group = group
			errs[i] = g.readAll(ctx, queues, queued)
		})
	}
	wg.Wait()
	return rep, errors.Join(errs...)
}

// pushAll returns the ids that this run added.
func pushAll(ctx context.Context, c *client, cfg config, deliveries []delivery, rep *Report) (map[string]bool, error) {
	queued := make(map[string]bool, len(deliveries))
	bar := newBar(cfg.progress, "push", len(deliveries))
	defer bar.finish()
	for batch := range slices.Chunk(deliveries, cfg.batch) {
		verdicts, err := c.push(ctx, batch)
		if err != nil {
			return nil, err
		}
		for i, v := range verdicts {
			switch v.Status {
			case "queued":
				queued[batch[i].id] = true
				rep.Queued++
			case "duplicate":
				rep.Duplicates++
			default:
				return nil, fmt.Errorf("line %d: status %q %s", batch[i].Line, v.Status, v.Error)
			}
		}
		bar.add(len(batch))
	}
	return queued, nil
}

// reader consumes for one group.
type reader struct {
	client *client
	batch  int
	bar    *bar
	report *GroupReport
	seen   map[string]bool
	last   map[string]int // queue and partition: the line received last
}

func (r *reader) readAll(ctx context.Context, queues map[string][]*delivery, queued map[string]bool) error {
	r.seen, r.last = make(map[string]bool), make(map[string]int)
	for queue, deliveries := range queues {
		byID := make(map[string]*delivery, len(deliveries))
		missing := 0
		for _, d := range deliveries {
			byID[d.id] = d
			if queued[d.id] {
				missing++
			}
		}
		if err := r.readQueue(ctx, queue, byID, queued, missing); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) readQueue(ctx context.Context, queue string, byID map[string]*delivery, queued map[string]bool, missing int) error {
	for {
		wait := popWait
		if missing == 0 {
			wait = 0 // nothing is due; one look for what an earlier run may have left
		}
		messages, err := r.client.pop(ctx, queue, r.report.Group, r.batch, wait)
		if err != nil {
			return fmt.Errorf("group %s, queue %s, %d deliveries missing: %w", r.report.Group, queue, missing, err)
		}
		if len(messages) == 0 {
			if missing == 0 {
				return nil
			}
			continue
		}
		acks := make([]ack, len(messages))
		for i := range messages {
			acks[i] = r.check(queue, &messages[i], byID)
			if id := messages[i].TransactionID; queued[id] && !r.seen[id] {
				missing--
				r.bar.add(1)
			}
			r.seen[messages[i].TransactionID] = true
		}
		if err := r.client.ack(ctx, r.report.Group, acks); err != nil {
			return fmt.Errorf("group %s: %w", r.report.Group, err)
		}
	}
}

// check compares one message with the line it came from and says how to settle it. A payload that changed on the
// way goes to the dead letters, where somebody can look at it.
func (r *reader) check(queue string, m *message, byID map[string]*delivery) ack {
	a := ack{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: "completed"}
	d := byID[m.TransactionID]
	switch {
	case d == nil:
		r.report.Foreign++
		return a
	case r.seen[d.id]:
		r.report.Redelivered++
		return a
	}
	r.report.Received++
	r.report.Bytes += int64(len(m.Data))
	lane := queue + "\x00" + m.Partition
	if m.Partition != d.Repository {
		r.problem("line %d came out of partition %q", d.Line, m.Partition)
	}
	if d.Line < r.last[lane] {
		r.problem("line %d came after line %d of the same repository", d.Line, r.last[lane])
	}
	r.last[lane] = d.Line
	if !bytes.Equal(m.Data, d.Payload) {
		a.Status, a.Error = "dlq", fmt.Sprintf("payload differs from line %d", d.Line)
		r.problem("%s", a.Error)
	}
	return a
}

func (r *reader) problem(format string, args ...any) {
	if len(r.report.Problems) < maxProblems {
		r.report.Problems = append(r.report.Problems, fmt.Sprintf(format, args...))
	}
}
