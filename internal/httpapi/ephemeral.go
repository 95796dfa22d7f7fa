package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Ephemeral is what ephemeral queues can do.
type Ephemeral interface {
	// Push keeps nothing of the payloads, and returns only when it is done with
	// them, whatever it returns.
	Push(ctx context.Context, p *mq.EphemeralPush) error
	// Pop waits by itself when Wait is above zero. Without an error it returns a
	// delivery, which may be empty.
	Pop(ctx context.Context, p *mq.EphemeralPop) (*mq.EphemeralDelivery, error)
	// HandBack takes back a delivery that reached nobody; the attempt is not
	// counted.
	HandBack(ctx context.Context, d *mq.EphemeralDelivery)
	// Ack returns an outcome for each item, in order.
	Ack(ctx context.Context, a *mq.EphemeralAck) ([]mq.EphemeralOutcome, error)
	Configure(ctx context.Context, tenant mq.UUID, queue string, o mq.EphemeralOptions) error
	Reset(ctx context.Context, tenant mq.UUID, queue string) (dropped int64, err error)
	Delete(ctx context.Context, tenant mq.UUID, queue string) (deleted, declared bool, err error)
	Queues(ctx context.Context, tenant mq.UUID) (list []mq.EphemeralQueue, cellBytes int64, err error)
	// Depth of one group, or of all when it is empty.
	Depth(ctx context.Context, tenant mq.UUID, queue, group string) (*mq.EphemeralDepth, error)
	Status(ctx context.Context) (mq.EphemeralStatus, error)
	SetEnabled(ctx context.Context, on bool) error
}

func (s *server) ephemeralRoutes() []route {
	const at = "/api/v1/ephemeral"
	return []route{
		{"POST", at + "/push", s.ephemeral("", s.ephemeralPush)},
		{consuming, at + "/pop", s.ephemeral("", s.ephemeralPop)},
		{"POST", at + "/ack", s.ephemeral("", s.ephemeralAck)},
		{"POST", at + "/configure", s.ephemeral(mq.CodeEphemeralConfigure, s.ephemeralConfigure)},
		{"POST", at + "/reset", s.ephemeral("", s.ephemeralReset)},
		{"DELETE", at + "/queue/{queue}", s.ephemeral(mq.CodeEphemeralDelete, s.ephemeralDelete)},
		{"GET", at + "/queues", s.ephemeral("", s.ephemeralQueues)},
		{"GET", at + "/queues/{queue}/depth", s.ephemeral("", s.ephemeralDepth)},
		{"GET", "/api/v1/system/ephemeral", s.ephemeral("", s.ephemeralStatus)},
		{"POST", "/api/v1/system/ephemeral", s.ephemeral("", s.setEphemeral)},
	}
}

// ephemeral wraps the handler of a route of the family, so that its errors come
// with the codes of the family. fault is the code of a fault of ours.
func (s *server) ephemeral(fault string, h handlerFunc) handlerFunc {
	return func(w *response, r *http.Request) error {
		err := errNoEphemeral
		if s.o.Ephemeral != nil {
			err = h(w, r)
		}
		var unwritten *writeError
		if err == nil || errors.As(err, &unwritten) {
			return err
		}
		return refuseEphemeral(fault, err)
	}
}

// errNoEphemeral is an answer of its own, not "no such route": clients take any
// 404 of the family for a broker that is too old.
var errNoEphemeral error = &mq.Error{
	Kind: mq.KindUnavailable, Code: mq.CodeEphemeralUnavailable, RetryAfter: time.Second,
	Message: "ephemeral queues need Redis, and this broker has none",
}

// refuseEphemeral puts an error into the words of the family.
func refuseEphemeral(fault string, err error) *refusal {
	ref := *refusalOf(err)
	switch {
	case ref.status == http.StatusBadRequest:
		ref.code = mq.CodeEphemeralBadRequest
	case ref.status == http.StatusNotFound && ref.code != mq.CodeEphemeralNotFound:
		// Nothing else of the family is ever not found: see errNoEphemeral.
		ref = refusal{status: http.StatusInternalServerError, code: mq.CodeInternal, message: "internal error", cause: err}
	case ref.code == mq.CodeEphemeralFull:
		// A full queue is emptied by its consumers, who knows when: there is no
		// telling how long to wait.
		ref.retryAfter = 0
	case ref.status == http.StatusServiceUnavailable && ref.code != mq.CodeEphemeralDisabled:
		ref.code = mq.CodeEphemeralUnavailable
	}
	if ref.status == http.StatusInternalServerError && fault != "" {
		ref.code = fault
	}
	return &ref
}

func (s *server) ephemeralPush(w *response, r *http.Request) error {
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.free()
	p, err := decodeEphemeralPush(body.data)
	if err != nil {
		return err
	}
	p.Tenant = callerOf(r).Tenant
	if err := s.o.Ephemeral.Push(r.Context(), p); err != nil {
		return err
	}
	return w.json(http.StatusCreated, func(b []byte) []byte {
		return append(num(key(append(b, '{'), "pushed"), len(p.Payloads)), '}')
	})
}

func (s *server) ephemeralPop(w *response, r *http.Request) error {
	p, err := s.readEphemeralPop(r)
	if err != nil {
		return err
	}
	if p.Wait > 0 {
		// A server-wide write deadline would cut a long poll short.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
	d, err := s.o.Ephemeral.Pop(r.Context(), p)
	if err != nil {
		return err
	}
	if err := s.deliverEphemeral(w, r, p.Queue, d); err != nil {
		if len(d.Messages) > 0 && !p.AutoCommit {
			// Nobody has the messages: give them back now, not when the lease ends.
			s.handBack(r.Context(), d)
		}
		return err
	}
	return nil
}

// deliverEphemeral writes the messages and makes sure that they left.
func (s *server) deliverEphemeral(w *response, r *http.Request, queue string, d *mq.EphemeralDelivery) error {
	if err := r.Context().Err(); err != nil {
		return err
	}
	if err := w.json(http.StatusOK, func(b []byte) []byte { return appendEphemeralDelivery(b, queue, d.Messages) }); err != nil {
		return err
	}
	// As with any other pop: only flushing shows whether the client is there.
	if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return &writeError{err}
	}
	return nil
}

func (s *server) handBack(ctx context.Context, d *mq.EphemeralDelivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	s.o.Ephemeral.HandBack(ctx, d)
}

func (s *server) ephemeralAck(w *response, r *http.Request) error {
	a := &mq.EphemeralAck{Tenant: callerOf(r).Tenant}
	if err := s.decodeBody(w, r, func(d *decoder) error { return decodeEphemeralAck(d, a) }); err != nil {
		return err
	}
	outcomes, err := s.o.Ephemeral.Ack(r.Context(), a)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte { return appendEphemeralOutcomes(b, a.Items, outcomes) })
}

func (s *server) ephemeralConfigure(w *response, r *http.Request) error {
	var c ephemeralDeclaration
	if err := s.decodeBody(w, r, func(d *decoder) error { return decodeEphemeralConfigure(d, &c) }); err != nil {
		return err
	}
	if err := s.o.Ephemeral.Configure(r.Context(), callerOf(r).Tenant, c.queue, c.options); err != nil {
		return err
	}
	return w.json(http.StatusCreated, func(b []byte) []byte {
		b = str(key(append(b, '{'), "queue"), c.queue)
		return append(appendEphemeralOptions(key(b, "options"), &c.options), '}')
	})
}

func (s *server) ephemeralReset(w *response, r *http.Request) error {
	var queue string
	if err := s.decodeBody(w, r, func(d *decoder) error { return decodeEphemeralReset(d, &queue) }); err != nil {
		return err
	}
	dropped, err := s.o.Ephemeral.Reset(r.Context(), callerOf(r).Tenant, queue)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = str(key(append(b, '{'), "queue"), queue)
		return append(num(key(b, "dropped"), dropped), '}')
	})
}

func (s *server) ephemeralDelete(w *response, r *http.Request) error {
	queue, err := ephemeralPath(r)
	if err != nil {
		return err
	}
	deleted, declared, err := s.o.Ephemeral.Delete(r.Context(), callerOf(r).Tenant, queue)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = str(key(append(b, '{'), "queue"), queue)
		b = boolean(key(b, "deleted"), deleted)
		return append(boolean(key(b, "declared"), declared), '}')
	})
}

func (s *server) ephemeralQueues(w *response, r *http.Request) error {
	list, bytes, err := s.o.Ephemeral.Queues(r.Context(), callerOf(r).Tenant)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "queues"), '[')
		for i := range list {
			b = appendEphemeralQueue(elem(b), &list[i])
		}
		b = num(key(append(b, ']'), "count"), len(list))
		return append(num(key(b, "cellBytes"), bytes), '}')
	})
}

func (s *server) ephemeralDepth(w *response, r *http.Request) error {
	queue, err := ephemeralPath(r)
	if err != nil {
		return err
	}
	q := parseQuery(r)
	group := q.ephemeralName("group", false)
	if q.err != nil {
		return q.err
	}
	d, err := s.o.Ephemeral.Depth(r.Context(), callerOf(r).Tenant, queue, group)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte { return appendEphemeralDepth(b, queue, group, d) })
}

func (s *server) ephemeralStatus(w *response, r *http.Request) error {
	st, err := s.o.Ephemeral.Status(r.Context())
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte { return appendEphemeralStatus(b, &st) })
}

// setEphemeral turns the family on or off. What the store holds is told along
// with it when it can be had: the switch works without.
func (s *server) setEphemeral(w *response, r *http.Request) error {
	var on *bool
	if err := s.decodeBody(w, r, func(d *decoder) error { return decodeEphemeralSwitch(d, &on) }); err != nil {
		return err
	}
	if err := s.o.Ephemeral.SetEnabled(r.Context(), *on); err != nil {
		return err
	}
	st, err := s.o.Ephemeral.Status(r.Context())
	return w.json(http.StatusOK, func(b []byte) []byte {
		if err != nil {
			return append(boolean(key(append(b, '{'), "ephemeralEnabled"), *on), '}')
		}
		return appendEphemeralStatus(b, &st)
	})
}
