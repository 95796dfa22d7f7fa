package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/httpapi"
	"github.com/queenmq-go/queenmq/internal/mq"
)

// asTenant is a broker as a tenant's requests reach it, once authentication has
// found out whose they are.
func asTenant(t *testing.T, b *Broker, tenant mq.UUID) *Broker {
	t.Helper()
	h := b.Node.Handler()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(httpapi.WithCaller(r.Context(), httpapi.Caller{Tenant: tenant})))
	}))
	c := *b
	c.t, c.URL = t, srv.URL
	c.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{}}
	t.Cleanup(func() {
		c.client.CloseIdleConnections()
		srv.Close()
	})
	return &c
}

func TestEphemeral_E31_TenantsNeverMix(t *testing.T) {
	t.Parallel()
	f := StartEphemeral(t, 2)
	one, two := asTenant(t, f.Brokers[0], mq.NewID()), asTenant(t, f.Brokers[1], mq.NewID())
	one.EphemeralConfigure("q", `{"maxLength":3}`)
	one.EphemeralPush("q", "p", `"one"`)
	two.EphemeralPush("q", "p", `"two!"`)
	f.One().EphemeralPush("q", "p", `"us"`)
	for _, c := range []struct {
		b             *Broker
		tier, payload string
	}{{one, "declared", `"one"`}, {two, "implicit", `"two!"`}, {f.One(), "implicit", `"us"`}} {
		list, cell := c.b.EphemeralQueues()
		if len(list) != 1 || list[0].Tier != c.tier || list[0].Bytes != int64(len(c.payload)) || cell != 15 {
			t.Errorf("%s sees %+v of %d bytes", c.payload, list, cell)
		}
	}
	m := one.EphemeralPop("q", "batch=10")
	if !slices.Equal(payloadsOf(m), []string{`"one"`}) {
		t.Errorf("got %+v", m)
	}
	if got := two.EphemeralAck("q", "", "", m...); got[0] != "stale" {
		t.Errorf("another tenant's ack: %v", got)
	}
	two.Must(200, "DELETE", ephemeralAt+"queue/q", nil)
	two.Must(200, "POST", ephemeralAt+"reset", `{"queue":"q"}`)
	if got := one.EphemeralAck("q", "", "", m...); got[0] != "acked" {
		t.Errorf("the own ack: %v", got)
	}
	if d := f.One().EphemeralDepth("q"); d.Pending != 1 {
		t.Errorf("%+v", d)
	}
}

// TestEphemeral_E28_Refusals makes more and more reasons to refuse a push true,
// from the innermost one on. The outermost is told.
func TestEphemeral_E28_Refusals(t *testing.T) {
	t.Parallel()
	f := StartEphemeral(t, 3, "QUEEN_EPHEMERAL_REQUIRE_GRANT=true", "QUEEN_EPHEMERAL_MAX_BYTES=100")
	pool := f.DB.Pool(t)
	// grant changes the row and makes every broker read it.
	grant := func(set string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), "UPDATE queen.ephemeral_grants SET "+set); err != nil {
			t.Fatal(err)
		}
		f.Next(t).Must(200, "POST", "/api/v1/system/ephemeral", `{"enabled":true}`)
	}
	push := EphemeralPushBody("q", "", `"0123456789"`)
	// refused waits for the news to have reached all brokers.
	refused := func(want int, code string, retryAfter bool) {
		t.Helper()
		for _, b := range f.Brokers {
			b = b.In(t)
			eventually(t, func() bool {
				status, _, answer := b.Do("POST", ephemeralAt+"push", push)
				return status == want && strings.Contains(string(answer), `"code":"`+code+`"`)
			}, "%d %s", want, code)
			_, header := ephemeralRefused(t, b, want, code, "POST", ephemeralAt+"push", push)
			after := header.Get("Retry-After")
			if s, err := strconv.Atoi(after); retryAfter && (err != nil || s < 1) || !retryAfter && after != "" {
				t.Errorf("%s: Retry-After %q", code, after)
			}
		}
	}
	refused(403, "feature_gated", false)
	if _, err := pool.Exec(t.Context(), `INSERT INTO queen.ephemeral_grants (tenant, enabled) VALUES ($1, true)`, mq.DefaultTenant); err != nil {
		t.Fatal(err)
	}
	grant("enabled = true")
	eventually(t, func() bool {
		for _, b := range f.Brokers {
			if status, _, _ := b.Do("GET", ephemeralPopPath("q", ""), nil); status != 200 {
				return false
			}
		}
		return true
	}, "the grant")
	for range 8 {
		f.Next(t).Must(201, "POST", ephemeralAt+"push", push)
	}
	for _, b := range f.Brokers { // each looks what there is, instead of a moment later
		b.In(t).Must(200, "GET", "/api/v1/system/ephemeral", nil)
	}
	refused(503, "ephemeral_unavailable", true) // 96 bytes are there, 100 may be
	grant("max_bytes = 100")
	refused(403, "ephemeral_quota_exceeded", false)
	f.Next(t).EphemeralConfigure("q", `{"maxLength":8}`)
	refused(429, "queue_full", false)
	grant("messages_per_second = 0.5")
	refused(429, "rate_limited", true)
	grant("enabled = false")
	refused(403, "feature_gated", false)
	f.Next(t).Must(200, "POST", "/api/v1/system/ephemeral", `{"enabled":false}`)
	refused(503, "ephemeral_disabled", true)
	for _, c := range []struct{ method, path, body string }{
		{"GET", "pop?queue=q", ""},
		{"POST", "ack", `{"queue":"q","acks":[{"id":"x"}]}`},
		{"POST", "configure", `{"queue":"q"}`},
		{"POST", "reset", `{"queue":"q"}`},
		{"DELETE", "queue/q", ""},
		{"GET", "queues", ""},
		{"GET", "queues/q/depth", ""},
	} {
		_, header := ephemeralRefused(t, f.Next(t), 503, "ephemeral_disabled", c.method, ephemeralAt+c.path, c.body)
		if header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", c.path)
		}
	}
	var st struct{ EphemeralEnabled bool }
	f.Next(t).MustInto(&st, 200, "GET", "/api/v1/system/ephemeral", nil)
	if st.EphemeralEnabled {
		t.Error("turned off and on")
	}
	// Back on: what was there is there.
	grant("enabled = true, max_bytes = NULL, max_queues = NULL, messages_per_second = NULL")
	b := f.Next(t)
	eventually(t, func() bool { s, _, _ := b.Do("GET", ephemeralAt+"queues", nil); return s == 200 }, "being on again")
	if d := b.EphemeralDepth("q"); d.Pending != 8 || d.Bytes != 96 {
		t.Errorf("%+v", d)
	}
	ephemeralRefused(t, b, 429, "queue_full", "POST", ephemeralAt+"push", EphemeralPushBody("q", "", "1"))
}

// TestEphemeral_R9_OneBoundForAll pushes through three brokers at once.
func TestEphemeral_R9_OneBoundForAll(t *testing.T) {
	t.Parallel()
	f := StartEphemeral(t, 3, "QUEEN_EPHEMERAL_QUEUE_MAX_LENGTH=12000")
	f.Next(t).EphemeralConfigure("q", `{"maxLength":1000}`)
	var stored, full atomic.Int64
	var wg sync.WaitGroup
	for w := range 6 {
		b := f.Brokers[w%3].In(t)
		wg.Go(func() {
			for range 60 {
				switch status, _, answer := b.Do("POST", ephemeralAt+"push", EphemeralPushBody("q", fmt.Sprint(w%4), "1", "2", "3")); status {
				case http.StatusCreated:
					stored.Add(3)
				case http.StatusTooManyRequests:
					full.Add(1)
				default:
					t.Errorf("%d %s", status, answer)
				}
			}
		})
	}
	wg.Wait()
	d := f.Next(t).EphemeralDepth("q")
	if stored.Load() != 999 || d.Pending != 999 || full.Load() != 360-333 {
		t.Errorf("%d stored, %d there, %d refused", stored.Load(), d.Pending, full.Load())
	}
	f.Next(t).EphemeralPush("q", "", "1")
	for _, b := range f.Brokers {
		ephemeralRefused(t, b.In(t), 429, "queue_full", "POST", ephemeralAt+"push", EphemeralPushBody("q", "", "1"))
	}
	// E26: a batch above the limit is the limit.
	many := slices.Repeat([]string{"1"}, 6000)
	f.Next(t).EphemeralPush("deep", "a", many...)
	f.Next(t).EphemeralPush("deep", "b", many...)
	for _, want := range []int{10_000, 2000} {
		if m := f.Next(t).EphemeralPop("deep", "batch=20000"); len(m) != want {
			t.Errorf("%d messages, want %d", len(m), want)
		}
	}
}

// TestEphemeral_E1_PartitionsMadeAtOnce pushes to new partitions of new queues
// from many clients of one broker, whose pushes travel together.
func TestEphemeral_E1_PartitionsMadeAtOnce(t *testing.T) {
	t.Parallel()
	f := StartEphemeral(t, 1)
	b := f.One()
	const queues, partitions, each = 10, 8, 5
	for q := range queues {
		queue := fmt.Sprint("q", q)
		var wg sync.WaitGroup
		for p := range partitions {
			wg.Go(func() {
				for i := range each {
					if status, _, answer := b.Do("POST", ephemeralAt+"push", EphemeralPushBody(queue, fmt.Sprint("p", p), fmt.Sprint(p*each+i))); status != 201 {
						t.Errorf("%s: %d %s", queue, status, answer)
					}
				}
			})
		}
		wg.Wait()
		var want []string
		for n := range partitions * each {
			want = append(want, fmt.Sprint(n))
		}
		m := b.EphemeralPop(queue, "batch=1000")
		if !slices.Equal(payloadsOf(m), want) {
			t.Errorf("%s: %d messages, want %d: %v", queue, len(m), len(want), payloadsOf(m))
		}
		for _, m := range m {
			if n, _ := strconv.Atoi(string(m.Payload)); m.Partition != fmt.Sprint("p", n/each) {
				t.Errorf("%s: %s is in %s", queue, m.Payload, m.Partition)
			}
		}
	}
}

// TestEphemeral_A9_AClientThatLeaves closes the connection after the messages
// were claimed for it and before they were answered.
func TestEphemeral_A9_AClientThatLeaves(t *testing.T) {
	t.Parallel()
	f := StartEphemeral(t, 1)
	near := f.One()
	p, url := newProxy(t, f.RedisURL)
	far := f.start(append(slices.Clone(f.env), "REDIS_URL="+url))
	for _, query := range []string{"", "&wait=true&timeout=20000"} {
		queue := "left" + query
		near.EphemeralPush(queue, "p", "0", "1", "2", "3")
		m := far.In(t).EphemeralPop(queue, "group=g&batch=1") // the script is known, the connection open
		near.EphemeralAck(queue, "g", "", m...)
		p.delay.Store(int64(700 * time.Millisecond))
		l := leavingPop(t, far, ephemeralPopPath(queue, "group=h&batch=2"+query))
		eventually(t, func() bool { return len(near.EphemeralDepth(queue).Groups) == 2 }, "the claim")
		if m := near.EphemeralPop(queue, "group=h"); !slices.Equal(payloadsOf(m), []string{"3"}) {
			t.Errorf("claimed for somebody and delivered: %+v", m)
		}
		_ = l.conn.Close()
		gone := time.Now()
		p.delay.Store(0)
		m = near.EphemeralPop(queue, "group=h&batch=9&wait=true&timeout=20000")
		within(t, "being available again", time.Since(gone), 0, 10*time.Second) // their lease is 30 s
		if got := payloadsOf(m); !slices.Equal(got, []string{"1", "2"}) || m[0].Attempts != 1 || m[1].Attempts != 1 {
			t.Errorf("got %+v", m)
		}
	}
	// A parked client that leaves takes nothing.
	l := leavingPop(t, near, ephemeralPopPath("parked", "wait=true&timeout=30000&autoAck=true"))
	ephemeralParked(t, near, 1)
	_ = l.conn.Close()
	ephemeralParked(t, near, 0)
	near.EphemeralPush("parked", "", "1")
	if m := far.In(t).EphemeralPop("parked", ""); len(m) != 1 || m[0].Attempts != 1 {
		t.Errorf("got %+v", m)
	}
}
