// Package longpoll lets a request that waits for long give up what the HTTP
// server holds for it.
//
// net/http keeps a request's goroutine, its stack and three buffers until the
// request is answered: some 20 KB that a poll which waits for half a minute has
// no use for. Here such a request is detached: its connection leaves the server,
// which then forgets it, and all that stays is a small goroutine that notices when
// the client goes away. The answer is written to the connection directly. After
// that the connection waits for its next request here, and goes back to the
// server with the first byte of it, as if it had just been accepted.
package longpoll

import (
	"context"
	"net"
	"sync"
	"time"
)

// Listener hands an HTTP server the connections that are accepted, and those
// that come back.
type Listener struct {
	net.Listener
	idle time.Duration

	pump     sync.Once
	accepted chan accepted
	back     chan net.Conn
	closing  sync.Once
	closed   chan struct{}

	mu    sync.Mutex
	conns map[*conn]struct{} // detached ones
	empty chan struct{}      // closed when there are none; nil until somebody asks
}

type accepted struct {
	conn net.Conn
	err  error
}

// Listen wraps a listener. A connection that was detached may be idle between two
// requests for so long.
func Listen(ln net.Listener, idle time.Duration) *Listener {
	return &Listener{
		Listener: ln, idle: idle, accepted: make(chan accepted), back: make(chan net.Conn),
		closed: make(chan struct{}), conns: map[*conn]struct{}{},
	}
}

type listenerKey struct{}

// BaseContext is for the field of that name of the http.Server: it lets the
// server's requests be detached.
func (l *Listener) BaseContext(net.Listener) context.Context {
	return context.WithValue(context.Background(), listenerKey{}, l)
}

// Accept returns the next connection, new or come back.
func (l *Listener) Accept() (net.Conn, error) {
	l.pump.Do(func() { go l.accept() })
	select {
	case c := <-l.back:
		return c, nil
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// accept takes connections from the network until the listener is closed. What
// to do about an error is for the server to decide.
func (l *Listener) accept() {
	for {
		c, err := l.Listener.Accept()
		select {
		case l.accepted <- accepted{c, err}:
		case <-l.closed:
			if c != nil {
				_ = c.Close()
			}
			return
		}
	}
}

// Close ends Accept. Detached requests go on, and their connections are closed
// when they are answered.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	l.closing.Do(func() { close(l.closed) })
	return err
}

// Wait returns when all detached requests are answered, after Close. Those that
// are not when ctx ends are cut off.
func (l *Listener) Wait(ctx context.Context) error {
	l.mu.Lock()
	empty := make(chan struct{})
	if len(l.conns) == 0 {
		close(empty)
	} else {
		l.empty = empty
	}
	all := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		c.dismiss()
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
	}
	for _, c := range all {
		_ = c.nc.Close()
	}
	return ctx.Err()
}

func (l *Listener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

func (l *Listener) add(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
}

func (l *Listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	if len(l.conns) == 0 && l.empty != nil {
		close(l.empty)
		l.empty = nil
	}
}

// giveBack has the server read a connection's next request.
func (l *Listener) giveBack(c net.Conn) {
	select {
	case l.back <- c:
	case <-l.closed:
		_ = c.Close()
	}
}
