package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func (s *server) popQueue(w *response, r *http.Request) error {
	queue, err := pathName(r, "queue")
	if err != nil {
		return err
	}
	return s.pop(w, r, mq.Pop{Queue: queue})
}

func (s *server) popPartition(w *response, r *http.Request) error {
	queue, err := pathName(r, "queue")
	if err != nil {
		return err
	}
	partition, err := pathName(r, "partition")
	if err != nil {
		return err
	}
	return s.pop(w, r, mq.Pop{Queue: queue, Partition: partition, Pinned: true})
}

func (s *server) popDiscovery(w *response, r *http.Request) error {
	return s.pop(w, r, mq.Pop{Discovery: true})
}

// pop completes the scope that a route gave and serves the call.
func (s *server) pop(w *response, r *http.Request, p mq.Pop) error {
	p.Tenant = callerOf(r).Tenant
	if err := s.readPop(parseQuery(r), &p); err != nil {
		return refusePop(w, err)
	}
	if p.Wait > 0 {
		// A server-wide write deadline would cut a long poll short.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
	d, err := s.b.Pop(r.Context(), p)
	if err != nil {
		return err
	}
	if d == nil || len(d.Claims) == 0 {
		if d != nil && (d.Conflation || d.ConflationConflict) {
			return w.json(http.StatusOK, func(b []byte) []byte { return appendDelivery(b, &p, d) })
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if err := s.deliver(w, r, &p, d); err != nil {
		// Nobody has the messages: give them back now, not when the lease ends.
		s.release(r.Context(), d)
		return err
	}
	s.metrics.Messages("pop", d.Messages())
	return nil
}

// deliver writes the messages and makes sure that they left.
func (s *server) deliver(w *response, r *http.Request, p *mq.Pop, d *mq.Delivery) error {
	if err := r.Context().Err(); err != nil {
		return err
	}
	if err := w.json(http.StatusOK, func(b []byte) []byte { return appendDelivery(b, p, d) }); err != nil {
		return err
	}
	// A small answer sits in the server's buffer; only flushing it shows
	// whether the connection still takes it.
	if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return &writeError{err}
	}
	return nil
}

func (s *server) release(ctx context.Context, d *mq.Delivery) {
	if d.LeaseID.IsZero() {
		return // committed at delivery: there is nothing to give back
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	s.b.Release(ctx, d)
}

// refusePop answers a refused parameter in the shape of a pop. The two rules
// of the contract answer these three keys and no other; parameters of a wrong
// type carry the code and the field besides.
func refusePop(w *response, err error) error {
	ref := refusalOf(err)
	if ref.status != http.StatusBadRequest {
		return err
	}
	return w.json(ref.status, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "success"), false)
		b = str(key(b, "error"), ref.message)
		b = append(key(b, "messages"), "[]"...)
		if ref.field != "" {
			b = str(key(b, "code"), ref.code)
			b = str(key(b, "field"), ref.field)
		}
		return append(b, '}')
	})
}

// readPop reads and checks the parameters.
func (s *server) readPop(q *query, p *mq.Pop) error {
	group := q.name("consumerGroup")
	p.Group = mq.GroupOrDefault(group)
	p.Batch = max(q.int32("batch", mq.DefaultPopBatch), 1)
	p.AutoCommit = q.boolean("autoAck")
	p.AutoCommit = q.boolean("commitOnDelivery") || p.AutoCommit
	p.Conflation, p.ConflationSet = q.boolean("conflation"), q.has("conflation")
	p.Lease = time.Duration(max(q.int32("leaseSeconds", 0), 0)) * time.Second
	p.Start = s.readStart(q, p.Group)
	s.readWait(q, p)
	readPartitions(q, p)
	if p.Discovery {
		p.Namespace, p.Task = q.name("namespace"), q.name("task")
	}
	q.boolean("autopilot") // understood and not made use of: the defaults apply
	switch {
	case q.err != nil:
		return q.err
	case p.Discovery && p.Namespace == "" && p.Task == "":
		return badRequest("", "namespace or task is required")
	case p.Conflation && group == "":
		return badRequest("", "conflation needs a consumerGroup")
	case p.Conflation && p.AutoCommit:
		return badRequest("", "conflation cannot be combined with autoAck or commitOnDelivery")
	}
	if err := mq.CheckNameLengths("consumerGroup", p.Queue, p.Group); err != nil {
		return err
	}
	return mq.CheckNameLengths("partition", p.Queue, p.Partition)
}

func (s *server) readWait(q *query, p *mq.Pop) {
	wait := q.boolean("wait")
	longest := uint64(mq.MaxPopWait / time.Millisecond)
	ms := min(q.uint64("timeout", uint64(s.o.DefaultTimeout/time.Millisecond)), longest)
	if wait {
		p.Wait = time.Duration(ms) * time.Millisecond
	}
}

func readPartitions(q *query, p *mq.Pop) {
	fallback := 1
	if p.Conflation {
		// One message a partition: the budget is the number of partitions.
		fallback = p.Batch
	}
	n := q.int32("partitions", fallback)
	switch {
	case p.Pinned:
		n = 1
	case n <= 0:
		n = mq.MaxPopPartitions
	}
	p.Partitions = min(n, mq.MaxPopPartitions)
}

// readStart says where the group begins if this is its first contact.
func (s *server) readStart(q *query, group string) mq.Start {
	mode, from := q.name("subscriptionMode"), q.name("subscriptionFrom")
	if group == mq.QueueMode {
		return mq.Start{Mode: mq.StartAll}
	}
	if from != "" {
		if t, ok := parseTime(from); ok {
			return mq.Start{Mode: mq.StartTime, Time: t}
		}
		return mq.Start{Mode: mq.StartNew} // "now", and what cannot be read
	}
	switch mode {
	case "":
		return mq.Start{Mode: s.o.DefaultStart}
	case "new", "new-only":
		return mq.Start{Mode: mq.StartNew}
	default:
		return mq.Start{Mode: mq.StartAll}
	}
}

// appendDelivery writes the answer. Messages are copied as they are stored,
// with the members of this delivery put before the closing brace.
func appendDelivery(b []byte, p *mq.Pop, d *mq.Delivery) []byte {
	b = boolean(key(append(b, '{'), "success"), true)
	b = str(key(b, "queue"), p.Queue)
	b = key(b, "partition")
	if len(d.Claims) > 0 {
		b = str(b, d.Claims[0].Partition)
		b = uuid(key(b, "partitionId"), d.Claims[0].ID.UUID())
	} else {
		b = append(b, `"","partitionId":""`...)
	}
	b = appendLeaseID(key(b, "leaseId"), d)
	b = str(key(b, "consumerGroup"), p.Group)
	b = append(key(b, "messages"), '[')
	b = slices.Grow(b, deliverySize(p, d))
	var suffix []byte
	for i := range d.Claims {
		c := &d.Claims[i]
		suffix = appendClaimSuffix(suffix[:0], p, d, c)
		for j := range c.Segments {
			b = appendSegment(b, &c.Segments[j], suffix, c.Attempt)
		}
	}
	b = append(b, ']')
	b = num(key(b, "partitionsClaimed"), len(d.Claims))
	if d.Conflation {
		b = boolean(key(b, "conflation"), true)
	}
	if d.ConflationConflict {
		b = boolean(key(b, "conflationConflict"), true)
	}
	return append(b, '}')
}

// appendSegment writes the messages of one segment.
func appendSegment(b []byte, seg *mq.Segment, suffix []byte, attempt int) []byte {
	var at [40]byte
	created := seg.CreatedAt.UTC().AppendFormat(at[:0], timeLayout)
	for i := range seg.Len() {
		m := seg.Message(i)
		b = elem(b)
		b = append(b, m[:len(m)-1]...)
		b = append(b, `,"createdAt":"`...)
		b = append(b, created...)
		b = append(b, suffix...)
		b = strconv.AppendInt(b, seg.First+int64(i), 10)
		b = append(b, `,"deliveryAttempt":`...)
		b = strconv.AppendInt(b, int64(attempt), 10)
		b = append(b, '}')
	}
	return b
}

// appendClaimSuffix writes what all messages of a claim share, from the end of
// createdAt to the offset's colon.
func appendClaimSuffix(b []byte, p *mq.Pop, d *mq.Delivery, c *mq.Claim) []byte {
	b = append(b, `","partitionId":`...)
	b = uuid(b, c.ID.UUID())
	b = append(b, `,"partition":`...)
	b = str(b, c.Partition)
	b = append(b, `,"leaseId":`...)
	b = appendLeaseID(b, d)
	b = append(b, `,"consumerGroup":`...)
	b = str(b, p.Group)
	b = append(b, `,"queue":`...)
	b = str(b, c.Queue)
	return append(b, `,"offset":`...)
}

func appendLeaseID(b []byte, d *mq.Delivery) []byte {
	if d.LeaseID.IsZero() {
		return append(b, `""`...)
	}
	return uuid(b, d.LeaseID)
}

// deliverySize is about how many bytes the messages take.
func deliverySize(p *mq.Pop, d *mq.Delivery) int {
	n := 64
	for i := range d.Claims {
		c := &d.Claims[i]
		each := 280 + len(c.Partition) + len(c.Queue) + len(p.Group)
		for j := range c.Segments {
			n += len(c.Segments[j].Body) + c.Segments[j].Len()*each
		}
	}
	return n
}
