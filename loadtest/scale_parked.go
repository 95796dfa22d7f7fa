package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// parkTime is how long a pop waits before it is answered with nothing and asks again: the longest the wire has.
const parkTime = time.Minute

const (
	// portsPerAddress stays below the usual range of ephemeral ports.
	portsPerAddress = 20_000
	parkDialers     = 32
	// spareFiles are for everything but parked connections.
	spareFiles = 200
)

// parkedPops holds long polls open on connections of its own. A connection costs this process a goroutine and a
// few hundred bytes, so that the machine's memory is left to the broker.
type parkedPops struct {
	bases    []*url.URL
	token    string
	prefix   string
	queues   int          // idle ones, over which the pops are spread
	opened   atomic.Int64 // those that have asked once
	waiting  atomic.Int64 // asked and not yet answered
	failures atomic.Int64
	failed   sync.Once
	err      error
	dialers  chan struct{}
	wg       sync.WaitGroup
}

func newParkedPops(c *scaleConfig) (*parkedPops, error) {
	p := &parkedPops{
		token: c.run.token, dialers: make(chan struct{}, parkDialers),
		prefix: "loadtest.parked." + strconv.FormatInt(time.Now().UnixMicro(), 36), queues: c.parkedQueues,
	}
	for _, base := range c.run.urls {
		u, err := url.Parse(base)
		if err != nil {
			return nil, fmt.Errorf("url %q: %w", base, err)
		}
		if u.Scheme != "http" {
			return nil, fmt.Errorf("url %q: parked pops speak plain http only", base)
		}
		p.bases = append(p.bases, u)
	}
	return p, nil
}

// open starts n polls and returns when they are parked, or as many of them as can be.
func (p *parkedPops) open(ctx context.Context, n int, patience time.Duration) {
	for i := range n {
		p.wg.Go(func() { p.keep(ctx, i) })
	}
	best, at := int64(0), time.Now()
	for ctx.Err() == nil && best < int64(n) && time.Since(at) < patience {
		if w := p.opened.Load(); w > best {
			best, at = w, time.Now()
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

func (p *parkedPops) keep(ctx context.Context, i int) {
	var opened sync.Once
	for ctx.Err() == nil {
		err := p.connection(ctx, i, func() { opened.Do(func() { p.opened.Add(1) }) })
		if ctx.Err() != nil {
			return
		}
		p.failures.Add(1)
		p.failed.Do(func() { p.err = err })
		sleep(ctx, 5*time.Second)
	}
}

var errUnexpected = errors.New("unexpected answer to a parked pop")

// connection parks one pop after the other until something goes wrong.
func (p *parkedPops) connection(ctx context.Context, i int, asked func()) error {
	base := p.bases[i%len(p.bases)]
	conn, err := p.dial(ctx, base, i)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var buf [1024]byte
	// They are all parked at once here, and shall not for that reason all come back at once.
	wait := time.Second + rand.N(parkTime-time.Second)
	for ; ; wait = parkTime {
		if _, err := conn.Write(p.request(base, i, wait)); err != nil {
			return fmt.Errorf("park: %w", err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(wait + time.Minute))
		asked()
		p.waiting.Add(1)
		head, err := readHead(conn, buf[:0])
		p.waiting.Add(-1)
		if err != nil {
			return fmt.Errorf("parked: %w", err)
		}
		if status, _, _ := bytes.Cut(head, []byte("\r\n")); !bytes.HasPrefix(status, []byte("HTTP/1.1 204")) {
			return fmt.Errorf("%w: %s", errUnexpected, status)
		}
	}
}

// readHead reads an answer as far as its head; the one that is expected has no body.
func readHead(conn net.Conn, buf []byte) ([]byte, error) {
	for {
		n, err := conn.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if bytes.Contains(buf, []byte("\r\n\r\n")) {
			return buf, nil
		}
		if err != nil {
			return nil, err
		}
		if len(buf) == cap(buf) {
			return nil, fmt.Errorf("%w: more than %d bytes", errUnexpected, cap(buf))
		}
	}
}

func (p *parkedPops) dial(ctx context.Context, base *url.URL, i int) (net.Conn, error) {
	p.dialers <- struct{}{}
	defer func() { <-p.dialers }()
	d := net.Dialer{Timeout: 10 * time.Second}
	host, port := base.Hostname(), base.Port()
	if port == "" {
		port = "80"
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() && ip.To4() != nil {
		// One address has too few ports for more than this; 127.0.0.0/8 has enough addresses.
		host = "127.0.0.1"
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i/portsPerAddress%250))}
	}
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("park: %w", err)
	}
	return conn, nil
}

func (p *parkedPops) request(base *url.URL, i int, wait time.Duration) []byte {
	b := fmt.Appendf(nil, "GET %s/api/v1/pop/queue/%s.%d?batch=1&wait=true&timeout=%d&consumerGroup=parked HTTP/1.1\r\nHost: %s\r\n",
		strings.TrimRight(base.Path, "/"), p.prefix, i%p.queues, wait.Milliseconds(), base.Host)
	if p.token != "" {
		b = fmt.Appendf(b, "Authorization: Bearer %s\r\n", p.token)
	}
	return append(b, "\r\n"...)
}

// remove deletes the queues the pops waited on.
func (p *parkedPops) remove(ctx context.Context, c *client) error {
	var errs []error
	for i := range p.queues {
		errs = append(errs, c.deleteQueue(ctx, fmt.Sprintf("%s.%d", p.prefix, i)))
	}
	return errors.Join(errs...)
}

func (s *scaleRun) parked(ctx context.Context) error {
	limit, err := allowFiles(uint64(s.c.size) + spareFiles)
	if err != nil {
		return err
	}
	n := int(s.c.size)
	if limit < uint64(n)+spareFiles {
		n = int(limit) - spareFiles
		s.rep.note("only %d parked pops: this process may open %d files", n, limit)
	}
	b, err := s.newBench(func(cfg *config) { cfg.partitions = int(min(int64(cfg.partitions), s.c.size*100)) })
	if err != nil {
		return err
	}
	pops, err := newParkedPops(s.c)
	if err != nil {
		return err
	}
	before, err := s.measure(ctx, "without parked pops", b, s.c.baseline)
	if err != nil {
		return err
	}
	parking, unpark := context.WithCancel(ctx)
	defer unpark()
	_ = s.step(fmt.Sprintf("parking %d pops", n), func() error {
		pops.open(parking, n, min(s.c.patience, 15*time.Second))
		sleep(ctx, 2*time.Second)
		return nil
	})
	with, err := s.measure(ctx, fmt.Sprintf("with %d parked pops", n), b.again(nil), s.c.run.duration)
	if err != nil {
		return err
	}
	waiting, failures := pops.waiting.Load(), pops.failures.Load()
	unpark()
	_ = s.step("leaving", func() error { pops.wg.Wait(); return nil })
	s.settle(ctx)
	if failures > 0 {
		s.rep.note("%d times a parked pop failed, first: %v", failures, pops.err)
	}
	again, err := s.measure(ctx, "without again", b.again(nil), s.c.baseline)
	if err != nil {
		return err
	}
	if !s.c.run.keep {
		err = pops.remove(context.WithoutCancel(ctx), b.client)
	}
	s.parkedOutcome(before, with, again, waiting)
	return err
}

func (s *scaleRun) parkedOutcome(before, with, again *scalePhase, waiting int64) {
	s.rep.note("%d pops were parked at the end of the phase; each is answered with 204 and asks again every %s; they wait on %d queues",
		waiting, parkTime, s.c.parkedQueues)
	// The better of the two: a broker still busy with those that left must not make the comparison easier.
	s.rep.add(outcome{
		What: "push p99 (beside the better of before and again)", Unit: unitSeconds, AtMost: 2,
		Measured: seconds(with.Steady.PushLatency.P99),
		Baseline: seconds(min(before.Steady.PushLatency.P99, again.Steady.PushLatency.P99)),
	})
	s.rep.add(outcome{
		What: "push p50", Unit: unitSeconds, Measured: seconds(with.Steady.PushLatency.P50),
		Baseline: seconds(min(before.Steady.PushLatency.P50, again.Steady.PushLatency.P50)),
	})
	s.rep.addMemory("broker memory", before, with)
	parked := median(s.rec.values(panelParked, "parked", with.Steady.From, with.Steady.From+with.Steady.Seconds)) -
		median(s.rec.values(panelParked, "parked", before.Steady.From, before.Steady.From+before.Steady.Seconds))
	if before.Memory == nil || with.Memory == nil || parked < 1 {
		s.rep.note("memory of a parked pop unknown: the broker did not tell its memory and its parked pops")
		return
	}
	s.rep.add(outcome{
		What: fmt.Sprintf("memory of a parked pop (the broker counts %.0f)", parked), Unit: unitBytes,
		Measured: float64(with.Memory.Median-before.Memory.Median) / parked, AtMostValue: 20 << 10,
	})
}
