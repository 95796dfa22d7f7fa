package mq

import (
	"errors"
	"fmt"
	"time"
)

// Kind is the closed list of what can go wrong with a call. A transport maps
// a kind to its status once; nothing else branches on error texts.
type Kind uint8

// The kinds, from "the caller's fault" to "ours".
const (
	KindInternal    Kind = iota // a fault of the broker: 500
	KindInvalid                 // a field is missing or wrong: 400
	KindTooLarge                // over a size limit: 413
	KindForbidden               // not allowed to this caller, or not that much: 403
	KindNotFound                // 404
	KindConflict                // 409
	KindOverloaded              // admission budget full: 429
	KindBusy                    // lock or serialization trouble after bounded retries: 503
	KindUnavailable             // the store cannot be reached, nothing was written: 503
	KindTimeout                 // a deadline passed, the outcome may be unknown: 503
	KindUnknown                 // the connection was lost after COMMIT was sent: 503
)

// Stable codes that clients branch on. They never change meaning.
const (
	CodeBadBody         = "bad_body"
	CodeBadRequest      = "bad_request"
	CodeNoSuchRoute     = "no_such_route"
	CodeForbidden       = "forbidden"
	CodeNotFound        = "not_found"
	CodePayloadTooLarge = "payload_too_large"
	CodeNameTooLong     = "name_too_long"
	CodeOverloaded      = "overloaded"
	CodeConflict        = "conflict"
	CodeRetry           = "retry"
	CodeTimeout         = "timeout"
	CodeOutcomeUnknown  = "outcome_unknown"
	CodeInternal        = "internal"
)

// ErrLockHeld is the cause when a call of several callers' work gave up on a row
// that somebody else holds. Nothing was written.
var ErrLockHeld = errors.New("somebody holds a row")

// Error is a refusal or a fault with everything a transport needs to answer.
type Error struct {
	Kind       Kind
	Code       string        // stable, snake_case
	Message    string        // for people
	Field      string        // the offending field, such as "items[3].queue"; empty when none
	RetryAfter time.Duration // for the kinds a client may repeat
	Err        error         // cause, for the log only
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s", e.Message, e.Err)
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Invalid reports a bad field of the request.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Kind: KindInvalid, Code: CodeBadRequest, Field: field, Message: fmt.Sprintf(format, args...)}
}

// NotFound reports that what the call addresses does not exist.
func NotFound(message string) *Error {
	return &Error{Kind: KindNotFound, Code: CodeNotFound, Message: message}
}

// Unavailable reports that the store cannot be reached.
func Unavailable(err error) *Error {
	return &Error{Kind: KindUnavailable, Code: CodeRetry, Message: "the database is not reachable", RetryAfter: time.Second, Err: err}
}

// KindOf returns the kind carried by err, KindInternal when it carries none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}
