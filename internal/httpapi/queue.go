package httpapi

import (
	"net/http"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func (s *server) listQueues(w *response, r *http.Request) error {
	q := parseQuery(r)
	f := mq.QueueFilter{
		Namespace: q.name("namespace"), Task: q.name("task"),
		Limit: max(q.int32("limit", 0), 0), Offset: max(q.int32("offset", 0), 0),
	}
	if q.err != nil {
		return q.err
	}
	queues, err := s.b.Queues(r.Context(), callerOf(r).Tenant, f)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "queues"), '[')
		for i := range queues {
			b = append(appendQueueSummary(append(elem(b), '{'), &queues[i]), '}')
		}
		return append(b, "]}"...)
	})
}

func appendQueueHead(b []byte, q *mq.Queue) []byte {
	b = uuid(key(b, "id"), mq.QueueUUID(q.ID))
	b = str(key(b, "name"), q.Name)
	b = str(key(b, "namespace"), q.Options.Namespace)
	b = str(key(b, "task"), q.Options.Task)
	return instant(key(b, "createdAt"), q.CreatedAt)
}

func appendQueueSummary(b []byte, q *mq.QueueSummary) []byte {
	b = appendQueueHead(b, &q.Queue)
	b = num(key(b, "partitions"), q.Partitions)
	b = num(key(b, "retainedBytes"), q.RetainedBytes)
	b = appendSegments(b, q.Segments, q.Counts.Total)
	b = num(key(append(key(b, "messages"), '{'), "total"), q.Counts.Total)
	b = num(key(b, "pending"), q.Counts.Pending)
	return append(num(key(b, "processing"), q.Counts.Processing), '}')
}

func appendSegments(b []byte, segments, messages int64) []byte {
	b = num(key(append(key(b, "segments"), '{'), "segments"), segments)
	return append(num(key(b, "messages"), messages), '}')
}

func appendCounts(b []byte, c mq.Counts) []byte {
	b = num(key(append(b, '{'), "total"), c.Total)
	b = num(key(b, "pending"), c.Pending)
	b = num(key(b, "processing"), c.Processing)
	b = num(key(b, "completed"), c.Completed())
	b = null(key(b, "failed"))
	return append(num(key(b, "deadLetter"), c.DeadLetter), '}')
}

func (s *server) queueDetail(w *response, r *http.Request) error {
	name, err := pathName(r, "queue")
	if err != nil {
		return err
	}
	q, err := s.b.Queue(r.Context(), callerOf(r).Tenant, name)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = appendQueueHead(append(b, '{'), &q.Queue)
		b = str(key(append(key(b, "options"), '{'), "namespace"), q.Options.Namespace)
		b = str(key(b, "task"), q.Options.Task)
		b = append(appendOptions(b, &q.Options), '}')
		b = append(key(b, "partitions"), '[')
		for i := range q.Partitions {
			b = append(appendPartitionDetail(append(elem(b), '{'), &q.Partitions[i]), '}')
		}
		b = append(b, ']')
		b = appendCounts(key(b, "totals"), q.Totals)
		b = num(key(b, "retainedBytes"), q.RetainedBytes)
		return append(appendSegments(b, q.Segments, q.Totals.Total), '}')
	})
}

func appendPartitionDetail(b []byte, p *mq.PartitionDetail) []byte {
	b = uuid(key(b, "id"), p.ID.UUID())
	b = str(key(b, "name"), p.Name)
	b = instant(key(b, "createdAt"), p.CreatedAt)
	b = appendCounts(key(b, "stats"), p.Counts)
	b = instantOrNull(key(b, "oldestMessage"), p.Oldest)
	return instantOrNull(key(b, "newestMessage"), p.Newest)
}

func (s *server) queueDepth(w *response, r *http.Request) error {
	name, err := pathName(r, "queue")
	if err != nil {
		return err
	}
	q := parseQuery(r)
	group := q.name("group")
	if q.err != nil {
		return q.err
	}
	d, err := s.b.Depth(r.Context(), callerOf(r).Tenant, name, group)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte { return appendDepth(b, d) })
}

func appendDepth(b []byte, d *mq.Depth) []byte {
	ready := d.Pending - d.Processing
	pending, effectiveReady := d.Pending, ready
	if d.Conflation {
		// A conflating group owes one message a partition, however many wait.
		pending, effectiveReady = d.PartitionsPending, d.PartitionsReady
	}
	b = str(key(append(b, '{'), "queue"), d.Queue)
	b = strOrNull(key(b, "group"), d.Group)
	b = num(key(b, "pending"), d.Pending)
	b = num(key(b, "processing"), d.Processing)
	b = num(key(b, "ready"), ready)
	b = num(key(b, "partitionsPending"), d.PartitionsPending)
	b = num(key(b, "partitionsReady"), d.PartitionsReady)
	b = boolean(key(b, "conflation"), d.Conflation)
	b = num(key(b, "effectivePending"), pending)
	b = num(key(b, "effectiveReady"), effectiveReady)
	b = append(key(b, "partitions"), '[')
	for i := range d.Partitions {
		p := &d.Partitions[i]
		b = str(key(append(elem(b), '{'), "partition"), p.Partition)
		b = num(key(b, "pending"), p.Pending)
		b = num(key(b, "processing"), p.Processing)
		b = append(num(key(b, "ready"), p.Pending-p.Processing), '}')
	}
	return append(b, "]}"...)
}

func (s *server) deleteQueue(w *response, r *http.Request) error {
	name, err := pathName(r, "queue")
	if err != nil {
		return err
	}
	existed, err := s.b.DeleteQueue(r.Context(), callerOf(r).Tenant, name)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "deleted"), existed)
		b = str(key(b, "queue"), name)
		b = boolean(key(b, "existed"), existed)
		if !existed {
			b = str(key(b, "message"), "Queue not found, nothing was deleted")
		}
		return append(b, '}')
	})
}
