package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Codes that only the transport has a use for.
const (
	codeMethodNotAllowed    = "method_not_allowed"
	codeUnsupportedEncoding = "unsupported_encoding"
)

// refusal is an answer other than success, ready to be written.
type refusal struct {
	status     int
	code       string
	message    string
	field      string
	retryAfter time.Duration
	allow      string // of a 405
	cause      error  // for the log; set when the fault is ours
}

func (e *refusal) Error() string { return e.message }

func (e *refusal) Unwrap() error { return e.cause }

// statuses is the one table from kinds to HTTP. The contract answers a
// passed deadline with 503, because the client is to repeat the call.
var statuses = map[mq.Kind]struct {
	status int
	code   string
	repeat bool // the client may repeat the call: Retry-After is sent
}{
	mq.KindInvalid:     {http.StatusBadRequest, mq.CodeBadRequest, false},
	mq.KindTooLarge:    {http.StatusRequestEntityTooLarge, mq.CodePayloadTooLarge, false},
	mq.KindForbidden:   {http.StatusForbidden, mq.CodeForbidden, false},
	mq.KindNotFound:    {http.StatusNotFound, mq.CodeNotFound, false},
	mq.KindConflict:    {http.StatusConflict, mq.CodeConflict, false},
	mq.KindOverloaded:  {http.StatusTooManyRequests, mq.CodeOverloaded, true},
	mq.KindBusy:        {http.StatusServiceUnavailable, mq.CodeRetry, true},
	mq.KindUnavailable: {http.StatusServiceUnavailable, mq.CodeRetry, true},
	mq.KindTimeout:     {http.StatusServiceUnavailable, mq.CodeTimeout, true},
	mq.KindUnknown:     {http.StatusServiceUnavailable, mq.CodeOutcomeUnknown, true},
}

// refusalOf says how an error is answered. What is not known to be safe to
// show becomes a bare 500 whose cause goes to the log.
func refusalOf(err error) *refusal {
	var ref *refusal
	if errors.As(err, &ref) {
		return ref
	}
	var e *mq.Error
	if errors.As(err, &e) {
		if to, ok := statuses[e.Kind]; ok {
			ref = &refusal{status: to.status, code: to.code, message: e.Message, field: e.Field, cause: e.Err}
			if e.Code != "" {
				ref.code = e.Code
			}
			if to.repeat {
				ref.retryAfter = max(e.RetryAfter, time.Second)
			}
			return ref
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &refusal{
			status: http.StatusServiceUnavailable, code: mq.CodeTimeout, retryAfter: time.Second,
			message: "the call was not finished in time", cause: err,
		}
	}
	return &refusal{status: http.StatusInternalServerError, code: mq.CodeInternal, message: "internal error", cause: err}
}

func badBody(field, format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, code: mq.CodeBadBody, field: field, message: fmt.Sprintf(format, args...)}
}

func badRequest(field, format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, code: mq.CodeBadRequest, field: field, message: fmt.Sprintf(format, args...)}
}

func notFound(message string) error {
	return &refusal{status: http.StatusNotFound, code: mq.CodeNotFound, message: message}
}

func tooLarge(limit int64) error {
	return &refusal{
		status: http.StatusRequestEntityTooLarge, code: mq.CodePayloadTooLarge,
		message: "the request body is larger than " + strconv.FormatInt(limit, 10) + " bytes",
	}
}

func overloaded(message string) error {
	return &refusal{
		status: http.StatusTooManyRequests, code: mq.CodeOverloaded, message: message, retryAfter: time.Second,
	}
}

// keys adds the members of an error body to an object.
func (e *refusal) keys(b []byte) []byte {
	b = str(key(b, "error"), e.message)
	if e.code != "" {
		b = str(key(b, "code"), e.code)
	}
	if e.field != "" {
		b = str(key(b, "field"), e.field)
	}
	return b
}

// head sets the headers of a refusal.
func (e *refusal) head(h http.Header) {
	if e.retryAfter > 0 {
		seconds := int64((e.retryAfter + time.Second - 1) / time.Second)
		h.Set("Retry-After", strconv.FormatInt(max(seconds, 1), 10))
	}
	if e.allow != "" {
		h.Set("Allow", e.allow)
	}
}
