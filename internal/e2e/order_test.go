package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// holdPushes makes a push of a message with this id commit some seconds later.
func holdPushes(t *testing.T, f *Fleet, id string) {
	t.Helper()
	slowCommit(t, f, "queen.segments", "INSERT", `strpos(NEW.body, '"`+id+`"') > 0`, 3)
}

func TestOrder_A4_CommitOrderIsDeliveryOrder(t *testing.T) {
	t.Parallel()
	for _, brokers := range []int{1, 2} {
		t.Run(fmt.Sprint(brokers), func(t *testing.T) {
			t.Parallel()
			f := Start(t, Options{Brokers: brokers})
			a, b := f.Brokers[0].In(t), f.Brokers[brokers-1].In(t)
			b.Pop("q", "") // registers queue mode
			others := make([]string, 12)
			for i := range others {
				others[i] = fmt.Sprintf("other%d", i)
				a.PushN("q", others[i], others[i], 1)
			}
			for p := b.Pop("q", "autoAck=true&partitions=64"); p != nil; p = b.Pop("q", "autoAck=true&partitions=64") {
			}
			a.PushN("q", "p", "before", 1)
			b.PopPinned("q", "p", "autoAck=true")
			holdPushes(t, f, "A-0")

			var mu sync.Mutex
			var committedA time.Time
			pushedA := make(chan struct{})
			go func() {
				defer close(pushedA)
				a.PushN("q", "p", "A", 1)
				mu.Lock()
				committedA = time.Now()
				mu.Unlock()
			}()
			committing(t, f)
			time.Sleep(300 * time.Millisecond)
			var wg sync.WaitGroup
			wg.Go(func() { b.PushN("q", "p", "B", 1) })
			for _, other := range others {
				wg.Go(func() {
					start := time.Now()
					b.PushN("q", other, "C", 1)
					if took := time.Since(start); took > 1500*time.Millisecond { // a few ms on a machine of its own
						t.Errorf("the push to %s took %v", other, took)
					}
				})
			}
			var read []Message
			for end := time.Now().Add(10 * time.Second); len(read) < 2 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				p := b.PopPinned("q", "p", "autoAck=true")
				mu.Lock()
				early := p != nil && committedA.IsZero()
				mu.Unlock()
				if early {
					// The answer to the push may be a moment behind its commit.
					<-pushedA
				}
				if p != nil {
					read = append(read, p.Messages...)
				}
			}
			<-pushedA
			wg.Wait()
			if len(read) != 2 || read[0].TransactionID != "A-0" || read[1].TransactionID != "B-0" || read[0].Offset != 1 || read[1].Offset != 2 {
				t.Errorf("read %+v", read)
			}
		})
	}
}

func TestOrder_A4_ARolledBackPushLeavesNothing(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	a, b := f.Brokers[0], f.Brokers[1]
	b.Pop("q", "")
	a.PushN("q", "p", "before", 1)
	b.PopPinned("q", "p", "autoAck=true")
	// Somebody inside the database holds an appended message, and gives up.
	held := holdRow(t, f, "SELECT queen.push('q', 'p', '{}', 'A-0')")
	done := async(func() []PushResult { return b.PushN("q", "p", "B", 1) })
	start := time.Now()
	a.PushN("q", "p2", "C", 1)
	within(t, "a push to another partition", time.Since(start), 0, prompt)
	for range 4 {
		if p := b.PopPinned("q", "p", ""); p != nil {
			t.Fatalf("%q was delivered before it was committed", p.IDs())
		}
		time.Sleep(50 * time.Millisecond)
	}
	held.Close()
	if r := await(t, done, "the push")[0]; r.Status != "queued" || *r.Offset != 1 {
		t.Errorf("%+v at %d", r, *r.Offset)
	}
	if p := b.PopPinned("q", "p", "wait=true&timeout=5000"); !slices.Equal(p.IDs(), []string{"B-0"}) || p.Messages[0].Offset != 1 {
		t.Errorf("got %q", p.IDs())
	}
	if p := b.Pop("q", "wait=true&timeout=5000"); !slices.Equal(p.IDs(), []string{"C-0"}) {
		t.Errorf("got %q", p.IDs())
	}
}

func TestLease_A5_StartsWhenItIsGranted(t *testing.T) {
	t.Parallel()
	for _, off := range []string{"0", "10 minutes", "-10 minutes"} {
		for _, pinned := range []bool{false, true} {
			t.Run(fmt.Sprintf("clocks differ by %s, pinned %v", off, pinned), func(t *testing.T) {
				t.Parallel()
				f := Start(t, Options{Env: []string{"DB_POOL_SIZE=4"}})
				b, pool := f.One().In(t), f.DB.Pool(t)
				// Moving the database's clock is the same as moving the broker's.
				setClock(t, pool, off)
				b.Pop("q", "")
				b.PushN("q", "p", "m", 2)
				held := holdRow(t, f, "SELECT 1 FROM queen.cursors FOR UPDATE")
				released := make(chan time.Time, 1)
				time.AfterFunc(1500*time.Millisecond, func() {
					var now time.Time
					if err := held.tx.QueryRow(context.Background(), "SELECT queen.clock()").Scan(&now); err != nil {
						t.Error(err)
					}
					held.Close()
					released <- now
				})

				pop := func(query string) *PopAnswer {
					if pinned {
						return b.PopPinned("q", "p", query)
					}
					return b.Pop("q", query)
				}
				if p := pop("leaseSeconds=1"); p != nil {
					t.Fatalf("got %q while the cursor was locked", p.IDs())
				}
				p := pop("leaseSeconds=1&wait=true&timeout=8000")
				// On a machine of its own 0.99 s are left when the answer is here.
				end := leaseEnd(t, f, p)
				if granted := end.Add(-time.Second); granted.Before(await(t, released, "the lock's end")) {
					t.Errorf("a lease from %v on was given out later", granted)
				}
				if p := pop("wait=true&timeout=8000"); p == nil || p.Messages[0].DeliveryAttempt != 2 {
					t.Errorf("after the lease: %+v", p)
				}
			})
		}
	}
}

// leaseEnd is when a lease ends by the database's clock.
func leaseEnd(t testing.TB, f *Fleet, p *PopAnswer) (end time.Time) {
	t.Helper()
	if p == nil {
		t.Fatal("nothing was delivered")
	}
	err := f.DB.Pool(t).QueryRow(context.Background(),
		"SELECT lease_expires_at FROM queen.cursors WHERE lease_id = $1::text::uuid", p.LeaseID).Scan(&end)
	if err != nil {
		t.Fatal(err)
	}
	return end
}
