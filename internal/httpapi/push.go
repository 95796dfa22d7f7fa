package httpapi

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func (s *server) push(w *response, r *http.Request) error {
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	items, err := decodePush(body.data)
	if err != nil {
		body.free()
		return err
	}
	var results []mq.PushResult
	if len(items) > 0 {
		c := callerOf(r)
		results, err = s.b.Push(r.Context(), mq.Push{Tenant: c.Tenant, ProducerSub: c.Subject, Items: items})
		if err != nil {
			// A batch that outlives this call may still read the payloads.
			body.abandon()
			return err
		}
	}
	body.free()
	if len(results) != len(items) {
		return fmt.Errorf("push: %d results for %d items", len(results), len(items))
	}
	s.metrics.Messages("push", len(items))
	return w.json(http.StatusCreated, func(b []byte) []byte { return appendPushResults(b, items, results) })
}

func appendPushResults(b []byte, items []mq.PushItem, results []mq.PushResult) []byte {
	b = slices.Grow(b, 200*len(results)+2)
	b = append(b, '[')
	for i := range results {
		b = append(elem(b), '{')
		b = append(appendPushResult(b, i, items[i].Queue, &results[i]), '}')
	}
	return append(b, ']')
}

func appendPushResult(b []byte, index int, queue string, res *mq.PushResult) []byte {
	b = num(key(b, "index"), index)
	b = uuid(key(b, "message_id"), res.MessageID)
	b = str(key(b, "transaction_id"), res.TransactionID)
	b = str(key(b, "queueName"), queue)
	b = str(key(b, "status"), res.Status.String())
	if res.Status == mq.PushError {
		return str(key(b, "error"), res.Error)
	}
	return num(key(b, "offset"), res.Offset)
}

type pushBody struct {
	items []mq.PushItem
}

var pushFields = []field[pushBody]{
	{"items", func(d *decoder, at place, p *pushBody) error {
		var it pushItem // one for all: it would be allocated for every item
		return d.list(at, func(i int) error {
			it = pushItem{last: it.PushItem}
			if err := d.pushItem(place{list: "items", index: i}, &it); err != nil {
				return err
			}
			p.items = append(p.items, it.PushItem)
			return nil
		})
	}},
}

var pushItemFields = []field[pushItem]{
	{"queue", func(d *decoder, at place, it *pushItem) (err error) {
		it.Queue, it.hasQueue, err = d.name(at, it.last.Queue)
		return err
	}},
	{"partition", func(d *decoder, at place, it *pushItem) (err error) {
		it.Partition, _, err = d.name(at, it.last.Partition)
		return err
	}},
	{"payload", func(d *decoder, at place, it *pushItem) (err error) {
		it.Payload, err = d.payload(at)
		return err
	}},
	{"transactionId", func(d *decoder, at place, it *pushItem) (err error) {
		it.TransactionID, _, err = d.name(at, "")
		return err
	}},
	{"traceId", func(d *decoder, _ place, it *pushItem) error {
		// Anything is accepted here; only an identifier is kept.
		v, err := d.value()
		if err == nil && len(v) == 38 && v[0] == '"' {
			it.TraceID, _ = mq.ParseUUID(string(v[1:37]))
		}
		return err
	}},
}

// pushItem is an item while it is read; last is the one before, whose names
// are likely the same.
type pushItem struct {
	mq.PushItem
	hasQueue bool
	last     mq.PushItem
}

// decodePush reads a push body whole, or says what is wrong with it. The
// payloads are slices of the body.
func decodePush(body []byte) ([]mq.PushItem, error) {
	var items []mq.PushItem
	err := decode(body, func(d *decoder) error {
		p := pushBody{items: d.items[:0]}
		seen, err := object(d, place{}, pushFields, &p)
		d.items = p.items
		switch {
		case err != nil:
			return err
		case seen == 0:
			return badRequest("items", "items is required")
		}
		items = slices.Clone(p.items)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// pushItem reads and checks one item.
func (d *decoder) pushItem(at place, it *pushItem) error {
	if _, err := object(d, at, pushItemFields, it); err != nil {
		return err
	}
	member := func(key string) string { at.key = key; return at.String() }
	switch {
	case !it.hasQueue:
		return badRequest(member("queue"), "%s is required", member("queue"))
	case it.Payload == nil:
		return badRequest(member("payload"), "%s is required", member("payload"))
	case len(it.TransactionID) > mq.MaxTransactionIDBytes:
		return badRequest(member("transactionId"), "%s is longer than %d bytes", member("transactionId"), mq.MaxTransactionIDBytes)
	}
	if it.Partition == "" {
		it.Partition = mq.DefaultPartition
	}
	if mq.CheckNameLengths("", it.Queue, it.Partition) != nil {
		return mq.CheckNameLengths(member("queue"), it.Queue, it.Partition)
	}
	return nil
}
