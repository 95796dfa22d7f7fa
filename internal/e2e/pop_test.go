package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"
)

func TestPop_B39_BadParametersAreRefused(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, query := range []string{
		"batch=abc", "batch=1.5", "batch=99999999999", "wait=maybe", "timeout=-1", "timeout=x", "partitions=x", "autoAck=perhaps",
		"commitOnDelivery=2", "leaseSeconds=1s", "conflation=x", "autopilot=x",
	} {
		for _, path := range []string{"/api/v1/pop/queue/q", "/api/v1/pop/queue/q/partition/p", "/api/v1/pop"} {
			r := mustRefuse(b, http.StatusBadRequest, "GET", path+"?namespace=n&"+query, nil)
			if r.Success == nil || *r.Success || string(r.Messages) != "[]" {
				t.Errorf("%s?%s: %+v", path, query, r)
			}
		}
	}
	b.PushN("q", "p", "m", 3)
	p := b.Pop("q", "batch=0&partitions=-3&leaseSeconds=-1&timeout=99999999&unknown=x&autopilot=true&consumerGroup=")
	if len(p.Messages) != 1 || p.ConsumerGroup != "__QUEUE_MODE__" {
		t.Errorf("a batch below one: %q as %s", p.IDs(), p.ConsumerGroup)
	}
}

func TestPop_B40_B41_InOffsetOrder(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.mustNothing("")
		res := s.push(4)
		p := s.mustPop("", "m-0", "m-1", "m-2", "m-3")
		if p.Queue != s.queue || p.Partition != partition || p.PartitionsClaimed != 1 || p.LeaseID == "" {
			t.Errorf("answer: %s", p.Raw)
		}
		for i, m := range p.Messages {
			want := Message{
				ID: res[i].MessageID, TransactionID: res[i].TransactionID, Data: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)),
				CreatedAt: m.CreatedAt, PartitionID: p.PartitionID, Partition: partition, LeaseID: p.LeaseID,
				ConsumerGroup: p.ConsumerGroup, Queue: s.queue, Offset: int64(i), DeliveryAttempt: 1,
			}
			if fmt.Sprintf("%+v", m) != fmt.Sprintf("%+v", want) {
				t.Errorf("message %d: %+v, want %+v", i, m, want)
			}
		}
	})
}

func TestPop_B42_ABatchIsLeasedUntilItIsDone(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.push(5)
		p := s.mustPop("batch=3", ids("m", 0, 3)...)
		for _, b := range []*Broker{s.consumer, s.third} {
			if got := s.popBy(b, "batch=3"); got != nil {
				t.Fatalf("a second pop got %q", got.IDs())
			}
		}
		s.consumer.AckAll(p)
		s.mustPop("batch=3", ids("m", 3, 5)...)
	})
}

func TestPop_B43_ManyPartitionsOneLease(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for i := range 4 {
		b.PushN("q", fmt.Sprintf("p%d", i), fmt.Sprintf("p%d", i), 5)
	}
	p := b.Pop("q", "partitions=4&batch=10")
	if len(p.Messages) != 10 || p.PartitionsClaimed < 2 || p.LeaseID == "" {
		t.Fatalf("%d messages of %d partitions: %q", len(p.Messages), p.PartitionsClaimed, p.IDs())
	}
	byPartition := map[string]string{}
	next := map[string]int64{}
	var order []string
	for _, m := range p.Messages {
		if m.LeaseID != p.LeaseID {
			t.Errorf("lease %s beside %s", m.LeaseID, p.LeaseID)
		}
		if id, ok := byPartition[m.Partition]; ok && id != m.PartitionID {
			t.Errorf("partition %s is %s and %s", m.Partition, id, m.PartitionID)
		}
		if _, ok := byPartition[m.Partition]; !ok {
			order = append(order, m.Partition)
		}
		if order[len(order)-1] != m.Partition || m.Offset != next[m.Partition] {
			t.Errorf("message %s/%d out of place", m.Partition, m.Offset)
		}
		byPartition[m.Partition] = m.PartitionID
		next[m.Partition]++
	}
	if len(byPartition) != p.PartitionsClaimed || byPartition[p.Partition] != p.PartitionID || order[0] != p.Partition {
		t.Errorf("claimed %v, answered %d, first %s", byPartition, p.PartitionsClaimed, p.Partition)
	}
	for _, r := range b.AckAll(p) {
		if r.Noop {
			t.Errorf("%+v", r)
		}
	}
	rest := 0
	for p := b.Pop("q", "partitions=0"); p != nil; p = b.Pop("q", "partitions=0") {
		rest += len(p.Messages)
		b.AckAll(p)
	}
	if rest != 10 {
		t.Errorf("%d messages were left", rest)
	}
}

func TestPop_B44_ThePinnedRouteClaimsOnePartition(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.PushN("q", "a", "a", 2)
	b.PushN("q", "b", "b", 2)
	if p := b.PopPinned("q", "b", "partitions=8&batch=100"); !slices.Equal(p.IDs(), ids("b", 0, 2)) || p.PartitionsClaimed != 1 {
		t.Errorf("got %q of %d", p.IDs(), p.PartitionsClaimed)
	}
}

func TestPop_B45_B2_GroupsAreApart(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.push(3)
		mine := s.mustPop("", ids("m", 0, 3)...)
		other := s.consumer.Pop(s.queue, "consumerGroup=other&subscriptionMode=all")
		if !slices.Equal(other.IDs(), ids("m", 0, 3)) || other.LeaseID == mine.LeaseID {
			t.Fatalf("the other group got %q", other.IDs())
		}
		// Whatever the other does, this lease, cursor and budget stay.
		s.consumer.Ack("other", other.Messages[1].Ack("dlq", "no"), other.Messages[0].Ack("completed", ""))
		s.mustNothing("")
		if r := s.consumer.Ack(mine.ConsumerGroup, mine.Messages[2].Ack("failed", "x"))[0]; !r.Success || r.DLQ {
			t.Errorf("%+v", r)
		}
		if p := s.mustPop("", ids("m", 0, 3)...); p.Messages[0].DeliveryAttempt != 2 {
			t.Errorf("attempt %d", p.Messages[0].DeliveryAttempt)
		}
		if p := s.consumer.Pop(s.queue, "consumerGroup=other"); !slices.Equal(p.IDs(), []string{"m-2"}) || p.Messages[0].DeliveryAttempt != 1 {
			t.Errorf("the other group: %q", p.IDs())
		}
		letters := s.consumer.DeadLetters(s.queue)
		if len(letters) != 1 || letters[0].ConsumerGroup != "other" {
			t.Errorf("dead letters: %+v", letters)
		}
	})
}

func TestPop_B47_ExpiryRedeliversAndCounts(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.push(4)
		p := s.mustPop("batch=3&leaseSeconds=1", ids("m", 0, 3)...)
		s.consumer.Ack(p.ConsumerGroup, p.Messages[0].Ack("completed", ""))
		for attempt := 2; attempt <= 3; attempt++ { // B77 on the way
			time.Sleep(1050 * time.Millisecond) // the lease
			p = s.mustPop("batch=2&leaseSeconds=1", "m-1", "m-2")
			for _, m := range p.Messages {
				if m.DeliveryAttempt != attempt {
					t.Errorf("attempt %d, want %d", m.DeliveryAttempt, attempt)
				}
			}
		}
	})
}

func TestPop_B48_ExpiryIsNotCharged(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Configure("q", map[string]any{"retryLimit": 2})
	b.PushN("q", "p", "m", 1)
	for attempt := 1; attempt <= 4; attempt++ {
		if p := b.Pop("q", "leaseSeconds=1"); p == nil || p.Messages[0].DeliveryAttempt != attempt {
			t.Fatalf("hand-out %d: %+v", attempt, p)
		}
		time.Sleep(1050 * time.Millisecond) // the lease
	}
	for failure := 1; failure <= 3; failure++ {
		p := b.Pop("q", "")
		if r := b.Ack("", p.Messages[0].Ack("failed", ""))[0]; r.DLQ != (failure == 3) {
			t.Errorf("failure %d: %+v", failure, r)
		}
	}
}

func TestPop_B49_LeaseSeconds(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b, pool := f.One(), f.DB.Pool(t)
	b.Configure("q", map[string]any{"leaseTime": 300})
	b.Push(Item{Queue: "implicit"})
	for _, c := range []struct {
		queue, query string
		want         float64
	}{
		{"q", "leaseSeconds=1", 1},
		{"q", "leaseSeconds=0", 300},
		{"q", "leaseSeconds=-5", 300},
		{"q", "", 300},
		{"implicit", "", 60},
		{"implicit", "leaseSeconds=2", 2},
	} {
		group := fmt.Sprintf("g%s%s", c.queue, c.query)
		b.Push(Item{Queue: c.queue})
		p := b.Pop(c.queue, "consumerGroup="+url.QueryEscape(group)+"&subscriptionMode=all&"+c.query)
		var left float64
		err := pool.QueryRow(t.Context(), `SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) FROM queen.cursors
			WHERE lease_id = $1::text::uuid`, p.LeaseID).Scan(&left)
		if err != nil || left > c.want || left < c.want-0.9 {
			t.Errorf("%s?%s: %.1f s are left of %.0f (%v)", c.queue, c.query, left, c.want, err)
		}
	}
}

func TestPop_B50_B18_ImplicitQueuesLeaseSixtySeconds(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Push(Item{Queue: "pushed"})
	b.Pop("popped", "")
	b.Configure("configured", nil)
	for queue, want := range map[string]int{"pushed": 60, "popped": 60, "configured": 300} {
		var q struct{ Options struct{ LeaseTime int } }
		if b.MustInto(&q, http.StatusOK, "GET", "/api/v1/resources/queues/"+queue, nil); q.Options.LeaseTime != want {
			t.Errorf("%s leases for %d s", queue, q.Options.LeaseTime)
		}
	}
}

func TestPop_B51_B52_CommitAtDelivery(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"autoAck", "commitOnDelivery"} {
		t.Run(flag, func(t *testing.T) {
			eachScene(t, nil, func(t testing.TB, s *scene) {
				s.push(5)
				p := s.mustPop("batch=3&"+flag+"=true", ids("m", 0, 3)...)
				for _, m := range p.Messages {
					if m.LeaseID != "" || m.DeliveryAttempt != 1 {
						t.Errorf("%+v", m)
					}
				}
				if p.LeaseID != "" {
					t.Errorf("lease %q", p.LeaseID)
				}
				s.mustPop(flag+"=true", ids("m", 3, 5)...)
				s.mustNothing(flag + "=true")
				s.mustNothing("")
				s.pushOne("later")
				s.mustPop("", "later")
			})
		})
	}
}

func TestPop_B57_DiscoveryNeedsALabel(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, query := range []string{"", "?namespace=", "?task=&namespace="} {
		got := b.Must(http.StatusBadRequest, "GET", "/api/v1/pop"+query, nil)
		if want := `{"success":false,"error":"namespace or task is required","messages":[]}`; string(got) != want {
			t.Errorf("%q: %s", query, got)
		}
	}
}

func TestPop_B58_B59_Discovery(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b, other := f.Brokers[0], f.Brokers[1]
	b.PushN("ns.task.rest", "p", "a", 2)
	b.PushN("ns.else", "p", "b", 2)
	b.PushN("foreign.task", "p", "c", 2)
	for query, want := range map[string][]string{
		"namespace=ns": {"a-0", "a-1", "b-0", "b-1"}, "task=task": {"a-0", "a-1", "c-0", "c-1"},
		"namespace=ns&task=task": {"a-0", "a-1"}, "namespace=ns&task=nope": nil, "namespace=n": nil,
	} {
		p := other.Discover(query + "&partitions=10&subscriptionMode=all&consumerGroup=" + url.QueryEscape(query))
		got := p.IDs()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
			continue
		}
		if p == nil {
			continue
		}
		if p.Queue != "" {
			t.Errorf("%s: queue %q", query, p.Queue)
		}
		b.AckAll(p)
		if p := b.Discover(query + "&partitions=10&consumerGroup=" + url.QueryEscape(query)); p != nil {
			t.Errorf("%s: %q again", query, p.IDs())
		}
	}
	if p := b.Discover("namespace=ns&batch=3&partitions=10"); len(p.Messages) != 3 {
		t.Errorf("a budget of 3 gave %q", p.IDs())
	}
}

func TestPop_B69_AnUnknownPartitionIsNotMade(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.PushN("q", "p", "m", 1)
	if p := b.PopPinned("q", "nope", ""); p != nil {
		t.Fatalf("got %q", p.IDs())
	}
	var q struct{ Partitions []struct{ Name string } }
	if b.MustInto(&q, http.StatusOK, "GET", "/api/v1/resources/queues/q", nil); len(q.Partitions) != 1 {
		t.Errorf("partitions: %v", q.Partitions)
	}
}

func TestPop_B78_TheRemovedHeadIsPassedOver(t *testing.T) {
	t.Parallel()
	eachScene(t, []string{"RETENTION_INTERVAL=100"}, func(t testing.TB, s *scene) {
		s.producer.Configure(s.queue, map[string]any{"retentionEnabled": true, "retentionSeconds": 6})
		s.push(3)
		s.mustPop("batch=1&leaseSeconds=1", "m-0") // the cursor is inside what goes
		time.Sleep(5 * time.Second)                // how long the late ones outlive the head
		s.producer.PushN(s.queue, partition, "late", 2)
		eventually(t, func() bool {
			var q struct {
				Partitions []struct{ Stats struct{ Total int } }
			}
			s.producer.MustInto(&q, http.StatusOK, "GET", "/api/v1/resources/queues/"+s.queue, nil)
			return q.Partitions[0].Stats.Total == 2
		}, "retention to remove the head")
		p := s.mustPop("", ids("late", 0, 2)...)
		if p.Messages[0].Offset != 3 {
			t.Errorf("offset %d", p.Messages[0].Offset)
		}
		s.consumer.AckAll(p)
		s.mustNothing("")
	})
}

func TestPop_B79_OddNamesInPaths(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for i, odd := range []string{"a/b", "a b", "50%", "żółć", "a+b", "a?b#c", "..", ".", "%2F", "a//b", "/"} {
		b.Push(Item{Queue: odd, Partition: odd, TransactionID: fmt.Sprint(i)})
		if p := b.Pop(odd, "consumerGroup=w&subscriptionMode=all"); !slices.Equal(p.IDs(), []string{fmt.Sprint(i)}) {
			t.Errorf("%q, wildcard: %q", odd, p.IDs())
		}
		if p := b.PopPinned(odd, odd, ""); !slices.Equal(p.IDs(), []string{fmt.Sprint(i)}) || p.Partition != odd {
			t.Errorf("%q, pinned: %q", odd, p.IDs())
		}
	}
}
