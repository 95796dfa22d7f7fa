package pgstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func scheduleOp(queue, key string, delay time.Duration) mq.TimerOp {
	return mq.TimerOp{
		Queue: queue, Key: key, Partition: "p", TransactionID: "txn-" + key, Delay: delay, Payload: []byte(`{"k":"` + key + `"}`),
	}
}

func (f *fixture) timers(ops ...mq.TimerOp) []mq.TimerResult {
	f.t.Helper()
	c := mq.NewTimerCall(mq.DefaultTenant, "", ops)
	if err := f.WriteTimers(f.t.Context(), c); err != nil {
		f.t.Fatal(err)
	}
	return c.Results
}

// known finds the fixture's queue and no other.
func (f *fixture) known(tenant mq.UUID, name string) *mq.QueueInfo {
	if tenant == f.queue.Tenant && name == f.queue.Name {
		return f.queue
	}
	return nil
}

func (f *fixture) fire() mq.Fired {
	f.t.Helper()
	due, err := f.DueTimers(f.t.Context(), 256)
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := f.FireTimers(f.t.Context(), due.Timers, f.known)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func TestTimers_ScheduleCancelFire(t *testing.T) {
	t.Parallel()
	f := setup(t, "q")
	r := f.timers(scheduleOp("q", "a", 0), scheduleOp("q", "b", time.Hour), mq.TimerOp{Cancel: true, Queue: "q", Key: "c", TransactionID: "mine"})
	if r[0].Status != mq.TimerScheduled || r[1].Status != mq.TimerScheduled || r[2].Status != mq.TimerAbsent || r[2].TransactionID != "mine" {
		t.Fatalf("%+v", r)
	}
	if d := r[1].DeliverAt.Sub(r[0].DeliverAt); d != time.Hour {
		t.Fatalf("one call, two instants: %v", d)
	}
	again := f.timers(scheduleOp("q", "b", 2*time.Hour), mq.TimerOp{Cancel: true, Queue: "q", Key: "a"})
	if again[0].Status != mq.TimerRescheduled || again[1].Status != mq.TimerCancelled || again[1].TransactionID != "txn-a" {
		t.Fatalf("%+v", again)
	}
	b, err := f.ReadTimer(t.Context(), mq.TimerID{Tenant: mq.DefaultTenant, Queue: "q", Key: "b"})
	if err != nil || b == nil || !b.DeliverAt.Equal(again[0].DeliverAt) || !b.CreatedAt.Before(b.UpdatedAt) || b.MessageID != again[0].MessageID {
		t.Fatalf("%+v %v", b, err)
	}
	f.timers(scheduleOp("q", "b", -time.Second), scheduleOp("q", "a", -2*time.Second), scheduleOp("other", "a", -time.Minute))
	// The partition and the other queue do not exist yet.
	if got := f.fire(); got.Done != 0 || len(got.Missing) != 2 {
		t.Fatalf("%+v", got)
	}
	if err := f.EnsurePartitions(t.Context(), f.queue.ID, []string{"p"}); err != nil {
		t.Fatal(err)
	}
	g := f.group("g", mq.StartAll)
	if got := f.fire(); got.Done != 2 || len(got.Hints) != 1 || len(got.Missing) != 1 {
		t.Fatalf("%+v", got)
	}
	claims := f.claim(g, 10, 1)
	if len(claims) != 1 || claims[0].Messages() != 2 {
		t.Fatalf("%+v", claims)
	}
	e, err := parseElement(claims[0].Segments[0].Message(0))
	if err != nil || e.TransactionID != "txn-a" || string(e.Payload) != `{"k":"a"}` {
		t.Fatalf("%+v %v", e, err)
	}
	if got := f.fire(); got.Done != 0 || len(got.Missing) != 1 {
		t.Fatalf("fired again: %+v", got)
	}
}

func TestTimers_T9_DedupWindow(t *testing.T) {
	t.Parallel()
	f := setup(t, "q")
	f.push("p", message("txn-a", `1`), message("x", `2`))
	f.timers(scheduleOp("q", "a", 0))
	ops := []mq.TimerOp{scheduleOp("q", "b", 0), scheduleOp("q", "c", 0), scheduleOp("q", "d", 0), scheduleOp("q", "e", 0)}
	ops[1].TransactionID, ops[2].TransactionID = "txn-b", "x" // the first of two leads; x is stored
	f.timers(ops...)
	if got := f.fire(); got.Done != 5 || len(got.Missing) != 0 {
		t.Fatalf("%+v", got)
	}
	claims := f.claim(f.group("g", mq.StartAll), 100, 1)
	var got []string
	for _, s := range claims[0].Segments {
		for i := range s.Len() {
			e, err := parseElement(s.Message(i))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e.TransactionID)
		}
	}
	if fmt.Sprint(got) != "[txn-a x txn-b txn-e]" {
		t.Fatal(got)
	}
}

func TestTimers_Throughput(t *testing.T) {
	t.Parallel()
	f := setup(t, "q")
	if err := f.EnsurePartitions(t.Context(), f.queue.ID, []string{"p"}); err != nil {
		t.Fatal(err)
	}
	const n = 10_000
	begin := time.Now()
	for from := 0; from < n; from += 250 {
		var ops []mq.TimerOp
		for i := range 250 {
			ops = append(ops, scheduleOp("q", fmt.Sprint("k", from+i), 0))
		}
		f.timers(ops...)
	}
	t.Logf("scheduled in %v", time.Since(begin))
	start := time.Now()
	done := 0
	for done < n {
		got := f.fire()
		if got.Done == 0 {
			t.Fatal("nothing fired")
		}
		done += got.Done
	}
	t.Logf("%d timers fired in %v", n, time.Since(start))
}
