package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// reportProgress writes a line a second until the returned function is called.
func (b *bench) reportProgress(w io.Writer) (stop func()) {
	if w == nil {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var last progressMark
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				mark := b.mark(now)
				_, _ = fmt.Fprintln(w, mark.line(&last, b.start))
				last = mark
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

type progressMark struct {
	at                                     time.Time
	pushed, delivered, acked, shed, errors int64
	inFlight                               int64
	push, endToEnd                         *snapshot
}

func (b *bench) mark(now time.Time) progressMark {
	m := progressMark{
		at:       now,
		pushed:   b.verify.push.confirmed.Load(),
		acked:    b.counts.acked.Load(),
		shed:     b.counts.shed.Load(),
		inFlight: b.counts.inFlight.Load(),
		errors:   b.counts.pushErrors.total.Load() + b.counts.popErrors.total.Load() + b.counts.ackErrors.total.Load(),
		push:     b.latency.push.snapshot(),
		endToEnd: b.latency.endToEnd.snapshot(),
	}
	for g := range b.verify.groups {
		m.delivered += b.verify.groups[g].unique.Load()
	}
	return m
}

func (m *progressMark) line(last *progressMark, start time.Time) string {
	from := last.at
	if from.IsZero() {
		from = start
	}
	seconds := m.at.Sub(from).Seconds()
	rate := func(now, before int64) float64 { return float64(now-before) / seconds }
	return fmt.Sprintf("%4.0fs  push %7.0f/s  deliver %7.0f/s  ack %7.0f/s  push p99 %8s  end-to-end p99 %8s  in flight %d  shed %d  errors %d",
		m.at.Sub(start).Seconds(),
		rate(m.pushed, last.pushed), rate(m.delivered, last.delivered), rate(m.acked, last.acked),
		short(m.push.since(last.push).percentile(99)), short(m.endToEnd.since(last.endToEnd).percentile(99)),
		m.inFlight, m.shed, m.errors)
}

// short rounds a duration to three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(time.Microsecond).String()
	}
}
