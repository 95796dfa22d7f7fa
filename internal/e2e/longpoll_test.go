package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// deaf makes the slow re-check so slow that only a wake-up can be what
// delivered a message.
var deaf = []string{"POP_WAIT_INITIAL_INTERVAL_MS=30000", "POP_WAIT_MAX_INTERVAL_MS=30000"}

// prompt is the longest a wake-up may take here, where tests of several packages
// share the machine. Alone it is a few milliseconds.
const prompt = 5 * time.Second

func TestLongPoll_B53_B56_TheDeadline(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.push(1)
		s.mustPop("autoAck=true", "m-0")
		for _, c := range []struct {
			query       string
			least, most time.Duration
		}{
			{"wait=true&timeout=0", 0, prompt},
			{"wait=false&timeout=9000", 0, prompt},
			{"timeout=9000", 0, prompt},
			{"wait=true&timeout=2000", 1990 * time.Millisecond, 2*time.Second + prompt},
		} {
			start := time.Now()
			s.mustNothing(c.query)
			within(t, c.query, time.Since(start), c.least, c.most)
		}
	})
}

func TestLongPoll_B37_B54_APushWakes(t *testing.T) {
	t.Parallel()
	for _, redis := range []bool{false, true} {
		t.Run(fmt.Sprintf("redis %v", redis), func(t *testing.T) {
			t.Parallel()
			f := Start(t, Options{Brokers: 2, Redis: redis, Env: deaf})
			for i, b := range f.Brokers {
				for _, c := range []struct{ name, path string }{
					{"wildcard", "/api/v1/pop/queue/%s"}, {"pinned", "/api/v1/pop/queue/%s/partition/p"}, {"discovery", "/api/v1/pop"},
				} {
					for _, group := range []string{"", "g"} {
						queue := fmt.Sprintf("n%d%s%s.q", i, c.name, group)
						path := c.path
						if c.name != "discovery" {
							path = fmt.Sprintf(path, queue)
						}
						f.Brokers[1].Push(Item{Queue: queue, Partition: "other"}) // there is one
						query := "autoAck=true&namespace=" + queue[:len(queue)-2] + "&consumerGroup=" + group
						b.popAt("/api/v1/pop", query+"&subscriptionMode=all")
						got := async(func() *PopAnswer { return b.popAt(path, query+"&wait=true&timeout=15000") })
						if c.name == "discovery" {
							time.Sleep(100 * time.Millisecond) // those stand in no line
						} else {
							parked(t, b, queue, 1)
						}
						start := time.Now()
						f.One().PushN(queue, "p", "m", 2)
						p := await(t, got, "the pop")
						if !slices.Equal(p.IDs(), ids("m", 0, 2)) {
							t.Errorf("%s on broker %d: %q", queue, i, p.IDs())
						}
						within(t, "waking "+queue, time.Since(start), 0, prompt)
					}
				}
			}
		})
	}
}

func TestLongPoll_B55_B114_AnAckWakes(t *testing.T) {
	t.Parallel()
	eachScene(t, deaf, func(t testing.TB, s *scene) {
		for _, status := range []string{"completed", "failed", "retry", "dlq"} {
			s.producer.PushN(s.queue, partition, status, 4)
			p := s.mustPop("batch=2", ids(status, 0, 2)...)
			got := async(func() *PopAnswer { return s.popBy(s.third, "wait=true&timeout=15000") })
			parked(t, s.third, s.queue, 1)
			start := time.Now()
			for _, r := range s.consumer.Ack(p.ConsumerGroup, p.Messages[0].Ack("completed", ""), p.Messages[1].Ack(status, "")) {
				if !r.Success {
					t.Fatalf("%+v", r)
				}
			}
			next := await(t, got, "the pop")
			if next == nil {
				t.Fatalf("%s: the ack did not wake the pop", status)
			}
			want := ids(status, 2, 4)
			if status == "failed" || status == "retry" {
				want = ids(status, 1, 4)
			}
			if !slices.Equal(next.IDs(), want) {
				t.Errorf("%s: %q", status, next.IDs())
			}
			within(t, "waking after "+status, time.Since(start), 0, prompt)
			s.third.AckAll(next)
		}
	})
}

func TestLongPoll_B67_ExpiryIsSeenWithoutAPush(t *testing.T) {
	t.Parallel()
	eachScene(t, deaf, func(t testing.TB, s *scene) {
		s.push(2)
		start := time.Now()
		s.mustPop("leaseSeconds=1", ids("m", 0, 2)...)
		for range 5 {
			if p := s.popBy(s.third, "leaseSeconds=1"); p != nil {
				if time.Since(start) < time.Second {
					t.Fatalf("got %q under a lease", p.IDs())
				}
				return // a machine too slow for this
			}
		}
		// The end of the lease wakes by itself.
		p := s.mustPop("wait=true&timeout=15000&leaseSeconds=1", ids("m", 0, 2)...)
		within(t, "redelivery", time.Since(start), 950*time.Millisecond, time.Second+prompt)
		if p.Messages[0].DeliveryAttempt != 2 {
			t.Errorf("attempt %d", p.Messages[0].DeliveryAttempt)
		}
	})
}

func TestLongPoll_ManyWaitForOneQueue(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: deaf})
	const consumers = 60
	got := make(chan *PopAnswer, consumers)
	for c := range consumers {
		go func() {
			got <- f.Brokers[c%2].Pop("q", "wait=true&timeout=30000&batch=1&partitions=1")
		}()
	}
	for _, b := range f.Brokers {
		parked(t, b, "q", consumers/2)
	}
	for i := range consumers {
		f.One().PushN("q", fmt.Sprintf("p%d", i), fmt.Sprint(i), 1)
	}
	seen := map[string]bool{}
	for range consumers {
		p := await(t, got, "a parked pop")
		if len(p.IDs()) != 1 || seen[p.IDs()[0]] {
			t.Fatalf("got %q", p.IDs())
		}
		seen[p.IDs()[0]] = true
	}
}
