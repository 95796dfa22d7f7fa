package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// retryLimit of the input queues is far above what the workload can spend, so that nothing may be dead-lettered.
const retryLimit = 100_000

// ack is one instruction.
type ack struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
	Status        string `json:"status"`
	Error         string `json:"error,omitempty"`

	message *popped
}

// leased is a consumer that does with its batches whatever consumers do: it completes them, in parts or at once,
// hands some back, extends leases, dawdles beyond them, and crashes.
func (w *worker) leased(l *lane) {
	for w.finish.Err() == nil {
		pinned := ""
		if w.rand.IntN(10) == 0 {
			pinned = w.partition()
		}
		if b := w.pop(l.input, leasedGroup, 1+w.rand.IntN(20), 1+w.rand.IntN(4), pinned); b != nil {
			w.note(0, b)
			w.handle(b)
		}
	}
}

func (w *worker) note(group int, b *batch) {
	for i := range b.messages {
		w.handled[group].note(b.messages[i].TransactionID)
	}
}

func (w *worker) handle(b *batch) {
	w.think(20)
	choice := w.rand.IntN(100)
	if w.produce.Err() != nil && choice < 5 {
		choice += 50 // no crashes and no dawdling while draining
	}
	switch {
	case choice < 2: // crash: nobody hears of it again
	case choice < 3: // beyond the lease
		sleep(w.finish, w.cfg.Lease+time.Duration(w.rand.IntN(500))*time.Millisecond)
		w.ack(b, w.instruct(b, "completed", 0))
	case choice < 5:
		if w.extend(b, 2*w.cfg.Lease) {
			sleep(w.finish, w.cfg.Lease+time.Duration(w.rand.IntN(300))*time.Millisecond)
		}
		w.ack(b, w.instruct(b, "completed", 0))
	case choice < 18:
		w.ack(b, w.instruct(b, "retry", 1))
	case choice < 24:
		w.ack(b, w.instruct(b, "failed", 1))
	case choice < 40:
		w.inParts(b)
	case choice < 50: // only the last of each partition: the rest is implied
		w.ack(b, w.lastOnly(b))
	case choice < 54:
		w.extend(b, w.cfg.Lease)
		fallthrough
	default:
		acks := w.instruct(b, "completed", 0)
		w.ack(b, acks)
		if w.rand.IntN(20) == 0 {
			w.ack(b, acks) // once more, for no reason
		}
	}
}

// think is how long handling takes, up to some milliseconds.
func (w *worker) think(most int) {
	sleep(w.hard, time.Duration(w.rand.IntN(most*1000))*time.Microsecond)
}

// instruct completes everything, or everything but some messages of each partition that get another status.
func (w *worker) instruct(b *batch, status string, others int) []ack {
	var acks []ack
	for _, part := range b.byPartition() {
		bad := map[int]bool{}
		for range others {
			bad[w.rand.IntN(len(part))] = true
		}
		for i := range part {
			a := ack{part[i].TransactionID, part[i].PartitionID, b.lease, "completed", "", &part[i]}
			if bad[i] {
				a.Status, a.Error = status, "by choice of the workload"
			}
			acks = append(acks, a)
		}
	}
	return acks
}

func (w *worker) lastOnly(b *batch) []ack {
	var acks []ack
	for _, part := range b.byPartition() {
		last := &part[len(part)-1]
		acks = append(acks, ack{last.TransactionID, last.PartitionID, b.lease, "completed", "", last})
	}
	return acks
}

// inParts completes a partition after the other, each in two calls, and may crash in between.
func (w *worker) inParts(b *batch) {
	for _, part := range b.byPartition() {
		sub := &batch{op: b.op, lease: b.lease, messages: part, at: b.at}
		acks := w.instruct(sub, "completed", 0)
		cut := w.rand.IntN(len(acks))
		if cut > 0 {
			w.ack(b, acks[:cut])
			w.think(20)
		}
		if w.produce.Err() == nil && w.rand.IntN(20) == 0 {
			return
		}
		w.ack(b, acks[cut:])
	}
}

// ackResult is one element of an ack answer.
type ackResult struct {
	TransactionID string  `json:"transactionId"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	Noop          bool    `json:"noop"`
}

// ack insists a little longer than the lease can last. After that somebody else does it.
func (w *worker) ack(b *batch, acks []ack) {
	body, err := json.Marshal(map[string]any{"consumerGroup": b.op.Group, "acknowledgments": acks})
	if err != nil {
		panic(err) // strings
	}
	limit, cancel := context.WithTimeout(w.hard, 2*w.cfg.Lease)
	defer cancel()
	w.insist(limit, func(string, int) *call {
		op := &history.Op{Kind: history.Ack, Queue: b.op.Queue, Group: b.op.Group, Lease: b.lease, Acked: acked(acks)}
		return &call{op: op, method: http.MethodPost, path: "/api/v1/ack/batch", body: body, read: func(body []byte) error {
			return readAck(op, body)
		}}
	})
}

func acked(acks []ack) []history.Message {
	list := make([]history.Message, len(acks))
	for i, a := range acks {
		list[i] = history.Message{Partition: a.message.Partition, ID: a.TransactionID, Offset: a.message.Offset, Status: a.Status}
	}
	return list
}

func readAck(op *history.Op, body []byte) error {
	var results []ackResult
	if err := json.Unmarshal(body, &results); err != nil {
		return err
	}
	if len(results) != len(op.Acked) {
		return fmt.Errorf("%d results on %d acknowledgements", len(results), len(op.Acked))
	}
	for i, res := range results {
		m := &op.Acked[i]
		if res.TransactionID != m.ID {
			return fmt.Errorf("result %d is on %q", i, res.TransactionID)
		}
		m.Noop, m.Released = res.Noop, res.LeaseReleased
		if !res.Success {
			m.Refused = "refused"
			if res.Error != nil && *res.Error != "" {
				m.Refused = *res.Error
			}
		}
	}
	return nil
}

// extend asks for more time, once, and reports whether all partitions got it.
func (w *worker) extend(b *batch, more time.Duration) bool {
	op := &history.Op{
		Kind: history.Extend, Request: w.request(), Try: 1,
		Queue: b.op.Queue, Group: b.op.Group, Lease: b.lease, Length: more.Microseconds(),
	}
	w.do(&call{
		op: op, method: http.MethodPost, path: "/api/v1/lease/" + b.lease + "/extend",
		body: fmt.Appendf(nil, `{"seconds":%d}`, int(more.Seconds())),
		read: func(body []byte) error {
			var got struct {
				Renewed   int64      `json:"renewed"`
				ExpiresAt *time.Time `json:"newExpiresAt"`
			}
			if err := json.Unmarshal(body, &got); err != nil {
				return err
			}
			op.Count = got.Renewed
			if got.ExpiresAt != nil {
				op.Until = got.ExpiresAt.UnixMicro()
			}
			return nil
		},
	})
	return op.Outcome == history.OK && op.Count >= int64(len(b.byPartition()))
}

// sink drains a queue and completes what it gets. It crashes rarely.
func (w *worker) sink(queue string) {
	for w.finish.Err() == nil {
		if b := w.pop(queue, sinkGroup, 50, 8, ""); b != nil {
			if w.produce.Err() != nil || w.rand.IntN(50) != 0 {
				w.ack(b, w.instruct(b, "completed", 0))
			}
		}
	}
}
