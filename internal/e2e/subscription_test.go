package e2e

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSubscription_B60_B62_WhereAGroupStarts(t *testing.T) {
	t.Parallel()
	starts := map[string]bool{ // all?
		"": false, "subscriptionMode=new": false, "subscriptionMode=new-only": false, "subscriptionFrom=now": false,
		"subscriptionFrom=yesterday-ish": false, "subscriptionMode=all&subscriptionFrom=now": false, "subscriptionMode=": false,
		"subscriptionMode=all": true, "subscriptionMode=banana": true, "subscriptionMode=NEW": true,
		"subscriptionMode=new&subscriptionFrom=2001-01-01T00:00:00Z": true,
	}
	eachScene(t, nil, func(t testing.TB, s *scene) {
		if s.group == "" {
			return // B66
		}
		s.push(2)
		for query, all := range starts {
			s.group = "group of " + query
			if query == "" || query == "subscriptionMode=" {
				query += "&subscriptionMode=" // the default, said so that the scene adds none
			}
			if all {
				s.mustPop(query+"&autoAck=true", ids("m", 0, 2)...)
			} else {
				s.mustNothing(query + "&autoAck=true")
			}
		}
		s.pushOne("later")
		for query := range starts {
			s.group = "group of " + query
			s.mustPop("autoAck=true", "later")
		}
	})
}

func TestSubscription_DefaultModeIsAllWhenConfigured(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: []string{"DEFAULT_SUBSCRIPTION_MODE=all"}}).One()
	b.PushN("q", "p", "m", 2)
	if p := b.Pop("q", "consumerGroup=g"); !slices.Equal(p.IDs(), ids("m", 0, 2)) {
		t.Errorf("got %q", p.IDs())
	}
	if p := b.Pop("q", "consumerGroup=h&subscriptionMode=new"); p != nil {
		t.Errorf("got %q", p.IDs())
	}
}

func TestSubscription_B63_FromAnInstant(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.PushN("q", "p", "early", 2)
	b.PushN("q", "quiet", "quiet", 2)
	early := stored(b, "q")
	time.Sleep(5 * time.Millisecond)
	b.PushN("q", "p", "late", 2)
	all := b.PopPinned("q", "p", "consumerGroup=look&subscriptionMode=all&autoAck=true")
	late := all.Messages[2].CreatedAt

	for i, c := range []struct {
		from time.Time
		want []string
	}{
		{early[0].CreatedAt.Add(-time.Hour), append(ids("early", 0, 2), ids("late", 0, 2)...)},
		{late, ids("late", 0, 2)},
		{late.Add(-time.Microsecond), ids("late", 0, 2)},
		{late.Add(time.Microsecond), nil},
		{late.Add(time.Hour), nil},
	} {
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.000000-07:00"} {
			from := c.from.In(time.FixedZone("", 2*3600)).Format(layout)
			query := fmt.Sprintf("consumerGroup=g%d-%d&subscriptionFrom=%s&autoAck=true", i, len(layout), url.QueryEscape(from))
			if got := b.PopPinned("q", "p", query).IDs(); !slices.Equal(got, c.want) {
				t.Errorf("from %s: %q, want %q", from, got, c.want)
			}
		}
	}
	// A later partition is delivered whole whatever the instant.
	b.PushN("q", "fresh", "fresh", 2)
	if got := b.PopPinned("q", "fresh", "consumerGroup=g4-35").IDs(); !slices.Equal(got, ids("fresh", 0, 2)) {
		t.Errorf("a later partition: %q", got)
	}
}

func TestSubscription_B64_TheFirstContactDecides(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		if s.group == "" {
			return
		}
		s.push(3)
		s.mustNothing("subscriptionMode=new")
		for _, b := range []*Broker{s.consumer, s.third} {
			for _, again := range []string{"subscriptionMode=all", "subscriptionFrom=2001-01-01T00:00:00Z"} {
				if p := s.popBy(b, again); p != nil {
					t.Errorf("%s replayed %q", again, p.IDs())
				}
			}
		}
		s.pushOne("later")
		s.mustPop("subscriptionMode=all", "later")
	})
}

// The worked example of the subscription rules.
func TestSubscription_B65_B66_LaterPartitions(t *testing.T) {
	t.Parallel()
	for _, brokers := range []int{1, 2} {
		t.Run(fmt.Sprint(brokers), func(t *testing.T) {
			t.Parallel()
			f := Start(t, Options{Brokers: brokers})
			a, b := f.Brokers[0].In(t), f.Brokers[brokers-1].In(t)
			a.PushN("q", "a", "a", 10)
			if p := b.Pop("q", "consumerGroup=g1"); p != nil {
				t.Fatalf("got %q", p.IDs())
			}
			a.PushN("q", "a", "late", 1)
			a.PushN("q", "b", "b", 1)
			p := b.Pop("q", "consumerGroup=g1&partitions=2")
			if got := sorted(p.IDs()); !slices.Equal(got, []string{"b-0", "late-0"}) {
				t.Errorf("g1: %q", got)
			}
			p2 := a.Pop("q", "consumerGroup=g2&partitions=2&subscriptionMode=all")
			if len(p2.IDs()) != 12 {
				t.Errorf("g2: %q", p2.IDs())
			}
			b.AckAll(p)
			if p := a.Pop("q", "consumerGroup=g1&partitions=2&subscriptionMode=all"); p != nil {
				t.Errorf("g1 again: %q", p.IDs())
			}
			if p := a.Pop("q", "subscriptionMode=new&partitions=2"); len(p.IDs()) != 12 {
				t.Errorf("queue mode: %q", p.IDs())
			}
		})
	}
}

func TestSubscription_B68_APopMakesTheQueue(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		if s.group != "" {
			s.mustNothing("subscriptionMode=new")
		} else {
			s.mustNothing("")
		}
		list := string(s.producer.Must(200, "GET", "/api/v1/resources/queues", nil))
		if !strings.Contains(list, `"name":"`+s.queue+`"`) {
			t.Errorf("no %s in %s", s.queue, list)
		}
		// The group was registered: what comes now is for it.
		s.push(2)
		s.mustPop("", ids("m", 0, 2)...)
	})
}

func TestSubscription_ManyPartitionsAreSeeded(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	const partitions = 2500 // more than one step of seeding
	items := make([]Item, partitions)
	for i := range items {
		items[i] = Item{Queue: "q", Partition: fmt.Sprintf("p%d", i)}
	}
	f.One().Push(items...)
	// Two brokers meet the group at once, while partitions are being made.
	answers := make(chan int, 2)
	for _, b := range f.Brokers {
		go func() {
			n := 0
			for {
				p := b.Pop("q", "consumerGroup=g&subscriptionMode=all&partitions=64&batch=1000&autoAck=true&wait=true&timeout=1000")
				if p == nil {
					answers <- n
					return
				}
				n += len(p.Messages)
			}
		}()
	}
	for i := range 20 {
		f.Brokers[i%2].PushN("q", fmt.Sprintf("late%d", i), "x", 1)
	}
	if n := await(t, answers, "a reader") + await(t, answers, "a reader"); n != partitions+20 {
		t.Errorf("%d of %d messages", n, partitions+20)
	}
}

func sorted(ids []string) []string {
	slices.Sort(ids)
	return ids
}
