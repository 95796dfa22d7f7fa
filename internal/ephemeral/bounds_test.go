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

func TestEphemeral_E11_Reject(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](2)})
		c.push("q", "a", "1")
		c.push("q", "b", "2")
		c.wantCode(mq.CodeEphemeralFull, c.tryPush("q", "c", "3"))
		if d := c.depth("q", ""); d.Pending != 2 || d.Bytes != 2 {
			t.Errorf("%+v", d)
		}
		c.wantPop("1 2", "q", 5, how{auto: true})
		c.push("q", "c", "3") // consumed by all: there is room
	})
}

func TestEphemeral_E12_DropOldest(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](2), Policy: ptr(mq.EphemeralDropOldest)})
		c.wantPop("", "q", 1, how{group: "slow"})
		c.wantPop("", "q", 1, how{group: "fast"})
		var first []mq.EphemeralMessage
		for i := 1; i <= 5; i++ {
			c.push("q", "p", fmt.Sprint(i))
			if i == 1 {
				first = c.wantPop("1", "q", 1, how{group: "fast"})
			}
		}
		if q := c.queue("q"); q.Drops.Bounds != 3 || q.Depth != 2 {
			t.Errorf("%+v", q)
		}
		c.wantAck("unknown", "q", "fast", completed, first...) // it was dropped while leased
		if d := c.depth("q", "slow"); d.Groups[0].Skipped != 3 || d.Groups[0].Pending != 2 {
			t.Errorf("%+v", d)
		}
		if d := c.depth("q", "fast"); d.Groups[0].Skipped != 2 || d.Groups[0].Pending != 2 {
			t.Errorf("%+v", d)
		}
		c.wantPop("4 5", "q", 5, how{group: "slow"})
		c.wantPop("4 5", "q", 5, how{group: "fast"})
	})
}

func TestEphemeral_E12_DropOldestByBytes(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{MaxBytes: ptr[int64](100), Policy: ptr(mq.EphemeralDropOldest)})
		for i := 1; i <= 9; i++ {
			c.push("q", "p", strings.Repeat(fmt.Sprint(i), 10*i)) // 10 20 30 40 …
			if b := c.depth("q", "").Bytes; b > 100 {
				t.Fatalf("%d bytes", b)
			}
		}
		c.wantPop(strings.Repeat("9", 90), "q", 5, how{})
		// What is in other partitions is not dropped for this one.
		c.wantCode(mq.CodeEphemeralFull, c.tryPush("q", "other", strings.Repeat("x", 20)))
	})
}

func TestEphemeral_E13_AllOrNothing(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](4)})
		c.push("q", "p", "1", "2")
		before := c.usage()
		c.wantCode(mq.CodeEphemeralFull, c.tryPush("q", "p", "3", "4", "5"))
		if d := c.depth("q", ""); d.Pending != 2 || d.Bytes != 2 || c.usage() != before {
			t.Errorf("%+v, bytes %d then %d", d, before, c.usage())
		}
		c.push("q", "p", "3", "4")
		c.wantPop("1 2 3 4", "q", 9, how{auto: true})
		if c.usage() != 0 {
			t.Errorf("%d bytes left", c.usage())
		}
	})
}

// usage is what Redis says all queues hold.
func (c *scene) usage() int64 {
	c.t.Helper()
	st, err := c.s.Status(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return st.Bytes
}

func TestEphemeral_E14_APushThatNeverFits(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{
			MaxLength: ptr[int64](2), MaxBytes: ptr[int64](10), Policy: ptr(mq.EphemeralDropOldest),
		})
		c.push("q", "p", "1", "2")
		c.wantCode(mq.CodeEphemeralFull, c.tryPush("q", "p", "3", "4", "5"))
		c.wantCode(mq.CodeEphemeralFull, c.tryPush("q", "p", `"`+strings.Repeat("x", 9)+`"`))
		c.wantPop("1 2", "q", 5, how{})
	})
}

func TestEphemeral_E15_TTL(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{TTLSeconds: ptr[int64](1)})
		c.wantPop("", "q", 1, how{group: "g"})
		start := time.Now()
		c.push("q", "p", "1", "2")
		c.wantPop("1", "q", 1, how{group: "g"}) // leased messages are unconsumed too
		c.eventually("both drops", func() bool { return c.n.of("ttl") == 2 })
		if took := time.Since(start); took < 900*time.Millisecond || took > 4*time.Second {
			t.Errorf("dropped after %v", took)
		}
		if q := c.queue("q"); q.Drops.TTL != 2 || q.Bytes != 0 || q.Depth != 0 {
			t.Errorf("%+v", q)
		}
		if d := c.depth("q", "g"); d.Groups[0].Skipped != 1 || d.Groups[0].Pending != 0 {
			t.Errorf("%+v", d)
		}
		// What all have consumed is no drop.
		c.push("q", "p", "3")
		m := c.wantPop("3", "q", 1, how{group: "g"})
		c.wantAck("acked", "q", "g", completed, m...)
		time.Sleep(2500 * time.Millisecond)
		if n := c.n.of("ttl"); n != 2 {
			t.Errorf("%d ttl drops", n)
		}
	})
}

func TestEphemeral_E15_TTLWithoutAnyGroup(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		c.configure("q", mq.EphemeralOptions{TTLSeconds: ptr[int64](1), MaxLength: ptr[int64](3)})
		c.push("q", "a", "1", "2")
		c.push("q", "b", "3")
		// The room is about to be freed: it is freed before the check.
		time.Sleep(1100 * time.Millisecond)
		c.push("q", "b", "4", "5")
		c.wantPop("4 5", "q", 9, how{auto: true})
		if n := c.n.of("ttl"); n != 3 {
			t.Errorf("%d ttl drops", n)
		}
	})
}

func TestEphemeral_E16_WindowBuffer(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		window := &mq.EphemeralWindow{MS: ptr[int64](400), Count: ptr[int64](5)}
		c.configure("q", mq.EphemeralOptions{Window: window})
		timed := func(batch int, wait time.Duration) (string, time.Duration) {
			start := time.Now()
			got := c.pop("q", batch, how{group: "g", wait: wait, auto: true})
			return show(got), time.Since(start)
		}
		near := func(what string, got, want string, took, about time.Duration) {
			t.Helper()
			if got != want || took < about-60*time.Millisecond || took > about+350*time.Millisecond {
				t.Errorf("%s: %q after %v, want %q after about %v", what, got, took, want, about)
			}
		}
		c.push("q", "p", "1", "2")
		got, took := timed(100, 10*time.Second)
		near("time", got, "1 2", took, 400*time.Millisecond)

		c.push("q", "p", numbers(1, 7)...)
		got, took = timed(100, 10*time.Second)
		near("count", got, "1 2 3 4 5 6", took, 0)

		c.push("q", "p", "1", "2")
		got, took = timed(2, 10*time.Second)
		near("batch", got, "1 2", took, 0)

		c.push("q", "p", "1")
		got, took = timed(100, 100*time.Millisecond)
		near("its own time", got, "1", took, 100*time.Millisecond)

		c.configure("q", mq.EphemeralOptions{Window: &mq.EphemeralWindow{MS: ptr[int64](5000), Count: ptr[int64](5)}})
		var pusher sync.WaitGroup
		pusher.Go(func() {
			for i := range 5 {
				time.Sleep(50 * time.Millisecond)
				c.push("q", "p", fmt.Sprint(i))
			}
		})
		got, took = timed(100, 10*time.Second)
		pusher.Wait()
		if got != "0 1 2 3 4" || took < 200*time.Millisecond || took > 4*time.Second {
			t.Errorf("filling up: %q after %v", got, took)
		}

		c.push("q", "p", "9")
		c.wantPop("9", "q", 5, how{group: "g"}) // nobody waits: nothing to gather for
	})
}

func TestEphemeral_E24_PayloadsAreOpaque(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		payloads := []string{
			`{"b":1,"a":2.50}`, `null`, `"text"`, `{ "n":9007199254740993, "e":1E2, "z":-0, "b":1,"b":2 }`,
			`{"nul":"\u0000","lone":"\ud800","esc":"\/"}`, `"` + strings.Repeat("x", 1<<20) + `"`, `""`, "[]",
		}
		c.push("q", "p", payloads...)
		got := c.pop("q", 100, how{})
		if len(got) != len(payloads) {
			t.Fatalf("%d messages", len(got))
		}
		total := int64(0)
		for i, p := range payloads {
			if string(got[i].Payload) != p {
				t.Errorf("%.60s became %.60s", p, got[i].Payload)
			}
			total += int64(len(p))
		}
		if d := c.depth("q", ""); d.Bytes != total {
			t.Errorf("%d bytes, want %d", d.Bytes, total)
		}
	})
}

func TestEphemeral_E26_LargeBatches(t *testing.T) {
	both(t, ephemeral.Config{QueueMaxLength: 20_000}, func(c *scene) {
		c.push("q", "p", numbers(0, 10_000)...)
		c.push("q", "p", numbers(10_000, 20_000)...)
		m := c.pop("q", 10_000, how{})
		if len(m) != 10_000 || string(m[9999].Payload) != "9999" {
			t.Fatalf("%d messages", len(m))
		}
		if got := c.ack("q", "", completed, m...); got != strings.TrimSuffix(strings.Repeat("acked ", 10_000), " ") {
			t.Errorf("%.100s", got)
		}
		if d := c.depth("q", ""); d.Pending != 10_000 {
			t.Errorf("%d pending", d.Pending)
		}
		c.push("q", "p") // nothing
	})
}

func TestEphemeral_E27_Crowd(t *testing.T) {
	both(t, ephemeral.Config{QueueMaxLength: 1 << 20}, func(c *scene) {
		const consumers = 50
		messages := 20_000
		if c.inProcess || testing.Short() {
			messages = 4_000
		}
		var mu sync.Mutex
		seen := map[string]int{}
		var wg sync.WaitGroup
		other := c.on(c.broker(&tally{}))
		done := make(chan struct{})
		for i := range consumers {
			on := []*scene{c, other}[i%2]
			wg.Go(func() {
				for {
					m := on.pop("q", 1+i%100, how{group: "g", wait: 100 * time.Millisecond})
					if len(m) > 0 {
						if got := on.ack("q", "g", completed, m...); strings.Contains(got, "unknown") {
							t.Errorf("acked %s", got)
							return
						}
					}
					mu.Lock()
					for _, x := range m {
						seen[string(x.Payload)]++
					}
					mu.Unlock()
					select {
					case <-done:
						if len(m) == 0 {
							return
						}
					default:
					}
				}
			})
		}
		for i := 0; i < messages; i += 100 {
			c.push("q", fmt.Sprint("p", i/100%7), numbers(i, i+100)...)
		}
		close(done)
		wg.Wait()
		for i := range messages {
			if n := seen[fmt.Sprint(i)]; n != 1 {
				t.Fatalf("message %d was delivered %d times", i, n)
			}
		}
		if q := c.queue("q"); q.Depth != 0 || q.Bytes != 0 {
			t.Errorf("%+v", q)
		}
	})
}

func TestEphemeral_E27_FanOut(t *testing.T) {
	both(t, ephemeral.Config{}, func(c *scene) {
		const groups = 20
		for g := range groups {
			c.pop("q", 1, how{group: fmt.Sprint("g", g)})
		}
		var wg sync.WaitGroup
		for g := range groups {
			wg.Go(func() {
				next := 0
				for next < 1000 {
					m := c.pop("q", 37, how{group: fmt.Sprint("g", g), wait: 10 * time.Second, auto: g%2 == 0})
					for _, x := range m {
						if string(x.Payload) != fmt.Sprint(next) {
							t.Errorf("group %d: %s instead of %d", g, x.Payload, next)
							return
						}
						next++
					}
					if g%2 == 1 {
						c.ack("q", fmt.Sprint("g", g), completed, m...)
					}
				}
			})
		}
		for i := 0; i < 1000; i += 10 {
			c.push("q", "p", numbers(i, i+10)...)
		}
		wg.Wait()
		if q := c.queue("q"); q.Depth != 0 || q.Bytes != 0 {
			t.Errorf("%+v", q)
		}
	})
}
