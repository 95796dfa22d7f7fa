package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTimer_T1_FiresWithWhatWasPromised(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Pop("q", "") // registers queue mode
	r := b.timers(schedule("q", "a", 500*time.Millisecond, `{"n":1}`, "partition", "acme"))[0]
	if !r.OK || r.Status != "scheduled" || *r.Txn != "txn-a" || r.MessageID == "" {
		t.Fatalf("%+v", r)
	}
	b.quiet("q")
	m := b.popUntil("q", 1)[0]
	if m.TransactionID != "txn-a" || m.ID != r.MessageID || m.Partition != "acme" || string(m.Data) != `{"n":1}` || m.TraceID != nil || m.ProducerSub != nil {
		t.Fatalf("%+v", m)
	}
	if late := m.CreatedAt.Sub(r.DeliverAt); late < 0 || late > time.Second {
		t.Fatalf("fired %v after it was due", late)
	}
}

func TestTimer_T2_T3_PastAndGone(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	r := b.timers(schedule("q", "late", -5*time.Second, `1`), schedule("q", "soon", time.Hour, `2`))
	if d := r[1].DeliverAt.Sub(r[0].DeliverAt); d != time.Hour+5*time.Second {
		t.Fatalf("one call, two instants: %v", d)
	}
	if row := b.peek("q", "soon"); !row.Found || row.Txn != "txn-soon" || *row.Payload != "Mg==" || row.MessageID != r[1].MessageID || !row.DeliverAt.Equal(r[1].DeliverAt) {
		t.Fatalf("%+v", row)
	}
	b.popUntil("q", 1)
	if row := b.peek("q", "late"); row.Found {
		t.Fatalf("%+v", row)
	}
	if got := string(b.Must(200, "GET", "/api/v1/timers/q/late", nil)); got != `{"found":false,"queue":"q","timerKey":"late"}` {
		t.Fatal(got)
	}
	got := b.cancelTimer("q", "late", "?txn=mine&other=ignored")
	if got.OK || got.Status != "absent" || *got.Txn != "mine" {
		t.Fatalf("%+v", got)
	}
}

func TestTimer_T4_T5_T6_CancelAndReplace(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.timers(schedule("q", "gone", 300*time.Millisecond, `1`), schedule("q", "sooner", time.Hour, `1`), schedule("q", "later", 200*time.Millisecond, `1`))
	first := b.peek("q", "sooner")
	if got := b.cancelTimer("q", "gone", ""); !got.OK || got.Status != "cancelled" || *got.Txn != "txn-gone" {
		t.Fatalf("%+v", got)
	}
	r := b.timers(
		schedule("q", "sooner", 100*time.Millisecond, `2`, "txn", "new", "op", "reschedule"),
		schedule("q", "later", 900*time.Millisecond, `3`, "txn", "last"))
	if r[0].Status != "rescheduled" || r[0].MessageID == first.MessageID || r[1].Status != "rescheduled" {
		t.Fatalf("%+v", r)
	}
	if row := b.peek("q", "later"); row.CreatedAt.Equal(row.UpdatedAt) || row.Txn != "last" {
		t.Fatalf("%+v", row)
	}
	got := b.popUntil("q", 2)
	time.Sleep(300 * time.Millisecond)
	b.quiet("q")
	if got[0].TransactionID != "new" || string(got[0].Data) != "2" || got[1].TransactionID != "last" || got[0].ID != r[0].MessageID {
		t.Fatalf("%+v", got)
	}
	if d := got[1].CreatedAt.Sub(r[1].DeliverAt); d < 0 {
		t.Fatalf("too early by %v", -d)
	}
}

func TestTimer_T9_DestinationWindow(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Push(Item{Queue: "q", Partition: "Default", TransactionID: "txn-a"})
	b.popUntil("q", 1)
	b.timers(schedule("q", "a", 0, `1`))
	eventually(t, func() bool { return !b.peek("q", "a").Found }, "timer still there")
	b.quiet("q")
}

func TestTimer_T10_NewQueueWakesConsumers(t *testing.T) {
	t.Parallel()
	for _, brokers := range []int{1, 2} {
		t.Run(fmt.Sprint(brokers), func(t *testing.T) {
			t.Parallel()
			f := Start(t, Options{Brokers: brokers})
			a, z := f.Brokers[0].In(t), f.Brokers[brokers-1].In(t)
			waiting := parkPop(z, "fresh", "wait=true&timeout=20000&autoAck=true")
			r := a.timers(schedule("fresh", "k", 700*time.Millisecond, `1`))[0]
			got := <-waiting
			took := time.Since(r.DeliverAt)
			if len(got.IDs()) != 1 || took > 1500*time.Millisecond {
				t.Fatalf("%v after %v", got.IDs(), took)
			}
			t.Logf("answered %v after it was due", took)
		})
	}
}

func TestTimer_T11_InDeliveryOrder(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b := f.One()
	b.Must(200, "POST", "/api/v1/system/kv-timers", `{"timersFire":false}`)
	time.Sleep(1200 * time.Millisecond) // for the other broker to hear of it
	var ops []op
	for i := range 200 {
		ops = append(ops, schedule("q", fmt.Sprintf("k%03d", (i*77)%200), time.Duration((i*77)%200)*time.Millisecond-time.Second, `1`))
	}
	b.timers(ops...)
	b.Must(200, "POST", "/api/v1/system/kv-timers", `{"timersFire":true}`)
	var got []string
	for _, m := range b.popUntil("q", 200) {
		got = append(got, m.TransactionID)
	}
	if !slices.IsSorted(got) {
		t.Fatal(got)
	}
}

func TestTimer_T12_List(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	names := []string{"a/1", "a%2", "b", "é"}
	for _, n := range names {
		b.timers(schedule("q/x", n, time.Hour, `1`))
	}
	b.timers(schedule("q", "elsewhere", time.Hour, `1`))
	type page struct {
		Rows      []timerRow
		Truncated bool
		NextAfter *string
	}
	var got []string
	after := ""
	for i := range 3 {
		var p page
		raw := b.Must(200, "GET", "/api/v1/timers/q%2Fx?limit=2&after="+Seg(after), nil)
		if err := json.Unmarshal(raw, &p); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "payload\"") {
			t.Fatalf("a list with payloads: %s", raw)
		}
		for _, r := range p.Rows {
			got = append(got, r.TimerKey)
		}
		if !p.Truncated {
			if p.NextAfter != nil || i != 1 {
				t.Fatalf("page %d: %s", i, raw)
			}
			break
		}
		after = *p.NextAfter
	}
	if slices.Sort(names); !slices.Equal(got, names) {
		t.Fatal(got)
	}
	for query, n := range map[string]int{"limit=0": 1, "limit=x": 4, "limit=9999": 4, "mode=": 4, "mode=list&after=b": 1} {
		var p page
		b.MustInto(&p, 200, "GET", "/api/v1/timers/q%2Fx?"+query, nil)
		if len(p.Rows) != n {
			t.Errorf("%s: %d rows, want %d", query, len(p.Rows), n)
		}
	}
	b.wantTimerError(t, 400, "timers_bad_request", "timers_read_mode_unknown", "GET", "/api/v1/timers/q?mode=sum", nil)
}

func TestTimer_T13_Count(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.timers(schedule("q", "a_%1", time.Hour, `1`), schedule("q", "a_%2", time.Hour, `1`), schedule("q", "ab%", time.Hour, `1`), schedule("q", "a_", time.Hour, `1`), schedule("r", "a_%1", time.Hour, `1`))
	if got := string(b.Must(200, "GET", "/api/v1/timers/q?mode=count&prefix=a_%25", nil)); got != `{"count":2}` {
		t.Fatal(got)
	}
	long := strings.Repeat("x", 128)
	b.Must(200, "GET", "/api/v1/timers/q?mode=count&prefix="+long, nil)
	for query, reason := range map[string]string{
		"prefix=" + long + "x": "timers_count_prefix_too_long", "": "timers_count_prefix_required", "prefix=": "timers_count_prefix_required",
		"prefix=a&limit=3": "timers_count_page_parameters", "prefix=a&after=x": "timers_count_page_parameters", "prefix=a%00": "timers_count_prefix_invalid",
	} {
		b.wantTimerError(t, 400, "timers_bad_request", reason, "GET", "/api/v1/timers/q?mode=count&"+query, nil)
	}
}

func TestTimer_T22_KeysInPaths(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, c := range []struct{ key, path string }{
		{"a/b", "a/b"},
		{"a/b", "a%2Fb"},
		{"a//b", "a//b"},
		{"..", ".."},
		{"..", "%2E%2E"},
		{"x/", "x/"},
		{"a b?c#d", "a%20b%3Fc%23d"},
		{"100%", "100%25"},
		{"é", "%C3%A9"},
		{"%2F", "%252F"},
		{strings.Repeat("k", 512), strings.Repeat("k", 512)},
	} {
		b.timers(schedule("q", c.key, time.Hour, `1`))
		var row timerRow
		b.MustInto(&row, 200, "GET", "/api/v1/timers/q/"+c.path, nil)
		if !row.Found || row.TimerKey != c.key {
			t.Errorf("%s: %+v", c.path, row)
		}
		var r timerResult
		b.MustInto(&r, 200, "DELETE", "/api/v1/timers/q/"+c.path, nil)
		if r.Status != "cancelled" || r.TimerKey != c.key {
			t.Errorf("%s: %+v", c.path, r)
		}
	}
	for _, path := range []string{"q/" + strings.Repeat("k", 513), "q/", "q/a%00", "q/%ff"} {
		b.wantTimerError(t, http.StatusBadRequest, "timers_bad_request", "QTIMER", "GET", "/api/v1/timers/"+path, nil)
	}
}
