package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

const noMessage = "00000000-0000-0000-0000-000000000000"

func TestPush_B24_ARepeatNamesTheOriginal(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		first := s.pushOne("a")
		s.pushOne("b")
		for _, b := range []*Broker{s.producer, s.consumer} {
			again := b.Push(Item{Queue: s.queue, Partition: partition, TransactionID: "a", Payload: json.RawMessage(`{"other":1}`)})[0]
			if again.Status != "duplicate" || again.MessageID != first.MessageID || *again.Offset != *first.Offset || again.TransactionID != "a" {
				t.Errorf("%+v is no duplicate of %+v", again, first)
			}
		}
		p := s.mustPop("", "a", "b")
		if string(p.Messages[0].Data) != "{}" {
			t.Errorf("data %s", p.Messages[0].Data)
		}
	})
}

func TestPush_B25_AnIDBelongsToItsPartition(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, it := range []Item{
		{Queue: "q", Partition: "p", TransactionID: "a"},
		{Queue: "q", Partition: "p2", TransactionID: "a"},
		{Queue: "q2", Partition: "p", TransactionID: "a"},
	} {
		if r := b.Push(it)[0]; r.Status != "queued" {
			t.Errorf("%+v: %s", it, r.Status)
		}
	}
}

func TestPush_B26_B27_TheWorkedExample(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	item := func(id string) Item { return Item{Queue: "q", Partition: "p", TransactionID: id} }
	stored := b.Push(item("t1"))[0]
	res := b.Push(item("t1"), item("t2"), item("t2"), item("t1"), item(""))
	want := []struct {
		status, id string
		offset     int64
	}{
		{"duplicate", stored.MessageID, 0},
		{"queued", res[1].MessageID, 1},
		{"duplicate", res[1].MessageID, 1},
		{"duplicate", stored.MessageID, 0},
		{"queued", res[4].MessageID, 2},
	}
	for i, w := range want {
		if r := res[i]; r.Status != w.status || r.MessageID != w.id || *r.Offset != w.offset || r.Index != i {
			t.Errorf("item %d: %+v at %d, want %+v", i, r, *r.Offset, w)
		}
	}
	if got := b.Pop("q", "").IDs(); !slices.Equal(got, []string{"t1", "t2", res[4].MessageID}) {
		t.Errorf("popped %v", got)
	}
}

func TestPush_B28_B29_TheWindow(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Configure("short", map[string]any{"dedupWindowSeconds": 3})
	b.Configure("off", map[string]any{"dedupWindowSeconds": 0})
	item := func(queue string) Item { return Item{Queue: queue, Partition: "p", TransactionID: "a"} }

	if got := statuses(b.Push(item("off"), item("off"), item("short"), item("short"))); !slices.Equal(got, []string{"queued", "duplicate", "queued", "duplicate"}) {
		t.Errorf("in one call: %v", got)
	}
	if got := statuses(b.Push(item("off"), item("short"))); !slices.Equal(got, []string{"queued", "duplicate"}) {
		t.Errorf("in the next call: %v", got)
	}
	time.Sleep(3100 * time.Millisecond) // the window
	if got := statuses(b.Push(item("short"))); !slices.Equal(got, []string{"queued"}) {
		t.Errorf("after the window: %v", got)
	}
	for queue, want := range map[string]int{"off": 2, "short": 2} {
		if got := len(stored(b, queue)); got != want {
			t.Errorf("%s: %d messages", queue, got)
		}
	}
}

func TestPush_B29_WithoutAWindowGatheredCallsAreStoredApart(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Configure("q", map[string]any{"dedupWindowSeconds": 0})
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			if r := b.Push(Item{Queue: "q", TransactionID: "a"})[0]; r.Status != "queued" {
				t.Errorf("%+v", r)
			}
		})
	}
	wg.Wait()
	if n := len(stored(b, "q")); n != 30 {
		t.Errorf("stored %d of 30", n)
	}
}

func TestPush_B30_ManyAtOnceStoreOne(t *testing.T) {
	t.Parallel()
	for _, brokers := range []int{1, 2} {
		t.Run(fmt.Sprint(brokers), func(t *testing.T) {
			t.Parallel()
			f := Start(t, Options{Brokers: brokers})
			results := make([]PushResult, 50)
			var wg sync.WaitGroup
			for i := range results {
				wg.Go(func() {
					results[i] = f.Brokers[i%brokers].Push(Item{Queue: "fresh", Partition: "p", TransactionID: "a"})[0]
				})
			}
			wg.Wait()
			queued := 0
			for _, r := range results {
				if r.Status == "queued" {
					queued++
				} else if r.Status != "duplicate" {
					t.Errorf("%+v", r)
				}
				if r.MessageID != results[0].MessageID || *r.Offset != 0 {
					t.Errorf("%+v names another original than %+v", r, results[0])
				}
			}
			if queued != 1 {
				t.Errorf("%d were queued", queued)
			}
			if n := len(stored(f.One(), "fresh")); n != 1 {
				t.Errorf("%d are stored", n)
			}
		})
	}
}

func TestPush_B31_ConsumedIDsAreDuplicatesToo(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.pushOne("a")
		s.consumer.AckAll(s.mustPop("", "a"))
		if r := s.pushOne("a"); r.Status != "duplicate" {
			t.Errorf("%+v", r)
		}
		s.mustNothing("")
	})
}

func TestPush_B32_TheOriginalMayBeGone(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: []string{"RETENTION_INTERVAL=100"}}).One()
	b.Configure("q", map[string]any{"retentionEnabled": true, "retentionSeconds": 1})
	first := b.Push(Item{Queue: "q", Partition: "p", TransactionID: "a"})[0]
	eventually(t, func() bool {
		var d struct{ Totals struct{ Total int } }
		b.MustInto(&d, 200, "GET", "/api/v1/resources/queues/q", nil)
		return d.Totals.Total == 0
	}, "retention to remove the message")
	again := b.Push(Item{Queue: "q", Partition: "p", TransactionID: "a"})[0]
	if again.Status != "duplicate" || *again.Offset != 0 || again.MessageID != first.MessageID && again.MessageID != noMessage {
		t.Errorf("%+v at %d", again, *again.Offset)
	}
	if p := b.Pop("q", ""); p != nil {
		t.Errorf("popped %v", p.IDs())
	}
}

func TestPush_A7_FiftyRepeatsOverTwoBrokers(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	item := func(p, id string, v int) Item {
		return Item{Queue: "fresh", Partition: p, TransactionID: id, Payload: json.RawMessage(fmt.Sprintf(`{"v":%d}`, v))}
	}
	items := []Item{item("p", "a", 1), item("p", "a", 2), item("p", "b", 3), item("p2", "a", 4)}

	answers := make([][]PushResult, 50)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = f.Brokers[i%2].Push(items...) })
	}
	wg.Wait()
	originals := map[string]string{}
	for _, m := range stored(f.One(), "fresh") {
		originals[m.Partition+m.TransactionID] = m.ID
	}
	if len(originals) != 3 || len(stored(f.One(), "fresh")) != 3 {
		t.Fatalf("stored %d messages: %v", len(stored(f.One(), "fresh")), originals)
	}
	queued := 0
	for _, res := range answers {
		for i, r := range res {
			if r.Status == "queued" {
				queued++
			}
			if want := originals[items[i].Partition+items[i].TransactionID]; r.MessageID != want {
				t.Errorf("item %d: %+v, original %s", i, r, want)
			}
		}
		if res[1].Status != "duplicate" {
			t.Errorf("the repeat inside a call: %+v", res[1])
		}
	}
	if queued != 3 {
		t.Errorf("%d items were answered queued", queued)
	}
	for i, r := range f.Brokers[1].Push(items...) {
		if r.Status != "duplicate" || r.MessageID != originals[items[i].Partition+items[i].TransactionID] {
			t.Errorf("once more: %+v", r)
		}
	}
	alone := f.One().Push(item("p9", "a", 1), item("p9", "a", 2), item("p9", "b", 3), item("p8", "a", 4))
	if got := statuses(alone); !slices.Equal(got, []string{"queued", "duplicate", "queued", "queued"}) || alone[1].MessageID != alone[0].MessageID {
		t.Errorf("a single call: %+v", alone)
	}
}
