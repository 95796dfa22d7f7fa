//go:build linux

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Call sends a request and returns status and body. An error means that no
// complete answer came.
func Call(ctx context.Context, client *http.Client, method, url string, body any) (int, []byte, error) {
	var r io.Reader
	switch v := body.(type) {
	case nil:
	case string:
		r = bytes.NewReader([]byte(v))
	default:
		raw, err := json.Marshal(v)
		if err != nil {
			return 0, nil, err
		}
		r = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return 0, nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, raw, err
}

// Traffic is a small load that knows what it sent: one producer for each
// partition, which repeats a push until it is answered, and consumers of one
// group. It serves the tests of single faults; long mixes of faults run under
// loadtest, whose checker sees far more.
type Traffic struct {
	c      *Cluster
	queue  string
	client *http.Client
	stop   context.CancelFunc
	ctx    context.Context
	send   sync.WaitGroup
	take   sync.WaitGroup
	ended  atomic.Bool // producers have stopped: drain

	mu       sync.Mutex
	lanes    []*trafficLane
	retries  map[string]int
	repeated int // deliveries of what had been delivered
	problems []string
}

// trafficLane is a partition. The producer numbers its messages from 0 on.
type trafficLane struct {
	name    string
	pushed  int         // acknowledged: 0 to pushed-1
	acked   []time.Time // when
	offsets map[int]int // of the numbers delivered
	next    int         // number whose first delivery is due
	history []string
}

type trafficMessage struct {
	TransactionID, PartitionID, LeaseID, Partition string
	Offset                                         int
	Data                                           struct{ N int }
}

// NewTraffic starts a load on a queue, through the balancer.
func NewTraffic(c *Cluster, queue string, partitions int) *Traffic {
	f := &Traffic{c: c, queue: queue, retries: map[string]int{}, client: &http.Client{
		Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, ResponseHeaderTimeout: 6 * time.Second},
	}}
	f.ctx, f.stop = context.WithCancel(context.Background())
	for i := range partitions {
		lane := &trafficLane{name: fmt.Sprint("p", i), offsets: map[int]int{}}
		f.lanes = append(f.lanes, lane)
		f.send.Go(func() { f.produce(lane) })
	}
	for range 3 {
		f.take.Go(f.consume)
	}
	return f
}

func (f *Traffic) produce(lane *trafficLane) {
	for n := 0; !f.ended.Load(); n++ {
		if !f.push(lane, n) {
			return
		}
		time.Sleep(3 * time.Millisecond)
	}
}

// push repeats one message until it is acknowledged.
func (f *Traffic) push(lane *trafficLane, n int) bool {
	body := fmt.Sprintf(`{"items":[{"queue":%q,"partition":%q,"transactionId":"%s-%d","payload":{"n":%d}}]}`, f.queue, lane.name, lane.name, n, n)
	for f.ctx.Err() == nil {
		status, raw, err := Call(f.ctx, f.client, "POST", f.c.URL+"/api/v1/push", body)
		var res []struct{ Status string }
		if err == nil && status == http.StatusCreated && json.Unmarshal(raw, &res) == nil && len(res) == 1 {
			f.mu.Lock()
			lane.pushed = n + 1
			lane.acked = append(lane.acked, time.Now())
			f.note(lane, "push of %d answered %s", n, res[0].Status)
			if res[0].Status != "queued" && res[0].Status != "duplicate" {
				f.problem(lane, "push of %d answered %s", n, res[0].Status)
			}
			f.mu.Unlock()
			return true
		}
		f.retry("push", lane, n, status, raw, err)
	}
	return false
}

func (f *Traffic) retry(what string, lane *trafficLane, n, status int, raw []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retries[fmt.Sprintf("%s %d", what, status)]++
	if lane != nil {
		f.note(lane, "%s of %d: %d %.100s %v", what, n, status, raw, err)
	}
	// Only these say "again": anything else is a broken promise.
	if err == nil && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout {
		f.problem(lane, "%s answered %d %.300s", what, status, raw)
	}
	time.Sleep(20 * time.Millisecond)
}

// note and problem are called with the lock held.
func (f *Traffic) note(lane *trafficLane, format string, args ...any) {
	at := time.Now().UTC().Format("15:04:05.000 ")
	lane.history = append(lane.history[max(0, len(lane.history)-40):], at+fmt.Sprintf(format, args...))
}

func (f *Traffic) problem(lane *trafficLane, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if lane != nil {
		text = fmt.Sprintf("%s: %s; its history:\n%s", lane.name, text, join(lane.history))
	}
	if len(f.problems) < 10 {
		f.problems = append(f.problems, text)
	}
}

func join(lines []string) (text string) {
	for _, l := range lines {
		text += "    " + l + "\n"
	}
	return text
}

func (f *Traffic) consume() {
	query := "/api/v1/pop/queue/" + f.queue + "?consumerGroup=g&subscriptionMode=all&batch=20&partitions=4&leaseSeconds=3&wait=true&timeout=500"
	for f.ctx.Err() == nil {
		status, raw, err := Call(f.ctx, f.client, "GET", f.c.URL+query, nil)
		var got struct{ Messages []trafficMessage }
		switch {
		case err == nil && status == http.StatusNoContent:
			continue
		case err == nil && status == http.StatusOK && json.Unmarshal(raw, &got) == nil:
			f.received(got.Messages)
			f.ack(got.Messages)
		case f.ctx.Err() == nil:
			f.retry("pop", nil, 0, status, raw, err)
		}
	}
}

func (f *Traffic) lane(name string) *trafficLane {
	i := slices.IndexFunc(f.lanes, func(l *trafficLane) bool { return l.name == name })
	if i < 0 {
		return nil
	}
	return f.lanes[i]
}

func (f *Traffic) received(messages []trafficMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range messages {
		lane := f.lane(m.Partition)
		if lane == nil {
			f.problem(nil, "a message of partition %q, which nobody sent", m.Partition)
			continue
		}
		f.note(lane, "delivery of %d at offset %d, lease %s", m.Data.N, m.Offset, m.LeaseID)
		before, again := lane.offsets[m.Data.N]
		switch {
		case again && before != m.Offset:
			f.problem(lane, "message %d is stored twice, at %d and at %d", m.Data.N, before, m.Offset)
		case again:
			f.repeated++
		case m.Data.N != lane.next:
			// An answer that got lost, or two answers that crossed, may show
			// later messages first; what is missing at the end is a loss.
			lane.offsets[m.Data.N] = m.Offset
			lane.next = max(lane.next, m.Data.N+1)
		default:
			lane.offsets[m.Data.N] = m.Offset
			lane.next++
		}
	}
}

// ack is sent once: what it does not reach comes again.
func (f *Traffic) ack(messages []trafficMessage) {
	var items []map[string]string
	for _, m := range messages {
		items = append(items, map[string]string{
			"transactionId": m.TransactionID, "partitionId": m.PartitionID, "leaseId": m.LeaseID, "status": "completed",
		})
	}
	_, _, _ = Call(f.ctx, f.client, "POST", f.c.URL+"/api/v1/ack/batch", map[string]any{"consumerGroup": "g", "acknowledgments": items})
}

// ackedSince counts the pushes that were acknowledged after an instant.
func (f *Traffic) ackedSince(from time.Time) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, lane := range f.lanes {
		i, _ := slices.BinarySearchFunc(lane.acked, from, time.Time.Compare)
		n += len(lane.acked) - i
	}
	return n
}

// slowest tells how long after an instant the last partition had a push
// acknowledged again; false when one has not.
func (f *Traffic) slowest(from time.Time) (took time.Duration, all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, lane := range f.lanes {
		i, _ := slices.BinarySearchFunc(lane.acked, from, time.Time.Compare)
		if i == len(lane.acked) {
			return 0, false
		}
		took = max(took, lane.acked[i].Sub(from))
	}
	return took, true
}

// AwaitAcks waits until every partition has had a push acknowledged after an
// instant, and tells how long that took.
func (f *Traffic) AwaitAcks(from time.Time, within time.Duration) time.Duration {
	f.c.t.Helper()
	for until := from.Add(within); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if took, all := f.slowest(from); all {
			return took
		}
	}
	f.c.t.Errorf("no push was acknowledged within %v, to one partition at least", within)
	return within
}

// Finish stops producing, waits until everything has been delivered, and fails
// the test for whatever is missing, invented or stored twice.
func (f *Traffic) Finish(within time.Duration) {
	f.c.t.Helper()
	for _, p := range f.Judge(within) {
		f.c.t.Error(p)
	}
}

// Judge is Finish that returns what it finds.
func (f *Traffic) Judge(within time.Duration) []string {
	f.c.t.Helper()
	f.ended.Store(true)
	sent := make(chan struct{})
	go func() {
		f.send.Wait()
		close(sent)
	}()
	unanswered := false
	select {
	case <-sent:
	case <-time.After(within):
		unanswered = true
	}
	for until := time.Now().Add(within); f.missing() > 0 && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
	f.stop()
	f.send.Wait()
	f.take.Wait()
	f.client.CloseIdleConnections()
	f.mu.Lock()
	defer f.mu.Unlock()
	total, delivered := 0, 0
	for _, lane := range f.lanes {
		total += lane.pushed
		delivered += len(lane.offsets)
		f.check(lane)
	}
	f.c.t.Logf("%d pushes acknowledged, %d messages delivered, %d of them again; repeated calls: %v", total, delivered, f.repeated, f.retries)
	if total == 0 || unanswered {
		f.problem(nil, "%d pushes were acknowledged, some still wait: %v", total, unanswered)
	}
	return f.problems
}

// check is called with the lock held, after the end.
func (f *Traffic) check(lane *trafficLane) {
	last := -1
	for n := range lane.pushed {
		offset, ok := lane.offsets[n]
		switch {
		case !ok:
			f.problem(lane, "message %d was acknowledged and never delivered", n)
			return
		case offset != last+1:
			f.problem(lane, "message %d is at offset %d, the one before at %d", n, offset, last)
			return
		}
		last = offset
	}
	for n := range lane.offsets {
		if n > lane.pushed { // the one that was under way may be there
			f.problem(lane, "message %d was delivered and never sent", n)
		}
	}
}

func (f *Traffic) missing() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, lane := range f.lanes {
		for i := range lane.pushed {
			if _, ok := lane.offsets[i]; !ok {
				n++
			}
		}
	}
	return n
}
