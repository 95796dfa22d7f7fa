package workload

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// item is a message on its way in.
type item struct {
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	TransactionID string          `json:"transactionId"`
	Payload       json.RawMessage `json:"payload"`
}

// payload is what every message carries; By names the transaction or schedule that wrote it.
type payload struct {
	ID  string `json:"id"`
	By  string `json:"by,omitempty"`
	Pad string `json:"pad,omitempty"`
}

func (p payload) encode() json.RawMessage {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // three strings
	}
	return text
}

func sum(text []byte) string { return strconv.FormatUint(uint64(crc32.ChecksumIEEE(text)), 36) }

// stored is one element of a push answer.
type stored struct {
	TransactionID string `json:"transaction_id"`
	Status        string `json:"status"`
	Offset        *int64 `json:"offset"`
	Error         string `json:"error"`
}

// producer pushes single messages and batches over several partitions, sends some again later, and some twice at
// once. Partitions are shared by all producers.
func (w *worker) producer() {
	made := 0
	var recent [][]item
	for w.admit() {
		var items []item
		switch kind := w.rand.IntN(100); {
		case kind < 5 && len(recent) > 0:
			items = recent[w.rand.IntN(len(recent))]
		case kind < 45:
			items = w.items(&made, w.lane(), w.partition(), 1)
		default:
			l := w.lane()
			for range 1 + w.rand.IntN(4) {
				items = append(items, w.items(&made, l, w.partition(), 1+w.rand.IntN(8))...)
			}
		}
		if w.rand.IntN(50) == 0 {
			w.beside("twin", func(other *worker) { other.push(items) })
		}
		w.push(items)
		if recent = append(recent, items); len(recent) > 20 {
			recent = recent[1:]
		}
		pace := time.Duration(float64(len(items)*w.cfg.Producers) / w.cfg.Rate * float64(time.Second))
		sleep(w.produce, pace/2+time.Duration(w.rand.Int64N(int64(pace)+1)))
	}
}

// admit waits while a group is far behind: what nobody can drain proves nothing.
func (w *worker) admit() bool {
	for w.produce.Err() == nil {
		if w.produced.Load()-min(w.handled[0].count(), w.handled[1].count()) < w.cfg.Backlog {
			return true
		}
		sleep(w.produce, 20*time.Millisecond)
	}
	return false
}

func (w *worker) lane() *lane { return &w.lanes[w.rand.IntN(len(w.lanes))] }

func (w *worker) partition() string { return fmt.Sprintf("p%d", w.rand.IntN(w.cfg.Partitions)) }

func (w *worker) items(made *int, l *lane, partition string, count int) []item {
	out := make([]item, count)
	for i := range out {
		id := fmt.Sprintf("%d.%s.%d", l.index, w.name, *made)
		*made++
		pad := strings.Repeat("é\"", w.rand.IntN(60))
		out[i] = item{l.input, partition, id, payload{ID: id, Pad: pad}.encode()}
	}
	w.produced.Add(int64(count))
	return out
}

// push insists until it knows the verdict, also beyond the time of producing: an id that nobody knows anything about
// would prove nothing.
func (w *worker) push(items []item) *history.Op {
	body, err := json.Marshal(map[string]any{"items": items})
	if err != nil {
		panic(err) // strings and JSON
	}
	return w.insist(w.settle, func(request string, try int) *call {
		op := &history.Op{Kind: history.Push, Queue: items[0].Queue}
		for _, it := range items {
			op.Pushed = append(op.Pushed, history.Message{
				Partition: it.Partition, ID: it.TransactionID, Offset: -1, Sum: sum(it.Payload),
			})
		}
		return &call{op: op, method: http.MethodPost, path: "/api/v1/push", body: body, read: func(body []byte) error {
			return readPush(op, body)
		}}
	})
}

func readPush(op *history.Op, body []byte) error {
	var verdicts []stored
	if err := json.Unmarshal(body, &verdicts); err != nil {
		return err
	}
	if len(verdicts) != len(op.Pushed) {
		return fmt.Errorf("%d verdicts on %d items", len(verdicts), len(op.Pushed))
	}
	for i, v := range verdicts {
		m := &op.Pushed[i]
		if v.TransactionID != m.ID {
			return fmt.Errorf("verdict %d is on %q", i, v.TransactionID)
		}
		m.Status, m.Refused = v.Status, v.Error
		if v.Offset != nil {
			m.Offset = *v.Offset
		}
	}
	return nil
}
