package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// EphemeralMessage is a delivered message of an ephemeral queue.
type EphemeralMessage struct {
	ID        string          `json:"id"`
	Partition string          `json:"partition"`
	Attempts  int             `json:"attempts"`
	Payload   json.RawMessage `json:"payload"` // the bytes as they came
}

// EphemeralQueue is a queue in the listing.
type EphemeralQueue struct {
	Queue      string         `json:"queue"`
	Tier       string         `json:"tier"`
	Depth      int64          `json:"depth"`
	Bytes      int64          `json:"bytes"`
	Partitions int64          `json:"partitions"`
	Groups     int64          `json:"groups"`
	Drops      map[string]int `json:"drops"`
	Options    map[string]any `json:"options"`
}

// EphemeralDepth is the depth of a queue.
type EphemeralDepth struct {
	Tier    string `json:"tier"`
	Pending int64  `json:"pending"`
	Bytes   int64  `json:"bytes"`
	Groups  []struct {
		Group   string `json:"group"`
		Pending int64  `json:"pending"`
		Skipped int64  `json:"skipped"`
	} `json:"groups"`
}

// EphemeralFleet is brokers that share ephemeral queues with nobody else.
type EphemeralFleet struct {
	*Fleet
	RedisURL string
	Prefix   string // of keys in Redis
	env      []string
	turn     atomic.Int64
}

// StartEphemeral runs brokers on a database of their own and a part of the
// tests' Redis of their own, or of another that env names.
func StartEphemeral(t testing.TB, brokers int, env ...string) *EphemeralFleet {
	t.Helper()
	f := &EphemeralFleet{Fleet: &Fleet{t: t, DB: pgtest.New(t)}}
	f.Prefix = f.DB.Name + ":"
	f.env = append([]string{"DATABASE_URL=" + f.DB.URL, "DB_POOL_SIZE=5", "QUEEN_REDIS_PREFIX=" + f.Prefix}, env...)
	for _, kv := range env {
		if address, ok := strings.CutPrefix(kv, "REDIS_URL="); ok {
			f.RedisURL = address
		}
	}
	if f.RedisURL == "" {
		f.RedisURL = pgtest.Redis(t)
		f.env = append(f.env, "REDIS_URL="+f.RedisURL)
	}
	for range brokers {
		f.Add()
	}
	return f
}

// Add starts one more broker.
func (f *EphemeralFleet) Add() *Broker {
	f.t.Helper()
	b := f.start(f.env)
	f.Brokers = append(f.Brokers, b)
	return b
}

// Next is each broker in turn, so that calls one after the other go to
// different ones.
func (f *EphemeralFleet) Next(t testing.TB) *Broker {
	return f.Brokers[int(f.turn.Add(1))%len(f.Brokers)].In(t)
}

const ephemeralAt = "/api/v1/ephemeral/"

// EphemeralPushBody writes the body of a push; payloads go as they are.
func EphemeralPushBody(queue, partition string, payloads ...string) []byte {
	head := map[string]string{"queue": queue}
	if partition != "" {
		head["partition"] = partition
	}
	rest, err := json.Marshal(head)
	if err != nil {
		panic(err) // strings
	}
	var buf bytes.Buffer
	buf.Write(rest[:len(rest)-1])
	buf.WriteString(`,"messages":[`)
	for i, p := range payloads {
		if i > 0 {
			buf.WriteByte(',')
		}
		buf.WriteString(`{"payload":` + p + `}`)
	}
	buf.WriteString(`]}`)
	return buf.Bytes()
}

// EphemeralPush stores payloads, which are JSON, in one call.
func (b *Broker) EphemeralPush(queue, partition string, payloads ...string) {
	b.t.Helper()
	var answer struct{ Pushed int }
	b.MustInto(&answer, http.StatusCreated, "POST", ephemeralAt+"push", EphemeralPushBody(queue, partition, payloads...))
	if answer.Pushed != len(payloads) {
		b.t.Fatalf("ephemeral push: %d stored of %d", answer.Pushed, len(payloads))
	}
}

// EphemeralPop asks a queue. query is a query string without the queue.
func (b *Broker) EphemeralPop(queue, query string) []EphemeralMessage {
	b.t.Helper()
	var answer struct {
		Queue    string
		Messages []EphemeralMessage
	}
	b.MustInto(&answer, http.StatusOK, "GET", ephemeralPopPath(queue, query), nil)
	if answer.Messages == nil || answer.Queue != queue {
		b.t.Fatalf("ephemeral pop of %q: %+v", queue, answer)
	}
	return answer.Messages
}

func ephemeralPopPath(queue, query string) string {
	path := ephemeralAt + "pop?queue=" + url.QueryEscape(queue)
	if query != "" {
		path += "&" + query
	}
	return path
}

// EphemeralAck settles messages with one status, which may be empty, and
// returns the outcomes.
func (b *Broker) EphemeralAck(queue, group, status string, messages ...EphemeralMessage) []string {
	b.t.Helper()
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.ID
	}
	return b.EphemeralAckIDs(queue, group, status, ids...)
}

// EphemeralAckIDs is EphemeralAck by id.
func (b *Broker) EphemeralAckIDs(queue, group, status string, ids ...string) []string {
	b.t.Helper()
	var answer struct {
		Results []struct{ ID, Outcome string }
	}
	b.MustInto(&answer, http.StatusOK, "POST", ephemeralAt+"ack", ephemeralAckBody(queue, group, status, ids...))
	if len(answer.Results) != len(ids) {
		b.t.Fatalf("ephemeral ack: %d results for %d ids", len(answer.Results), len(ids))
	}
	outcomes := make([]string, len(ids))
	for i, r := range answer.Results {
		if r.ID != ids[i] {
			b.t.Fatalf("ephemeral ack: result %d is of %q, want %q", i, r.ID, ids[i])
		}
		outcomes[i] = r.Outcome
	}
	return outcomes
}

func ephemeralAckBody(queue, group, status string, ids ...string) map[string]any {
	acks := make([]map[string]string, len(ids))
	for i, id := range ids {
		acks[i] = map[string]string{"id": id}
		if status != "" {
			acks[i]["status"] = status
		}
	}
	body := map[string]any{"queue": queue, "acks": acks}
	if group != "" {
		body["group"] = group
	}
	return body
}

// EphemeralConfigure declares a queue with options written as a JSON object.
func (b *Broker) EphemeralConfigure(queue, options string) []byte {
	b.t.Helper()
	return b.Must(http.StatusCreated, "POST", ephemeralAt+"configure", `{"queue":`+quoted(queue)+`,"options":`+options+`}`)
}

// EphemeralQueues lists all queues.
func (b *Broker) EphemeralQueues() (list []EphemeralQueue, cellBytes int64) {
	b.t.Helper()
	var answer struct {
		Queues    []EphemeralQueue
		Count     int
		CellBytes int64
	}
	b.MustInto(&answer, http.StatusOK, "GET", ephemeralAt+"queues", nil)
	if answer.Queues == nil || answer.Count != len(answer.Queues) {
		b.t.Fatalf("ephemeral queues: count %d, %d queues", answer.Count, len(answer.Queues))
	}
	return answer.Queues, answer.CellBytes
}

// EphemeralQueue is one of the listing, nil when it is not there.
func (b *Broker) EphemeralQueue(queue string) *EphemeralQueue {
	b.t.Helper()
	list, _ := b.EphemeralQueues()
	for i := range list {
		if list[i].Queue == queue {
			return &list[i]
		}
	}
	return nil
}

// EphemeralDepth tells what a queue holds.
func (b *Broker) EphemeralDepth(queue string) EphemeralDepth {
	b.t.Helper()
	var d EphemeralDepth
	b.MustInto(&d, http.StatusOK, "GET", ephemeralAt+"queues/"+Seg(queue)+"/depth", nil)
	return d
}

// payloadsOf are the payloads of messages, in the order delivered.
func payloadsOf(messages []EphemeralMessage) []string {
	out := make([]string, len(messages))
	for i, m := range messages {
		out[i] = string(m.Payload)
	}
	return out
}

func quoted(s string) string {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return string(raw)
}
