package e2e

import (
	"fmt"
	"testing"
	"time"
)

// TestPop_ALateCommitIsFoundAtOnce lets a transaction push and stay open while
// others push, pop and find nothing, so that claims begin above what it stamped.
// The first pop after its commit gets the message: an empty answer says that
// there is nothing.
func TestPop_ALateCommitIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 1})
	b, pool := f.One(), f.DB.Pool(t)
	b.PushN("q", "busy", "first", 1)
	b.PushN("q", "late", "first", 1)
	for range 2 {
		b.AckAll(b.Pop("q", ""))
	}
	for round := range 6 {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		late := fmt.Sprint("late-", round)
		if _, err := tx.Exec(t.Context(), "SELECT queen.push('q', 'late', '{}', $1)", late); err != nil {
			t.Fatal(err)
		}
		// Longer than a guess is believed in some rounds, shorter in others.
		for end, n := time.Now().Add(time.Duration(round)*300*time.Millisecond), 0; time.Now().Before(end); n++ {
			b.PushN("q", "busy", fmt.Sprint(round, "-", n), 1)
			p := b.Pop("q", "")
			if len(p.Messages) != 1 || p.Messages[0].Partition != "busy" {
				t.Fatalf("round %d: %+v", round, p)
			}
			b.AckAll(p)
			if p := b.Pop("q", ""); p != nil && len(p.Messages) > 0 {
				t.Fatalf("round %d: %+v", round, p)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		p := b.Pop("q", "")
		if p == nil || len(p.Messages) != 1 || p.Messages[0].TransactionID != late {
			t.Fatalf("round %d: the pop after the commit got %+v", round, p)
		}
		b.AckAll(p)
	}
}
