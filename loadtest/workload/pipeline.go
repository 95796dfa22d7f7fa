package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// step is what one transaction is about: messages of one partition, with their effects.
type step struct {
	lane     *lane
	batch    *batch
	messages []popped
	request  string
	hints    bool // the lease is named beside the acks, not on them
	checked  bool // the marker is a check and a put, not a putIfAbsent
}

// pipeline is a consumer whose every progress is a transaction: the ack, one output or timer for each input, a counter,
// and a marker that must not be there yet.
func (w *worker) pipeline(l *lane) {
	for w.finish.Err() == nil {
		if b := w.pop(l.input, pipelineGroup, 1+w.rand.IntN(8), 1+w.rand.IntN(2), ""); b != nil {
			w.note(1, b)
			for _, part := range b.byPartition() {
				w.steps(l, b, part)
			}
		}
	}
}

// steps works through one partition of a batch until something is refused: then the rest belongs to somebody else.
func (w *worker) steps(l *lane, b *batch, part []popped) {
	for len(part) > 0 {
		n := min(1+w.rand.IntN(3), len(part))
		w.think(10)
		if w.produce.Err() == nil {
			switch w.rand.IntN(100) {
			case 0: // crash
				return
			case 1: // a worker that stops for too long, and does not know
				sleep(w.finish, w.cfg.Lease+100*time.Millisecond)
			}
		}
		s := &step{
			lane: l, batch: b, messages: part[:n], request: w.request(),
			hints: w.rand.IntN(5) == 0, checked: w.rand.IntN(4) == 0,
		}
		if w.rand.IntN(50) == 0 {
			twin := *s
			w.beside("twin", func(other *worker) {
				twin.request = other.request()
				other.transact(&twin)
			})
		}
		if !w.transact(s) {
			return
		}
		part = part[n:]
	}
}

// transact insists a little longer than the lease can last.
func (w *worker) transact(s *step) bool {
	limit, cancel := context.WithTimeout(w.hard, 2*w.cfg.Lease)
	defer cancel()
	pause := w.backoff()
	for try := 1; ; try++ {
		op := &history.Op{
			Kind: history.Tx, Request: s.request, Try: try, By: fmt.Sprintf("%s.%d", s.request, try),
			Queue: s.lane.input, Group: pipelineGroup, Lease: s.batch.lease,
		}
		body := w.bundle(s, op)
		later := w.do(&call{op: op, method: http.MethodPost, path: "/api/v1/transaction", body: body, read: func(body []byte) error {
			return readTx(op, body)
		}})
		if op.Outcome == history.OK {
			w.meddle(s, op)
			return true
		}
		// A refusal in words is for good; one in a status, or none at all, may pass.
		if op.Status/100 == 2 && op.Outcome == history.Fail || !again(op) || !pause.wait(limit, later) {
			return false
		}
	}
}

// timer tells whether an input's output comes by timer, and after what delay. It follows from the seed and the id.
func (w *worker) timer(id string) (delay time.Duration, is bool) {
	h := hash(fmt.Sprintf("%d/timer/%s", w.cfg.Seed, id))
	return time.Duration(int64(h/100%2200)-200) * time.Millisecond, h%100 < 15
}

// bundle writes the body and, into op, what it says.
func (w *worker) bundle(s *step, op *history.Op) []byte {
	var operations, keys, timers []map[string]any
	counts := map[string]int64{}
	for i := range s.messages {
		m := &s.messages[i]
		one := map[string]any{
			"type": "ack", "transactionId": m.TransactionID, "partitionId": m.PartitionID,
			"consumerGroup": pipelineGroup, "status": "completed",
		}
		if !s.hints {
			one["leaseId"] = s.batch.lease
		}
		operations = append(operations, one)
		op.Acked = append(op.Acked, acked([]ack{{m.TransactionID, m.PartitionID, s.batch.lease, "completed", "", m}})...)
		if delay, is := w.timer(m.TransactionID); is {
			timers = append(timers, promise(s, m, delay, op))
		} else {
			operations = append(operations, output(s, m, op))
		}
		keys = append(keys, marker(s, m, op)...)
		counts[w.counter(m.TransactionID)]++
	}
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		delta := counts[key]
		keys = append(keys, map[string]any{"op": "incr", "key": key, "delta": delta})
		op.Keys = append(op.Keys, history.KeyOp{Op: "incr", Key: key, Delta: delta})
	}
	for _, k := range keys {
		k["ns"] = w.ns
		if k["op"] != "check" {
			k["ttlSeconds"] = keyLife
		}
	}
	request := map[string]any{"operations": operations, "kv": keys}
	if len(timers) > 0 {
		request["timers"] = timers
	}
	if s.hints {
		request["requiredLeases"] = []string{s.batch.lease}
	}
	body, err := json.Marshal(request)
	if err != nil {
		panic(err) // strings and numbers
	}
	return body
}

// promise is a timer instead of an output.
func promise(s *step, m *popped, delay time.Duration, op *history.Op) map[string]any {
	t := history.TimerOp{
		Op: "schedule", Queue: s.lane.timed, Key: m.TransactionID, ID: m.TransactionID + "@" + op.By, Delay: delay.Microseconds(),
	}
	op.Timers = append(op.Timers, t)
	return schedule(&t, m.Partition, op.By)
}

// output has an id that follows from its input.
func output(s *step, m *popped, op *history.Op) map[string]any {
	out := item{s.lane.out, m.Partition, "out:" + m.TransactionID, payload{ID: m.TransactionID, By: op.By}.encode()}
	op.Pushed = append(op.Pushed, history.Message{
		Queue: out.Queue, Partition: out.Partition, ID: out.TransactionID, Offset: -1, Sum: sum(out.Payload),
	})
	return map[string]any{"type": "push", "items": []item{out}}
}

// keyLife makes the keys go away by themselves, a day later.
const keyLife = 86_400

// marker is written once for each input, by whatever transaction is about it.
func marker(s *step, m *popped, op *history.Op) []map[string]any {
	key := markerPrefix + m.TransactionID
	value, err := json.Marshal(op.By)
	if err != nil {
		panic(err) // a string
	}
	put := map[string]any{"op": "putIfAbsent", "key": key, "value": op.By, "required": true}
	if !s.checked {
		op.Keys = append(op.Keys, history.KeyOp{Op: "putIfAbsent", Key: key, Value: string(value)})
		return []map[string]any{put}
	}
	put["op"] = "put"
	none := int64(0)
	op.Keys = append(op.Keys,
		history.KeyOp{Op: "check", Key: key, Expect: &none},
		history.KeyOp{Op: "put", Key: key, Value: string(value)})
	return []map[string]any{{"op": "check", "key": key, "expect": none, "required": true}, put}
}

// perCounter bounds how often a counter is incremented, and so the search for the order of its answers.
const perCounter = 500

// counter names the counter of an input. Inputs of all partitions share it, so that it is contended.
func (w *worker) counter(id string) string {
	var laneIndex, number, producer int64
	if _, err := fmt.Sscanf(id, "%d.producer-%d.%d", &laneIndex, &producer, &number); err != nil {
		laneIndex, number = 0, 0
	}
	epoch := number * int64(w.cfg.Producers) / perCounter
	for {
		latest := w.epoch.Load()
		if epoch <= latest || w.epoch.CompareAndSwap(latest, epoch) {
			return fmt.Sprintf("count:%d:%d", laneIndex, epoch)
		}
	}
}

// txAnswer is the answer to a transaction.
type txAnswer struct {
	Success bool   `json:"success"`
	Reason  string `json:"reason"`
	Error   string `json:"error"`
	Results []struct {
		Type      string          `json:"type"`
		Success   bool            `json:"success"`
		OpIndex   int             `json:"opIndex"`
		Applied   bool            `json:"applied"`
		Value     json.RawMessage `json:"value"`
		Version   int64           `json:"version"`
		Reason    string          `json:"reason"`
		Status    string          `json:"status"`
		DeliverAt time.Time       `json:"deliverAt"`
		Duplicate bool            `json:"duplicate"`
	} `json:"results"`
}

func readTx(op *history.Op, body []byte) error {
	var got txAnswer
	if err := json.Unmarshal(body, &got); err != nil {
		return err
	}
	if !got.Success {
		if got.Reason == "" {
			return errors.New("neither success nor a reason")
		}
		op.Outcome, op.Reason = history.Fail, got.Reason+": "+got.Error
		return nil
	}
	if want := len(op.Acked) + len(op.Pushed) + len(op.Keys) + len(op.Timers); len(got.Results) != want {
		return fmt.Errorf("%d results on %d operations", len(got.Results), want)
	}
	for i := range got.Results {
		switch res := &got.Results[i]; res.Type {
		case "kv":
			if res.OpIndex < 0 || res.OpIndex >= len(op.Keys) {
				return fmt.Errorf("result %d has opIndex %d", i, res.OpIndex)
			}
			k := &op.Keys[res.OpIndex]
			k.Applied, k.Version, k.Reason = res.Applied, res.Version, res.Reason
			if k.Op == "incr" {
				k.Value = string(res.Value)
			}
		case "timer":
			if res.OpIndex < 0 || res.OpIndex >= len(op.Timers) {
				return fmt.Errorf("result %d has opIndex %d", i, res.OpIndex)
			}
			t := &op.Timers[res.OpIndex]
			t.Status, t.Due = res.Status, res.DeliverAt.UnixMicro()
		default:
			if !res.Success || res.Duplicate {
				return fmt.Errorf("result %d of a committed transaction is no success", i)
			}
		}
	}
	return nil
}
