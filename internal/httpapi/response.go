package httpapi

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/queenmq-go/queenmq/internal/longpoll"
)

// response remembers what was sent, for the metrics and for a late error. Until
// the answer begins, its request may be detached from the server.
type response struct {
	draining func() bool
	status   int

	mu       sync.Mutex
	rw       http.ResponseWriter
	begun    bool
	detached *longpoll.Answer // rw too, once the request is detached
}

// begin settles where the answer goes.
func (w *response) begin() http.ResponseWriter {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.begun && w.draining() {
		// Sends the client's next request to another broker.
		w.rw.Header().Set("Connection", "close")
	}
	w.begun = true
	return w.rw
}

// end settles that the answer is complete, and returns the one that its request
// was detached with, if it was.
func (w *response) end() *longpoll.Answer {
	w.begin()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.detached
}

// detach takes the request from the server, unless its answer has begun. gone is
// called when the client goes away after that.
func (w *response) detach(r *http.Request, gone func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun {
		return false
	}
	a, ok := longpoll.Detach(w.rw, r, gone)
	if ok {
		w.rw, w.detached = a, a
	}
	return ok
}

// Header is that of the answer.
func (w *response) Header() http.Header { return w.begin().Header() }

// WriteHeader sends the status.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.begin().WriteHeader(status)
}

// Write sends a part of the body.
func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.begin().Write(b)
}

// Unwrap gives http.ResponseController the writer of the server.
func (w *response) Unwrap() http.ResponseWriter {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rw
}

// json answers with the object or array that fill appends.
func (w *response) json(status int, fill func(b []byte) []byte) error {
	buf := getBuffer()
	defer buf.free()
	buf.b = fill(buf.b)
	return w.send(status, buf.b)
}

func (w *response) send(status int, body []byte) error {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		return &writeError{err}
	}
	return nil
}

// writeError is a failure to write the answer. There is nobody left to tell.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }
