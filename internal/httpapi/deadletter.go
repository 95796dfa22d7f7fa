package httpapi

import (
	"net/http"
	"strings"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Pages of the dead-letter list.
const (
	defaultPage = 100
	maxPage     = 1000
)

func (s *server) listDeadLetters(w *response, r *http.Request) error {
	q := parseQuery(r)
	f := mq.DeadLetterFilter{
		Tenant: callerOf(r).Tenant, Queue: q.name("queue"), Partition: q.name("partition"),
		Group: q.name("consumerGroup"), From: q.time("from"), To: q.time("to"),
		Limit:  min(max(q.int32("limit", defaultPage), 1), maxPage),
		Offset: max(q.int32("offset", 0), 0),
	}
	if q.err != nil {
		return q.err
	}
	letters, err := s.b.DeadLetters(r.Context(), f)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "messages"), '[')
		for i := range letters {
			b = append(appendDeadLetter(append(elem(b), '{'), &letters[i]), '}')
		}
		b = append(b, ']')
		b = num(key(append(key(b, "pagination"), '{'), "limit"), f.Limit)
		b = append(num(key(b, "offset"), f.Offset), '}')
		return append(num(key(b, "total"), len(letters)), '}')
	})
}

func appendDeadLetter(b []byte, l *mq.DeadLetter) []byte {
	b = uuid(key(b, "id"), l.ID)
	b = uuid(key(b, "messageId"), l.MessageID)
	b = str(key(b, "transactionId"), l.TransactionID)
	b = uuid(key(b, "partitionId"), l.PartitionID.UUID())
	b = str(key(b, "queue"), l.Queue)
	b = str(key(b, "partition"), l.Partition)
	b = str(key(b, "consumerGroup"), l.Group)
	b = num(key(b, "offset"), l.Offset)
	b = strOrNull(key(b, "errorMessage"), l.Error)
	b = num(key(b, "retryCount"), l.RetryCount)
	b = raw(key(b, "data"), l.Payload)
	b = strOrNull(key(b, "producerSub"), l.ProducerSub)
	b = boolean(key(b, "isEncrypted"), l.Encrypted)
	b = instant(key(b, "createdAt"), l.CreatedAt)
	return instant(key(b, "failedAt"), l.FailedAt)
}

func (s *server) purgeDeadLetters(w *response, r *http.Request) error {
	q := parseQuery(r)
	queue, group := q.name("queue"), q.name("consumerGroup")
	switch {
	case q.err != nil:
		return q.err
	case queue == "":
		return badRequest("queue", "queue is required")
	}
	n, err := s.b.PurgeDeadLetters(r.Context(), callerOf(r).Tenant, queue, group)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "success"), true)
		b = num(key(b, "deleted"), n)
		b = str(key(b, "queue"), queue)
		return append(strOrNull(key(b, "consumerGroup"), group), '}')
	})
}

var replayFields = []field[mq.Replay]{
	{"queue", func(d *decoder, at place, rp *mq.Replay) (err error) {
		rp.Queue, err = d.destination(at)
		return err
	}},
	{"partition", func(d *decoder, at place, rp *mq.Replay) (err error) {
		rp.Partition, err = d.destination(at)
		return err
	}},
}

// destination reads an optional name that may be padded but not blank.
func (d *decoder) destination(at place) (string, error) {
	name, set, err := d.name(at, "")
	if err != nil || !set {
		return "", err
	}
	if name = strings.TrimSpace(name); name == "" {
		return "", badRequest(at.String(), "%s is blank", at)
	}
	return name, nil
}

// replayDeadLetter moves a record, named by its own id.
func (s *server) replayDeadLetter(w *response, r *http.Request) error {
	id, err := pathName(r, "id")
	if err != nil {
		return err
	}
	rp := mq.Replay{Tenant: callerOf(r).Tenant}
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.free()
	if !blank(body.data) {
		err = decode(body.data, func(d *decoder) error {
			_, err := object(d, place{}, replayFields, &rp)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := mq.CheckNameLengths("queue", rp.Queue, rp.Partition); err != nil {
		return err
	}
	gone := func() error {
		return w.json(http.StatusNotFound, func(b []byte) []byte {
			b = boolean(key(append(b, '{'), "success"), false)
			b = str(key(b, "result"), "gone")
			b = str(key(b, "dlqId"), id)
			return append(appendMessageNotFound(b, "No dead letter has this id: it was replayed, purged or never existed"), '}')
		})
	}
	var ok bool
	if rp.ID, ok = mq.ParseUUID(id); !ok || rp.ID.IsZero() {
		return gone()
	}
	return s.replay(w, r, rp, gone)
}

// retryMessage moves the newest record filed for a message.
func (s *server) retryMessage(w *response, r *http.Request) error {
	p, txn, ok, err := messageAddress(r)
	if err != nil {
		return err
	}
	gone := func() error {
		return w.json(http.StatusNotFound, func(b []byte) []byte {
			b = boolean(key(append(b, '{'), "success"), false)
			return append(appendMessageNotFound(b, "No dead letter is filed for this message"), '}')
		})
	}
	if !ok {
		return gone()
	}
	return s.replay(w, r, mq.Replay{Tenant: callerOf(r).Tenant, PartitionID: p, TransactionID: txn}, gone)
}

func appendMessageNotFound(b []byte, message string) []byte {
	b = str(key(b, "error"), messageNotFound)
	b = str(key(b, "code"), mq.CodeNotFound)
	return str(key(b, "message"), message)
}

func (s *server) replay(w *response, r *http.Request, rp mq.Replay, gone func() error) error {
	res, err := s.b.Replay(r.Context(), rp)
	switch {
	case err == nil && res.Result.Status != mq.PushError:
		return w.json(http.StatusOK, func(b []byte) []byte { return appendReplayed(b, res) })
	case err == nil:
		// The push was refused and everything rolled back.
		ref := &refusal{status: http.StatusInternalServerError, code: mq.CodeInternal, message: res.Result.Error}
		return refuseReplay(w, ref, false)
	case mq.KindOf(err) == mq.KindNotFound:
		return gone()
	}
	ref := refusalOf(err)
	if ref.status < http.StatusInternalServerError {
		return err
	}
	s.logFailure(r, "replay", ref, err)
	kind := mq.KindOf(err)
	return refuseReplay(w, ref, kind == mq.KindUnknown || kind == mq.KindTimeout || r.Context().Err() != nil)
}

// refuseReplay says whether the record is still there: it is, unless nobody
// knows how the transaction ended.
func refuseReplay(w *response, ref *refusal, unknown bool) error {
	ref.head(w.Header())
	return w.json(ref.status, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "success"), false)
		b = key(ref.keys(b), "dlqRowRemoved")
		if unknown {
			b = null(b)
		} else {
			b = boolean(b, false)
		}
		return append(b, '}')
	})
}

func appendReplayed(b []byte, res *mq.Replayed) []byte {
	moved := res.Result.Status == mq.PushQueued
	result := "duplicate"
	if moved {
		result = "moved"
	}
	b = boolean(key(append(b, '{'), "success"), true)
	b = str(key(b, "result"), result)
	b = str(key(b, "queue"), res.Queue)
	b = str(key(b, "partition"), res.Partition)
	b = str(key(b, "consumerGroup"), res.Letter.Group)
	b = uuid(key(b, "dlqId"), res.Letter.ID)
	b = str(key(b, "originalTransactionId"), res.Letter.TransactionID)
	b = append(key(b, "replayedAs"), '{')
	b = append(appendPushResult(b, 0, res.Queue, &res.Result), '}')
	return append(boolean(key(b, "dlqRowRemoved"), moved), '}')
}
