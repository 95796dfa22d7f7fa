package e2e

import (
	"testing"
	"time"
)

// A cursor that an ack made ready for messages which are held back still comes
// before others in the line. It must not hide them from a pop that does not wait.
func TestPop_B170_AHeldPartitionHidesNoOther(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Configure("q", map[string]any{"delayedProcessing": 3})
	b.Must(204, "GET", "/api/v1/pop/queue/q", nil) // the group is there from the start
	begin := time.Now()
	until := func(d time.Duration) { time.Sleep(time.Until(begin.Add(d))) }
	b.PushN("q", "a", "first", 1)
	until(1500 * time.Millisecond)
	b.PushN("q", "b", "other", 1)
	until(2700 * time.Millisecond)
	b.PushN("q", "a", "held", 1)
	until(3200 * time.Millisecond)
	b.AckAll(b.Pop("q", "batch=9")) // leaves a ready, for what is due after 5.7 s
	until(4700 * time.Millisecond)
	got := b.Pop("q", "batch=9")
	if took := time.Since(begin); took > 5500*time.Millisecond {
		t.Logf("too slow a machine to tell: %v", took)
		return
	}
	if got == nil || got.Messages[0].TransactionID != "other-0" {
		t.Fatalf("got %+v, want the message that is due", got)
	}
}
