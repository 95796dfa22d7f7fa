package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

const lastValue = "conflation=true&consumerGroup=g&subscriptionMode=all"

// conflatingPop asks both routes in turn.
func conflatingPop(b *Broker, pinned bool, query string) *PopAnswer {
	if pinned {
		return b.PopPinned("q", "p", query)
	}
	return b.Pop("q", query)
}

func eachRoute(t *testing.T, test func(t *testing.T, f *Fleet, pinned bool)) {
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprintf("pinned %v", pinned), func(t *testing.T) {
			t.Parallel()
			test(t, Start(t, Options{Brokers: 2}), pinned)
		})
	}
}

func TestConflation_B70_B71_TheNewestOnly(t *testing.T) {
	t.Parallel()
	eachRoute(t, func(t *testing.T, f *Fleet, pinned bool) {
		a, b := f.Brokers[0].In(t), f.Brokers[1].In(t)
		if p := conflatingPop(a, pinned, lastValue); p == nil || !p.Conflation || p.ConflationConflict || len(p.Messages) != 0 || !strings.Contains(string(p.Raw), `"messages":[]`) {
			t.Fatalf("the empty answer: %+v", p)
		}
		for i := range 10 {
			a.PushN("q", "p", fmt.Sprint(i), 10)
		}
		p := conflatingPop(b, pinned, lastValue+"&batch=50")
		if !slices.Equal(p.IDs(), []string{"9-9"}) || !p.Conflation || p.Messages[0].Offset != 99 || p.LeaseID == "" {
			t.Fatalf("got %s", p.Raw)
		}
		if again := conflatingPop(a, pinned, lastValue); len(again.Messages) != 0 || !again.Conflation {
			t.Fatalf("under the lease: %q", again.IDs())
		}
		a.PushN("q", "p", "between", 3)
		if r := a.AckAll(p)[0]; r.Conflated != 99 || !r.LeaseReleased {
			t.Errorf("%+v", r)
		}
		p = conflatingPop(a, pinned, lastValue)
		if !slices.Equal(p.IDs(), []string{"between-2"}) {
			t.Fatalf("got %q", p.IDs())
		}
		if r := b.AckAll(p)[0]; r.Conflated != 2 {
			t.Errorf("%+v", r)
		}
		if p := conflatingPop(b, pinned, lastValue); len(p.Messages) != 0 || !p.Conflation {
			t.Errorf("at the end: %s", p.Raw)
		}
	})
}

func TestConflation_B72_NeedsAGroupAndALease(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, query := range []string{
		"conflation=true", "conflation=true&consumerGroup=", "conflation=true&consumerGroup=g&autoAck=true",
		"conflation=true&consumerGroup=g&commitOnDelivery=true",
	} {
		for _, path := range []string{"/api/v1/pop/queue/q", "/api/v1/pop/queue/q/partition/p", "/api/v1/pop"} {
			r := mustRefuse(b, http.StatusBadRequest, "GET", path+"?namespace=n&"+query, nil)
			if r.Success == nil || *r.Success || string(r.Messages) != "[]" {
				t.Errorf("%s?%s: %+v", path, query, r)
			}
		}
	}
}

func TestConflation_B73_B75_TheGroupsPolicyHolds(t *testing.T) {
	t.Parallel()
	eachRoute(t, func(t *testing.T, f *Fleet, pinned bool) {
		a, b := f.Brokers[0].In(t), f.Brokers[1].In(t)
		plain := "consumerGroup=g&subscriptionMode=all&batch=2"
		if p := conflatingPop(a, pinned, plain); p != nil {
			t.Fatalf("an empty pop: %s", p.Raw)
		}
		if p := conflatingPop(b, pinned, lastValue); p == nil || p.Conflation || !p.ConflationConflict || len(p.Messages) != 0 {
			t.Fatalf("an empty pop that disagrees: %+v", p)
		}
		a.PushN("q", "p", "m", 4)
		p := conflatingPop(b, pinned, lastValue+"&batch=2")
		if !slices.Equal(p.IDs(), ids("m", 0, 2)) || p.Conflation || !p.ConflationConflict {
			t.Fatalf("one that disagrees: %s", p.Raw)
		}
		b.AckAll(p)
		p = conflatingPop(a, pinned, plain)
		if !slices.Equal(p.IDs(), ids("m", 2, 4)) || strings.Contains(string(p.Raw), "onflation") {
			t.Fatalf("one that does not care: %s", p.Raw)
		}
		// The other way round: the policy is applied whatever the caller says.
		if p := conflatingPop(a, pinned, strings.Replace(lastValue, "=g", "=h", 1)); !slices.Equal(p.IDs(), []string{"m-3"}) {
			t.Fatalf("h: %q", p.IDs())
		}
		if p := conflatingPop(b, pinned, "consumerGroup=h"); p == nil || !p.Conflation || p.ConflationConflict {
			t.Errorf("h, says nothing: %+v", p)
		}
		if p := conflatingPop(b, pinned, "consumerGroup=h&conflation=false"); p == nil || !p.Conflation || !p.ConflationConflict {
			t.Errorf("h, says no: %+v", p)
		}
	})
}

func TestConflation_B74_RepeatedIDsDoNotLoop(t *testing.T) {
	t.Parallel()
	eachRoute(t, func(t *testing.T, f *Fleet, pinned bool) {
		b := f.One().In(t)
		b.Configure("q", map[string]any{"dedupWindowSeconds": 0})
		for range 3 {
			b.Push(Item{Queue: "q", Partition: "p", TransactionID: "same"})
		}
		p := conflatingPop(b, pinned, lastValue)
		if r := b.AckAll(p)[0]; !r.LeaseReleased || r.Conflated != 2 {
			t.Errorf("%+v", r)
		}
		if p := conflatingPop(b, pinned, lastValue); len(p.Messages) != 0 {
			t.Errorf("again: %q at %d", p.IDs(), p.Messages[0].Offset)
		}
	})
}

func TestConflation_ManyPartitionsAndRedelivery(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for i := range 5 {
		b.PushN("q", fmt.Sprintf("p%d", i), fmt.Sprintf("p%d", i), 3)
	}
	p := b.Pop("q", lastValue+"&batch=4&leaseSeconds=1")
	if len(p.Messages) != 4 || p.PartitionsClaimed != 4 {
		t.Fatalf("got %q", p.IDs())
	}
	for _, m := range p.Messages {
		if m.Offset != 2 {
			t.Errorf("%s at %d", m.TransactionID, m.Offset)
		}
	}
	b.Push(Item{Queue: "q", Partition: p.Partition, TransactionID: "newer"})
	time.Sleep(1050 * time.Millisecond) // the lease
	got := b.Pop("q", lastValue+"&batch=64")
	if len(got.Messages) != 5 || !slices.Contains(got.IDs(), "newer") {
		t.Errorf("got %q", got.IDs())
	}
}

func TestConflation_Discovery(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	query := lastValue + "&namespace=n"
	for range 2 { // without a queue, and with an empty one
		if p := b.Discover(query); p == nil || !p.Conflation || p.ConflationConflict || len(p.Messages) != 0 {
			t.Errorf("an empty answer: %+v", p)
		}
		b.Configure("n.a", map[string]any{"namespace": "n"})
	}
	b.PushN("n.a", "p", "a", 3)
	p := b.Discover(query)
	if !slices.Equal(p.IDs(), []string{"a-2"}) || !p.Conflation || p.ConflationConflict {
		t.Fatalf("got %s", p.Raw)
	}
	if p := b.Discover("namespace=n&consumerGroup=g&conflation=false"); p == nil || !p.Conflation || !p.ConflationConflict {
		t.Errorf("one that disagrees: %+v", p)
	}
	if p := b.Discover("namespace=n&consumerGroup=other"); p != nil {
		t.Errorf("another group: %s", p.Raw)
	}
}
