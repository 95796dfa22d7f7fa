package httpapi

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gorilla/mux"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// TimerPlane schedules, cancels and reads timers.
type TimerPlane interface {
	// WriteTimers carries all operations out together, or none. Their payloads
	// are not used again once it has returned.
	WriteTimers(ctx context.Context, c *mq.TimerCall) error
	// Timer returns nil when nothing is pending.
	Timer(ctx context.Context, id mq.TimerID) (*mq.Timer, error)
	Timers(ctx context.Context, l mq.TimerList) (page []mq.Timer, more bool, err error)
	CountTimers(ctx context.Context, tenant mq.UUID, queue, prefix string) (int64, error)
}

// timerRoutes are served with the error form of timers. The key is the rest of
// the path, slashes and all.
func (s *server) timerRoutes() []route {
	const one = "/api/v1/timers/{queue}/{key}"
	return []route{
		{"POST", "/api/v1/timers", s.timerForm(s.writeTimers)},
		{"GET", "/api/v1/timers/{queue}", s.timerForm(s.listTimers)},
		{"GET", one, s.timerForm(s.peekTimer)},
		{"DELETE", one, s.timerForm(s.cancelTimer)},
	}
}

// timerHint tells whoever wants to cancel while scheduling is refused how to.
const (
	timerHintHeader = "x-queen-timers-hint"
	timerHint       = "a cancel alone is never refused: DELETE /api/v1/timers/:queue/:timerKey"
)

// timerStatuses is the one table from the codes of refusals to HTTP.
var timerStatuses = map[string]int{
	mq.CodeTimersBadRequest: http.StatusBadRequest,
	mq.CodeTimerHorizon:     http.StatusForbidden,
	mq.CodePayloadTooLarge:  http.StatusRequestEntityTooLarge,
	mq.CodeTimersDisabled:   http.StatusServiceUnavailable,
}

// timerForm answers the errors of a handler in the form {error, reason, detail}.
func (s *server) timerForm(h handlerFunc) handlerFunc {
	return s.stateful("timers", func(w *response, r *http.Request) error {
		err := h(w, r)
		var ref *mq.TimerRefusal
		if !errors.As(err, &ref) {
			return err
		}
		status := timerStatuses[ref.Code]
		s.logFailure(r, "timers", &refusal{status: status}, err)
		if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		return w.json(status, func(b []byte) []byte {
			b = str(key(append(b, '{'), "error"), ref.Code)
			b = str(key(b, "reason"), ref.Reason)
			return append(str(key(b, "detail"), ref.Detail), '}')
		})
	})
}

func (s *server) writeTimers(w *response, r *http.Request) error {
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.free() // payloads were decoded, which copied them
	ops, err := decodeTimerBody(body.data, s.o.Timers)
	if err != nil {
		return err
	}
	c := callerOf(r)
	call := mq.NewTimerCall(c.Tenant, c.Subject, ops)
	if len(ops) > 0 {
		if err := s.b.WriteTimers(r.Context(), call); err != nil {
			var ref *mq.TimerRefusal
			if errors.As(err, &ref) && ref.Code == mq.CodeTimersDisabled || mq.KindOf(err) == mq.KindOverloaded {
				w.Header().Set(timerHintHeader, timerHint)
			}
			return err
		}
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "results"), '[')
		for i := range call.Results {
			b = append(appendTimerResult(append(elem(b), '{'), &call.Ops[i], &call.Results[i]), '}')
		}
		return append(b, ']', '}')
	})
}

// appendTimerResult adds the members of an answer to an operation.
func appendTimerResult(b []byte, op *mq.TimerOp, res *mq.TimerResult) []byte {
	b = boolean(key(b, "ok"), res.Status.OK())
	b = str(key(b, "status"), res.Status.String())
	b = str(key(b, "queue"), op.Queue)
	b = str(key(b, "timerKey"), op.Key)
	b = strOrNull(key(b, "txn"), res.TransactionID)
	if op.Cancel {
		return b
	}
	b = uuid(key(b, "messageId"), res.MessageID)
	return instant(key(b, "deliverAt"), res.DeliverAt)
}

// timerID reads the identity in the path: the key is decoded once, whole.
func timerID(r *http.Request) (mq.TimerID, error) {
	id := mq.TimerID{Tenant: callerOf(r).Tenant}
	var err error
	if id.Queue, err = timerQueue(r); err != nil {
		return id, err
	}
	if id.Key, err = url.PathUnescape(mux.Vars(r)["key"]); err != nil {
		return id, mq.OddTimer(-1, "timerKey is not percent-encoded")
	}
	return id, mq.CheckTimerID(id)
}

func (s *server) cancelTimer(w *response, r *http.Request) error {
	id, err := timerID(r)
	if err != nil {
		return err
	}
	q := parseQuery(r)
	if q.err != nil {
		return q.err
	}
	op := mq.TimerOp{Cancel: true, Queue: id.Queue, Key: id.Key, TransactionID: q.values.Get("txn")}
	ops := []mq.TimerOp{op}
	if err := s.o.Timers.CheckTimers(ops); err != nil {
		return err
	}
	call := mq.NewTimerCall(id.Tenant, "", ops)
	if err := s.b.WriteTimers(r.Context(), call); err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		return append(appendTimerResult(append(b, '{'), &op, &call.Results[0]), '}')
	})
}

func (s *server) peekTimer(w *response, r *http.Request) error {
	id, err := timerID(r)
	if err != nil {
		return err
	}
	t, err := s.b.Timer(r.Context(), id)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "found"), t != nil)
		if t == nil {
			b = str(key(b, "queue"), id.Queue)
			return append(str(key(b, "timerKey"), id.Key), '}')
		}
		b = key(appendTimer(b, t), "payload")
		b = append(base64.StdEncoding.AppendEncode(append(b, '"'), t.Payload), '"')
		return append(b, '}')
	})
}

func appendTimer(b []byte, t *mq.Timer) []byte {
	b = str(key(b, "queue"), t.Queue)
	b = str(key(b, "timerKey"), t.Key)
	b = str(key(b, "partition"), t.Partition)
	b = instant(key(b, "deliverAt"), t.DeliverAt)
	b = str(key(b, "txn"), t.TransactionID)
	b = uuid(key(b, "messageId"), t.MessageID)
	b = boolean(key(b, "payloadZstd"), false) // unpacked on receipt
	b = boolean(key(b, "encrypted"), t.Encrypted)
	b = strOrNull(key(b, "producerSub"), t.ProducerSub)
	b = num(key(b, "attempts"), t.Attempts)
	b = strOrNull(key(b, "lastError"), t.LastError)
	b = boolean(key(b, "claimed"), false) // a fire holds it for a moment only
	b = instant(key(b, "createdAt"), t.CreatedAt)
	return instant(key(b, "updatedAt"), t.UpdatedAt)
}

// timerQueue reads the queue in the path.
func timerQueue(r *http.Request) (string, error) {
	queue, err := url.PathUnescape(mux.Vars(r)["queue"])
	if err != nil {
		return "", mq.OddTimer(-1, "queue is not percent-encoded")
	}
	return queue, mq.CheckTimerID(mq.TimerID{Queue: queue, Key: "any"})
}

func (s *server) listTimers(w *response, r *http.Request) error {
	queue, err := timerQueue(r)
	if err != nil {
		return err
	}
	q := parseQuery(r)
	if q.err != nil {
		return q.err
	}
	switch mode := q.values.Get("mode"); mode {
	case "", "list":
		return s.pageOfTimers(w, r, queue, q)
	case "count":
		return s.countTimers(w, r, queue, q)
	default:
		return mq.BadTimer(-1, "timers_read_mode_unknown", "mode is %q, not list or count", mode)
	}
}

func (s *server) pageOfTimers(w *response, r *http.Request, queue string, q *query) error {
	l := mq.TimerList{Tenant: callerOf(r).Tenant, Queue: queue, After: q.values.Get("after"), Limit: defaultPage}
	if n, err := strconv.Atoi(q.values.Get("limit")); err == nil {
		l.Limit = min(max(n, 1), maxPage)
	}
	if strings.ToValidUTF8(l.After, "") != l.After || strings.IndexByte(l.After, 0) >= 0 {
		return mq.OddTimer(-1, "after holds NUL or is not UTF-8")
	}
	page, more, err := s.b.Timers(r.Context(), l)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "rows"), '[')
		for i := range page {
			b = append(appendTimer(append(elem(b), '{'), &page[i]), '}')
		}
		b = boolean(key(append(b, ']'), "truncated"), more)
		b = key(b, "nextAfter")
		if more {
			return append(str(b, page[len(page)-1].Key), '}')
		}
		return append(null(b), '}')
	})
}

func (s *server) countTimers(w *response, r *http.Request, queue string, q *query) error {
	prefix := q.values.Get("prefix")
	switch {
	case q.has("after"), q.has("limit"):
		return mq.BadTimer(-1, "timers_count_page_parameters", "a count has no pages: after and limit do not go with it")
	case prefix == "":
		return mq.BadTimer(-1, "timers_count_prefix_required", "a count needs a prefix")
	case len(prefix) > mq.MaxTimerPrefixBytes:
		return mq.BadTimer(-1, "timers_count_prefix_too_long", "the prefix is longer than %d bytes", mq.MaxTimerPrefixBytes)
	case strings.IndexByte(prefix, 0) >= 0, strings.ToValidUTF8(prefix, "") != prefix:
		return mq.BadTimer(-1, "timers_count_prefix_invalid", "the prefix holds NUL or is not UTF-8")
	}
	n, err := s.b.CountTimers(r.Context(), callerOf(r).Tenant, queue, prefix)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		return append(num(key(append(b, '{'), "count"), n), '}')
	})
}
