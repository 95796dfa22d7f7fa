package httpapi

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// detachAfter is how long a pop waits as any other request does. Most of those
// that find something have it by then.
const detachAfter = 100 * time.Millisecond

// mayWait tells whether a request that consumes is one that may be parked. What
// the parameter says exactly is read later.
func mayWait(r *http.Request) bool { return strings.Contains(r.URL.RawQuery, "wait") }

// linger runs a request that may wait for long beside the server's goroutine. If
// it is not answered in a moment, the server is done with it: a parked pop keeps
// neither the server's buffers nor its stack.
func (s *server) linger(w *response, r *http.Request, rt *route) {
	ctx, gone := context.WithCancel(context.WithoutCancel(r.Context()))
	stop := context.AfterFunc(r.Context(), gone)
	// Once the server is done with the request, what comes of its context is not
	// the client's doing.
	defer stop()
	done := make(chan any, 1) // with what the server is to panic with, or nil
	go func() {
		defer gone()
		aborted := s.runDetachable(w, r.WithContext(ctx), rt)
		if a := w.end(); a != nil {
			if aborted != nil {
				a.Abort()
			}
			a.Finish()
		}
		done <- aborted
	}()
	soon := time.NewTimer(detachAfter)
	defer soon.Stop()
	var aborted any
	select {
	case aborted = <-done:
	case <-soon.C:
		if w.detach(r, gone) {
			return
		}
		aborted = <-done
	}
	if aborted != nil {
		panic(aborted)
	}
}

// runDetachable runs a request whose panic is not to end the process, and returns
// what the server is to panic with.
func (s *server) runDetachable(w *response, r *http.Request, rt *route) (aborted any) {
	defer func() { aborted = recover() }()
	s.run(w, r, rt)
	return nil
}
