//go:build linux

package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Link is a TCP connection between two parts that misbehaves on demand. Whoever
// connects to Addr reaches the target, which may move.
type Link struct {
	Name   string
	addr   string
	target atomic.Pointer[string]
	loops  sync.WaitGroup

	noAsk  atomic.Bool  // what clients send gets lost
	noTell atomic.Bool  // what servers send gets lost
	delay  atomic.Int64 // of each piece of an answer, nanoseconds
	lose   atomic.Int64 // how many of the next answers get lost
	lost   atomic.Int64 // how many did

	mu     sync.Mutex
	ln     net.Listener // nil while connections are refused
	pairs  map[*pair]struct{}
	closed bool
}

// pair is one connection, from both sides.
type pair struct {
	client, server *net.TCPConn
	deaf, closed   atomic.Bool
}

func (p *pair) close() {
	p.closed.Store(true)
	_, _ = p.client.Close(), p.server.Close()
}

func newLink(name, target string) (*Link, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	l := &Link{Name: name, addr: local(port), pairs: map[*pair]struct{}{}}
	l.Retarget(target)
	if err := l.Open(); err != nil {
		return nil, err
	}
	return l, nil
}

// Addr is what to connect to.
func (l *Link) Addr() string { return l.addr }

// Retarget says where new connections go.
func (l *Link) Retarget(addr string) { l.target.Store(&addr) }

// Open takes connections again.
func (l *Link) Open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln != nil || l.closed {
		return nil
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // sockets of that kind take no filter, see Vanish
	ln, err := lc.Listen(context.Background(), "tcp", l.addr)
	// A process that is just being started has our sockets until it is another
	// program, the one that was closed too.
	for until := time.Now().Add(5 * time.Second); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
		ln, err = lc.Listen(context.Background(), "tcp", l.addr)
	}
	if err != nil {
		return err
	}
	l.ln = ln
	l.loops.Go(func() { l.accept(ln) })
	return nil
}

// Refuse closes the door: whoever comes is refused, as by a host on which
// nothing listens. Connections that exist are left alone.
func (l *Link) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln != nil {
		_ = l.ln.Close()
		l.ln = nil
	}
}

func (l *Link) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		client := c.(*net.TCPConn)
		l.loops.Go(func() { l.carry(client) })
	}
}

func (l *Link) carry(client *net.TCPConn) {
	s, err := net.DialTimeout("tcp", *l.target.Load(), 2*time.Second)
	for err != nil && l.noTell.Load() {
		time.Sleep(10 * time.Millisecond) // nobody tells that nobody is there
	}
	if err != nil {
		_ = client.Close()
		return
	}
	p := &pair{client: client, server: s.(*net.TCPConn)}
	l.mu.Lock()
	l.pairs[p] = struct{}{}
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.pump(p, p.server, p.client, false) })
	both.Go(func() { l.pump(p, p.client, p.server, true) })
	both.Wait()
	p.close()
	l.mu.Lock()
	delete(l.pairs, p)
	l.mu.Unlock()
}

// pump copies one way. An end of file is passed on as such, so that half-closed
// connections stay half open; an error ends both ways.
func (l *Link) pump(p *pair, to, from *net.TCPConn, answers bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if answers && n > 0 {
			time.Sleep(time.Duration(l.delay.Load()))
			l.loseOne(p)
		}
		if n > 0 && !l.hole(p, answers) {
			if _, werr := to.Write(buf[:n]); werr != nil {
				p.close()
				return
			}
		}
		// In a hole nobody hears of an end either.
		for err != nil && l.hole(p, answers) && !p.closed.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = to.CloseWrite()
			return
		case err != nil:
			p.close()
			return
		}
	}
}

// hole reports whether what goes one way gets lost.
func (l *Link) hole(p *pair, answers bool) bool {
	if answers {
		return l.noTell.Load() || p.deaf.Load()
	}
	return l.noAsk.Load()
}

// settle is how long an answer that gets lost may still be under way: the
// server has finished by then, and committed if it was going to.
const settle = 30 * time.Millisecond

// loseOne takes the answer that has just begun to arrive, when one is to be
// lost: the rest of it goes nowhere, and then the connection is cut.
func (l *Link) loseOne(p *pair) {
	for n := l.lose.Load(); n > 0 && !p.deaf.Load(); n = l.lose.Load() {
		if l.lose.CompareAndSwap(n, n-1) {
			p.deaf.Store(true)
			l.lost.Add(1)
			time.AfterFunc(settle, p.close)
		}
	}
}

func (l *Link) each(act func(*pair)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pairs {
		act(p)
	}
}

// Cut closes every connection there is.
func (l *Link) Cut() { l.each((*pair).close) }

// Away cuts everything and refuses what is new, until Heal.
func (l *Link) Away() {
	l.Refuse()
	l.Cut()
}

// Vanish is what clients see of a host that has lost power: what they send is
// not even acknowledged, new connections get no answer, and nobody tells that
// the server is gone.
func (l *Link) Vanish() error {
	l.noAsk.Store(true)
	l.noTell.Store(true)
	var errs []error
	l.each(func(p *pair) { errs = append(errs, dropPackets(p.client)) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln, ok := l.ln.(*net.TCPListener); ok {
		errs = append(errs, dropPackets(ln))
	}
	return errors.Join(errs...)
}

// dropPackets has the kernel throw away what arrives at a socket, before TCP
// sees it.
func dropPackets(s syscall.Conn) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	keepNothing := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K}}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = syscall.AttachLsf(int(fd), keepNothing) //nolint:staticcheck // its successor assembles programs and attaches none
	})
	return errors.Join(err, failed)
}

// HalfClose ends one direction of every connection: the servers see the end of
// what their clients send, or the other way round.
func (l *Link) HalfClose(servers bool) {
	l.each(func(p *pair) {
		if servers {
			_ = p.server.CloseWrite()
		} else {
			_ = p.client.CloseWrite()
		}
	})
}

// LoseAnswers makes the next n answers, of whatever connection, disappear after
// the server has given them.
func (l *Link) LoseAnswers(n int) { l.lose.Store(int64(n)) }

// Heal ends every misbehaviour. Connections that lost something are cut: nothing
// arrives late.
func (l *Link) Heal() error {
	holes := l.noAsk.Swap(false)
	holes = l.noTell.Swap(false) || holes
	l.delay.Store(0)
	l.lose.Store(0)
	if holes {
		l.Refuse() // a new socket drops nothing
		l.Cut()
	}
	return l.Open()
}

func (l *Link) close() {
	l.Refuse()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.noAsk.Store(false)
	l.noTell.Store(false)
	// A connection that was just being made appears after a first cut.
	ended := make(chan struct{})
	go func() {
		l.loops.Wait()
		close(ended)
	}()
	for {
		l.Cut()
		select {
		case <-ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
