package longpoll

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// lingering is how long a connection that we have ended waits for the other side
// to end it too. Closed at once, it would be reset when something is still
// coming in, and the answer be lost with it.
const lingering = 500 * time.Millisecond

// conn is a detached connection. It leaves when both its request is answered and
// its watcher has come back: with a byte of the next request it goes to the
// server, else it is closed.
type conn struct {
	nc   net.Conn
	l    *Listener
	gone func() // called when the client goes away before it is answered

	mu       sync.Mutex
	first    []byte // of the next request
	watched  bool   // the watcher has come back
	answered bool
	keep     bool // the connection may be used again
}

// detached takes over a connection of the server. early is what was read of it
// already.
func detached(l *Listener, nc net.Conn, early *bufio.Reader, gone func()) *conn {
	if b, ok := nc.(*begun); ok && len(b.first) == 0 {
		nc = b.Conn // one that came back before, and its byte is read
	}
	c := &conn{nc: nc, l: l, gone: gone}
	if n := early.Buffered(); n > 0 {
		peeked, _ := early.Peek(n)
		c.first = append(c.first, peeked...)
		c.watched = true
	}
	l.add(c)
	if !c.watched {
		go c.watch()
	}
	return c
}

// watch waits for something to come in, or the end. While the request waits, the
// end is a client that does not want the answer any more.
func (c *conn) watch() {
	var b [1]byte
	n, _ := c.nc.Read(b[:])
	c.mu.Lock()
	c.watched = true
	c.first = append(c.first, b[:n]...)
	answered := c.answered
	c.mu.Unlock()
	switch {
	case answered:
		c.leave()
	case n == 0:
		c.gone()
	}
}

// finish tells that the answer is written, and whether as a whole.
func (c *conn) finish(keep, whole bool) {
	c.mu.Lock()
	c.answered, c.keep = true, keep && whole
	watched := c.watched
	switch {
	case watched:
	case !whole:
		_ = c.nc.Close()
	case keep && !c.l.isClosed():
		_ = c.nc.SetReadDeadline(time.Now().Add(c.l.idle))
	default:
		c.end()
	}
	c.mu.Unlock()
	if watched {
		c.leave()
	}
}

// dismiss closes a connection between two requests. One whose request waits is
// ended by its answer.
func (c *conn) dismiss() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered && !c.watched {
		c.keep = false
		_ = c.nc.Close()
	}
}

// end says that nothing more comes from here. The lock is held.
func (c *conn) end() {
	c.keep = false
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.nc.SetReadDeadline(time.Now().Add(lingering))
		return
	}
	_ = c.nc.Close()
}

// leave is called once, when the connection is answered and watched.
func (c *conn) leave() {
	c.l.remove(c)
	if !c.keep || len(c.first) == 0 {
		_ = c.nc.Close()
		return
	}
	_ = c.nc.SetDeadline(time.Time{})
	c.l.giveBack(&begun{Conn: c.nc, first: c.first})
}

// begun is a connection of whose next request some bytes are read.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}

// CloseWrite is what the server ends a connection with.
func (b *begun) CloseWrite() error {
	if half, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return b.Close()
}
