package mq

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of timers. Payload size and horizon are settings.
const (
	MaxTimerOps             = 256
	MaxTimerKeyBytes        = 512
	MaxTimerPrefixBytes     = 128
	DefaultTimerPayload     = 1 << 20
	DefaultTimerHorizon     = 90 * 24 * time.Hour
	MaxTimerAttempts        = 5
	TimerGroup              = "__timer__" // of a dead letter that a timer left
	maxTimerAge             = 365 * 24 * time.Hour
	timerBackoffMost        = 60 * time.Second
	timerPrefix             = "QTIMER " // what a reason that is prose begins with
	CodeTimersBadRequest    = "timers_bad_request"
	CodeTimerHorizon        = "timer_horizon_exceeded"
	CodeTimersDisabled      = "timers_disabled"
	ReasonTimersBadBody     = "timers_bad_body"
	ReasonTimersBadOp       = "timers_bad_op"
	ReasonTimersQueue       = "timers_queue_required"
	ReasonTimersDelay       = "timers_delay_required"
	ReasonTimersPayload     = "timers_payload_required"
	ReasonTimersBase64      = "timers_payload_not_base64"
	ReasonTimersEncrypted   = "timers_encrypted_conflict"
	ReasonTimersServerOwned = "timers_server_owned_field"
	ReasonTimersTooMany     = "timers_too_many_ops"
	ReasonTimersHorizon     = "timers_horizon"
	ReasonTimersTooLarge    = "timers_payload_too_large"
)

// TimerRefusal says why a call about timers was refused before anything of it
// was done. Code and Reason are what a client branches on.
type TimerRefusal struct {
	Code   string
	Reason string
	Detail string
}

func (e *TimerRefusal) Error() string { return e.Detail }

// BadTimer refuses a call because of op i, with a reason that is stable.
func BadTimer(i int, reason, format string, args ...any) error {
	return &TimerRefusal{Code: CodeTimersBadRequest, Reason: reason, Detail: timerPlace(i) + fmt.Sprintf(format, args...)}
}

// OddTimer refuses a call because of op i where the reason is prose.
func OddTimer(i int, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &TimerRefusal{Code: CodeTimersBadRequest, Reason: timerPrefix + text, Detail: timerPlace(i) + text}
}

func timerPlace(i int) string {
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("operations[%d]: ", i)
}

// TimerLimits are the settings that bound a timer.
type TimerLimits struct {
	Payload int           // bytes, decoded
	Horizon time.Duration // longest delay
}

// WithDefaults replaces what is not set.
func (l TimerLimits) WithDefaults() TimerLimits {
	if l.Payload <= 0 {
		l.Payload = DefaultTimerPayload
	}
	if l.Horizon <= 0 {
		l.Horizon = DefaultTimerHorizon
	}
	return l
}

// TimerOp is one operation: a schedule, which replaces the timer there is, or a
// cancel.
type TimerOp struct {
	Cancel        bool
	Queue         string
	Key           string
	Partition     string        // never empty in a schedule
	TransactionID string        // of a cancel: echoed when there was nothing
	Delay         time.Duration // in microseconds; below zero is due at once
	Payload       []byte
	Encrypted     bool // the payload is ciphertext of the producer's
	MessageID     UUID // promised; see NewTimerCall
}

// CheckTimers holds ops to the rules that need all of them or the limits.
func (l TimerLimits) CheckTimers(ops []TimerOp) error {
	if len(ops) > MaxTimerOps {
		return BadTimer(-1, ReasonTimersTooMany, "%d operations, at most %d are allowed", len(ops), MaxTimerOps)
	}
	type identity struct{ queue, key string }
	seen := make(map[identity]int, len(ops))
	for i := range ops {
		op := &ops[i]
		if err := l.check(i, op); err != nil {
			return err
		}
		id := identity{op.Queue, op.Key}
		if first, twice := seen[id]; twice {
			return OddTimer(i, "the timer is named by operation %d of this call too", first)
		}
		seen[id] = i
	}
	return nil
}

func (l TimerLimits) check(i int, op *TimerOp) error {
	switch {
	case op.Queue == "":
		return BadTimer(i, ReasonTimersQueue, "queue is required")
	case CheckName("queue", op.Queue) != nil:
		return OddTimer(i, "queue holds a control character")
	case CheckNameLengths("queue", op.Queue, op.Partition) != nil:
		return OddTimer(i, "queue and partition together are longer than %d bytes", MaxNameBytes-36)
	case op.Key == "":
		return OddTimer(i, "timerKey is required")
	case !validTimerKey(op.Key):
		return OddTimer(i, "timerKey is longer than %d bytes, holds NUL or is not UTF-8", MaxTimerKeyBytes)
	case CheckName("txn", op.TransactionID) != nil || len(op.TransactionID) > MaxTransactionIDBytes:
		return OddTimer(i, "txn is longer than %d bytes or holds a control character", MaxTransactionIDBytes)
	case op.Cancel:
		return nil
	case op.TransactionID == "":
		return OddTimer(i, "txn is required")
	case op.Partition == "" || CheckName("partition", op.Partition) != nil:
		return OddTimer(i, "partition is empty or holds a control character")
	case op.Delay > l.Horizon:
		return &TimerRefusal{
			Code: CodeTimerHorizon, Reason: ReasonTimersHorizon,
			Detail: timerPlace(i) + fmt.Sprintf("delayMs is beyond the horizon of %d s", int64(l.Horizon.Seconds())),
		}
	case len(op.Payload) > l.Payload:
		return TimerTooLarge(i, l.Payload)
	}
	op.Delay = max(op.Delay, -maxTimerAge)
	return nil
}

func validTimerKey(key string) bool {
	return len(key) <= MaxTimerKeyBytes && utf8.ValidString(key) && strings.IndexByte(key, 0) < 0
}

// TimerTooLarge refuses a payload over the limit.
func TimerTooLarge(i, limit int) error {
	return &TimerRefusal{
		Code: CodePayloadTooLarge, Reason: ReasonTimersTooLarge,
		Detail: timerPlace(i) + fmt.Sprintf("payload is larger than %d bytes", limit),
	}
}

// TimerID is the identity of a timer.
type TimerID struct {
	Tenant UUID
	Queue  string
	Key    string
}

// CheckTimerID checks an identity that came by a path.
func CheckTimerID(id TimerID) error {
	op := TimerOp{Cancel: true, Queue: id.Queue, Key: id.Key}
	return TimerLimits{}.check(-1, &op)
}

// TimerStatus says what became of an operation.
type TimerStatus uint8

// What becomes of a schedule (the first two) and of a cancel.
const (
	TimerScheduled TimerStatus = iota
	TimerRescheduled
	TimerCancelled
	TimerAbsent
)

// String returns the wire's word.
func (s TimerStatus) String() string {
	return [...]string{"scheduled", "rescheduled", "cancelled", "absent"}[s]
}

// OK reports whether the operation did what it is for.
func (s TimerStatus) OK() bool { return s != TimerAbsent }

// TimerResult answers an operation.
type TimerResult struct {
	Status        TimerStatus
	TransactionID string    // of an absent timer: what the caller sent, or empty
	MessageID     UUID      // of a schedule
	DeliverAt     time.Time // of a schedule
}

// TimerCall is the operations of one call or transaction, and their answers in
// the same order once it committed.
type TimerCall struct {
	Tenant      UUID
	ProducerSub string
	Ops         []TimerOp
	Results     []TimerResult
}

// NewTimerCall promises each schedule the id of its message.
func NewTimerCall(tenant UUID, producerSub string, ops []TimerOp) *TimerCall {
	for i := range ops {
		if !ops[i].Cancel {
			ops[i].MessageID = NewID()
		}
	}
	return &TimerCall{Tenant: tenant, ProducerSub: producerSub, Ops: ops, Results: make([]TimerResult, len(ops))}
}

// Schedules reports whether the call schedules anything: pauses and quotas
// concern only those that do.
func (c *TimerCall) Schedules() bool {
	for i := range c.Ops {
		if !c.Ops[i].Cancel {
			return true
		}
	}
	return false
}

// Timer is a pending one as it is read.
type Timer struct {
	Queue, Key, Partition string
	DeliverAt             time.Time
	TransactionID         string
	MessageID             UUID
	Encrypted             bool
	ProducerSub           string
	Attempts              int32
	LastError             string
	CreatedAt, UpdatedAt  time.Time
	Payload               []byte // peek only
}

// TimerList asks for a page of the timers of a queue, in the order of the keys.
type TimerList struct {
	Tenant UUID
	Queue  string
	After  string // exclusive
	Limit  int
}

// TimerBody is the message of a timer. Bytes that are not JSON a push would
// take come wrapped.
func TimerBody(payload []byte) []byte {
	if utf8.Valid(payload) && json.Valid(payload) && !deep(payload) {
		return payload
	}
	const head, tail = `{"_raw_b64":"`, `"}`
	b := make([]byte, 0, len(head)+base64.StdEncoding.EncodedLen(len(payload))+len(tail))
	b = base64.StdEncoding.AppendEncode(append(b, head...), payload)
	return append(b, tail...)
}

// deep reports whether valid JSON nests deeper than a payload may.
func deep(p []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			if depth++; depth > MaxPayloadDepth {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

// TimerBackoff is how long after a failed fire the next one comes; earlier is
// how many had failed before it.
func TimerBackoff(earlier int32) time.Duration {
	return min(time.Second<<min(max(earlier, 0), 10), timerBackoffMost)
}
