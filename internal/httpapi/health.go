package httpapi

import (
	"context"
	"net/http"
	"time"
)

const (
	engine = "queenmq-go"
	// pingTimeout bounds the round trip of a health check.
	pingTimeout = time.Second
)

func (s *server) ping(r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), pingTimeout)
	defer cancel()
	return s.b.Ping(ctx)
}

func (s *server) health(w *response, r *http.Request) error {
	status, state, database := http.StatusOK, "healthy", "connected"
	if err := s.ping(r); err != nil {
		s.log.Warn("health check failed", "err", err)
		status, state, database = http.StatusServiceUnavailable, "unhealthy", "disconnected"
		w.Header().Set("Retry-After", "1")
	}
	return w.json(status, func(b []byte) []byte {
		b = str(key(append(b, '{'), "status"), state)
		b = str(key(b, "database"), database)
		b = str(key(b, "engine"), engine)
		return append(str(key(b, "version"), s.o.Version), '}')
	})
}

// live says that the process answers; restarting it cures nothing else, so
// the database is not asked.
func (s *server) live(w *response, _ *http.Request) error {
	return w.state(http.StatusOK, "ok")
}

// ready says whether requests should be sent here.
func (s *server) ready(w *response, r *http.Request) error {
	state := "ready"
	if s.o.Draining() {
		state = "draining"
	} else if err := s.ping(r); err != nil {
		s.log.Warn("readiness check failed", "err", err)
		state = "database unavailable"
	}
	if state != "ready" {
		w.Header().Set("Retry-After", "1")
		return w.state(http.StatusServiceUnavailable, state)
	}
	return w.state(http.StatusOK, state)
}

func (w *response) state(status int, state string) error {
	return w.json(status, func(b []byte) []byte {
		b = str(key(append(b, '{'), "status"), state)
		return append(str(key(b, "engine"), engine), '}')
	})
}

func (s *server) prometheus(w *response, r *http.Request) error {
	if s.o.MetricsHandler == nil {
		return noSuchRoute(w, r)
	}
	w.Header().Set("Cache-Control", "no-cache")
	s.o.MetricsHandler.ServeHTTP(w, r)
	return nil
}
