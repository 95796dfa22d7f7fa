package ephemeral_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/ephemeral"
	"github.com/queenmq-go/queenmq/internal/mq"
)

// keys counts the keys of the installation.
func (c *scene) keys() int {
	c.t.Helper()
	n := 0
	iter := c.client.Scan(c.t.Context(), 0, c.cfg.Prefix+"*", 1000).Iterator()
	for iter.Next(c.t.Context()) {
		n++
	}
	if err := iter.Err(); err != nil {
		c.t.Fatal(err)
	}
	return n
}

func TestEphemeral_E17_WakeUpFromAnotherBroker_R1(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		b, d := c.on(c.broker(&tally{})), c.on(c.broker(&tally{}))
		for range 5 {
			got := make(chan string, 2)
			for i, on := range []*scene{b, d} {
				go func() { got <- show(on.pop("q", 1, how{group: fmt.Sprint(i), wait: 10 * time.Second, auto: true})) }()
			}
			c.eventually("parked pops", func() bool { return b.s.Waiting() == 1 && d.s.Waiting() == 1 })
			time.Sleep(30 * time.Millisecond)
			start := time.Now()
			c.push("q", "p", "1")
			for range 2 {
				if m := <-got; m != "1" || time.Since(start) > 500*time.Millisecond {
					t.Errorf("got %q after %v", m, time.Since(start))
				}
			}
		}
		start := time.Now()
		c.wantPop("", "q", 1, how{wait: 300 * time.Millisecond})
		if took := time.Since(start); took < 290*time.Millisecond || took > time.Second {
			t.Errorf("a pop of 300 ms came back after %v", took)
		}
	})
}

func TestEphemeral_E20_CollectedAndMadeAgain(t *testing.T) {
	both(t, ephemeral.Config{ImplicitIdle: 500 * time.Millisecond}, func(c *scene) {
		c.push("inbox", "p", "1")
		old := c.wantPop("1", "inbox", 1, how{})
		c.wantAck("acked", "inbox", "", completed, old...)
		c.eventually("the collection", func() bool { return c.queue("inbox") == nil })
		c.wantAck("stale", "inbox", "", completed, old...)
		c.push("inbox", "p", "2")
		m := c.wantPop("2", "inbox", 1, how{})
		c.wantAck("stale", "inbox", "", completed, old...)
		c.wantAck("acked", "inbox", "", completed, m...)
	})
}

func TestEphemeral_E21_Collection(t *testing.T) {
	both(t, ephemeral.Config{ImplicitIdle: 2 * time.Second}, func(c *scene) {
		before := c.keys()
		c.configure("declared", mq.EphemeralOptions{})
		c.push("full", "p", "1")
		c.pop("polled", 1, how{})
		c.pop("watched", 1, how{})
		end := time.Now().Add(4500 * time.Millisecond)
		for time.Now().Before(end) {
			c.pop("polled", 1, how{})
			c.queue("watched")
			_, _ = c.s.Depth(t.Context(), mq.DefaultTenant, "watched", "")
			time.Sleep(50 * time.Millisecond)
		}
		for name, there := range map[string]bool{"declared": true, "full": true, "polled": true, "watched": false} {
			if (c.queue(name) != nil) != there {
				t.Errorf("%s is there: %v", name, !there)
			}
		}
		c.wantPop("1", "full", 1, how{auto: true})
		c.eventually("no keys but those of the declared queue", func() bool { return c.keys() <= before+4 && c.queue("full") == nil })
	})
}

func TestEphemeral_E22_ConfigureReplaces(t *testing.T) {
	both(t, ephemeral.Config{QueueMaxLength: 1000}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](5000), TTLSeconds: ptr[int64](20), Policy: ptr(mq.EphemeralDropOldest)})
		q := c.queue("q")
		if q.Limits.MaxLength != 1000 || q.Limits.TTLSeconds != 20 || !q.Declared || q.Limits.Policy != mq.EphemeralDropOldest {
			t.Errorf("%+v", q)
		}
		c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](0)})
		if q = c.queue("q"); q.Limits.TTLSeconds != 0 || q.Limits.Policy != mq.EphemeralReject || q.Limits.MaxLength != 1000 {
			t.Errorf("%+v", q)
		}
		// A queue that was in use keeps what it holds, and another broker goes by the new bounds.
		c.push("r", "p", "1", "2")
		c.configure("r", mq.EphemeralOptions{MaxLength: ptr[int64](3)})
		other := c.on(c.broker(&tally{}))
		c.wantCode(mq.CodeEphemeralFull, other.tryPush("r", "p", "3", "4"))
		other.push("r", "p", "3")
	})
}

func TestEphemeral_E23_ResetAndDelete(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](50)})
		c.push("q", "a", "1", "2")
		c.push("q", "b", "3")
		m := c.wantPop("1", "q", 1, how{group: "g"})
		n, err := c.s.Reset(t.Context(), mq.DefaultTenant, "q")
		if err != nil || n != 3 {
			t.Errorf("dropped %d: %v", n, err)
		}
		if d := c.depth("q", ""); d.Pending != 0 || d.Bytes != 0 || c.usage() != 0 {
			t.Errorf("%+v", d)
		}
		c.wantAck("unknown", "q", "g", completed, m...)
		c.push("q", "a", "4")
		c.wantAck("unknown", "q", "g", completed, m...)
		c.wantPop("4", "q", 5, how{group: "g"})
		if q := c.queue("q"); q == nil || q.Limits.MaxLength != 50 {
			t.Errorf("%+v", q)
		}
		for _, want := range []bool{true, false} {
			deleted, declared, err := c.s.Delete(t.Context(), mq.DefaultTenant, "q")
			if err != nil || deleted != want || declared != want {
				t.Errorf("deleted %v, declared %v, want %v: %v", deleted, declared, want, err)
			}
		}
		_, err = c.s.Depth(t.Context(), mq.DefaultTenant, "q", "")
		c.wantCode(mq.CodeEphemeralNotFound, err)
		if c.usage() != 0 {
			t.Errorf("%d bytes", c.usage())
		}
		c.wantAck("stale", "q", "g", completed, m...)
		if n, err = c.s.Reset(t.Context(), mq.DefaultTenant, "none"); n != 0 || err != nil {
			t.Errorf("%d %v", n, err)
		}
	})
}

func TestEphemeral_DeleteIsNotUndoneByABrokerThatIsBehind(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](1)})
		// This one hears of nothing: it knows what it read first.
		deaf := c.on(ephemeral.New(c.client, c.store, &tally{}, c.cfg))
		deaf.push("q", "p", "1")
		if _, _, err := c.s.Delete(t.Context(), mq.DefaultTenant, "q"); err != nil {
			t.Fatal(err)
		}
		deaf.push("q", "p", "1", "2") // more than the declaration allowed
		if q := c.queue("q"); q == nil || q.Declared {
			t.Errorf("%+v", q)
		}
		c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](3)})
		c.wantCode(mq.CodeEphemeralFull, deaf.tryPush("q", "p", "3", "4"))
	})
}

func TestEphemeral_E28_Refusals(t *testing.T) {
	both(t, ephemeral.Config{RequireGrant: true, MaxBytes: 100}, func(c *scene) {
		c.wantCode(mq.CodeEphemeralGated, c.tryPush("q", "p", "1"))
		grant := func(g mq.EphemeralGrant) {
			g.Tenant, g.Enabled = mq.DefaultTenant, true
			c.store.mu.Lock()
			c.store.set.Grants = []mq.EphemeralGrant{g}
			c.store.mu.Unlock()
			if err := c.s.SetEnabled(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			c.eventually("the grant", func() bool { return c.sees(g) })
		}
		grant(mq.EphemeralGrant{MaxBytes: ptr[int64](10), MaxQueues: ptr[int64](1)})
		c.push("q", "p", "12345")
		c.wantCode(mq.CodeEphemeralQuota, c.tryPush("q", "p", "123456"))
		c.push("q", "p", "12345")
		if d := c.depth("q", ""); d.Bytes != 10 {
			t.Errorf("%+v", d)
		}
		// One queue is what it may have, and that one it may use.
		c.wantCode(mq.CodeEphemeralQuota, c.tryPush("other", "p", "1"))
		_, err := c.s.Pop(t.Context(), &mq.EphemeralPop{Tenant: mq.DefaultTenant, Queue: "other", Batch: 1})
		c.wantCode(mq.CodeEphemeralQuota, err)
		c.wantCode(mq.CodeEphemeralQuota, c.s.Configure(t.Context(), mq.DefaultTenant, "other", mq.EphemeralOptions{}))
		c.configure("q", mq.EphemeralOptions{}) // though its bytes are used up
		grant(mq.EphemeralGrant{MaxQueues: ptr[int64](2)})
		c.pop("other", 1, how{})

		grant(mq.EphemeralGrant{MessagesPerSecond: ptr(2.0)})
		c.push("q", "p", "1", "2", "3", "4")
		c.wantCode("rate_limited", c.tryPush("q", "p", "1"))

		grant(mq.EphemeralGrant{})
		c.wantCode(mq.CodeEphemeralUnavailable, c.tryPush("q", "p", fmt.Sprintf("%0100d", 1)))
		c.pop("q", 10, how{auto: true})
		c.push("q", "p", fmt.Sprintf("%090d", 1))

		if err := c.s.SetEnabled(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		c.wantCode(mq.CodeEphemeralDisabled, c.tryPush("q", "p", "1"))
		if st, err := c.s.Status(t.Context()); err != nil || st.Enabled || st.GrantedTenants != 1 || st.Queues != 2 {
			t.Errorf("%+v %v", st, err)
		}
	})
}

// sees tells whether the service goes by a grant: it has no other way to show it than its count.
func (c *scene) sees(mq.EphemeralGrant) bool {
	st, err := c.s.Status(c.t.Context())
	time.Sleep(20 * time.Millisecond)
	return err == nil && st.GrantedTenants == 1
}

func TestEphemeral_E31_TenantsDoNotMix(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.push("q", "p", "1")
		other := mq.NewID()
		if err := c.s.Push(t.Context(), &mq.EphemeralPush{Tenant: other, Queue: "q", Partition: "p", Payloads: [][]byte{[]byte("22")}}); err != nil {
			t.Fatal(err)
		}
		list, cell, err := c.s.Queues(t.Context(), other)
		if err != nil || len(list) != 1 || list[0].Bytes != 2 || cell != 3 {
			t.Errorf("%+v %d %v", list, cell, err)
		}
		c.wantPop("1", "q", 5, how{})
	})
}

func TestEphemeral_E32_R7_InboxesLeaveNothing(t *testing.T) {
	both(t, ephemeral.Config{ImplicitIdle: time.Second}, func(c *scene) {
		inboxes := 1000
		if c.inProcess || testing.Short() {
			inboxes = 200
		}
		before := c.keys()
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := w; i < inboxes; i += 8 {
					name := fmt.Sprint("rpc-inbox-", i)
					c.push(name, "Default", fmt.Sprint(i))
					c.wantPop(fmt.Sprint(i), name, 1, how{auto: true, wait: time.Second})
				}
			})
		}
		wg.Wait()
		c.eventually("no keys left", func() bool { return c.keys() <= before+2 }) // the epoch, and counters of nothing
	})
}

func TestEphemeral_OrphansAreGivenUp(t *testing.T) {
	both(t, ephemeral.Config{ImplicitIdle: time.Second, Unread: 2 * time.Second}, func(c *scene) {
		c.push("inbox", "p", "1", "2")
		start := time.Now()
		c.eventually("the end of the inbox", func() bool { return c.queue("inbox") == nil })
		if took := time.Since(start); took < 1900*time.Millisecond || c.n.of("ttl") != 2 {
			t.Errorf("after %v, %d drops", took, c.n.of("ttl"))
		}
		if c.usage() != 0 {
			t.Errorf("%d bytes", c.usage())
		}
	})
}

func TestEphemeral_R8_AbandonedGroups(t *testing.T) {
	both(t, ephemeral.Config{ImplicitIdle: 2 * time.Second, Lease: 100 * time.Millisecond}, func(c *scene) {
		c.configure("d", mq.EphemeralOptions{LeaseSeconds: ptr[int64](1)})
		c.pop("q", 1, how{group: "gone"})
		c.pop("d", 1, how{group: "gone"})
		got := 0
		for i := range 400 {
			c.push("q", "p", fmt.Sprint(i))
			m := c.pop("q", 10, how{group: "active", auto: true})
			for _, x := range m {
				if string(x.Payload) != fmt.Sprint(got) {
					t.Fatalf("%s instead of %d", x.Payload, got)
				}
				got++
			}
			if c.depth("q", "").Pending == 0 && i > 10 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if d := c.depth("q", ""); len(d.Groups) != 1 || d.Pending != 0 {
			t.Errorf("%+v", d)
		}
		if c.n.forgotten == 0 {
			t.Error("not counted")
		}
		if d := c.depth("d", ""); len(d.Groups) != 1 {
			t.Errorf("a declared queue forgot a group: %+v", d)
		}
	})
}

func TestEphemeral_R9_BoundsHoldForTheFleet(t *testing.T) {
	both(t, ephemeral.Config{QueueMaxLength: 1000}, func(c *scene) {
		fleet := []*scene{c, c.on(c.broker(&tally{})), c.on(c.broker(&tally{}))}
		var wg sync.WaitGroup
		var mu sync.Mutex
		stored := 0
		for _, on := range fleet {
			wg.Go(func() {
				for range 500 {
					if on.tryPush("q", "p", "1") == nil {
						mu.Lock()
						stored++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if d := c.depth("q", ""); stored != 1000 || d.Pending != 1000 {
			t.Errorf("%d stored, %d there", stored, d.Pending)
		}
		for _, on := range fleet {
			c.wantCode(mq.CodeEphemeralFull, on.tryPush("q", "p", "1"))
		}
	})
}

func TestEphemeral_R10_EverythingDueHappensOnce(t *testing.T) {
	both(t, ephemeral.Config{RetryLimit: 2}, func(c *scene) {
		fleet := []*tally{c.n, {}, {}}
		for _, n := range fleet[1:] {
			c.broker(n)
		}
		c.configure("q", mq.EphemeralOptions{LeaseSeconds: ptr[int64](1), RetryLimit: ptr[int64](2)})
		c.configure("old", mq.EphemeralOptions{TTLSeconds: ptr[int64](1)})
		for i := range 20 {
			c.push("q", fmt.Sprint("p", i), numbers(0, 10)...)
			c.push("old", fmt.Sprint("p", i), numbers(0, 10)...)
		}
		if m := c.pop("q", 1000, how{}); len(m) != 200 {
			t.Fatalf("%d messages", len(m))
		}
		total := func(reason string) (n int) {
			for _, f := range fleet {
				n += f.of(reason)
			}
			return n
		}
		n := 0
		c.eventually("every redelivery", func() bool { n += len(c.pop("q", 1000, how{})); return n >= 200 })
		c.eventually("every drop", func() bool { return total("retry") >= 200 && total("ttl") >= 200 })
		time.Sleep(1500 * time.Millisecond)
		if n != 200 || total("retry") != 200 || total("ttl") != 200 {
			t.Errorf("%d redelivered, %d and %d dropped", n, total("retry"), total("ttl"))
		}
		if q := c.queue("q"); q.Drops.Retry != 200 || q.Depth != 0 {
			t.Errorf("%+v", q)
		}
	})
}

func TestEphemeral_R1_WithoutTheChannel(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		// Its loops do not run: it hears nothing, and looks by itself only.
		deaf := c.on(ephemeral.New(c.client, c.store, &tally{}, c.cfg))
		got := make(chan string, 1)
		go func() { got <- show(deaf.pop("q", 1, how{group: "g", wait: 20 * time.Second})) }()
		c.eventually("a parked pop", func() bool { q := c.queue("q"); return q != nil && q.Groups == 1 })
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		c.push("q", "p", "1")
		if m := <-got; m != "1" || time.Since(start) > 4*time.Second {
			t.Errorf("got %q after %v, it looks every 2 s at the least", m, time.Since(start))
		}
		deaf.s.Drain()
	})
}
