package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Metrics receives what the handlers count. Route is the template of the
// route, never a path, so that its values are few.
type Metrics interface {
	Request(method, route string, status int, took time.Duration)
	// Messages counts what a push stored, a pop delivered or an ack named;
	// op is one of push, pop and ack.
	Messages(op string, n int)
}

type noMetrics struct{}

func (noMetrics) Request(string, string, int, time.Duration) {}
func (noMetrics) Messages(string, int)                       {}

// Options set up the handler. The zero value of each has a default.
type Options struct {
	MaxBodyBytes     int64          // of one request, decoded; default 64 MiB
	MaxInflightBytes int64          // of all requests being handled; default four bodies
	DefaultTimeout   time.Duration  // of a waiting pop that names none; default 30 s
	DefaultStart     mq.StartMode   // of a group that names none
	Timers           mq.TimerLimits // of a timer
	KV               mq.KVLimits    // of a call to the key/value store
	Ephemeral        Ephemeral      // ephemeral queues; nil: there are none
	Version          string
	Logger           *slog.Logger
	Metrics          Metrics
	MetricsHandler   http.Handler // serves /metrics/prometheus
	Draining         func() bool  // true once shutdown has begun
}

type server struct {
	b       Broker
	o       Options
	log     *slog.Logger
	metrics Metrics
	admit   *admission
}

// New builds the handler of every route.
func New(b Broker, o Options) http.Handler {
	if o.MaxBodyBytes <= 0 {
		o.MaxBodyBytes = 64 << 20
	}
	if o.MaxInflightBytes <= 0 {
		o.MaxInflightBytes = 4 * o.MaxBodyBytes
	}
	if o.DefaultTimeout <= 0 {
		o.DefaultTimeout = 30 * time.Second
	}
	o.Timers = o.Timers.WithDefaults()
	if o.KV == (mq.KVLimits{}) {
		o.KV = mq.DefaultKVLimits
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	if o.Draining == nil {
		o.Draining = func() bool { return false }
	}
	s := &server{b: b, o: o, log: o.Logger, metrics: o.Metrics, admit: newAdmission(o.MaxInflightBytes)}
	return s.router()
}

// Caller is who sends a request, as authentication and tenancy found out.
type Caller struct {
	Tenant  mq.UUID
	Subject string // the token's subject; empty without one
}

type callerKey struct{}

// WithCaller attaches the caller to a request's context. Without one the
// default tenant calls.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

func callerOf(r *http.Request) Caller {
	if c, ok := r.Context().Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Tenant: mq.DefaultTenant}
}

// handlerFunc handles one route. An error it returns is answered in one place.
type handlerFunc func(w *response, r *http.Request) error

// serve wraps the handler of a route with what every request gets: metrics,
// the size check before anything is read, recovery and error answers.
func (s *server) serve(rt *route) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := &response{rw: rw, draining: s.o.Draining}
		if rt.method == consuming && mayWait(r) {
			s.linger(w, r, rt)
			return
		}
		s.run(w, r, rt)
	})
}

func (s *server) run(w *response, r *http.Request, rt *route) {
	start := time.Now()
	defer func() { s.metrics.Request(r.Method, rt.path, w.status, time.Since(start)) }()
	defer func() {
		if v := recover(); v != nil {
			s.recovered(w, r, rt.path, v)
		}
	}()
	if r.ContentLength > s.o.MaxBodyBytes {
		s.fail(w, r, rt.path, tooLarge(s.o.MaxBodyBytes))
		return
	}
	if err := rt.handle(w, r); err != nil {
		s.fail(w, r, rt.path, err)
	}
}

// recovered answers a panic with a 500 if there is still an answer to give,
// else cuts the connection so that half an answer is not taken for a whole.
func (s *server) recovered(w *response, r *http.Request, route string, v any) {
	if v == http.ErrAbortHandler { //nolint:errorlint // the value net/http itself compares with
		panic(v)
	}
	s.log.Error("handler panicked", "method", r.Method, "route", route, "remote", r.RemoteAddr,
		"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	s.refuse(w, &refusal{status: http.StatusInternalServerError, code: mq.CodeInternal, message: "internal error"})
}

// fail answers an error.
func (s *server) fail(w *response, r *http.Request, route string, err error) {
	var we *writeError
	if errors.As(err, &we) {
		s.log.Debug("answer not written", "method", r.Method, "route", route, "remote", r.RemoteAddr, "err", err)
		return
	}
	ref := refusalOf(err)
	s.logFailure(r, route, ref, err)
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	s.refuse(w, ref)
}

func (s *server) logFailure(r *http.Request, route string, ref *refusal, err error) {
	level := slog.LevelDebug
	switch {
	case r.Context().Err() != nil:
	case ref.status == http.StatusInternalServerError:
		level = slog.LevelError
	case ref.status >= http.StatusInternalServerError:
		level = slog.LevelWarn
	}
	if ref.cause != nil && errors.Is(err, ref) {
		err = fmt.Errorf("%w: %w", err, ref.cause) // a refusal's own text is for the caller
	}
	s.log.Log(r.Context(), level, "request failed", "method", r.Method, "route", route, "path", r.URL.EscapedPath(),
		"tenant", callerOf(r).Tenant.String(), "remote", r.RemoteAddr, "status", ref.status, "err", err)
}

// refuse writes an error body. That the write fails concerns nobody.
func (s *server) refuse(w *response, ref *refusal) {
	ref.head(w.Header())
	_ = w.json(ref.status, func(b []byte) []byte {
		return append(ref.keys(append(b, '{')), '}')
	})
}
