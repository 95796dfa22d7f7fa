package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// machine is a state machine of many entities. An entity is a partition with
// its events and a key with its state; each transition is one transaction that
// acknowledges the events, writes the state, emits what happened, keeps count of
// the entities that are armed, and sets or cancels the timer of the entity. The
// timer's message comes into the entity's own partition.
type machine struct {
	*chaos
	rules    map[string]string // by state and event
	armed    string            // the state that a timer ends
	timeout  time.Duration
	entities int

	mu   sync.Mutex
	sent map[string]int // events stored, by entity
}

// entity is the state of one, as it is stored.
type entity struct {
	State string `json:"state"`
	Taken int    `json:"taken"` // events of its partition
	Out   int    `json:"out"`   // events emitted
	Epoch int    `json:"epoch"` // how often it was armed
}

type event struct {
	Kind  string `json:"kind"`
	Epoch int    `json:"epoch,omitempty"` // of a timeout
}

// take is the model: what an event makes of an entity. What is late or repeated
// changes nothing.
func (m *machine) take(e entity, ev event) (entity, string) {
	e.Taken++
	next, known := m.rules[e.State+" "+ev.Kind]
	if !known || ev.Kind == "timeout" && ev.Epoch != e.Epoch {
		return e, ""
	}
	emitted := fmt.Sprintf("%s>%s", e.State, next)
	if e.State = next; next == m.armed {
		e.Epoch++
	}
	e.Out++
	return e, emitted
}

func (m *machine) load(r *rand.Rand, name string) (e entity, version int64, ok bool) {
	for range 300 {
		status, _, raw, err := m.client(r.IntN(2)).Try(context.Background(), "POST", "/api/v1/kv", fmt.Sprintf(`[{"op":"get","ns":"entity","key":%q}]`, name))
		if err != nil || status == http.StatusServiceUnavailable {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		var got struct{ Results []KVResult }
		if err := json.Unmarshal(raw, &got); status != http.StatusOK || err != nil || len(got.Results) != 1 {
			m.t.Errorf("get: %d %s", status, raw)
			return e, 0, false
		}
		if got.Results[0].OK() {
			if err := json.Unmarshal(got.Results[0].Value, &e); err != nil {
				m.t.Errorf("%s: %v", raw, err)
				return e, 0, false
			}
		}
		return e, got.Results[0].Version, true
	}
	m.t.Errorf("get: no answer in 300 tries")
	return e, 0, false
}

// step handles the events of one entity.
func (m *machine) step(r *rand.Rand, messages []Message) {
	name := messages[0].Partition
	before, version, ok := m.load(r, name)
	if !ok {
		return
	}
	// The state may be newer than the lease when somebody else has taken over:
	// the commit has to be refused then, whatever is in it.
	after := before
	var acks []AckItem
	var out []Item
	for _, msg := range messages {
		acks = append(acks, msg.Ack("completed", ""))
		var ev event
		if err := json.Unmarshal(msg.Data, &ev); err != nil {
			m.t.Errorf("%s: %v", msg.Data, err)
			return
		}
		var emitted string
		if after, emitted = m.take(after, ev); emitted != "" {
			out = append(out, Item{
				Queue: "out", Partition: name, TransactionID: fmt.Sprintf("%s:%d", name, after.Out), Payload: json.RawMessage(fmt.Sprintf("%q", emitted)),
			})
		}
	}
	kv := []any{op{"op": "put", "ns": "entity", "key": name, "value": after, "expect": version, "forever": true, "required": true}}
	var timers []any
	was, is := before.State == m.armed, after.State == m.armed
	if was != is {
		kv = append(kv, op{"op": "incr", "ns": "armed", "key": "all", "delta": map[bool]int{true: 1, false: -1}[is], "forever": true})
	}
	switch {
	case is && after.Epoch != before.Epoch:
		payload, _ := json.Marshal(event{"timeout", after.Epoch})
		timers = append(timers, op{
			"op": "schedule", "queue": "events", "partition": name, "timerKey": name, "delayMs": m.timeout.Milliseconds(),
			"txn": fmt.Sprintf("%s:timeout:%d", name, after.Epoch), "payload": base64.StdEncoding.EncodeToString(payload),
		})
	case was && !is:
		timers = append(timers, cancel("events", name))
	}
	steps := []any{groupAcks{"machine", acks}}
	if out != nil {
		steps = append(steps, out)
	}
	body, err := json.Marshal(struct {
		bundle
		KV     []any `json:"kv"`
		Timers []any `json:"timers,omitempty"`
	}{ops(steps...), kv, timers})
	if err != nil {
		panic(err)
	}
	m.settle(r, fmt.Sprintf("%s@%d", name, messages[0].Offset), body, "rejected_ack")
}

// send stores an event, once however often it is sent.
func (m *machine) send(r *rand.Rand, name, id, kind string) bool {
	body := PushBody(Item{Queue: "events", Partition: name, TransactionID: id, Payload: json.RawMessage(fmt.Sprintf(`{"kind":%q}`, kind))})
	for range 1 + r.IntN(4)/3 {
		if !m.until(r, http.StatusCreated, "/api/v1/push", body) {
			return false
		}
	}
	m.mu.Lock()
	m.sent[name]++
	m.mu.Unlock()
	return true
}

// partsOfSteps is what an observer compares: entities whose state is not that of
// their cursor or of what they emitted, entities armed and the count of them,
// armed ones whose end is neither a timer nor on its way, and timers of others.
const partsOfSteps = `
	WITH lane AS (
		SELECT q.name AS queue, p.name, p.last_offset + 1 AS held, coalesce((
			SELECT c.committed + 1 FROM queen.cursors c JOIN queen.consumer_groups g ON g.queue_id = c.queue_id AND g.id = c.group_id
			WHERE c.queue_id = p.queue_id AND c.partition_id = p.id AND g.name = 'machine'), 0) AS taken
		FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
	), entity AS (
		SELECT key, value::jsonb->>'state' AS state, (value::jsonb->>'taken')::int AS taken, (value::jsonb->>'out')::int AS out
		FROM queen.kv WHERE ns = 'entity'
	)
	SELECT ARRAY[
		(SELECT count(*) FROM lane LEFT JOIN entity e ON e.key = lane.name WHERE lane.queue = 'events' AND lane.taken <> coalesce(e.taken, 0))::int,
		(SELECT count(*) FROM entity e LEFT JOIN lane ON lane.name = e.key AND lane.queue = 'out' WHERE e.out <> coalesce(lane.held, 0))::int,
		(SELECT count(*) FROM entity WHERE state = '%[1]s')::int,
		(SELECT coalesce(sum(value::int), 0) FROM queen.kv WHERE ns = 'armed')::int,
		(SELECT count(*) FROM entity e JOIN lane ON lane.name = e.key AND lane.queue = 'events'
			WHERE e.state = '%[1]s' AND lane.held = lane.taken AND NOT EXISTS (SELECT FROM queen.timers t WHERE t.queue = 'events' AND t.timer_key = e.key))::int,
		(SELECT count(*) FROM queen.timers t LEFT JOIN entity e ON e.key = t.timer_key WHERE e.state IS DISTINCT FROM '%[1]s')::int]`

func wholeSteps(n []int) bool {
	return n[0] == 0 && n[1] == 0 && n[2] == n[3] && n[4] == 0 && n[5] == 0
}

// run has the events sent by feed, under faults, and waits until all is quiet.
func (m *machine) run(feed func(until time.Time)) {
	m.sent = map[string]int{}
	until := time.Now().Add(modelTime(m.t, 4*time.Second))
	done := make(chan struct{})
	var workers sync.WaitGroup
	for w := range 4 {
		r := m.random(w)
		workers.Go(func() {
			m.consume(r, "/api/v1/pop/queue/events?batch=12&partitions=3&leaseSeconds=1&wait=true&timeout=300&"+as("machine"), done, func(got PopAnswer) {
				for all := got.Messages; len(all) > 0; {
					n := slices.IndexFunc(all, func(msg Message) bool { return msg.Partition != all[0].Partition })
					if n < 0 {
						n = len(all)
					}
					m.step(r, all[:n])
					all = all[n:]
				}
			})
		})
	}
	workers.Go(func() { m.watch(done, fmt.Sprintf(partsOfSteps, m.armed), wholeSteps) })
	fed := async(func() bool { feed(until); return true })
	m.breakUntil(until)
	<-fed
	quiet := `SELECT (SELECT count(*) FROM queen.timers) + (SELECT coalesce(sum(p.last_offset + 1), 0) FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'events')
		- (SELECT coalesce(sum((value::jsonb->>'taken')::int), 0) FROM queen.kv WHERE ns = 'entity')`
	for end := time.Now().Add(60 * time.Second); m.read(quiet) != 0 && time.Now().Before(end) && !m.t.Failed(); {
		time.Sleep(50 * time.Millisecond)
	}
	close(done)
	workers.Wait()
	if n := m.read(quiet); n != 0 {
		m.t.Errorf("%d timers and events are left", n)
	}
	m.check()
}

// check feeds the model with each partition's log and compares.
func (m *machine) check() {
	b := m.client(0)
	logs, outs, ends := map[string][]event{}, map[string][]string{}, map[string]int{}
	timeouts := 0
	seen := map[string]bool{}
	for _, msg := range stored(b, "events") {
		var ev event
		if err := json.Unmarshal(msg.Data, &ev); err != nil || seen[msg.Partition+" "+msg.TransactionID] {
			m.t.Errorf("%s %s is there twice, or: %v", msg.Partition, msg.TransactionID, err)
		}
		seen[msg.Partition+" "+msg.TransactionID] = true
		if ev.Kind == "timeout" {
			timeouts++
		} else {
			m.sent[msg.Partition]--
		}
		logs[msg.Partition] = append(logs[msg.Partition], ev)
	}
	for _, msg := range stored(b, "out") {
		var text string
		_ = json.Unmarshal(msg.Data, &text)
		outs[msg.Partition] = append(outs[msg.Partition], text)
	}
	for name, log := range logs {
		var want entity
		var emitted []string
		for _, ev := range log {
			var text string
			if want, text = m.take(want, ev); text != "" {
				emitted = append(emitted, text)
			}
		}
		got, _, _ := m.load(m.random(77), name)
		if got != want || !slices.Equal(outs[name], emitted) || m.sent[name] != 0 {
			m.t.Errorf("%s: %+v, want %+v; emitted %v, want %v; %d events lost; log %v", name, got, want, outs[name], emitted, m.sent[name], log)
		}
		ends[got.State]++
	}
	if len(logs) != m.entities || len(outs) > m.entities {
		m.t.Errorf("%d entities have events and %d emitted some, want %d", len(logs), len(outs), m.entities)
	}
	if ends[m.armed] != 0 || timeouts == 0 {
		m.t.Errorf("at the end: %v, after %d timeouts", ends, timeouts)
	}
	m.t.Logf("seed %d: ends %v, %d timeouts; %d steps committed, %d rolled back, %d of unknown outcome, %d sent twice at once, %d too late",
		m.seed, ends, timeouts, m.committed.Load(), m.rolled.Load(), m.unknown.Load(), m.twins.Load(), m.late.Load())
	checkNothingStranded(m.t, m.pool)
}

// TestPattern_P12_SagaWithCompensation books seats: half of the bookings are
// confirmed in time, some just when they time out, the others never.
func TestPattern_P12_SagaWithCompensation(t *testing.T) {
	t.Parallel()
	m := &machine{chaos: newChaos(t), armed: "pending", timeout: 700 * time.Millisecond, rules: map[string]string{
		" book": "pending", "pending confirm": "confirmed", "pending timeout": "expired",
	}}
	const feeders = 4
	var never sync.Map
	var total atomic.Int64
	m.run(func(until time.Time) {
		var all sync.WaitGroup
		for f := range feeders {
			all.Go(func() {
				r := m.random(100 + f)
				for n := 0; time.Now().Before(until) && !t.Failed(); n++ {
					time.Sleep(80 * time.Millisecond)
					name := fmt.Sprintf("b%d-%d", f, n)
					total.Add(1)
					if !m.send(r, name, "book", "book") {
						return
					}
					delay := time.Duration(r.IntN(100)) * time.Millisecond
					switch k := r.IntN(20); {
					case k < 7:
						never.Store(name, true)
						continue
					case k < 11:
						delay = m.timeout + time.Duration(r.IntN(80)-30)*time.Millisecond
					}
					own := m.random(1000 + 1000*f + n)
					all.Go(func() {
						time.Sleep(delay)
						m.send(own, name, "confirm", "confirm")
					})
				}
			})
		}
		all.Wait()
		m.entities = int(total.Load())
	})
	// Each ended once, in one of two ways; a seat is taken by the one way only.
	once := m.read(`SELECT count(*) FROM queen.kv WHERE ns = 'entity' AND value::jsonb->>'out' = '2' AND value::jsonb->>'state' IN ('confirmed', 'expired')`)
	if once != m.entities {
		t.Errorf("%d of %d bookings ended", once, m.entities)
	}
	never.Range(func(name, _ any) bool {
		if e, _, _ := m.load(m.random(78), name.(string)); e.State != "expired" {
			t.Errorf("%s was not confirmed and is %s", name, e.State)
		}
		return true
	})
}

// TestPattern_P13_StateMachinePerEntity sends random events, repeated and out
// of place.
func TestPattern_P13_StateMachinePerEntity(t *testing.T) {
	t.Parallel()
	m := &machine{chaos: newChaos(t), entities: 40, armed: "open", timeout: 250 * time.Millisecond, rules: map[string]string{
		" start": "open", "closed start": "open", "open finish": "closed", "open timeout": "closed", "closed retire": "retired",
	}}
	m.run(func(until time.Time) {
		var all sync.WaitGroup
		for f := range 4 {
			all.Go(func() {
				r := m.random(100 + f)
				for n := 0; (time.Now().Before(until) || n < m.entities/4) && !t.Failed(); n++ {
					name := fmt.Sprintf("e%d-%d", f, n%(m.entities/4))
					kind := []string{"start", "start", "start", "start", "finish", "finish", "retire"}[r.IntN(7)]
					if n < m.entities/4 {
						kind = "start"
					}
					if kind == "retire" && r.IntN(8) > 0 {
						kind = "start"
					}
					if !m.send(r, name, fmt.Sprint("n", n), kind) {
						return
					}
					time.Sleep(15 * time.Millisecond)
				}
			})
		}
		all.Wait()
	})
}
