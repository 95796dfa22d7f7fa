package httpapi

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/queenmq-go/queenmq/internal/mq"
)

const (
	// admissionWait is how long a body waits for room before it is refused.
	admissionWait = 5 * time.Second
	// bodyGrace and bodyRate bound how slowly a body may arrive.
	bodyGrace = 30 * time.Second
	bodyRate  = 1 << 20 // bytes a second beyond the grace
	// firstStep is the room made for a body of unknown length; it doubles.
	firstStep = 64 << 10
	// copies is how often a body is in memory while it is stored: as it came,
	// as a row, as a parameter, and on its way to the database.
	copies = 4
)

// admission bounds the memory that request bodies take together.
type admission struct {
	sem   *semaphore.Weighted
	limit int64
	wait  time.Duration
}

func newAdmission(limit int64) *admission {
	return &admission{sem: semaphore.NewWeighted(limit), limit: limit, wait: admissionWait}
}

// acquire takes n bytes of the budget.
func (a *admission) acquire(ctx context.Context, n int64) error {
	if a.sem.TryAcquire(n) {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, a.wait)
	defer cancel()
	if err := a.sem.Acquire(waiting, n); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return overloaded("too many bytes of requests in flight")
	}
	return nil
}

// body is a request body in memory, with its share of the budget.
type body struct {
	data  []byte
	buf   *buffer
	admit *admission
	held  int64
}

// free gives everything back. Nothing may refer to the data any more.
func (b *body) free() {
	if b.buf != nil {
		b.buf.b = b.data[:0]
		b.buf.free()
	}
	b.abandon()
}

// abandon gives the budget back but leaves the memory to whoever still reads it.
func (b *body) abandon() {
	if b.held > 0 {
		b.admit.sem.Release(b.held)
	}
	*b = body{}
}

// reserve raises the share of the budget to what a body of n bytes takes. One
// body never needs more than the whole.
func (b *body) reserve(ctx context.Context, n int64) error {
	n = min(copies*n, b.admit.limit)
	if n <= b.held {
		return nil
	}
	if err := b.admit.acquire(ctx, n-b.held); err != nil {
		return err
	}
	b.held = n
	return nil
}

// readBody reads the whole body, decoded. The caller frees it.
func (s *server) readBody(w *response, r *http.Request) (*body, error) {
	b := &body{admit: s.admit, buf: getBuffer()}
	b.data = b.buf.b
	if err := s.fill(b, w, r); err != nil {
		b.free()
		return nil, err
	}
	return b, nil
}

func (s *server) fill(b *body, w *response, r *http.Request) error {
	size := r.ContentLength
	var encoded bool
	switch e := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); e {
	case "", "identity":
	case "gzip":
		size, encoded = -1, true
	default:
		return &refusal{
			status: http.StatusUnsupportedMediaType, code: codeUnsupportedEncoding,
			message: "content encoding " + e + " is not supported",
		}
	}
	if r.ContentLength == 0 {
		return nil
	}
	// The budget comes first: a body that waits for room is not read, and
	// its clock has not started.
	room := size
	if room < 0 {
		room = firstStep
	}
	if err := b.reserve(r.Context(), room); err != nil {
		return err
	}
	limit := bodyGrace + time.Duration(max(r.ContentLength, 0)/bodyRate)*time.Second
	if r.ContentLength < 0 {
		limit += time.Duration(s.o.MaxBodyBytes/bodyRate) * time.Second
	}
	// Writers that have no deadlines, such as those of tests, say so; there is
	// nothing to bound then.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(limit))
	var err error
	switch {
	case size >= 0:
		err = b.readKnown(r.Body, size)
	case encoded:
		var zr *gzip.Reader
		if zr, err = gzip.NewReader(r.Body); err == nil {
			err = b.readUnknown(r.Context(), zr, s.o.MaxBodyBytes)
		}
	default:
		err = b.readUnknown(r.Context(), r.Body, s.o.MaxBodyBytes)
	}
	_ = rc.SetReadDeadline(time.Time{})
	return readError(err)
}

func (b *body) readKnown(src io.Reader, size int64) error {
	if int64(cap(b.data)) < size {
		b.data = make([]byte, 0, size)
	}
	b.data = b.data[:size]
	n, err := io.ReadFull(src, b.data)
	b.data = b.data[:n]
	return err
}

func (b *body) readUnknown(ctx context.Context, src io.Reader, limit int64) error {
	for {
		if len(b.data) == cap(b.data) {
			room := min(max(2*int64(cap(b.data)), firstStep), limit+1)
			if err := b.reserve(ctx, room); err != nil {
				return err
			}
			grown := make([]byte, len(b.data), room)
			copy(grown, b.data)
			b.data = grown
		}
		n, err := src.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case int64(len(b.data)) > limit:
			return tooLarge(limit)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// readError says what a failed read means to the client.
func readError(err error) error {
	var ref *refusal
	var maxBytes *http.MaxBytesError
	switch {
	case err == nil, errors.As(err, &ref), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &maxBytes):
		return tooLarge(maxBytes.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{
			status: http.StatusRequestTimeout, code: mq.CodeTimeout, cause: err,
			message: "the request body arrived too slowly",
		}
	default:
		return &refusal{status: http.StatusBadRequest, code: mq.CodeBadBody, message: "bad body: it cannot be read", cause: err}
	}
}

// decodeBody reads and decodes a body of which nothing is kept as it is.
func (s *server) decodeBody(w *response, r *http.Request, read func(d *decoder) error) error {
	b, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer b.free()
	return decode(b.data, read)
}
