package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
)

func TestPush_B19_NoItems(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	if got := b.Must(http.StatusCreated, "POST", "/api/v1/push", `{"items":[]}`); string(got) != "[]" {
		t.Fatalf("got %s", got)
	}
}

func TestPush_B20_ManyQueuesInOneCall(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	res := b.Push(
		Item{Queue: "a", Partition: "p1"}, Item{Queue: "b", Partition: "p1"}, Item{Queue: "a", Partition: "p2"},
		Item{Queue: "a", Partition: "p1"}, Item{Queue: "b"},
	)
	wantOffset := []int64{0, 0, 0, 1, 0}
	for i, r := range res {
		if r.Status != "queued" || *r.Offset != wantOffset[i] || r.Index != i {
			t.Errorf("item %d: %+v at %d", i, r, *r.Offset)
		}
	}
	if a, b := len(stored(b, "a")), len(stored(b, "b")); a != 3 || b != 2 {
		t.Errorf("stored %d and %d messages", a, b)
	}
	if p := b.PopPinned("b", "Default", ""); !slices.Equal(p.IDs(), []string{res[4].TransactionID}) {
		t.Errorf("partition Default holds %v", p.IDs())
	}
}

func TestPush_B21_APayloadIsRequired(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, item := range []string{`{"queue":"q"}`, `{"queue":"q","data":1}`, `{"payload":1}`, `{"queue":null,"payload":1}`} {
		r := mustRefuse(b, http.StatusBadRequest, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1},`+item+`]}`)
		if !strings.HasPrefix(r.Field, "items[1].") {
			t.Errorf("%s: field %q", item, r.Field)
		}
	}
	if p := b.Pop("q", ""); p != nil {
		t.Fatalf("stored %v", p.IDs())
	}
}

func TestPush_B22_PayloadsRoundTrip(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	payloads := []string{
		`{"z":1,"a":[1,2,{"b":null}]}`, `[]`, `[1,"x",null]`, `"text \u00e9 é \n"`, `1e400`, `-0.10`, `true`, `false`, `null`, `{}`, `""`,
		`{"big":"` + strings.Repeat("abcdefgh", 1<<17) + `"}`,
	}
	var items []Item
	for _, p := range payloads {
		items = append(items, Item{Queue: "q", Payload: json.RawMessage(p)})
	}
	b.Push(items...)
	got := b.Pop("q", "")
	if len(got.Messages) != len(payloads) {
		t.Fatalf("%d messages for %d payloads", len(got.Messages), len(payloads))
	}
	for i, m := range got.Messages {
		if string(m.Data) != payloads[i] {
			t.Errorf("payload %d: got %.80s, want %.80s", i, m.Data, payloads[i])
		}
	}
}

func TestPush_B23_WithoutTransactionID(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, body := range []string{
		`{"items":[{"queue":"q","payload":1},{"queue":"q","payload":1}]}`,
		`{"items":[{"queue":"q","payload":1,"transactionId":null},{"queue":"q","payload":1,"transactionId":""}]}`,
	} {
		var res []PushResult
		b.MustInto(&res, http.StatusCreated, "POST", "/api/v1/push", body)
		if res[0].MessageID == res[1].MessageID {
			t.Error("two messages share an id")
		}
		for _, r := range res {
			if r.TransactionID != r.MessageID || r.Status != "queued" {
				t.Errorf("%+v", r)
			}
		}
	}
	if n := len(stored(b, "q")); n != 4 {
		t.Errorf("stored %d", n)
	}
}

func TestPush_B33_ManyConnectionsOneLog(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	const writers, rounds, batch = 8, 15, 3
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			last := int64(-1)
			for r := range rounds {
				for _, res := range f.Brokers[(w+r)%2].PushN("q", "p", fmt.Sprintf("w%d-r%d", w, r), batch) {
					if *res.Offset <= last {
						t.Errorf("writer %d: offset %d after %d", w, *res.Offset, last)
					}
					last = *res.Offset
				}
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	for i, m := range stored(f.One(), "q") {
		if m.Offset != int64(i) {
			t.Fatalf("offset %d at place %d", m.Offset, i)
		}
		var w string
		var r, n int
		if _, err := fmt.Sscanf(strings.ReplaceAll(m.TransactionID, "-", " "), "%s r%d %d", &w, &r, &n); err != nil {
			t.Fatal(err)
		}
		if at := r*batch + n; at != next[w] {
			t.Fatalf("%s: message %d where %d is due", w, at, next[w])
		}
		next[w]++
	}
	for w := range writers {
		if n := next[fmt.Sprintf("w%d", w)]; n != rounds*batch {
			t.Errorf("writer %d: %d messages stored", w, n)
		}
	}
}

func TestPush_B34_OddNames(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, odd := range []string{`a&b`, `<q>`, `say "hi"`, `back\slash`, `a/b`, `żółć 队列`, `%2F`, "\u00e9", "e\u0301", `{"json":1}`, `'; --`} {
		res := b.Push(Item{Queue: odd, Partition: odd, TransactionID: odd})[0]
		if res.QueueName != odd || res.TransactionID != odd || res.Status != "queued" {
			t.Errorf("%q: %+v", odd, res)
		}
		p := b.PopPinned(odd, odd, "consumerGroup="+url.QueryEscape(odd)+"&subscriptionMode=all")
		if p == nil || p.Queue != odd || p.Partition != odd || p.ConsumerGroup != odd || p.Messages[0].TransactionID != odd {
			t.Errorf("%q: popped %q", odd, p.IDs())
			continue
		}
		b.AckAll(p)
	}
	// An escape is the character it stands for.
	var res []PushResult
	b.MustInto(&res, http.StatusCreated, "POST", "/api/v1/push",
		`{"items":[{"queue":"\u0061\/b","partition":"\ud83d\ude00","transactionId":"\u0061","payload":1},{"queue":"a/b","partition":"😀","transactionId":"a","payload":2}]}`)
	if got := statuses(res); !slices.Equal(got, []string{"queued", "duplicate"}) {
		t.Errorf("escaped and plain spelling: %v", got)
	}
}

func TestPush_B35_MessageIDsAreUUIDv7(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	res := b.PushN("q", "p", "m", 50)
	for i, r := range res {
		id, err := uuid.Parse(r.MessageID)
		if err != nil || id.Version() != 7 || id.Variant() != uuid.RFC4122 || r.MessageID != strings.ToLower(r.MessageID) {
			t.Fatalf("message id %q: %v", r.MessageID, err)
		}
		if i > 0 && r.MessageID <= res[i-1].MessageID {
			t.Fatalf("message id %s does not follow %s", r.MessageID, res[i-1].MessageID)
		}
	}
}

func TestPush_B36_LabelsComeFromTheName(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for name, want := range map[string][2]string{
		"a.b.c": {"a", "b"}, "a.b": {"a", "b"}, "orders": {"orders", ""}, "a.": {"a", ""}, ".b": {"", "b"},
	} {
		b.Push(Item{Queue: name})
		var q struct{ Namespace, Task string }
		b.MustInto(&q, http.StatusOK, "GET", "/api/v1/resources/queues/"+Seg(name), nil)
		if got := [2]string{q.Namespace, q.Task}; got != want {
			t.Errorf("%s: labels %q, want %q", name, got, want)
		}
	}
}

func TestPush_B38_WithoutAKeyAPayloadIsStoredPlain(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.Configure("q", map[string]any{"encryptionEnabled": true})
	b.Push(Item{Queue: "q", Payload: json.RawMessage(`{"card":"4111"}`)})
	var body []byte
	if err := f.DB.Pool(t).QueryRow(t.Context(), "SELECT body FROM queen.segments").Scan(&body); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(body, []byte(`"data":{"card":"4111"}`)) {
		t.Errorf("stored %s", body)
	}
	if p := b.Pop("q", ""); string(p.Messages[0].Data) != `{"card":"4111"}` {
		t.Errorf("popped %s", p.Messages[0].Data)
	}
}
