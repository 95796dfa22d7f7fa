package workload

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// popped is a message as delivered.
type popped struct {
	TransactionID   string          `json:"transactionId"`
	Data            json.RawMessage `json:"data"`
	CreatedAt       time.Time       `json:"createdAt"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	Offset          int64           `json:"offset"`
	DeliveryAttempt int64           `json:"deliveryAttempt"`
}

// batch is what a pop brought.
type batch struct {
	op       *history.Op
	lease    string
	messages []popped
	at       time.Time // when it was asked for: its lease may end one lease time later
}

const longPoll = time.Second

// pop asks once. Nil means that nothing came.
func (w *worker) pop(queue, group string, size, partitions int, pinned string) *batch {
	q := url.Values{}
	q.Set("batch", strconv.Itoa(size))
	q.Set("partitions", strconv.Itoa(partitions))
	q.Set("consumerGroup", group)
	q.Set("subscriptionMode", "all")
	q.Set("wait", "true")
	q.Set("timeout", strconv.FormatInt(longPoll.Milliseconds(), 10))
	q.Set("leaseSeconds", strconv.Itoa(int(w.cfg.Lease.Seconds())))
	path := "/api/v1/pop/queue/" + url.PathEscape(queue)
	if pinned != "" {
		path += "/partition/" + url.PathEscape(pinned)
	}
	op := &history.Op{Kind: history.Pop, Request: w.request(), Try: 1, Queue: queue, Group: group}
	b := &batch{op: op, at: time.Now()}
	later := w.do(&call{op: op, method: http.MethodGet, path: path + "?" + q.Encode(), wait: longPoll, read: func(body []byte) error {
		return w.readPop(b, body)
	}})
	if op.Outcome != history.OK {
		pause := w.backoff()
		pause.wait(w.finish, later)
		return nil
	}
	if len(b.messages) == 0 {
		return nil
	}
	return b
}

func (w *worker) readPop(b *batch, body []byte) error {
	var got struct {
		LeaseID  string   `json:"leaseId"`
		Messages []popped `json:"messages"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return err
	}
	list := make([]history.Message, len(got.Messages))
	for i, m := range got.Messages {
		if m.LeaseID != got.LeaseID {
			return fmt.Errorf("message %d has lease %q, the answer %q", i, m.LeaseID, got.LeaseID)
		}
		var p payload
		if err := json.Unmarshal(m.Data, &p); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		list[i] = history.Message{
			Partition: m.Partition, ID: m.TransactionID, Offset: m.Offset, Attempt: m.DeliveryAttempt,
			Created: m.CreatedAt.UnixMicro(), Sum: sum(m.Data), By: p.By,
		}
	}
	b.op.Lease, b.op.Length, b.op.Popped = got.LeaseID, w.cfg.Lease.Microseconds(), list
	b.lease, b.messages = got.LeaseID, got.Messages
	return nil
}

// byPartition splits a batch; the parts keep the order of the answer.
func (b *batch) byPartition() [][]popped {
	var parts [][]popped
	for i := 0; i < len(b.messages); {
		k := i + 1
		for k < len(b.messages) && b.messages[k].PartitionID == b.messages[i].PartitionID {
			k++
		}
		parts = append(parts, b.messages[i:k])
		i = k
	}
	return parts
}
