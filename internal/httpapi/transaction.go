package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// emptyPayload is what a push of a bundle carries that names none.
var emptyPayload = []byte("{}")

func (s *server) transaction(w *response, r *http.Request) error {
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.free()
	bundle, err := s.readBundle(body.data, callerOf(r))
	if err != nil {
		return refusedBundle(w, err)
	}
	res, err := s.b.Transact(r.Context(), bundle)
	if err != nil {
		return refusedBundle(w, err)
	}
	if res.Reason == "" {
		s.countBundle(&bundle)
	}
	return w.json(http.StatusOK, func(b []byte) []byte { return appendBundleResult(b, &bundle, res) })
}

func (s *server) countBundle(in *mq.Bundle) {
	pushes := 0
	for i := range in.Ops {
		if in.Ops[i].Push != nil {
			pushes++
		}
	}
	if pushes > 0 {
		s.metrics.Messages("push", pushes)
	}
	if acks := len(in.Ops) - pushes; acks > 0 {
		s.metrics.Messages("ack", acks)
	}
}

// readBundle decodes a bundle with its riders.
func (s *server) readBundle(data []byte, c Caller) (mq.Bundle, error) {
	in, err := decodeBundle(data)
	if err != nil {
		return in.Bundle, err
	}
	in.Tenant, in.ProducerSub = c.Tenant, c.Subject
	if in.kv != nil {
		ops, err := s.decodeKVOps(in.kv, true)
		if err != nil {
			return in.Bundle, err
		}
		if len(ops) > 0 {
			in.KV = &mq.KVCall{Tenant: c.Tenant, Ops: ops}
		}
	}
	if in.timers != nil {
		ops, err := decodeTimerOps(in.timers, s.o.Timers)
		if err != nil {
			return in.Bundle, err
		}
		if len(ops) > 0 {
			in.Timers = mq.NewTimerCall(c.Tenant, c.Subject, ops)
		}
	}
	return in.Bundle, nil
}

// refusedBundle answers a bundle that was refused before anything was looked
// at, in the shape of one that was rolled back. Riders give their own reasons;
// one whose surface is turned off will not work until something changes. What
// is no refusal keeps its own answer.
func refusedBundle(w *response, err error) error {
	status, reason := http.StatusBadRequest, mq.BundleBadRequest
	bad := refusalOf(err)
	var timer *mq.TimerRefusal
	var known *mq.Error
	switch {
	case errors.As(err, &timer):
		status, reason = timerBundle(timer)
	case bad.code == "kv_disabled":
		status, reason = http.StatusForbidden, bad.code
	case errors.As(err, &known) && strings.HasPrefix(known.Code, "kv_") && (known.Kind == mq.KindInvalid || known.Kind == mq.KindTooLarge):
		status, reason = bad.status, known.Code
	case bad.status != http.StatusBadRequest:
		return err
	}
	res := &mq.BundleResult{ID: mq.NewID(), Reason: reason, Error: bad.message}
	return w.json(status, func(b []byte) []byte { return appendBundleResult(b, nil, res) })
}

func timerBundle(ref *mq.TimerRefusal) (status int, reason string) {
	switch {
	case ref.Code == mq.CodeTimersDisabled:
		return http.StatusForbidden, ref.Code
	case ref.Code != mq.CodeTimersBadRequest:
		return http.StatusOK, ref.Code // beyond the horizon, too large
	case strings.HasPrefix(ref.Reason, "timers_"):
		return http.StatusBadRequest, ref.Reason
	default:
		return http.StatusBadRequest, mq.BundleBadRequest
	}
}

func appendBundleResult(b []byte, in *mq.Bundle, res *mq.BundleResult) []byte {
	b = uuid(key(append(b, '{'), "transactionId"), res.ID)
	b = boolean(key(b, "success"), res.Reason == "")
	if res.Reason != "" {
		if res.Failed != nil {
			b = boolean(key(b, "ok"), false)
		}
		b = str(key(b, "reason"), res.Reason)
		b = str(key(b, "error"), res.Error)
		b = append(key(b, "results"), "[]"...)
		if f := res.Failed; f != nil {
			flat := *f
			flat.Index += len(in.Ops)
			b = appendKVVerdict(b, &flat)
		}
		return append(b, '}')
	}
	b = slices.Grow(b, 200*len(res.Ops))
	b = append(key(b, "results"), '[')
	for i := range res.Ops {
		b = appendBundleOp(elem(b), i, &in.Ops[i], &res.Ops[i])
	}
	index := len(res.Ops)
	if in.KV != nil {
		for i := range in.KV.Results {
			b = append(appendKVResult(appendRider(b, index, "kv", i), &in.KV.Results[i]), '}')
			index++
		}
	}
	if in.Timers != nil {
		for i := range in.Timers.Results {
			b = append(appendTimerResult(appendRider(b, index, "timer", i), &in.Timers.Ops[i], &in.Timers.Results[i]), '}')
			index++
		}
	}
	return append(b, ']', '}')
}

// appendRider begins the answer to a rider's operation: its place among all
// results, and among those of its kind.
func appendRider(b []byte, index int, kind string, op int) []byte {
	b = num(key(append(elem(b), '{'), "index"), index)
	b = str(key(b, "type"), kind)
	return num(key(b, "opIndex"), op)
}

func appendBundleOp(b []byte, index int, op *mq.BundleOp, res *mq.BundleOpResult) []byte {
	b = num(key(append(b, '{'), "index"), index)
	if op.Ack != nil {
		b = str(key(b, "type"), "ack")
		b = boolean(key(b, "success"), true)
		b = str(key(b, "transactionId"), res.TransactionID)
		b = null(key(b, "error"))
		b = boolean(key(b, "dlq"), res.DLQ)
		return append(b, '}')
	}
	b = str(key(b, "type"), "push")
	b = boolean(key(b, "success"), true)
	b = str(key(b, "transactionId"), res.TransactionID)
	b = uuid(key(b, "messageId"), res.MessageID)
	b = str(key(b, "queueName"), op.Push.Queue)
	if res.Duplicate {
		b = boolean(key(b, "duplicate"), true)
	}
	return append(b, '}')
}

// bundleBody is a bundle while it is read.
type bundleBody struct {
	mq.Bundle
	kv, timers []byte
}

// bundleOp is an operation while it is read: the members of both kinds.
type bundleOp struct {
	kind  string
	push  pushItem
	data  []byte
	items []pushItem
	ack   ackItem
	list  bool // items was there
}

var bundleFields = []field[bundleBody]{
	{"operations", func(d *decoder, at place, in *bundleBody) error {
		if isNull, err := d.null(); isNull || err != nil {
			return err
		}
		return d.list(at, func(i int) error {
			var op bundleOp
			at := place{list: "operations", index: i}
			if _, err := object(d, at, bundleOpFields, &op); err != nil {
				return err
			}
			return op.into(at, in)
		})
	}},
	{"requiredLeases", func(d *decoder, at place, in *bundleBody) error {
		if isNull, err := d.null(); isNull || err != nil {
			return err
		}
		return d.list(at, func(i int) error {
			l, set, err := d.name(place{list: "requiredLeases", index: i}, "")
			if set {
				in.RequiredLeases = append(in.RequiredLeases, l)
			}
			return err
		})
	}},
	{"kv", func(d *decoder, at place, in *bundleBody) (err error) {
		in.kv, err = d.rider(at)
		return err
	}},
	{"timers", func(d *decoder, at place, in *bundleBody) (err error) {
		in.timers, err = d.rider(at)
		return err
	}},
	{"positions", func(d *decoder, at place, _ *bundleBody) error {
		if isNull, err := d.null(); isNull || err != nil {
			return err
		}
		return d.list(at, func(int) error {
			// Passing them over in silence would lose the position of a reader.
			return badRequest(at.String(), "%s is not served", at)
		})
	}},
}

// rider reads an optional array and returns its text; nil for none. What is in
// it is judged by the rules of its own surface.
func (d *decoder) rider(at place) ([]byte, error) {
	if isNull, err := d.null(); isNull || err != nil {
		return nil, err
	}
	if d.dec.PeekKind() != '[' {
		return nil, d.mismatch(at, "an array")
	}
	return d.value()
}

// The members of an operation. Both kinds know transactionId.
var bundleOpFields = slices.Concat([]field[bundleOp]{
	{"type", func(d *decoder, at place, op *bundleOp) (err error) {
		op.kind, _, err = d.text(at, "", false)
		return err
	}},
	{"items", func(d *decoder, at place, op *bundleOp) error {
		if isNull, err := d.null(); isNull || err != nil {
			return err
		}
		op.list = true
		return d.list(at, func(i int) error {
			it := bundleOp{}
			_, err := object(d, place{list: at.String(), index: i}, bundleItemFields, &it)
			it.push.Payload = it.payload()
			op.items = append(op.items, it.push)
			return err
		})
	}},
	{"partitionId", func(d *decoder, at place, op *bundleOp) (err error) {
		op.ack.PartitionID, _, err = d.name(at, "")
		return err
	}},
	{"leaseId", func(d *decoder, at place, op *bundleOp) (err error) {
		op.ack.LeaseID, _, err = d.name(at, "")
		return err
	}},
	{"status", func(d *decoder, at place, op *bundleOp) error {
		status, set, err := d.text(at, "completed", true)
		if set {
			op.ack.Status = mq.ParseAckStatus(status)
		}
		return err
	}},
	{"error", func(d *decoder, at place, op *bundleOp) (err error) {
		op.ack.Error, _, err = d.text(at, "", true)
		return err
	}},
	{"consumerGroup", func(d *decoder, at place, op *bundleOp) (err error) {
		op.ack.group, _, err = d.name(at, "")
		return err
	}},
}, bundleItemFields)

var bundleItemFields = []field[bundleOp]{
	{"queue", func(d *decoder, at place, op *bundleOp) (err error) {
		op.push.Queue, op.push.hasQueue, err = d.name(at, "")
		return err
	}},
	{"partition", func(d *decoder, at place, op *bundleOp) (err error) {
		op.push.Partition, _, err = d.name(at, "")
		return err
	}},
	{"payload", func(d *decoder, at place, op *bundleOp) (err error) {
		op.push.Payload, err = d.payload(at)
		return err
	}},
	{"data", func(d *decoder, at place, op *bundleOp) (err error) {
		op.data, err = d.payload(at)
		return err
	}},
	{"transactionId", func(d *decoder, at place, op *bundleOp) (err error) {
		op.push.TransactionID, _, err = d.name(at, "")
		op.ack.TransactionID = op.push.TransactionID
		return err
	}},
	{"traceId", func(d *decoder, _ place, op *bundleOp) error {
		v, err := d.value()
		if err == nil && len(v) == 38 && v[0] == '"' {
			op.push.TraceID, _ = mq.ParseUUID(string(v[1:37]))
		}
		return err
	}},
}

// payload is what a push carries: payload, else data, else an empty object.
func (op *bundleOp) payload() []byte {
	switch {
	case op.push.Payload != nil:
		return op.push.Payload
	case op.data != nil:
		return op.data
	default:
		return emptyPayload
	}
}

// into adds the operation's steps to the bundle.
func (op *bundleOp) into(at place, in *bundleBody) error {
	switch op.kind {
	case "ack":
		a := &mq.BundleAck{AckItem: op.ack.AckItem, Group: mq.GroupOrDefault(op.ack.group)}
		in.Ops = append(in.Ops, mq.BundleOp{Ack: a})
		return nil
	case "push":
		if !op.list {
			op.push.Payload = op.payload()
			op.items = []pushItem{op.push}
		}
		for i := range op.items {
			if err := op.items[i].intoBundle(at, in); err != nil {
				return err
			}
		}
		return nil
	default:
		at.key = "type"
		return badRequest(at.String(), "%s must be push or ack, got %q", at, op.kind)
	}
}

func (it *pushItem) intoBundle(at place, in *bundleBody) error {
	if it.Partition == "" {
		it.Partition = mq.DefaultPartition
	}
	if len(it.TransactionID) > mq.MaxTransactionIDBytes {
		at.key = "transactionId"
		return badRequest(at.String(), "%s is longer than %d bytes", at, mq.MaxTransactionIDBytes)
	}
	at.key = "queue"
	if err := mq.CheckNameLengths(at.String(), it.Queue, it.Partition); err != nil {
		return err
	}
	p := it.PushItem
	in.Ops = append(in.Ops, mq.BundleOp{Push: &p})
	return nil
}

// decodeBundle reads a bundle, its riders as text. The payloads are slices of
// the body.
func decodeBundle(body []byte) (bundleBody, error) {
	var in bundleBody
	err := decode(body, func(d *decoder) error {
		_, err := object(d, place{}, bundleFields, &in)
		return err
	})
	return in, err
}
