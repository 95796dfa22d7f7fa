package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq-go/queenmq/internal/mq"
)

var (
	errQueued           = errors.New("queued into a batch")
	errStatementTimeout = errors.New("statement timeout")
	errPoolTimeout      = errors.New("no database connection became free in time")
	errNoSlice          = errors.New("no slice of message_ids for now")
)

// stateReadOnly is what a server that takes no writes answers to one.
const stateReadOnly = "25006"

// notSentError marks a failure before anything reached the server.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// translate is the only place that reads SQLSTATE. It returns nil for nil, the
// error itself when it is an mq.Error already, and else an mq.Error that says
// whose fault it was and whether the caller may repeat.
func translate(err error) error {
	if err == nil {
		return nil
	}
	var known *mq.Error
	if errors.As(err, &known) {
		return err
	}
	var pg *pgconn.PgError
	var noConnection *pgconn.ConnectError
	if errors.As(err, &noConnection) && (!errors.As(err, &pg) || !refusesForGood(pg.Code)) {
		return mq.Unavailable(err)
	}
	if errors.As(err, &pg) {
		return translateState(pg, err)
	}
	var unsent *notSentError
	switch {
	case errors.Is(err, errPoolTimeout):
		return &mq.Error{Kind: mq.KindUnavailable, Code: mq.CodeRetry, Message: "all connections to the database are in use", RetryAfter: time.Second, Err: err}
	case errors.As(err, &unsent), pgconn.SafeToRetry(err):
		return mq.Unavailable(err)
	case errors.Is(err, pgx.ErrNoRows):
		return &mq.Error{Kind: mq.KindNotFound, Code: mq.CodeNotFound, Message: "not found", Err: err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errStatementTimeout):
		return &mq.Error{Kind: mq.KindTimeout, Code: mq.CodeTimeout, Message: "the database did not answer in time", RetryAfter: time.Second, Err: err}
	default:
		// The connection was lost with a transaction under way: it may have
		// committed.
		return &mq.Error{Kind: mq.KindUnknown, Code: mq.CodeOutcomeUnknown, Message: "the connection to the database was lost; a write may have happened", RetryAfter: time.Second, Err: err}
	}
}

// refusesForGood tells a mistake in the address or the password from a server
// that takes no connection now, for reasons as odd as a disk that is full.
func refusesForGood(state string) bool {
	return strings.HasPrefix(state, "28") || state == "3D000" || state == "42501"
}

func translateState(pg *pgconn.PgError, err error) error {
	state := pg.Code
	switch {
	case state == "55P03":
		return &mq.Error{Kind: mq.KindBusy, Code: mq.CodeRetry, Message: "the database is busy", RetryAfter: time.Second, Err: fmt.Errorf("%w: %w", mq.ErrLockHeld, err)}
	case state == "40001", state == "40P01":
		return &mq.Error{Kind: mq.KindBusy, Code: mq.CodeRetry, Message: "the database is busy", RetryAfter: time.Second, Err: err}
	case state == "57014":
		return &mq.Error{Kind: mq.KindTimeout, Code: mq.CodeTimeout, Message: "the database did not answer in time", RetryAfter: time.Second, Err: err}
	case strings.HasPrefix(state, "08"), strings.HasPrefix(state, "57P"), strings.HasPrefix(state, "53"),
		state == stateReadOnly, strings.HasPrefix(state, "58"):
		return mq.Unavailable(err)
	case strings.HasPrefix(state, "22"):
		// Should have been refused at the edge: worth a look in the log.
		return &mq.Error{Kind: mq.KindInvalid, Code: mq.CodeBadRequest, Message: "the database refused a value", Err: err}
	default:
		return &mq.Error{Kind: mq.KindInternal, Code: mq.CodeInternal, Message: "database error " + state, Err: err}
	}
}

// maxReplans bounds the repeats of a statement whose plan is out of date.
const maxReplans = 4

// retryStale repeats fn where a repeat is certain to be harmless: a cached plan
// that a migration outdated, and a transaction that lost a deadlock or a
// serialization race, were both rolled back. The latter is repeated as long as
// there is time: a push can lose several times in a row against applications
// that push to its partitions in an order of their own (queen.push).
//
// relock repeats what gave up waiting for a row that somebody holds, too.
func retryStale(ctx context.Context, relock bool, fn func() error) error {
	replans := 0
	for attempt := 0; ; attempt++ {
		err := fn()
		var pg *pgconn.PgError
		if !errors.As(err, &pg) {
			return translate(err)
		}
		again := false
		switch pg.Code {
		case "0A000", "26000": // cached plan must not change; prepared statement gone
			replans++
			again = replans < maxReplans
		case "40001", "40P01":
			again = pause(ctx, attempt)
		case "55P03":
			again = relock && pause(ctx, attempt)
		case "23514":
			if strings.HasPrefix(pg.TableName, "message_ids") {
				return errNoSlice
			}
		}
		if !again {
			return translate(err)
		}
	}
}

// pause waits before another attempt, longer each time and never as long as
// those it collided with. False: there is no time for another.
func pause(ctx context.Context, attempt int) bool {
	most := 2 * time.Millisecond << min(attempt, 6)
	t := time.NewTimer(time.Millisecond + rand.N(most))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
