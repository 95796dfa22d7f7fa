package httpapi

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// laggingAfter is how old its oldest unconsumed message makes a group Lagging.
const laggingAfter = 5 * time.Minute

func (s *server) listGroups(w *response, r *http.Request) error {
	groups, err := s.b.Groups(r.Context(), callerOf(r).Tenant)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(b, '[')
		for i := range groups {
			b = append(appendGroup(append(elem(b), '{'), &groups[i]), '}')
		}
		return append(b, ']')
	})
}

func appendGroup(b []byte, g *mq.GroupSummary) []byte {
	state := "Dead"
	switch {
	case g.MaxTimeLag > laggingAfter:
		state = "Lagging"
	case g.EverConsumed:
		state = "Stable"
	}
	b = str(key(b, "name"), g.Group)
	b = append(str(append(key(b, "topics"), '['), g.Queue), ']')
	b = str(key(b, "queueName"), g.Queue)
	b = num(key(b, "members"), g.Cursors)
	b = num(key(b, "partitionCursors"), g.Cursors)
	b = num(key(b, "partitionsWithLag"), g.PartitionsWithLag)
	b = num(key(b, "totalLag"), g.TotalLag)
	b = num(key(b, "maxTimeLag"), seconds(g.MaxTimeLag))
	b = str(key(b, "state"), state)
	b = str(key(b, "storage"), storage)
	b = key(b, "subscriptionMode")
	if g.RegisteredAt.IsZero() {
		b = null(b)
	} else {
		b = str(b, startMode(g.Start.Mode))
	}
	b = instantOrNull(key(b, "subscriptionTimestamp"), g.Start.Time)
	b = instantOrNull(key(b, "subscriptionCreatedAt"), g.RegisteredAt)
	return boolean(key(b, "conflation"), g.Conflation)
}

func startMode(m mq.StartMode) string {
	switch m {
	case mq.StartAll:
		return "all"
	case mq.StartTime:
		return "timestamp"
	default:
		return "new"
	}
}

func seconds(d time.Duration) int64 { return int64(max(d, 0) / time.Second) }

func (s *server) laggingGroups(w *response, r *http.Request) error {
	q := parseQuery(r)
	minLag := time.Duration(max(q.int32("minLagSeconds", 3600), 0)) * time.Second
	if q.err != nil {
		return q.err
	}
	lagging, err := s.b.Lagging(r.Context(), callerOf(r).Tenant, minLag)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(b, '[')
		for i := range lagging {
			b = append(appendLagging(append(elem(b), '{'), &lagging[i]), '}')
		}
		return append(b, ']')
	})
}

func appendLagging(b []byte, g *mq.GroupPartition) []byte {
	b = str(key(b, "consumer_group"), g.Group)
	b = str(key(b, "queue_name"), g.Queue)
	b = str(key(b, "partition_name"), g.Partition)
	b = uuid(key(b, "partition_id"), g.ID.UUID())
	b = null(key(b, "worker_id"))
	b = num(key(b, "offset_lag"), g.OffsetLag)
	b = num(key(b, "time_lag_seconds"), seconds(g.TimeLag))
	b = strconv.AppendFloat(key(b, "lag_hours"), max(g.TimeLag, 0).Hours(), 'f', 2, 64)
	b = instantOrNull(key(b, "oldest_unconsumed_at"), g.OldestPending)
	return null(key(b, "last_consumed_at"))
}

func (s *server) groupDetail(w *response, r *http.Request) error {
	group, err := pathName(r, "group")
	if err != nil {
		return err
	}
	partitions, err := s.b.Group(r.Context(), callerOf(r).Tenant, group)
	if err != nil {
		return err
	}
	// A member of the answer holds all partitions of a queue.
	slices.SortStableFunc(partitions, func(x, y mq.GroupPartition) int { return strings.Compare(x.Queue, y.Queue) })
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(b, '{')
		for i := range partitions {
			p := &partitions[i]
			if i == 0 || p.Queue != partitions[i-1].Queue {
				if i > 0 {
					b = append(b, "]},"...)
				}
				b = append(str(b, p.Queue), ":{"...)
				b = boolean(key(b, "conflation"), p.Conflation)
				b = append(key(b, "partitions"), '[')
			}
			b = append(appendGroupPartition(append(elem(b), '{'), p), '}')
		}
		if len(partitions) > 0 {
			b = append(b, "]}"...)
		}
		return append(b, '}')
	})
}

func appendGroupPartition(b []byte, p *mq.GroupPartition) []byte {
	b = str(key(b, "partition"), p.Partition)
	b = null(key(b, "workerId"))
	b = null(key(b, "lastConsumedAt"))
	b = num(key(b, "totalConsumed"), p.Committed+1)
	b = num(key(b, "offsetLag"), p.OffsetLag)
	b = num(key(b, "timeLagSeconds"), seconds(p.TimeLag))
	return boolean(key(b, "leaseActive"), p.LeaseActive)
}

type subscriptionBody struct{ at time.Time }

var subscriptionFields = []field[subscriptionBody]{
	{"subscriptionTimestamp", func(d *decoder, at place, b *subscriptionBody) (err error) {
		b.at, err = d.isoTime(at)
		return err
	}},
}

func (s *server) setSubscription(w *response, r *http.Request) error {
	group, err := pathName(r, "group")
	if err != nil {
		return err
	}
	var body subscriptionBody
	err = s.decodeBody(w, r, func(d *decoder) error {
		_, err := object(d, place{}, subscriptionFields, &body)
		return err
	})
	switch {
	case err != nil:
		return err
	case body.at.IsZero():
		return badRequest("subscriptionTimestamp", "subscriptionTimestamp is required")
	}
	rows, err := s.b.SetSubscription(r.Context(), callerOf(r).Tenant, group, body.at)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "success"), true)
		b = str(key(b, "consumerGroup"), group)
		b = instant(key(b, "newTimestamp"), body.at)
		return append(num(key(b, "rowsUpdated"), rows), '}')
	})
}

var seekFields = []field[mq.Seek]{
	{"toEnd", func(d *decoder, at place, sk *mq.Seek) (err error) {
		sk.ToEnd, _, err = d.boolean(at)
		return err
	}},
	{"timestamp", func(d *decoder, at place, sk *mq.Seek) (err error) {
		sk.Time, err = d.isoTime(at)
		return err
	}},
}

func (s *server) seekQueue(w *response, r *http.Request) error {
	return s.seek(w, r, mq.Seek{})
}

func (s *server) seekPartition(w *response, r *http.Request) error {
	partition, err := pathName(r, "partition")
	if err != nil {
		return err
	}
	return s.seek(w, r, mq.Seek{Partition: partition, PartitionSet: true})
}

func (s *server) seek(w *response, r *http.Request, sk mq.Seek) error {
	sk.Tenant = callerOf(r).Tenant
	var err error
	if sk.Group, err = pathName(r, "group"); err != nil {
		return err
	}
	if sk.Queue, err = pathName(r, "queue"); err != nil {
		return err
	}
	if err := s.readSeek(w, r, &sk); err != nil {
		return err
	}
	if err := mq.CheckNameLengths("group", sk.Queue, sk.Group); err != nil {
		return err
	}
	n, err := s.b.Seek(r.Context(), sk)
	switch {
	case err != nil && mq.KindOf(err) != mq.KindNotFound:
		return err
	case err != nil || n == 0:
		return w.json(http.StatusNotFound, func(b []byte) []byte { return appendSeekMissed(b, &sk) })
	}
	return w.json(http.StatusOK, func(b []byte) []byte { return appendSeek(b, &sk, n) })
}

// readSeek reads where to. On one partition nothing at all means the end.
func (s *server) readSeek(w *response, r *http.Request, sk *mq.Seek) error {
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.free()
	var seen uint32
	if !sk.PartitionSet || !blank(body.data) {
		err = decode(body.data, func(d *decoder) (err error) {
			seen, err = object(d, place{}, seekFields, sk)
			return err
		})
		if err != nil {
			return err
		}
	}
	if sk.PartitionSet && seen == 0 {
		sk.ToEnd = true
	}
	if !sk.ToEnd && sk.Time.IsZero() {
		return badRequest("", "Must specify toEnd=true or a timestamp")
	}
	return nil
}

// blank reports a body without a value.
func blank(body []byte) bool { return len(bytes.TrimSpace(body)) == 0 }

func appendSeek(b []byte, sk *mq.Seek, n int64) []byte {
	b = boolean(key(append(b, '{'), "success"), true)
	b = str(key(b, "consumerGroup"), sk.Group)
	b = str(key(b, "queueName"), sk.Queue)
	if sk.PartitionSet {
		b = str(key(b, "partitionName"), sk.Partition)
	}
	b = boolean(key(b, "seekToEnd"), sk.ToEnd)
	b = key(b, "targetTimestamp")
	if sk.ToEnd {
		b = null(b)
	} else {
		b = instant(b, sk.Time)
	}
	if sk.PartitionSet {
		b = boolean(key(b, "updated"), true)
	} else {
		b = num(key(b, "partitionsUpdated"), n)
	}
	return append(b, '}')
}

func appendSeekMissed(b []byte, sk *mq.Seek) []byte {
	b = boolean(key(append(b, '{'), "success"), false)
	if sk.PartitionSet {
		b = str(key(b, "error"), "Partition not found")
		return append(str(key(b, "code"), mq.CodeNotFound), '}')
	}
	b = str(key(b, "error"), "Queue not found or has no partitions")
	b = str(key(b, "code"), mq.CodeNotFound)
	b = str(key(b, "consumerGroup"), sk.Group)
	b = str(key(b, "queueName"), sk.Queue)
	return append(num(key(b, "partitionsUpdated"), 0), '}')
}

func (s *server) deleteGroup(w *response, r *http.Request) error {
	return s.removeGroup(w, r, "", false)
}

func (s *server) deleteGroupOfQueue(w *response, r *http.Request) error {
	queue, err := pathName(r, "queue")
	if err != nil {
		return err
	}
	return s.removeGroup(w, r, queue, true)
}

func (s *server) removeGroup(w *response, r *http.Request, queue string, queueSet bool) error {
	group, err := pathName(r, "group")
	if err != nil {
		return err
	}
	q := parseQuery(r)
	metadata := q.yes("deleteMetadata", true)
	if q.err != nil {
		return q.err
	}
	n, err := s.b.DeleteGroup(r.Context(), callerOf(r).Tenant, group, queue, queueSet, metadata)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "success"), true)
		b = str(key(b, "consumerGroup"), group)
		if queueSet {
			b = str(key(b, "queueName"), queue)
		}
		b = num(key(b, "deletedPartitions"), n)
		return append(boolean(key(b, "metadataDeleted"), metadata), '}')
	})
}
