package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ephemeralTraffic is producers and consumers that go on while something
// happens to what they use, and an account of what became of every message.
type ephemeralTraffic struct {
	t     *testing.T
	queue string
	group string
	// broker is whom to ask this time, nil when there is nobody to ask.
	broker func() *Broker

	stopped atomic.Bool // no more pushes
	wg      sync.WaitGroup
	number  atomic.Int64

	mu        sync.Mutex
	stored    map[string]bool // confirmed pushes; false: nobody knows
	delivered map[string]int
	outcomes  map[string]int // of acks
	answers   map[int]int    // by status, 0 for none
	again     int            // deliveries with attempts above 1
}

func startTraffic(t *testing.T, queue, group string, producers, consumers int, broker func() *Broker) *ephemeralTraffic {
	tr := &ephemeralTraffic{
		t: t, queue: queue, group: group, broker: broker,
		stored: map[string]bool{}, delivered: map[string]int{}, outcomes: map[string]int{}, answers: map[int]int{},
	}
	for w := range producers {
		tr.wg.Go(func() { tr.produce(w) })
	}
	for range consumers {
		tr.wg.Go(tr.consume)
	}
	return tr
}

// call sends one request to whoever is there. Status 0 is no answer.
func (tr *ephemeralTraffic) call(method, path string, body any) (status int, answer []byte) {
	b := tr.broker()
	if b == nil {
		time.Sleep(5 * time.Millisecond)
		return -1, nil
	}
	status, header, answer, err := b.Try(context.Background(), method, path, body)
	if err != nil {
		status = 0
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.answers[status]++
	switch {
	case status == http.StatusServiceUnavailable:
		if header.Get("Retry-After") == "" {
			tr.t.Errorf("%s %s: 503 without Retry-After: %s", method, path, answer)
		}
	case status != 0 && status >= 300:
		tr.t.Errorf("%s %s: %d %.300s", method, path, status, answer)
	}
	return status, answer
}

func (tr *ephemeralTraffic) produce(w int) {
	for !tr.stopped.Load() && !tr.t.Failed() {
		payload := fmt.Sprint(tr.number.Add(1))
		status, _ := tr.call("POST", ephemeralAt+"push", EphemeralPushBody(tr.queue, fmt.Sprint("p", w), payload))
		tr.mu.Lock()
		switch status {
		case http.StatusCreated:
			tr.stored[payload] = true
		case 0, http.StatusServiceUnavailable: // stored or not
			tr.stored[payload] = false
		}
		tr.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
	}
}

// consume ends when no message comes any more. While one is missing it waits
// for longer than a lease: the answer to a pop may have been lost with the broker
// that gave it, and the messages are then delivered again.
func (tr *ephemeralTraffic) consume() {
	last := time.Now()
	for quiet := 0; (quiet < 3 || !tr.complete() && time.Since(last) < 10*time.Second) && !tr.t.Failed(); {
		status, answer := tr.call("GET", ephemeralPopPath(tr.queue, "batch=5&wait=true&timeout=500&group="+tr.group), nil)
		if status != http.StatusOK {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		var got struct{ Messages []EphemeralMessage }
		if err := json.Unmarshal(answer, &got); err != nil {
			tr.t.Error(err)
			return
		}
		if len(got.Messages) == 0 {
			if tr.stopped.Load() {
				quiet++
			}
			continue
		}
		quiet, last = 0, time.Now()
		tr.ack(got.Messages)
	}
}

func (tr *ephemeralTraffic) ack(messages []EphemeralMessage) {
	ids := make([]string, len(messages))
	tr.mu.Lock()
	for i, m := range messages {
		ids[i] = m.ID
		tr.delivered[string(m.Payload)]++
		if m.Attempts > 1 {
			tr.again++
		}
	}
	tr.mu.Unlock()
	var status int
	var answer []byte
	for status != http.StatusOK && !tr.t.Failed() {
		status, answer = tr.call("POST", ephemeralAt+"ack", ephemeralAckBody(tr.queue, tr.group, "", ids...))
	}
	var got struct{ Results []struct{ Outcome string } }
	if err := json.Unmarshal(answer, &got); err != nil || len(got.Results) != len(ids) {
		tr.t.Errorf("ack: %v %.300s", err, answer)
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, r := range got.Results {
		tr.outcomes[r.Outcome]++
	}
}

// until waits for n pushes to have been confirmed.
func (tr *ephemeralTraffic) until(n int) {
	tr.t.Helper()
	eventually(tr.t, func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.count(true) >= n
	}, "%d messages", n)
}

// finish waits for the consumers to have everything.
func (tr *ephemeralTraffic) finish() {
	tr.stopped.Store(true)
	tr.wg.Wait()
	tr.t.Logf("%d messages confirmed, %d in doubt, %d delivered, %d again; outcomes %v, answers %v",
		tr.count(true), tr.count(false), len(tr.delivered), tr.again, tr.outcomes, tr.answers)
}

func (tr *ephemeralTraffic) count(confirmed bool) (n int) {
	for _, yes := range tr.stored {
		if yes == confirmed {
			n++
		}
	}
	return n
}

// complete tells whether every confirmed message has come.
func (tr *ephemeralTraffic) complete() bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.missing()) == 0
}

// missing are confirmed messages that nobody got.
func (tr *ephemeralTraffic) missing() (list []string) {
	for payload, yes := range tr.stored {
		if yes && tr.delivered[payload] == 0 {
			list = append(list, payload)
		}
	}
	return list
}

// fleetNow is the brokers of a fleet that comes and goes.
type fleetNow struct {
	turn atomic.Int64
	list atomic.Pointer[[]*Broker]
}

func (n *fleetNow) set(list ...*Broker) { n.list.Store(&list) }

func (n *fleetNow) next() *Broker {
	list := *n.list.Load()
	if len(list) == 0 {
		return nil
	}
	return list[int(n.turn.Add(1))%len(list)]
}

// TestEphemeral_E30_EveryBrokerRestarts replaces three brokers one by one, then
// stops all of them and starts others.
func TestEphemeral_E30_EveryBrokerRestarts(t *testing.T) {
	t.Parallel()
	f := StartEphemeral(t, 3)
	var now fleetNow
	now.set(slices.Clone(f.Brokers)...)
	b := f.One()
	b.EphemeralConfigure("busy", `{"leaseSeconds":3,"retryLimit":50,"maxLength":9000}`)
	b.EphemeralConfigure("held", `{"leaseSeconds":60,"retryLimit":2,"policy":"dropOldest","maxLength":77}`)
	b.EphemeralPush("held", "p", "1", "2", "3", "4")
	b.EphemeralPush("implicit", "p", `{"n": 1.0}`)
	leased := b.EphemeralPop("held", "group=g&batch=2")
	b.EphemeralAck("held", "g", "retry", leased[1])
	leased = append(leased[:1], b.EphemeralPop("held", "group=g")...) // 1 for the first time, 2 for the second

	tr := startTraffic(t, "busy", "g", 4, 4, now.next)
	for i, old := range slices.Clone(f.Brokers) {
		list := slices.Clone(*now.list.Load())
		list[i] = f.Add()
		now.set(list...)
		old.Stop()
		time.Sleep(100 * time.Millisecond)
	}
	last := *now.list.Load()
	now.set()
	for _, old := range last {
		old.Stop()
	}
	fresh := []*Broker{f.Add(), f.Add(), f.Add()}
	now.set(fresh...)
	tr.until(150)
	tr.finish()
	if lost := tr.missing(); len(lost) > 0 {
		t.Errorf("%d messages lost, %.10v …", len(lost), lost)
	}
	// Whoever got a connection that was just being closed asks again. Nothing
	// else comes twice.
	if most := 5 * tr.answers[0]; tr.again > most || len(tr.delivered)-tr.outcomes["acked"] > most || tr.answers[503] > 0 {
		t.Errorf("%d again, outcomes %v, answers %v", tr.again, tr.outcomes, tr.answers)
	}
	b = fresh[1]
	if q := b.EphemeralQueue("held"); q == nil || q.Tier != "declared" || q.Options["maxLength"] != 77. || q.Options["policy"] != "dropOldest" || q.Depth != 4 {
		t.Errorf("%+v", q)
	}
	if m := b.EphemeralPop("held", "group=g&batch=9"); !slices.Equal(payloadsOf(m), []string{"3", "4"}) {
		t.Errorf("beside the leases: %+v", m)
	}
	if out := b.EphemeralAck("held", "g", "", leased...); !slices.Equal(out, []string{"acked", "acked"}) || leased[1].Attempts != 2 {
		t.Errorf("acks of leases from before: %v, %+v", out, leased)
	}
	if m := b.EphemeralPop("implicit", ""); !slices.Equal(payloadsOf(m), []string{`{"n": 1.0}`}) {
		t.Errorf("got %+v", m)
	}
}
