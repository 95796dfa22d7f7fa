package httpapi

import (
	"encoding/hex"
	"net/http"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

const messageNotFound = "Message not found"

// messageAddress reads the address of a message. A partition id that cannot be
// one of ours is an unknown one.
func messageAddress(r *http.Request) (p mq.PartitionID, txn string, ok bool, err error) {
	pid, err := pathName(r, "partitionId")
	if err != nil {
		return p, "", false, err
	}
	if txn, err = pathName(r, "transactionId"); err != nil {
		return p, "", false, err
	}
	p, ok = mq.ParsePartitionID(pid)
	return p, txn, ok, nil
}

func (s *server) messageDetail(w *response, r *http.Request) error {
	p, txn, ok, err := messageAddress(r)
	switch {
	case err != nil:
		return err
	case !ok:
		return notFound(messageNotFound)
	}
	m, err := s.b.Message(r.Context(), callerOf(r).Tenant, p, txn)
	switch {
	case mq.KindOf(err) == mq.KindNotFound:
		// Word for word what a malformed id gets.
		return notFound(messageNotFound)
	case err != nil:
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte { return appendMessage(b, m) })
}

func (s *server) deleteMessage(w *response, r *http.Request) error {
	p, txn, ok, err := messageAddress(r)
	if err != nil {
		return err
	}
	var n int64
	if ok {
		if n, err = s.b.DeleteDeadLetters(r.Context(), callerOf(r).Tenant, p, txn); err != nil {
			return err
		}
	}
	if n == 0 {
		return w.json(http.StatusNotFound, func(b []byte) []byte {
			b = boolean(key(append(b, '{'), "success"), false)
			return append(appendMessageNotFound(b, "No dead letter is filed for this message"), '}')
		})
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "success"), true)
		b = str(key(b, "partitionId"), p.String())
		b = str(key(b, "transactionId"), txn)
		return append(str(key(b, "message"), "Message deleted successfully"), '}')
	})
}

// standing sums up what the groups did with a message.
type standing struct {
	status     string // as queue mode sees it
	queueMode  bool
	lease      time.Time // of queue mode
	groups     int       // named ones
	consumedBy int       // of them
}

func standingOf(m *mq.MessageDetail) standing {
	st := standing{status: "pending"}
	for _, g := range m.Groups {
		if g.Group != mq.QueueMode {
			st.groups++
			if g.Consumed {
				st.consumedBy++
			}
			continue
		}
		st.queueMode, st.lease = true, g.LeaseExpires
		switch {
		case g.Consumed:
			st.status = "completed"
		case !g.LeaseExpires.IsZero():
			st.status = "processing"
		}
	}
	if m.DeadLetter != nil {
		st.status = "dead_letter"
	}
	return st
}

func (st *standing) mode() string {
	switch {
	case st.queueMode && st.groups > 0:
		return "hybrid"
	case st.queueMode:
		return "queue"
	case st.groups > 0:
		return "bus"
	default:
		return "none"
	}
}

func appendMessage(b []byte, m *mq.MessageDetail) []byte {
	st := standingOf(m)
	h := mq.HashID(m.TransactionID)
	b = uuid(key(append(b, '{'), "id"), m.MessageID)
	b = str(key(b, "transactionId"), m.TransactionID)
	b = str(key(b, "txnHash"), hex.EncodeToString(h.Key[:]))
	b = uuid(key(b, "partitionId"), m.PartitionID.UUID())
	b = str(key(b, "queuePath"), m.Queue+"/"+m.Partition)
	b = str(key(b, "queue"), m.Queue)
	b = str(key(b, "partition"), m.Partition)
	b = appendLabels(b, m)
	b = str(key(b, "status"), st.status)
	b = str(key(b, "queueStatus"), st.status)
	b = num(key(append(key(b, "busStatus"), '{'), "consumedBy"), st.consumedBy)
	b = append(num(key(b, "totalGroups"), st.groups), '}')
	b = uuidOrNull(key(b, "traceId"), m.TraceID)
	b = strOrNull(key(b, "producerSub"), m.ProducerSub)
	b = boolean(key(b, "payloadAvailable"), m.Payload != nil)
	b = null(key(b, "segment"))
	b = num(key(b, "offset"), m.Offset)
	b = instant(key(b, "createdAt"), m.CreatedAt)
	b = instantOrNull(key(b, "leaseExpiresAt"), st.lease)
	b = boolean(key(b, "isEncrypted"), m.Encrypted)
	b = raw(key(b, "data"), m.Payload)
	b = raw(key(b, "payload"), m.Payload)
	b = appendFailure(b, m.DeadLetter)
	b = appendMessageGroups(b, m.Groups)
	b = boolean(key(append(key(b, "mode"), '{'), "hasQueueMode"), st.queueMode)
	b = num(key(b, "busGroupsCount"), st.groups)
	b = append(str(key(b, "type"), st.mode()), '}')
	b = append(key(b, "queueConfig"), '{')
	return append(appendOptions(b, &m.Options), "}}"...)
}

// appendLabels writes the queue's labels; a queue without any is labelled by
// its name, as if it had been created by use.
func appendLabels(b []byte, m *mq.MessageDetail) []byte {
	namespace, task := m.Options.Namespace, m.Options.Task
	if namespace == "" && task == "" {
		namespace, task = mq.DeriveLabels(m.Queue)
	}
	b = str(key(b, "namespace"), namespace)
	return str(key(b, "task"), task)
}

func appendFailure(b []byte, l *mq.DeadLetter) []byte {
	if l == nil {
		b = null(key(b, "errorMessage"))
		return num(key(b, "retryCount"), 0)
	}
	b = strOrNull(key(b, "errorMessage"), l.Error)
	return num(key(b, "retryCount"), l.RetryCount)
}

func appendMessageGroups(b []byte, groups []mq.MessageGroup) []byte {
	b = append(key(b, "consumerGroups"), '[')
	for _, g := range groups {
		b = str(key(append(elem(b), '{'), "name"), g.Group)
		b = str(key(b, "group"), g.Group)
		b = boolean(key(b, "consumed"), g.Consumed)
		b = append(instantOrNull(key(b, "leaseExpiresAt"), g.LeaseExpires), '}')
	}
	return append(b, ']')
}
