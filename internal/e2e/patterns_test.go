package e2e

import (
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

// register charges orders. What it does outside, calls, can be repeated when a
// worker does not come to commit; what is written with the commit can not.
type register struct {
	*chaos
	mu     sync.Mutex
	calls  map[string]int // of the provider, by order
	failed map[string]bool
	marked atomic.Int64 // orders found charged
}

func marker(order string) op {
	return op{"op": "putIfAbsent", "ns": "charged", "key": order, "value": 1, "forever": true, "required": true}
}

// charge is the transaction after the effect, or the one without an effect when
// the order is charged already. Either notes that the group has seen the order.
func charge(m Message, group string, charged bool) []byte {
	steps := []any{groupAcks{group, []AckItem{m.Ack("completed", "")}}}
	kv := []any{op{"op": "putIfAbsent", "ns": "seen-" + group, "key": m.TransactionID, "value": 1, "forever": true, "required": true}}
	if !charged {
		steps = append(steps, Item{Queue: "ledger", Partition: m.Partition, TransactionID: "charge:" + m.TransactionID})
		kv = append(kv, op{"op": "incr", "ns": "revenue", "key": "all", "delta": 7, "forever": true}, marker(m.TransactionID))
	}
	body, err := json.Marshal(struct {
		bundle
		KV []any `json:"kv"`
	}{ops(steps...), kv})
	if err != nil {
		panic(err)
	}
	return body
}

func (g *register) handle(r *rand.Rand, group string, got PopAnswer) {
	for _, m := range got.Messages {
		status, _, raw, err := g.client(r.IntN(2)).Try(g.t.Context(), "POST", "/api/v1/kv", fmt.Sprintf(`[{"op":"get","ns":"charged","key":%q}]`, m.TransactionID))
		var kv struct{ Results []KVResult }
		if err != nil || status == http.StatusServiceUnavailable {
			return // the lease ends, and somebody else tries
		}
		if err := json.Unmarshal(raw, &kv); err != nil || status != http.StatusOK || len(kv.Results) != 1 {
			g.t.Errorf("get: %d %s", status, raw)
			return
		}
		charged := kv.Results[0].OK()
		if charged {
			g.marked.Add(1)
		} else if !g.call(r, m.TransactionID) {
			return
		}
		losses := []string{"rejected_ack"}
		if !charged { // the other group may be at the same order
			losses = append(losses, "kv_precondition", "duplicate")
		}
		if !g.settle(r, group+":"+m.TransactionID, charge(m, group, charged), losses...) {
			return
		}
	}
}

// call is the external effect. Some orders fail before it, the first time.
func (g *register) call(r *rand.Rand, order string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.IntN(5) == 0 && !g.failed[order] {
		g.failed[order] = true
		return false
	}
	g.calls[order]++
	return true
}

// cursors are how far a group is in a queue, all partitions together.
const cursors = `(SELECT coalesce(sum(c.committed + 1), 0) FROM queen.cursors c JOIN queen.queues q ON q.id = c.queue_id
	JOIN queen.consumer_groups g ON g.queue_id = q.id AND g.id = c.group_id WHERE q.name = '%s' AND g.name = '%s')::int`

const held = `(SELECT coalesce(sum(p.last_offset + 1), 0) FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = '%s')::int`

const numbers = `(SELECT coalesce(sum(value::int), 0) FROM queen.kv WHERE ns = '%s')::int`

// TestPattern_P11_ExactlyOnceEffect has two groups charge the same orders.
func TestPattern_P11_ExactlyOnceEffect(t *testing.T) {
	t.Parallel()
	g := &register{chaos: newChaos(t), calls: map[string]int{}, failed: map[string]bool{}}
	until := time.Now().Add(modelTime(t, 4*time.Second))
	done := make(chan struct{})
	var workers, producers sync.WaitGroup
	for i := range 6 {
		group, r := []string{"bill", "again"}[i%2], g.random(i)
		workers.Go(func() {
			g.consume(r, "/api/v1/pop/queue/orders?batch=3&leaseSeconds=1&wait=true&timeout=300&"+as(group), done, func(got PopAnswer) { g.handle(r, group, got) })
		})
	}
	workers.Go(func() {
		query := fmt.Sprintf("SELECT ARRAY["+strings.Join([]string{held, numbers, numbers, cursors, numbers, cursors, numbers}, ",")+"]",
			"ledger", "charged", "revenue", "orders", "bill", "seen-bill", "orders", "again", "seen-again")
		g.watch(done, query, func(n []int) bool {
			return n[0] == n[1] && n[2] == 7*n[1] && n[3] == n[4] && n[5] == n[6] && max(n[3], n[5]) <= n[1]
		})
	})
	var orders [lanes]int
	for lane := range lanes {
		producers.Go(func() {
			r := g.random(100 + lane)
			for n := 0; time.Now().Before(until) && !t.Failed(); n++ {
				it := Item{Queue: "orders", Partition: fmt.Sprint("p", lane), TransactionID: fmt.Sprintf("o%d-%d", lane, n)}
				if !g.until(r, http.StatusCreated, "/api/v1/push", PushBody(it)) {
					return
				}
				orders[lane] = n + 1
				time.Sleep(120 * time.Millisecond)
			}
		})
	}
	g.breakUntil(until)
	producers.Wait()
	var want []string
	for lane, n := range orders {
		want = append(want, ids(fmt.Sprint("charge:o", lane), 0, n)...)
	}
	through := fmt.Sprintf("SELECT "+cursors+" + "+cursors, "orders", "bill", "orders", "again")
	for end := time.Now().Add(60 * time.Second); g.read(through) < 2*len(want) && time.Now().Before(end) && !t.Failed(); {
		time.Sleep(50 * time.Millisecond)
	}
	close(done)
	workers.Wait()
	g.check(want)
	checkNothingStranded(t, g.pool)
	g.raced()
}

func (g *register) check(want []string) {
	t := g.t
	var got []string
	for _, m := range stored(g.client(0), "ledger") {
		got = append(got, m.TransactionID)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("ledger: %d entries, want %d: %.2000v", len(got), len(want), got)
	}
	if n := g.read("SELECT " + fmt.Sprintf(numbers, "revenue")); n != 7*len(want) {
		t.Errorf("revenue %d, want %d", n, 7*len(want))
	}
	if n := g.read(fmt.Sprintf("SELECT "+cursors+" + "+cursors, "orders", "bill", "orders", "again")); n != 2*len(want) {
		t.Errorf("the groups are at %d together, want %d", n, 2*len(want))
	}
	calls := 0
	for _, n := range g.calls {
		calls += n
	}
	if extra := calls - len(want); len(g.calls) != len(want) || extra > int(g.rolled.Load()) {
		t.Errorf("%d calls for %d orders of %d, %d commits were refused", calls, len(g.calls), len(want), g.rolled.Load())
	}
	t.Logf("seed %d: %d orders, %d calls, %d failed before, %d found charged; %d steps committed, %d rolled back, %d of unknown outcome, %d sent twice at once, %d too late",
		g.seed, len(want), calls, len(g.failed), g.marked.Load(), g.committed.Load(), g.rolled.Load(), g.unknown.Load(), g.twins.Load(), g.late.Load())
}

// raced commits one order from two groups at the same moment, and looks at the
// answers.
func (g *register) raced() {
	for i := range 5 {
		name := fmt.Sprint("last", i)
		g.client(0).Push(Item{Queue: name, TransactionID: name})
		var got [2]*PopAnswer
		for k := range got {
			got[k] = g.client(k).Pop(name, "leaseSeconds=30&"+as(fmt.Sprint("g", k)))
		}
		var answers [2]bundleAnswer
		var both sync.WaitGroup
		for k := range got {
			both.Go(func() {
				body, _ := json.Marshal(struct {
					bundle
					KV []any `json:"kv"`
				}{ops(groupAcks{fmt.Sprint("g", k), []AckItem{got[k].Messages[0].Ack("completed", "")}}), []any{marker(name)}})
				_ = json.Unmarshal(g.client(k).In(g.t).Must(http.StatusOK, "POST", transactionPath, body), &answers[k])
			})
		}
		both.Wait()
		lost := slices.IndexFunc(answers[:], func(a bundleAnswer) bool { return !a.Success })
		if lost < 0 || !answers[1-lost].Success || answers[lost].Reason != "kv_precondition" || answers[lost].KVReason != "exists" {
			g.t.Fatalf("answers %+v", answers)
		}
		// The ack of the loser went with it: its lease is there to be used.
		if n := g.read(fmt.Sprintf("SELECT "+cursors, name, fmt.Sprint("g", lost))); n != 0 {
			g.t.Errorf("the group that lost is at %d", n)
		}
		g.client(0).AckAll(got[lost])
	}
	// A marker that has expired is none.
	b := g.client(1)
	if r := b.KV1(`{"op":"putIfAbsent","ns":"short","key":"o","value":1,"ttlSeconds":1,"required":true}`); !r.OK() {
		g.t.Fatalf("%+v", r)
	}
	lapse()
	if r := b.KV1(`{"op":"putIfAbsent","ns":"short","key":"o","value":2,"ttlSeconds":60,"required":true}`); !r.OK() {
		g.t.Errorf("after its time: %+v", r)
	}
}

// keys is how many keys the last values are of.
const keys = 20

// TestPattern_P16_LastValue has slow consumers follow many updates: each commit
// writes the value it was given and completes everything older.
func TestPattern_P16_LastValue(t *testing.T) {
	t.Parallel()
	c := newChaos(t)
	const query = "/api/v1/pop/queue/state?partitions=2&leaseSeconds=1&wait=true&timeout=300&" + lastValue
	until := time.Now().Add(modelTime(t, 4*time.Second))
	// Before there is anything: 200, and it says what the group is.
	if p := c.client(0).Pop("state", lastValue); p == nil || !p.Conflation || len(p.Messages) != 0 {
		t.Fatalf("the empty answer: %+v", p)
	}
	done := make(chan struct{})
	var workers, producers sync.WaitGroup
	for w := range 4 {
		r := c.random(w)
		workers.Go(func() { c.consume(r, query, done, func(got PopAnswer) { c.keepLast(r, got) }) })
	}
	workers.Go(func() {
		// What is kept for a key is where its cursor is; each was handled once.
		c.watch(done, `SELECT ARRAY[
			(SELECT count(*) FROM queen.cursors c JOIN queen.queues q ON q.id = c.queue_id JOIN queen.consumer_groups g ON g.queue_id = q.id AND g.id = c.group_id
				JOIN queen.partitions p ON p.queue_id = q.id AND p.id = c.partition_id
				LEFT JOIN queen.kv k ON k.ns = 'last' AND k.key = p.name
				WHERE q.name = 'state' AND g.name = 'g' AND c.committed <> coalesce(k.value::int, -1))::int,
			`+fmt.Sprintf(held+","+numbers, "handled", "handled")+`]`, func(n []int) bool { return n[0] == 0 && n[1] == n[2] })
	})
	var pushed [keys]int
	for f := range 4 {
		producers.Go(func() {
			r := c.random(100 + f)
			for round := 0; time.Now().Before(until) && !t.Failed(); round++ {
				var items []Item
				for k := f; k < keys; k += 4 {
					for range 1 + r.IntN(8) {
						items = append(items, Item{
							Queue: "state", Partition: fmt.Sprint("k", k), TransactionID: fmt.Sprintf("k%d-%d", k, pushed[k]),
							Payload: json.RawMessage(fmt.Sprint(pushed[k])),
						})
						pushed[k]++
					}
				}
				if !c.until(r, http.StatusCreated, "/api/v1/push", PushBody(items...)) {
					return
				}
				time.Sleep(30 * time.Millisecond)
			}
		})
	}
	c.breakUntil(until)
	producers.Wait()
	total := 0
	for _, n := range pushed {
		total += n
	}
	through := fmt.Sprintf("SELECT "+cursors, "state", "g")
	for end := time.Now().Add(60 * time.Second); c.read(through) < total && time.Now().Before(end) && !t.Failed(); {
		time.Sleep(50 * time.Millisecond)
	}
	close(done)
	workers.Wait()
	c.checkLast(pushed[:], total)
	checkNothingStranded(t, c.pool)
	c.lastValueByHand()
}

// keepLast handles the newest value of each key, slowly.
func (c *chaos) keepLast(r *rand.Rand, got PopAnswer) {
	if len(got.Messages) > 2 {
		c.t.Errorf("%d messages of 2 partitions", len(got.Messages))
	}
	for _, m := range got.Messages {
		time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
		name := fmt.Sprintf("%s-%d", m.Partition, m.Offset)
		if m.TransactionID != name || string(m.Data) != fmt.Sprint(m.Offset) {
			c.t.Errorf("%s came with %s", name, m.Data)
		}
		body, err := json.Marshal(struct {
			bundle
			KV []any `json:"kv"`
		}{
			ops(groupAcks{"g", []AckItem{m.Ack("completed", "")}}, Item{Queue: "handled", Partition: m.Partition, TransactionID: "h:" + name, Payload: m.Data}),
			[]any{
				op{"op": "incr", "ns": "handled", "key": "all", "delta": 1, "forever": true},
				op{"op": "put", "ns": "last", "key": m.Partition, "value": m.Offset, "forever": true},
			},
		})
		if err != nil {
			panic(err)
		}
		if !c.settle(r, name, body, "rejected_ack") {
			return
		}
	}
}

// checkLast compares what was handled, and what another group sees, with what
// was pushed.
func (c *chaos) checkLast(pushed []int, total int) {
	t, b := c.t, c.client(1)
	handled := map[string][]int{}
	n := 0
	for _, m := range stored(b, "handled") {
		var at int
		_ = json.Unmarshal(m.Data, &at)
		if all := handled[m.Partition]; len(all) > 0 && all[len(all)-1] >= at {
			t.Errorf("%s: %d handled after %d", m.Partition, at, all[len(all)-1])
		}
		handled[m.Partition] = append(handled[m.Partition], at)
		n++
	}
	all := map[string][]string{}
	for _, m := range stored(b, "state") {
		all[m.Partition] = append(all[m.Partition], m.TransactionID)
	}
	for k, want := range pushed {
		name := fmt.Sprint("k", k)
		if got := handled[name]; len(got) == 0 || got[len(got)-1] != want-1 {
			t.Errorf("%s: handled %v, the last is %d", name, got, want-1)
		}
		if !slices.Equal(all[name], ids(name, 0, want)) {
			t.Errorf("%s: another group sees %d of %d, or not in order", name, len(all[name]), want)
		}
		if kept := c.read(fmt.Sprintf(`SELECT coalesce(sum(value::int), -1) FROM queen.kv WHERE ns = 'last' AND key = '%s'`, name)); kept != want-1 {
			t.Errorf("%s: kept %d, the last is %d", name, kept, want-1)
		}
	}
	t.Logf("seed %d: %d pushed, %d handled; %d steps committed, %d rolled back, %d of unknown outcome, %d sent twice at once, %d too late",
		c.seed, total, n, c.committed.Load(), c.rolled.Load(), c.unknown.Load(), c.twins.Load(), c.late.Load())
	if 2*n > total {
		t.Errorf("%d handled of %d", n, total)
	}
}

// lastValueByHand is what needs no faults: who declares the opposite goes on,
// the depth tells both numbers, and retries are those of the message delivered.
func (c *chaos) lastValueByHand() {
	t, b := c.t, c.client(0)
	b.Configure("poison", map[string]any{"retryLimit": 1})
	b.Pop("poison", lastValue)
	for k := range 3 {
		b.PushN("poison", fmt.Sprint("k", k), fmt.Sprint("k", k), 5)
	}
	depth := string(b.Must(http.StatusOK, "GET", queuePath("poison")+"/depth?group=g", nil))
	if !strings.Contains(depth, `"pending":15,`) || !strings.Contains(depth, `"effectivePending":3,`) {
		t.Errorf("depth %s", depth)
	}
	opposite := strings.Replace(lastValue, "=true", "=false", 1)
	for attempt := 1; attempt <= 2; attempt++ {
		p := b.PopPinned("poison", "k1", opposite)
		if !slices.Equal(p.IDs(), []string{"k1-4"}) || !p.ConflationConflict || p.Messages[0].DeliveryAttempt != attempt {
			t.Fatalf("attempt %d: %s", attempt, p.Raw)
		}
		if r := b.Ack("g", p.Messages[0].Ack("failed", "no"))[0]; !r.Success || r.DLQ != (attempt == 2) {
			t.Errorf("attempt %d: %+v", attempt, r)
		}
	}
	if dead := b.DeadLetters("poison"); len(dead) != 1 || dead[0].TransactionID != "k1-4" {
		t.Errorf("dead letters %+v", dead)
	}
	if p := b.PopPinned("poison", "k1", lastValue); len(p.Messages) != 0 || !p.Conflation {
		t.Errorf("after that: %s", p.Raw)
	}
}
