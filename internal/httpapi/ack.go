package httpapi

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func (s *server) ack(w *response, r *http.Request) error {
	return s.acknowledge(w, r, decodeAck)
}

func (s *server) ackBatch(w *response, r *http.Request) error {
	return s.acknowledge(w, r, decodeAckBatch)
}

func (s *server) acknowledge(w *response, r *http.Request, read func(d *decoder, a *mq.Ack) error) error {
	a := mq.Ack{Tenant: callerOf(r).Tenant}
	if err := s.decodeBody(w, r, func(d *decoder) error { return read(d, &a) }); err != nil {
		return err
	}
	a.Group = mq.GroupOrDefault(a.Group)
	if err := mq.CheckNameLengths("consumerGroup", "", a.Group); err != nil {
		return err
	}
	var results []mq.AckResult
	if len(a.Items) > 0 {
		var err error
		if results, err = s.b.Ack(r.Context(), a); err != nil {
			return err
		}
	}
	if len(results) != len(a.Items) {
		return fmt.Errorf("ack: %d results for %d items", len(results), len(a.Items))
	}
	s.metrics.Messages("ack", len(a.Items))
	return w.json(http.StatusOK, func(b []byte) []byte { return appendAckResults(b, a.Items, results) })
}

func appendAckResults(b []byte, items []mq.AckItem, results []mq.AckResult) []byte {
	b = slices.Grow(b, 160*len(results)+2)
	b = append(b, '[')
	for i := range results {
		res := &results[i]
		b = num(key(append(elem(b), '{'), "index"), i)
		b = str(key(b, "transactionId"), items[i].TransactionID)
		b = boolean(key(b, "success"), res.Success)
		b = strOrNull(key(b, "error"), res.Error)
		b = boolean(key(b, "leaseReleased"), res.LeaseReleased)
		b = boolean(key(b, "dlq"), res.DLQ)
		b = boolean(key(b, "noop"), res.Noop)
		if res.Conflated > 0 {
			b = num(key(b, "conflated"), res.Conflated)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

// ackItem is an item while it is read. The group counts only on a single ack;
// in a batch it stands beside the items.
type ackItem struct {
	mq.AckItem
	group string
	last  mq.AckItem
}

var ackItemFields = []field[ackItem]{
	{"transactionId", func(d *decoder, at place, it *ackItem) (err error) {
		it.TransactionID, _, err = d.name(at, "")
		return err
	}},
	{"partitionId", func(d *decoder, at place, it *ackItem) (err error) {
		it.PartitionID, _, err = d.name(at, it.last.PartitionID)
		return err
	}},
	{"leaseId", func(d *decoder, at place, it *ackItem) (err error) {
		it.LeaseID, _, err = d.name(at, it.last.LeaseID)
		return err
	}},
	{"status", func(d *decoder, at place, it *ackItem) error {
		status, set, err := d.text(at, "completed", true)
		if set {
			it.Status = mq.ParseAckStatus(status)
		}
		return err
	}},
	{"error", func(d *decoder, at place, it *ackItem) (err error) {
		it.Error, _, err = d.text(at, "", true)
		return err
	}},
	{"consumerGroup", func(d *decoder, at place, it *ackItem) (err error) {
		it.group, _, err = d.name(at, it.group)
		return err
	}},
}

var ackBatchFields = []field[mq.Ack]{
	{"acknowledgments", func(d *decoder, at place, a *mq.Ack) error {
		a.Items = []mq.AckItem{}
		var it ackItem // one for all: it would be allocated for every item
		return d.list(at, func(i int) error {
			it = ackItem{last: it.AckItem}
			_, err := object(d, place{list: "acknowledgments", index: i}, ackItemFields, &it)
			a.Items = append(a.Items, it.AckItem)
			return err
		})
	}},
	{"consumerGroup", func(d *decoder, at place, a *mq.Ack) (err error) {
		a.Group, _, err = d.name(at, "")
		return err
	}},
}

func decodeAck(d *decoder, a *mq.Ack) error {
	var it ackItem
	_, err := object(d, place{}, ackItemFields, &it)
	a.Group, a.Items = it.group, []mq.AckItem{it.AckItem}
	return err
}

func decodeAckBatch(d *decoder, a *mq.Ack) error {
	if _, err := object(d, place{}, ackBatchFields, a); err != nil {
		return err
	}
	if a.Items == nil {
		return badRequest("acknowledgments", "acknowledgments is required")
	}
	return nil
}
