package longpoll

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// writing bounds how long the client may take to accept a piece of an answer.
const writing = 2 * time.Minute

// Answer is the response to a detached request, as HTTP/1.1.
type Answer struct {
	c      *conn
	header http.Header
	status int
	head   bool  // the head is written
	left   int64 // of the body
	err    error
}

// Detach takes the connection of a request from the server, whose handler then
// has to return without touching its ResponseWriter again. From then on the
// request's context tells nothing: gone is called when the client goes away
// before Finish. False means that the request stays where it is, because the
// connection is not one of a Listener, or carries other requests too, or is to
// be closed after this one.
func Detach(w http.ResponseWriter, r *http.Request, gone func()) (*Answer, bool) {
	l, ok := r.Context().Value(listenerKey{}).(*Listener)
	if !ok || r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.Close || r.Method != http.MethodGet || r.Body != http.NoBody {
		return nil, false
	}
	header := w.Header()
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, false
	}
	return &Answer{c: detached(l, nc, rw.Reader, gone), header: header}, true
}

// Header is that of the answer, with what was set before the request was detached.
func (a *Answer) Header() http.Header { return a.header }

// WriteHeader sets the status. It goes out with the first byte of the body, or
// at the end.
func (a *Answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write sends a part of the body.
func (a *Answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.err != nil {
		return 0, a.err
	}
	var head []byte
	if !a.head {
		head = a.begin()
	}
	if int64(len(b)) > a.left {
		return 0, a.fail(http.ErrContentLength)
	}
	a.left -= int64(len(b))
	_ = a.c.nc.SetWriteDeadline(time.Now().Add(writing))
	pieces := net.Buffers{head, b}
	if _, err := pieces.WriteTo(a.c.nc); err != nil {
		return 0, a.fail(err)
	}
	return len(b), nil
}

// FlushError sends what is there of the head; the body is never held back.
func (a *Answer) FlushError() error {
	if a.err == nil && !a.head && a.status != 0 {
		_, err := a.Write(nil)
		return err
	}
	return a.err
}

// SetWriteDeadline is there for http.ResponseController. What it sets holds
// until the next write.
func (a *Answer) SetWriteDeadline(t time.Time) error { return a.c.nc.SetWriteDeadline(t) }

// Abort gives the connection up, so that half an answer is not taken for a whole.
func (a *Answer) Abort() { _ = a.fail(http.ErrAbortHandler) }

// Finish sends what is missing of the answer and lets the connection go on to its
// next request.
func (a *Answer) Finish() {
	if a.status == 0 && a.err == nil {
		a.WriteHeader(http.StatusOK)
	}
	_ = a.FlushError()
	if a.left > 0 && a.err == nil {
		a.err = http.ErrContentLength
	}
	_ = a.c.nc.SetWriteDeadline(time.Time{})
	a.c.finish(a.header.Get("Connection") != "close", a.err == nil)
}

func (a *Answer) fail(err error) error {
	if a.err == nil {
		a.err = err
	}
	return a.err
}

// begin makes the head. A body whose length is not told beforehand is none.
func (a *Answer) begin() []byte {
	a.head = true
	if a.status == http.StatusNoContent {
		a.header.Del("Content-Length")
	} else {
		a.left, _ = strconv.ParseInt(a.header.Get("Content-Length"), 10, 64)
		a.header.Set("Content-Length", strconv.FormatInt(a.left, 10))
	}
	if a.c.l.isClosed() {
		a.header.Set("Connection", "close")
	}
	a.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %03d %s\r\n", a.status, http.StatusText(a.status))
	_ = a.header.Write(&b)
	b.WriteString("\r\n")
	return b.Bytes()
}
