package e2e

import (
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy stands between a broker and a server it needs, and misbehaves on
// demand.
type proxy struct {
	t      testing.TB
	target string
	ln     net.Listener
	loops  sync.WaitGroup

	refuse atomic.Bool  // new connections are closed at once
	hole   atomic.Bool  // nothing arrives any more, either way
	deaf   atomic.Bool  // answers get lost
	delay  atomic.Int64 // of answers, nanoseconds
	lost   atomic.Int64 // bytes of answers that got lost

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// newProxy listens in front of the host of a URL and returns the URL to use
// instead.
func newProxy(t testing.TB, target string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, target: u.Host, ln: ln, conns: map[net.Conn]struct{}{}}
	p.loops.Go(p.accept)
	t.Cleanup(p.close)
	u.Host = ln.Addr().String()
	return p, u.String()
}

func (p *proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		if p.refuse.Load() {
			_ = client.Close()
			continue
		}
		server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.keep(client, server)
		p.loops.Go(func() { p.pipe(server, client, false) })
		p.loops.Go(func() { p.pipe(client, server, true) })
	}
}

func (p *proxy) keep(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
}

// pipe copies one way until either end is gone.
func (p *proxy) pipe(to, from net.Conn, answers bool) {
	defer func() {
		_, _ = to.Close(), from.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, from)
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if answers {
			time.Sleep(time.Duration(p.delay.Load()))
		}
		switch {
		case n == 0 || p.hole.Load():
		case answers && p.deaf.Load():
			p.lost.Add(int64(n))
		default:
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) && p.hole.Load() {
				continue
			}
			return
		}
	}
}

// cut closes every connection there is.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// away cuts everything and refuses what is new; back ends that.
func (p *proxy) away() {
	p.refuse.Store(true)
	p.cut()
}

func (p *proxy) back() {
	p.refuse.Store(false)
	p.hole.Store(false)
	p.deaf.Store(false)
}

func (p *proxy) close() {
	_ = p.ln.Close()
	p.cut()
	p.loops.Wait()
}
