package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// producer pushes to lanes it holds. One producer value serves one request at a time.
type producer struct {
	*bench
	body []byte
	buf  []byte
	out  []stored
}

const (
	maxPushTries  = 5
	maxRetryDelay = 2 * time.Second
)

// closedLoop gives every producer its own lanes and lets it push one request after the other.
func (b *bench) closedLoop(ctx context.Context) {
	var wg sync.WaitGroup
	for n := range b.cfg.producers {
		wg.Go(func() {
			p := &producer{bench: b}
			for i := n; ctx.Err() == nil; i += b.cfg.producers {
				if i >= len(b.lanes) {
					i = n
				}
				if b.gate != nil && !b.gate(ctx) {
					return
				}
				count := b.take()
				if count == 0 {
					return
				}
				p.push(b.lanes[i], count, time.Now())
			}
		})
	}
	wg.Wait()
}

// take reserves the messages of one request out of --messages; 0 means there are none left.
func (b *bench) take() int {
	if b.cfg.messages == 0 {
		return b.cfg.batch
	}
	left := b.budget.Add(-int64(b.cfg.batch)) + int64(b.cfg.batch)
	return int(min(max(left, 0), int64(b.cfg.batch)))
}

// openLoop sends each request at its scheduled instant whatever the broker does. A lane with a request under
// way is not offered again, because two requests in flight would leave the order of its messages undefined.
func (b *bench) openLoop(ctx context.Context) {
	idle := make(chan *lane, len(b.lanes))
	for _, l := range b.lanes {
		idle <- l
	}
	slots := make(chan *producer, b.cfg.maxInFlight)
	for range b.cfg.maxInFlight {
		slots <- &producer{bench: b}
	}
	interval := time.Duration(float64(b.cfg.batch) / b.cfg.rate * float64(time.Second))
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	start := time.Now()
	for k := int64(0); ; k++ {
		due := start.Add(time.Duration(k) * interval)
		if d := time.Until(due); d > 0 {
			timer.Reset(d)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		} else if ctx.Err() != nil {
			return
		}
		count := b.take()
		if count == 0 {
			return
		}
		b.counts.scheduled.Add(int64(count))
		p, l := acquire(slots, idle)
		if p == nil {
			b.counts.shed.Add(int64(count))
			continue
		}
		wg.Go(func() {
			p.push(l, count, due)
			idle <- l
			slots <- p
		})
	}
}

func acquire(slots chan *producer, idle chan *lane) (*producer, *lane) {
	select {
	case p := <-slots:
		select {
		case l := <-idle:
			return p, l
		default:
			slots <- p
		}
	default:
	}
	return nil, nil
}

// push sends one request. The end of the run does not cut it short: only a verdict tells what was stored.
func (p *producer) push(l *lane, count int, due time.Time) {
	first := l.next
	l.next += int64(count)
	p.body = append(p.body[:0], `{"items":[`...)
	p.encode(l, first, count, int64(due.Sub(p.start)))
	p.body = append(p.body, ']', '}')
	if retried, ok := p.deliver(due); ok {
		p.verify.pushed(l, first, count, p.out, retried)
	} else {
		p.verify.doubtAll(l, first, count)
	}
}

// pushEach sends one request with one message for each of the lanes.
func (p *producer) pushEach(lanes []*lane, due time.Time) {
	p.body = append(p.body[:0], `{"items":[`...)
	for i, l := range lanes {
		if i > 0 {
			p.body = append(p.body, ',')
		}
		p.encode(l, l.next, 1, int64(due.Sub(p.start)))
		l.next++
	}
	p.body = append(p.body, ']', '}')
	retried, ok := p.deliver(due)
	for i, l := range lanes {
		switch {
		case !ok:
			p.verify.doubtAll(l, l.next-1, 1)
		case i < len(p.out):
			p.verify.pushed(l, l.next-1, 1, p.out[i:i+1], retried)
		default:
			p.verify.pushed(l, l.next-1, 1, nil, retried)
		}
	}
}

// deliver sends the body until there is a verdict, which is then in p.out.
func (p *producer) deliver(due time.Time) (retried, ok bool) {
	p.counts.inFlight.Add(1)
	defer p.counts.inFlight.Add(-1)

	for try := 1; ; try++ {
		err := p.send()
		if err == nil {
			p.latency.push.record(time.Since(due))
			return try > 1, true
		}
		p.counts.pushErrors.add(err)
		// The transport may still be reading the body of a request that failed early.
		p.body = append([]byte(nil), p.body...)
		// Without ids a repeated request would store its messages twice.
		if !p.cfg.dedup || !retryable(err) || try == maxPushTries {
			return try > 1, false
		}
		p.counts.retries.Add(1)
		time.Sleep(min(50*time.Millisecond<<try, maxRetryDelay))
	}
}

func (p *producer) send() error {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.timeout)
	defer cancel()
	p.counts.pushRequests.Add(1)
	var err error
	p.buf, _, err = p.client.do(ctx, http.MethodPost, "/api/v1/push", p.body, p.buf)
	if err != nil {
		return err
	}
	p.out, err = scanPush(p.buf, p.out)
	return err
}

// encode appends the items of one lane to the body.
func (p *producer) encode(l *lane, first int64, count int, at int64) {
	b := p.body
	for i := range count {
		seq := first + int64(i)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, l.quoted...)
		if p.cfg.dedup {
			b = append(b, `,"transactionId":"`...)
			b = strconv.AppendInt(b, p.run, 36)
			b = append(b, '-')
			b = strconv.AppendInt(b, l.index, 10)
			b = append(b, '-')
			b = strconv.AppendInt(b, seq, 10)
			b = append(b, '"')
		}
		b = append(b, `,"payload":`...)
		b = p.payloads.append(b, l.index, seq, at)
		b = append(b, '}')
	}
	p.body = b
}

// errorCounts counts failures by kind, so that a report can name them.
type errorCounts struct {
	total atomic.Int64
	mu    sync.Mutex
	kinds map[string]int64
	first string
}

func (e *errorCounts) add(err error) {
	e.total.Add(1)
	kind := "transport"
	var status *statusError
	switch {
	case errors.As(err, &status):
		kind = strconv.Itoa(status.status)
	case errors.Is(err, errScan):
		kind = "unreadable answer"
	case errors.Is(err, context.DeadlineExceeded):
		kind = "timeout"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kinds == nil {
		e.kinds = make(map[string]int64)
		e.first = err.Error()
	}
	e.kinds[kind]++
}
