package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"
)

// scene is one way to use a queue: by queue mode or a group, through one broker
// or two, on the wildcard route or on the pinned one.
type scene struct {
	t        testing.TB
	producer *Broker
	consumer *Broker
	third    *Broker // the other of two, as a consumer beside consumer
	queue    string
	group    string // empty: queue mode
	pinned   bool
}

const partition = "p"

// eachScene runs a test in all eight of them at once, on two fleets. They are no
// parallel subtests: tests that wait for those do not count as running, and the
// fleets of all of them at once would use up the connections.
func eachScene(t *testing.T, env []string, test func(t testing.TB, s *scene)) {
	t.Helper()
	env = append([]string{"DB_POOL_SIZE=5"}, env...)
	one := Start(t, Options{Env: env})
	two := Start(t, Options{Brokers: 2, Env: env})
	var wg sync.WaitGroup
	for i := range 8 {
		fleet, s := one, &scene{queue: fmt.Sprintf("scene-%d", i), pinned: i&1 != 0}
		name := "wildcard"
		if s.pinned {
			name = "pinned"
		}
		if i&2 != 0 {
			s.group, name = "workers", name+", group"
		}
		if i&4 != 0 {
			fleet, name = two, name+", two brokers"
		}
		named := &namedTB{t, name}
		s.t, s.producer = named, fleet.Brokers[0].In(named)
		s.consumer = fleet.Brokers[len(fleet.Brokers)-1].In(named)
		s.third = s.producer
		wg.Go(func() { test(named, s) })
	}
	wg.Wait()
}

// namedTB says in which scene something failed. A fatal failure ends the scene's
// goroutine, and the test with the others.
type namedTB struct {
	testing.TB
	name string
}

func (n *namedTB) Errorf(format string, args ...any) {
	n.Helper()
	n.TB.Errorf("%s: "+format, append([]any{n.name}, args...)...)
}

func (n *namedTB) Fatalf(format string, args ...any) {
	n.Helper()
	n.TB.Fatalf("%s: "+format, append([]any{n.name}, args...)...)
}

// query completes a query string with the group of the scene.
func (s *scene) query(query string) string {
	q, err := url.ParseQuery(query)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.group != "" {
		q.Set("consumerGroup", s.group)
		if !q.Has("subscriptionMode") && !q.Has("subscriptionFrom") {
			q.Set("subscriptionMode", "all")
		}
	}
	return q.Encode()
}

func (s *scene) pop(query string) *PopAnswer {
	s.t.Helper()
	return s.popBy(s.consumer, query)
}

func (s *scene) popBy(b *Broker, query string) *PopAnswer {
	s.t.Helper()
	if s.pinned {
		return b.PopPinned(s.queue, partition, s.query(query))
	}
	return b.Pop(s.queue, s.query(query))
}

// mustPop is a pop that has to deliver these ids.
func (s *scene) mustPop(query string, ids ...string) *PopAnswer {
	s.t.Helper()
	p := s.pop(query)
	if !slices.Equal(p.IDs(), ids) {
		s.t.Fatalf("pop %s: got %q, want %q", query, p.IDs(), ids)
	}
	return p
}

func (s *scene) mustNothing(query string) {
	s.t.Helper()
	if p := s.pop(query); p != nil {
		s.t.Fatalf("pop %s: got %q, want 204", query, p.IDs())
	}
}

// push sends messages m-0, m-1, … to the partition of the scene.
func (s *scene) push(n int) []PushResult {
	s.t.Helper()
	return s.producer.PushN(s.queue, partition, "m", n)
}

func (s *scene) pushOne(id string) PushResult {
	s.t.Helper()
	return s.producer.Push(Item{Queue: s.queue, Partition: partition, TransactionID: id})[0]
}

// parked waits until n pops stand in line for a queue on a broker.
func parked(t testing.TB, b *Broker, queue string, n int) {
	t.Helper()
	want := fmt.Sprintf("queen_parked_long_polls{queue=%q} %d\n", queue, n)
	eventually(t, func() bool {
		return bytes.Contains(b.Must(200, "GET", "/metrics/prometheus", nil), []byte(want))
	}, "%d pops to be parked on %s", n, queue)
}

// eventually polls for a condition that is due at once on an idle machine.
func eventually(t testing.TB, ok func() bool, format string, args ...any) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for "+format, args...)
		}
	}
}

// within fails unless took lies in the range.
func within(t testing.TB, what string, took, least, most time.Duration) {
	t.Helper()
	if took < least || took > most {
		t.Errorf("%s took %v, want %v to %v", what, took, least, most)
	}
}

// async runs a pop beside the test and hands its answer over.
func async[T any](fn func() T) <-chan T {
	ch := make(chan T, 1)
	go func() { ch <- fn() }()
	return ch
}

// await receives from a channel that is due.
func await[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// ids returns prefix-from … prefix-(to-1).
func ids(prefix string, from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("%s-%d", prefix, i))
	}
	return out
}

// statuses are those of a push, in item order.
func statuses(results []PushResult) []string {
	var out []string
	for _, r := range results {
		out = append(out, r.Status)
	}
	return out
}

// stored is what a queue holds in all its partitions, read as a new group.
func stored(b *Broker, queue string) []Message {
	b.t.Helper()
	group := fmt.Sprintf("reader-%d", time.Now().UnixNano())
	var out []Message
	for {
		p := b.Pop(queue, "subscriptionMode=all&autoAck=true&batch=10000&partitions=64&consumerGroup="+group)
		if p == nil {
			return out
		}
		out = append(out, p.Messages...)
	}
}

// refusal is an error answer.
type refusal struct {
	Error    string          `json:"error"`
	Code     string          `json:"code"`
	Field    string          `json:"field"`
	Success  *bool           `json:"success"`
	Messages json.RawMessage `json:"messages"`
}

// mustRefuse wants a JSON error with the status.
func mustRefuse(b *Broker, want int, method, path string, body any) refusal {
	b.t.Helper()
	status, header, answer := b.Do(method, path, body)
	var r refusal
	if err := json.Unmarshal(answer, &r); status != want || err != nil || r.Error == "" {
		b.t.Fatalf("%s %s: status %d, want %d with a JSON error (%v): %.500s", method, path, status, want, err, answer)
	}
	if ct := header.Get("Content-Type"); ct != "application/json" {
		b.t.Errorf("%s %s: content type %q", method, path, ct)
	}
	return r
}
