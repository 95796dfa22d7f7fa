package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// The wire as a client sees it. The helpers fail the test on any status that
// the route does not answer when it works; Do is there for the others.

// Item is one message of a push. A payload is sent byte for byte; a nil one is
// an empty object.
type Item struct {
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition,omitempty"`
	TransactionID string          `json:"transactionId,omitempty"`
	Payload       json.RawMessage `json:"payload"`
}

// PushResult is the verdict on one item.
type PushResult struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	QueueName     string `json:"queueName"`
	Status        string `json:"status"`
	Offset        *int64 `json:"offset"`
	Error         string `json:"error"`
}

// PopAnswer is what a pop delivered.
type PopAnswer struct {
	Success            bool      `json:"success"`
	Queue              string    `json:"queue"`
	Partition          string    `json:"partition"`
	PartitionID        string    `json:"partitionId"`
	LeaseID            string    `json:"leaseId"`
	ConsumerGroup      string    `json:"consumerGroup"`
	Messages           []Message `json:"messages"`
	PartitionsClaimed  int       `json:"partitionsClaimed"`
	Conflation         bool      `json:"conflation"`
	ConflationConflict bool      `json:"conflationConflict"`

	Raw []byte `json:"-"` // the body as it came
}

// Message is one delivered message.
type Message struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	TraceID         *string         `json:"traceId"`
	Data            json.RawMessage `json:"data"` // the bytes as they came
	ProducerSub     *string         `json:"producerSub"`
	CreatedAt       time.Time       `json:"createdAt"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	ConsumerGroup   string          `json:"consumerGroup"`
	Queue           string          `json:"queue"`
	Offset          int64           `json:"offset"`
	DeliveryAttempt int             `json:"deliveryAttempt"`
}

// AckItem acknowledges one message.
type AckItem struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId,omitempty"`
	Status        string `json:"status,omitempty"`
	Error         string `json:"error,omitempty"`
}

// AckResult is the verdict on one acknowledgement.
type AckResult struct {
	Index         int     `json:"index"`
	TransactionID string  `json:"transactionId"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	DLQ           bool    `json:"dlq"`
	Noop          bool    `json:"noop"`
	Conflated     int64   `json:"conflated"`
}

// In is the broker for a subtest, which then fails instead of its parent.
func (b *Broker) In(t testing.TB) *Broker {
	c := *b
	c.t = t
	return &c
}

// Must is Do for a request that has to be answered with status want.
func (b *Broker) Must(want int, method, path string, body any) []byte {
	b.t.Helper()
	status, _, answer := b.Do(method, path, body)
	if status != want {
		b.t.Fatalf("%s %s: status %d, want %d: %.500s", method, path, status, want, answer)
	}
	return answer
}

// MustInto is Must that decodes the answer.
func (b *Broker) MustInto(into any, want int, method, path string, body any) {
	b.t.Helper()
	answer := b.Must(want, method, path, body)
	if err := json.Unmarshal(answer, into); err != nil {
		b.t.Fatalf("%s %s: %v in %.500s", method, path, err, answer)
	}
}

// PushBody writes the body of a push without re-encoding the payloads, which
// json.Marshal would compact.
func PushBody(items ...Item) []byte {
	var buf bytes.Buffer
	buf.WriteString(`{"items":[`)
	for i, it := range items {
		if i > 0 {
			buf.WriteByte(',')
		}
		payload := it.Payload
		if payload == nil {
			payload = json.RawMessage(`{}`)
		}
		it.Payload = json.RawMessage(`0`)
		rest, err := json.Marshal(it)
		if err != nil {
			panic(err) // strings and a constant
		}
		buf.Write(rest[:len(rest)-2]) // without the constant and the brace
		buf.Write(payload)
		buf.WriteByte('}')
	}
	buf.WriteString(`]}`)
	return buf.Bytes()
}

// Push sends items in one call.
func (b *Broker) Push(items ...Item) []PushResult {
	b.t.Helper()
	var results []PushResult
	b.MustInto(&results, http.StatusCreated, "POST", "/api/v1/push", PushBody(items...))
	if len(results) != len(items) {
		b.t.Fatalf("push: %d results for %d items", len(results), len(items))
	}
	return results
}

// PushN sends n messages {"n":i} with ids prefix-i to one partition in one call.
func (b *Broker) PushN(queue, partition, prefix string, n int) []PushResult {
	b.t.Helper()
	items := make([]Item, n)
	for i := range items {
		items[i] = Item{
			Queue: queue, Partition: partition, TransactionID: fmt.Sprintf("%s-%d", prefix, i),
			Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)),
		}
	}
	return b.Push(items...)
}

// Pop asks a queue, on the wildcard route. query is a query string without the
// question mark. Nil means 204.
func (b *Broker) Pop(queue, query string) *PopAnswer {
	b.t.Helper()
	return b.popAt("/api/v1/pop/queue/"+Seg(queue), query)
}

// PopPinned asks one partition.
func (b *Broker) PopPinned(queue, partition, query string) *PopAnswer {
	b.t.Helper()
	return b.popAt("/api/v1/pop/queue/"+Seg(queue)+"/partition/"+Seg(partition), query)
}

// Discover asks every queue with the labels that query names.
func (b *Broker) Discover(query string) *PopAnswer {
	b.t.Helper()
	return b.popAt("/api/v1/pop", query)
}

func (b *Broker) popAt(path, query string) *PopAnswer {
	b.t.Helper()
	if query != "" {
		path += "?" + query
	}
	status, _, answer := b.Do("GET", path, nil)
	if status == http.StatusNoContent {
		return nil
	}
	p := &PopAnswer{Raw: answer}
	if err := json.Unmarshal(answer, p); status != http.StatusOK || err != nil || !p.Success {
		b.t.Fatalf("GET %s: status %d, %v: %.500s", path, status, err, answer)
	}
	return p
}

// IDs are the transaction ids of the messages, in the order delivered.
func (p *PopAnswer) IDs() []string {
	var ids []string
	for i := 0; p != nil && i < len(p.Messages); i++ {
		ids = append(ids, p.Messages[i].TransactionID)
	}
	return ids
}

// Ack acknowledges a message with the lease it came under.
func (m Message) Ack(status, text string) AckItem {
	return AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: status, Error: text}
}

// Ack acknowledges items for a group in one batch; "" is queue mode.
func (b *Broker) Ack(group string, items ...AckItem) []AckResult {
	b.t.Helper()
	body := map[string]any{"acknowledgments": items}
	if group != "" {
		body["consumerGroup"] = group
	}
	var results []AckResult
	b.MustInto(&results, http.StatusOK, "POST", "/api/v1/ack/batch", body)
	if len(results) != len(items) {
		b.t.Fatalf("ack: %d results for %d items", len(results), len(items))
	}
	return results
}

// AckAll completes everything that was delivered, and fails the test when one
// of it is refused.
func (b *Broker) AckAll(p *PopAnswer) []AckResult {
	b.t.Helper()
	items := make([]AckItem, len(p.Messages))
	for i, m := range p.Messages {
		items[i] = m.Ack("completed", "")
	}
	results := b.Ack(p.ConsumerGroup, items...)
	for _, r := range results {
		if !r.Success {
			b.t.Fatalf("ack: %+v refused: %s", r, *r.Error)
		}
	}
	return results
}

// Configure makes or changes a queue and returns the whole answer.
func (b *Broker) Configure(queue string, options map[string]any) []byte {
	b.t.Helper()
	return b.Must(http.StatusOK, "POST", "/api/v1/configure", map[string]any{"queue": queue, "options": options})
}
