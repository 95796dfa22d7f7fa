package httpapi

import (
	"bytes"
	"encoding/base64"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/zstd"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// serverOwned are members that only the broker may set. So is everything that
// begins with an underscore.
var serverOwned = []string{
	"producerSub", "producer_sub", "messageId", "message_id", "tenant", "tenantId", "tenant_id", "deliverAt",
	"deliver_at", "delaySeconds", "delay_seconds", "attempts", "claimToken", "claim_token", "claimedUntil",
}

// decodeTimerBody reads {"operations":[…]} or the bare array.
func decodeTimerBody(body []byte, limits mq.TimerLimits) (ops []mq.TimerOp, err error) {
	err = decode(body, func(d *decoder) error {
		if d.dec.PeekKind() == '[' {
			ops, err = d.timerOps(limits)
			return err
		}
		seen, err := object(d, place{}, []field[[]mq.TimerOp]{
			{"operations", func(d *decoder, _ place, into *[]mq.TimerOp) (err error) {
				*into, err = d.timerOps(limits)
				return err
			}},
		}, &ops)
		if err == nil && seen == 0 {
			return badBody("operations", "operations is required")
		}
		return err
	})
	return ops, err
}

// decodeTimerOps reads an array of operations, such as a transaction's; null
// and nothing at all are an empty one. Errors are those of the timers routes.
func decodeTimerOps(raw []byte, limits mq.TimerLimits) (ops []mq.TimerOp, err error) {
	if blank(raw) || string(raw) == "null" {
		return nil, nil
	}
	err = decode(raw, func(d *decoder) error {
		ops, err = d.timerOps(limits)
		return err
	})
	return ops, err
}

// timerOps reads and checks operations. The payloads are copies.
func (d *decoder) timerOps(limits mq.TimerLimits) ([]mq.TimerOp, error) {
	limits = limits.WithDefaults()
	var ops []mq.TimerOp
	err := d.list(place{key: "operations"}, func(i int) error {
		if i >= mq.MaxTimerOps {
			return mq.BadTimer(-1, mq.ReasonTimersTooMany, "more than %d operations", mq.MaxTimerOps)
		}
		op, err := d.timerOp(i, limits)
		if err == nil {
			ops = append(ops, op)
		}
		return err
	})
	if err == nil {
		err = limits.CheckTimers(ops)
	}
	return ops, err
}

// timerMembers is an operation as it was sent.
type timerMembers struct {
	strings map[string]string
	delay   string // the number
	payload jsontext.Value
	flags   map[string]bool
}

// timerOp reads one operation.
func (d *decoder) timerOp(i int, limits mq.TimerLimits) (mq.TimerOp, error) {
	var op mq.TimerOp
	m, err := d.timerMembers(i)
	if err != nil {
		return op, err
	}
	switch m.strings["op"] {
	case "":
		return op, mq.BadTimer(i, mq.ReasonTimersBadOp, "op is required")
	case "cancel":
		return mq.TimerOp{
			Cancel: true, Queue: m.strings["queue"], Key: m.strings["timerKey"], TransactionID: m.strings["txn"],
		}, nil
	case "schedule", "reschedule":
	default:
		return op, mq.OddTimer(i, "op is %.32q, not schedule, reschedule or cancel", m.strings["op"])
	}
	op = mq.TimerOp{
		Queue: m.strings["queue"], Key: m.strings["timerKey"], TransactionID: m.strings["txn"],
		Partition: mq.DefaultPartition, Encrypted: m.flags["encrypted"],
	}
	if p, given := m.strings["partition"]; given {
		op.Partition = p
	}
	switch {
	case op.Queue == "":
		return op, mq.BadTimer(i, mq.ReasonTimersQueue, "queue is required")
	case m.delay == "":
		return op, mq.BadTimer(i, mq.ReasonTimersDelay, "delayMs is required and a number")
	case m.payload == nil:
		return op, mq.BadTimer(i, mq.ReasonTimersPayload, "payload is required and a string")
	}
	if op.Delay, err = timerDelay(i, m.delay); err != nil {
		return op, err
	}
	op.Payload, err = timerPayload(i, m.payload, m.flags["payloadZstd"], limits.Payload)
	return op, err
}

// timerMembers reads the members there are, each of the type it has to be.
func (d *decoder) timerMembers(i int) (*timerMembers, error) {
	switch d.dec.PeekKind() {
	case '{':
	case 0:
		return nil, d.mismatch(place{}, "an array of objects")
	default:
		return nil, mq.BadTimer(i, mq.ReasonTimersBadOp, "an operation must be an object")
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return nil, d.syntax(err)
	}
	m := &timerMembers{strings: map[string]string{}, flags: map[string]bool{}}
	given := map[string]bool{}
	for d.dec.PeekKind() != '}' {
		v, err := d.dec.ReadValue()
		if err != nil {
			return nil, d.syntax(err)
		}
		quoted, _ := jsontext.AppendUnquote(nil, v)
		name := string(quoted)
		if strings.HasPrefix(name, "_") || slices.Contains(serverOwned, name) {
			return nil, mq.BadTimer(i, mq.ReasonTimersServerOwned, "%.64q is set by the server", name)
		}
		if given[name] {
			return nil, badBody(name, "bad body: operations[%d] has %.64q twice", i, name)
		}
		given[name] = true
		if err := d.timerMember(i, name, m); err != nil {
			return nil, err
		}
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return nil, d.syntax(err)
	}
	return m, nil
}

// timerMember reads one member. A null stands for none, and so does a value of
// the wrong type where none has a reason of its own.
func (d *decoder) timerMember(i int, name string, m *timerMembers) error {
	v, err := d.value()
	if err != nil {
		return err
	}
	kind := jsontext.Value(v).Kind()
	if kind == 'n' {
		return nil
	}
	switch name {
	case "op", "queue", "timerKey", "txn", "partition":
		if kind != '"' {
			if name == "op" || name == "queue" {
				return nil // required, and said so
			}
			return mq.OddTimer(i, "%s must be a string", name)
		}
		text, err := jsontext.AppendUnquote(nil, v)
		if err != nil {
			return mq.OddTimer(i, "%s holds a lone surrogate", name)
		}
		m.strings[name] = string(text)
	case "delayMs":
		if kind == '0' {
			m.delay = string(v)
		}
	case "payload":
		if kind == '"' {
			m.payload = v
		}
	case "payloadZstd", "encrypted":
		if kind != 't' && kind != 'f' {
			return mq.OddTimer(i, "%s must be true or false", name)
		}
		m.flags[name] = kind == 't'
	}
	return nil
}

// timerDelay reads milliseconds, with fractions down to a microsecond.
func timerDelay(i int, number string) (time.Duration, error) {
	const most = float64(math.MaxInt64/1000) / 1e3 // milliseconds that fit a time.Duration
	ms, err := strconv.ParseFloat(number, 64)
	if err != nil && !math.IsInf(ms, 0) {
		return 0, mq.BadTimer(i, mq.ReasonTimersDelay, "delayMs is not a number")
	}
	ms = min(max(ms, -most/2), most/2)
	return time.Duration(math.Round(ms*1000)) * time.Microsecond, nil
}

// timerPayload decodes a payload, and unpacks it.
func timerPayload(i int, v jsontext.Value, packed bool, limit int) ([]byte, error) {
	text := []byte(v[1 : len(v)-1])
	if bytes.IndexByte(text, '\\') >= 0 {
		var err error
		if text, err = jsontext.AppendUnquote(nil, v); err != nil {
			return nil, mq.BadTimer(i, mq.ReasonTimersBase64, "payload is not base64")
		}
	}
	if !packed && base64.StdEncoding.DecodedLen(len(text)) > limit+2 {
		return nil, mq.TimerTooLarge(i, limit)
	}
	// Line breaks, which the decoder skips, are not part of the alphabet.
	if slices.ContainsFunc(text, func(c byte) bool { return c == '\n' || c == '\r' }) {
		return nil, mq.BadTimer(i, mq.ReasonTimersBase64, "payload is not base64")
	}
	out, err := base64.StdEncoding.AppendDecode(make([]byte, 0, base64.StdEncoding.DecodedLen(len(text))), text)
	if err != nil {
		return nil, mq.BadTimer(i, mq.ReasonTimersBase64, "payload is not base64")
	}
	if packed {
		return unpack(i, out, limit)
	}
	return out, nil
}

// maxZstdWindow is the largest a zstd program asks for unless it is made to. The
// window takes no memory here: what was unpacked serves as one.
const maxZstdWindow = 128 << 20

var unpacker = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecodeAllCapLimit(true))
})

// roomPool holds room to unpack into, of the limit's size: a small payload can
// say that it grows to anything.
var roomPool = sync.Pool{New: func() any { return new([]byte) }}

func unpack(i int, packed []byte, limit int) ([]byte, error) {
	dec, err := unpacker()
	if err != nil {
		return nil, err
	}
	room := roomPool.Get().(*[]byte)
	defer roomPool.Put(room)
	if cap(*room) < limit {
		*room = make([]byte, 0, limit)
	}
	out, err := dec.DecodeAll(packed, (*room)[:0:limit])
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, mq.TimerTooLarge(i, limit)
	case err != nil:
		return nil, mq.OddTimer(i, "payload is not zstd, as payloadZstd says")
	}
	return bytes.Clone(out), nil
}
