package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stages is how often a message is taken from one queue and put into the next.
const stages, lanes = 2, 4

// pipeline is a chain of queues with workers between them. Each step is one
// transaction: it acknowledges what was popped, pushes one message for each into
// the next queue, counts them in a counter, marks itself done and sets a timer.
// All of it is to happen once a message, whatever goes wrong.
type pipeline struct {
	*chaos
	pushed [lanes]atomic.Int64
}

func TestPipeline_P10_ExactlyOnceUnderFaults(t *testing.T) {
	t.Parallel()
	p := &pipeline{chaos: newChaos(t)}
	until := time.Now().Add(modelTime(t, 8*time.Second))
	done := make(chan struct{})
	var producers, workers sync.WaitGroup
	for lane := range lanes {
		producers.Go(func() { p.produce(lane, until) })
	}
	for stage := range stages {
		for w := range 3 {
			workers.Go(func() { p.work(stage, p.random(10*stage+w), done) })
		}
	}
	workers.Go(func() { p.observe(done) })
	p.breakUntil(until)
	producers.Wait()
	total := 0
	for i := range p.pushed {
		total += int(p.pushed[i].Load())
	}
	end := time.Now().Add(60 * time.Second)
	for p.read(fmt.Sprintf(`SELECT coalesce(sum(p.last_offset + 1), 0) FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 's%d'`, stages)) < total && time.Now().Before(end) && !t.Failed() {
		time.Sleep(50 * time.Millisecond)
	}
	close(done)
	workers.Wait()
	t.Logf("%d inputs; %d steps committed, %d rolled back, %d of unknown outcome, %d sent twice at once, %d too late; faults %v",
		total, p.committed.Load(), p.rolled.Load(), p.unknown.Load(), p.twins.Load(), p.late.Load(), p.faults)
	p.check(total)
}

// check looks at what is left: every input once and in order, exact counters,
// and a message from each timer.
func (p *pipeline) check(total int) {
	b := p.client(0)
	var lane [lanes][]string
	for _, m := range stored(b, fmt.Sprint("s", stages)) {
		var n int
		if _, err := fmt.Sscanf(m.Partition, "p%d", &n); err != nil || m.TransactionID != fmt.Sprintf("s%d:%s", stages, inputOf(m)) {
			p.t.Fatalf("%s/%s holds %s: %v", m.Queue, m.Partition, m.TransactionID, err)
		}
		lane[n] = append(lane[n], inputOf(m))
	}
	for n := range lane {
		if want := ids(fmt.Sprint("i", n), 0, int(p.pushed[n].Load())); !slices.Equal(lane[n], want) {
			p.t.Errorf("lane %d: %d of %d inputs at the end, or not in order: %.2000v", n, len(lane[n]), len(want), lane[n])
		}
	}
	for stage := range stages {
		if got := p.read(fmt.Sprintf(`SELECT coalesce(sum(value::int), 0) FROM queen.kv WHERE ns = 'count' AND key = 's%d'`, stage)); got != total {
			p.t.Errorf("stage %d counted %d, want %d", stage, got, total)
		}
	}
	marks := p.read(`SELECT count(*) FROM queen.kv WHERE ns = 'done'`)
	if least := int(p.committed.Load()); marks < least || marks > least+int(p.unknown.Load()) {
		p.t.Errorf("%d steps are marked, %d were reported and %d unknown", marks, least, p.unknown.Load())
	}
	eventually(p.t, func() bool { return p.read(`SELECT count(*) FROM queen.timers`) == 0 }, "timers to fire")
	fired := map[string]int{}
	for _, m := range stored(b, "fired") {
		fired[m.TransactionID]++
	}
	for id, n := range fired {
		if n != 1 || p.read(fmt.Sprintf(`SELECT count(*) FROM queen.kv WHERE ns = 'done' AND key = '%s'`, id)) != 1 {
			p.t.Errorf("timer %s fired %d times, or its step was not committed", id, n)
		}
	}
	if len(fired) != marks {
		p.t.Errorf("%d timers fired for %d steps", len(fired), marks)
	}
	checkNothingStranded(p.t, p.pool)
}

func inputOf(m Message) string {
	var in struct{ Input string }
	_ = json.Unmarshal(m.Data, &in)
	return in.Input
}

// produce pushes the inputs of a lane in order, each batch until it is stored.
func (p *pipeline) produce(lane int, until time.Time) {
	r := p.random(100 + lane)
	for n := 0; time.Now().Before(until) && !p.t.Failed(); {
		items := make([]Item, 1+r.IntN(3))
		for i := range items {
			in := fmt.Sprintf("i%d-%d", lane, n+i)
			items[i] = Item{Queue: "s0", Partition: fmt.Sprint("p", lane), TransactionID: "s0:" + in, Payload: json.RawMessage(`{"input":"` + in + `"}`)}
		}
		if !p.until(r, http.StatusCreated, "/api/v1/push", PushBody(items...)) {
			return
		}
		n += len(items)
		p.pushed[lane].Store(int64(n))
		time.Sleep(60 * time.Millisecond)
	}
}

func (p *pipeline) work(stage int, r *rand.Rand, done <-chan struct{}) {
	query := fmt.Sprintf("/api/v1/pop/queue/s%d?batch=6&leaseSeconds=1&wait=true&timeout=300&%s", stage, as("pipe"))
	p.consume(r, query, done, func(got PopAnswer) {
		// In two steps under one lease, now and then.
		if r.IntN(4) == 0 && len(got.Messages) > 1 {
			if p.step(stage, r, got.Messages[:1]) {
				p.step(stage, r, got.Messages[1:])
			}
			return
		}
		p.step(stage, r, got.Messages)
	})
}

// stepOf is the transaction that handles messages.
func stepOf(stage int, messages []Message) ([]byte, string) {
	name := fmt.Sprintf("s%d:%s", stage, inputOf(messages[0]))
	var acks []AckItem
	var items []Item
	for _, m := range messages {
		acks = append(acks, m.Ack("completed", ""))
		items = append(items, Item{Queue: fmt.Sprint("s", stage+1), Partition: m.Partition, TransactionID: fmt.Sprintf("s%d:%s", stage+1, inputOf(m)), Payload: m.Data})
	}
	body, err := json.Marshal(struct {
		bundle
		KV     []any `json:"kv"`
		Timers []any `json:"timers"`
	}{
		ops(groupAcks{"pipe", acks}, items),
		[]any{
			map[string]any{"op": "incr", "ns": "count", "key": fmt.Sprint("s", stage), "delta": len(messages), "forever": true},
			map[string]any{"op": "putIfAbsent", "ns": "done", "key": name, "value": 1, "forever": true, "required": true},
		},
		[]any{map[string]any{
			"op": "schedule", "queue": "fired", "timerKey": name, "txn": name, "delayMs": 200,
			"payload": base64.StdEncoding.EncodeToString([]byte(`{}`)),
		}},
	})
	if err != nil {
		panic(err)
	}
	return body, name
}

// step commits a transaction, or learns that it cannot be committed; true when
// it was, as far as is known.
func (p *pipeline) step(stage int, r *rand.Rand, messages []Message) bool {
	body, name := stepOf(stage, messages)
	return p.settle(r, name, body, "rejected_ack")
}

// observe compares, for each stage, what was acknowledged, pushed and counted.
func (p *pipeline) observe(done <-chan struct{}) {
	var parts []string
	for stage := range stages {
		parts = append(parts, fmt.Sprintf(`
			(SELECT coalesce(sum(c.committed + 1), 0) FROM queen.cursors c JOIN queen.queues q ON q.id = c.queue_id JOIN queen.consumer_groups g ON g.queue_id = q.id AND g.id = c.group_id
			 WHERE q.name = 's%[1]d' AND g.name = 'pipe')::int,
			(SELECT coalesce(sum(p.last_offset + 1), 0) FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 's%[2]d')::int,
			(SELECT coalesce(sum(value::int), 0) FROM queen.kv WHERE ns = 'count' AND key = 's%[1]d')::int`, stage, stage+1))
	}
	p.watch(done, "SELECT ARRAY["+strings.Join(parts, ",")+"]", func(got []int) bool {
		for s := range stages {
			if x := got[3*s : 3*s+3]; x[0] != x[1] || x[0] != x[2] {
				return false
			}
		}
		return true
	})
}
