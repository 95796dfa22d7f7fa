package ephemeral_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/ephemeral"
	"github.com/queenmq-go/queenmq/internal/mq"
)

func TestEphemeral_E1_OrderInAPartition(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		for i := range 50 {
			c.push("q", []string{"a", "b"}[i%2], numbers(10*i, 10*i+3)...)
		}
		for _, p := range []string{"a", "b"} {
			last := -1
			for _, m := range c.pop("q", 1000, how{partition: p}) {
				n := 0
				for _, d := range m.Payload {
					n = 10*n + int(d-'0')
				}
				if n <= last || n/10%2 != int(p[0]-'a') {
					t.Fatalf("partition %s: %d after %d", p, n, last)
				}
				last = n
			}
			if last < 480 {
				t.Errorf("partition %s ends with %d", p, last)
			}
		}
	})
}

func TestEphemeral_E2_LeaseEnd(t *testing.T) {
	both(t, ephemeral.Config{Lease: time.Second}, func(c *scene) {
		c.push("q", "p", "1")
		first := c.wantPop("1", "q", 1, how{})
		start := time.Now()
		c.wantPop("", "q", 1, how{})
		again := c.wantPop("1*2", "q", 1, how{wait: 5 * time.Second})
		if took := time.Since(start); took < 900*time.Millisecond || took > 3*time.Second {
			t.Errorf("redelivered after %v, the lease is 1 s", took)
		}
		if again[0].ID != first[0].ID {
			t.Errorf("id %s became %s", first[0].ID, again[0].ID)
		}
		c.wantAck("acked", "q", "", completed, again...)
	})
}

func TestEphemeral_E3_Retry(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.push("q", "p", "1", "2")
		m := c.wantPop("1 2", "q", 10, how{})
		c.wantAck("redelivered", "q", "", retry, m[0])
		again := c.wantPop("1*2", "q", 10, how{})
		c.wantAck("acked acked", "q", "", completed, again[0], m[1])
		c.wantAck("unknown", "q", "", completed, m[0])
		c.wantPop("", "q", 10, how{})
		if d := c.depth("q", ""); d.Pending != 0 || d.Bytes != 0 || len(d.Partitions) != 0 {
			t.Errorf("left over: %+v", d)
		}
	})
}

func TestEphemeral_E3_RedeliveriesComeFirstAndInOrder(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.push("q", "p", numbers(1, 10)...)
		m := c.wantPop("1 2 3 4 5", "q", 5, how{})
		c.wantAck("redelivered redelivered", "q", "", retry, m[3], m[1])
		c.wantPop("2*2 4*2 6", "q", 3, how{})
	})
}

func TestEphemeral_E4_RetryLimit(t *testing.T) {
	for limit, deliveries := range map[int64]int{0: 1, 1: 1, 2: 2, 5: 5} {
		t.Run(strings.Repeat("i", int(limit)), func(t *testing.T) {
			both(t, ephemeral.Config{}, func(c *scene) {
				c.configure("q", mq.EphemeralOptions{RetryLimit: ptr(limit)})
				c.pop("q", 1, how{group: "other"})
				c.pop("q", 1, how{group: "g"})
				c.push("q", "p", "7")
				for i := 1; i <= deliveries; i++ {
					m := c.pop("q", 1, how{group: "g"})
					if len(m) != 1 || m[0].Attempts != i {
						t.Fatalf("delivery %d: %q", i, show(m))
					}
					want := "redelivered"
					if i == deliveries {
						want = "acked"
					}
					c.wantAck(want, "q", "g", retry, m...)
				}
				c.wantPop("", "q", 1, how{group: "g"})
				if q := c.queue("q"); q.Drops.Retry != 1 || q.Depth != 1 {
					t.Errorf("%+v", q)
				}
				m := c.wantPop("7", "q", 1, how{group: "other"})
				c.wantAck("acked", "q", "other", completed, m...)
				if q := c.queue("q"); q.Depth != 0 {
					t.Errorf("%+v", q)
				}
			})
		})
	}
}

func TestEphemeral_E5_ExhaustionByLeaseEnd(t *testing.T) {
	both(t, ephemeral.Config{Lease: time.Second, RetryLimit: 1}, func(c *scene) {
		c.push("q", "p", "1")
		m := c.wantPop("1", "q", 1, how{})
		c.eventually("the drop", func() bool { return c.n.of("retry") == 1 })
		if q := c.queue("q"); q.Drops.Retry != 1 || q.Depth != 0 || q.Bytes != 0 {
			t.Errorf("%+v", q)
		}
		c.wantAck("unknown", "q", "", completed, m...)
	})
}

func TestEphemeral_E6_CommitOnDelivery(t *testing.T) {
	both(t, ephemeral.Config{Lease: time.Second}, func(c *scene) {
		c.push("q", "p", "1", "2")
		m := c.wantPop("1", "q", 1, how{auto: true})
		c.wantAck("unknown", "q", "", completed, m...)
		c.wantPop("2", "q", 1, how{auto: true})
		c.wantPop("", "q", 1, how{wait: 1500 * time.Millisecond})
		if q := c.queue("q"); q.Depth != 0 {
			t.Errorf("%+v", q)
		}
	})
}

func TestEphemeral_E7_GroupsShareOneCopy(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		for _, g := range []string{"a", "b"} {
			c.wantPop("", "q", 1, how{group: g})
		}
		c.push("q", "p", "111", "222")
		if d := c.depth("q", ""); d.Bytes != 6 || d.Pending != 2 || len(d.Groups) != 2 || d.Groups[0].Pending != 2 {
			t.Errorf("%+v", d)
		}
		for i, g := range []string{"a", "b"} {
			m := c.wantPop("111 222", "q", 10, how{group: g})
			c.wantAck("acked acked", "q", g, completed, m...)
			if d := c.depth("q", g); d.Groups[0].Pending != 0 || d.Pending != int64(2-2*i) {
				t.Errorf("after %s: %+v", g, d)
			}
		}
	})
}

func TestEphemeral_E8_ParkedGroupsGetTheFirstMessage(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		got := make(chan string, 2)
		for _, g := range []string{"a", "b"} {
			go func() { got <- show(c.pop("q", 1, how{group: g, wait: 10 * time.Second})) }()
		}
		c.eventually("two parked pops", func() bool { q := c.queue("q"); return q != nil && q.Groups == 2 })
		c.push("q", "new", "1")
		for range 2 {
			if m := <-got; m != "1" {
				t.Errorf("got %q", m)
			}
		}
	})
}

func TestEphemeral_E9_LateGroups(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.push("q", "p", numbers(1, 5)...)
		m := c.wantPop("1 2 3", "q", 3, how{group: "a"})
		c.wantAck("acked acked", "q", "a", completed, m[0], m[1])
		// What every known group has settled is gone; the rest is there for a late one.
		late := c.wantPop("3 4", "q", 10, how{group: "late"})
		c.wantAck("acked acked", "q", "late", completed, late...)
		m = append(m[2:], c.wantPop("4", "q", 10, how{group: "a"})...)
		c.wantAck("acked acked", "q", "a", completed, m...)
		c.wantPop("", "q", 10, how{group: "later"})
	})
}

func TestEphemeral_E10_ThoseWithoutAGroupCompete(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.push("q", "p", numbers(1, 4)...)
		c.wantPop("1", "q", 1, how{})
		m := c.wantPop("2", "q", 1, how{group: "__QUEUE_MODE__"})
		c.wantAck("acked", "q", "", completed, m...)
		if d := c.depth("q", ""); len(d.Groups) != 1 || d.Groups[0].Group != "__QUEUE_MODE__" || d.Groups[0].Pending != 2 {
			t.Errorf("%+v", d)
		}
	})
}

func TestEphemeral_E18_PopsWakeOnNack(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.push("q", "p", "1")
		m := c.pop("q", 1, how{})
		got := make(chan string, 1)
		go func() { got <- show(c.on(c.s).pop("q", 1, how{wait: 10 * time.Second})) }()
		c.eventually("a parked pop", func() bool { return c.s.Waiting() == 1 })
		time.Sleep(50 * time.Millisecond)
		start := time.Now()
		c.wantAck("redelivered", "q", "", retry, m...)
		if s := <-got; s != "1*2" || time.Since(start) > 500*time.Millisecond {
			t.Errorf("got %q after %v", s, time.Since(start))
		}
	})
}

func TestEphemeral_E19_AcksOfNothing(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		bad := func(ids ...string) (out []mq.EphemeralMessage) {
			for _, id := range ids {
				out = append(out, mq.EphemeralMessage{ID: id})
			}
			return out
		}
		c.wantAck("unknown unknown unknown unknown unknown stale", "q", "", completed,
			bad("", "x", "e:1", "e:zz:p:1", "e:12ab:p:x", "e:12ab:p:1")...)
		if c.queue("q") != nil {
			t.Error("an ack made the queue")
		}
		c.push("q", "p", "1")
		m := c.pop("q", 1, how{group: "g"})
		c.wantAck("unknown", "q", "other", completed, m...)
		c.wantAck("stale", "q", "g", completed, bad("e:0000000000000000:p:1")...)
		inc := strings.Split(m[0].ID, ":")[1]
		for _, v := range []mq.EphemeralVerdict{completed, retry} {
			c.wantAck("unknown unknown unknown", "q", "g", v, bad("e:"+inc+":p:1", "e:"+inc+":p:123456", "e:"+inc+":p:999999999999999999999999")...)
		}
		c.wantAck("acked unknown", "q", "g", completed, m[0], m[0])
	})
}

func TestEphemeral_E25_PartitionNamesWithColons(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		names := []string{"eu:west:1", ":", "}", "{eph1}:", "ü", strings.Repeat("x", 512), "e:1:2"}
		for _, n := range names {
			c.push("q}:m", n, `"`+n+`"`)
		}
		got := c.pop("q}:m", 100, how{group: "g:1"})
		if len(got) != len(names) {
			t.Fatalf("%d messages", len(got))
		}
		for i := range got {
			if `"`+got[i].Partition+`"` != string(got[i].Payload) {
				t.Errorf("%s came from %s", got[i].Payload, got[i].Partition)
			}
			c.wantAck("acked", "q}:m", "g:1", completed, got[i])
		}
	})
}

func TestEphemeral_E29_APopCoversAllPartitions(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.wantPop("", "q", 1, how{group: "g"})
		for i := range 100 {
			c.push("q", "p"+strings.Repeat("x", i), numbers(i, i+1)...)
		}
		other := c.on(c.broker(&tally{}))
		n := len(c.pop("q", 37, how{group: "g"}))
		for range 10 {
			n += len(other.pop("q", 10, how{group: "g"}))
		}
		if n != 100 {
			t.Errorf("%d of 100", n)
		}
	})
}

func TestEphemeral_HandBackDoesNotCount(t *testing.T) {
	both(t, ephemeral.Config{RetryLimit: 2}, func(c *scene) {
		c.push("q", "p", "1", "2")
		pop := &mq.EphemeralPop{Tenant: mq.DefaultTenant, Queue: "q", Batch: 2}
		for range 5 {
			d, err := c.s.Pop(t.Context(), pop)
			if err != nil || show(d.Messages) != "1 2" {
				t.Fatalf("%q %v", show(d.Messages), err)
			}
			c.s.HandBack(t.Context(), d)
		}
		m := c.wantPop("1 2", "q", 5, how{})
		c.wantAck("redelivered redelivered", "q", "", retry, m...)
		c.wantPop("1*2 2*2", "q", 5, how{})
	})
}

func TestEphemeral_AHandedBackLeaseDoesNotEndTheNext(t *testing.T) {
	both(t, ephemeral.Config{Lease: time.Second}, func(c *scene) {
		c.push("q", "p", "1", "2", "3")
		d, err := c.s.Pop(t.Context(), &mq.EphemeralPop{Tenant: mq.DefaultTenant, Queue: "q", Batch: 3})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.Sleep(700 * time.Millisecond)
		c.s.HandBack(t.Context(), d)
		m := c.wantPop("1 2 3", "q", 3, how{})
		again := c.pop("q", 3, how{wait: 5 * time.Second})
		if took := time.Since(start); took < 1600*time.Millisecond || show(again) != "1*2 2*2 3*2" {
			t.Errorf("%q after %v, leased at 700ms for 1s", show(again), took)
		}
		c.wantAck("acked acked acked", "q", "", completed, m...) // the same ids
	})
}

func TestEphemeral_PopsWithinAPush(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		for i := range 5 {
			c.push("q", "p", numbers(100*i, 100*i+1+20*i)...)
		}
		want := []string{}
		for i := range 5 {
			want = append(want, numbers(100*i, 100*i+1+20*i)...)
		}
		c.pop("q", 0, how{group: "b"}) // known before the other one is through
		for _, group := range []string{"a", "b"} {
			got := []string{}
			for n := 1; len(got) < len(want); n = n%9 + 1 {
				m := c.pop("q", n, how{group: group})
				for _, x := range m {
					got = append(got, string(x.Payload))
				}
				c.ack("q", group, completed, m...)
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("group %s got %v", group, got)
			}
		}
		if d := c.depth("q", ""); d.Pending != 0 || d.Bytes != 0 {
			t.Errorf("%+v", d)
		}
	})
}

func TestEphemeral_NewPartitionsInOneTrip(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		for round := range 10 {
			queue := fmt.Sprint("q", round)
			var wg sync.WaitGroup
			for i := range 30 {
				wg.Go(func() { c.push(queue, fmt.Sprint("p", i), fmt.Sprint(i)) })
			}
			wg.Wait()
			got := c.pop(queue, 100, how{})
			for _, m := range got {
				if m.Partition != "p"+string(m.Payload) {
					t.Errorf("%s came from %s", m.Payload, m.Partition)
				}
			}
			if len(got) != 30 {
				t.Errorf("%d of 30 messages", len(got))
			}
		}
	})
}
