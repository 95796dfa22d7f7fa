package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/devdb"
)

// ownRedis is a Redis that no other test uses, to be mistreated.
func ownRedis(t *testing.T) *devdb.Redis {
	t.Helper()
	r, err := devdb.StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(context.Background()) })
	return r
}

// redisClient asks Redis itself.
func redisClient(t testing.TB, address string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestEphemeral_Processes runs what needs a broker that can be killed. The
// binary is built once.
func TestEphemeral_Processes(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "queen")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/queen").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Run("R2 killed with leases", func(t *testing.T) { ephemeralKilledWithLeases(t, bin) })
	t.Run("P3 durable requests and replies", func(t *testing.T) { durableReplies(t, bin) })
}

func ephemeralKilledWithLeases(t *testing.T, bin string) {
	f := StartEphemeral(t, 1)
	doomed, other := serve(t, bin, f.DB.URL, "REDIS_URL="+f.RedisURL, "QUEEN_REDIS_PREFIX="+f.Prefix), f.One()
	other.EphemeralConfigure("q", `{"leaseSeconds":2}`)
	other.EphemeralPush("q", "p", "1", "2", "3", "4")
	claimed := time.Now()
	m := doomed.EphemeralPop("q", "group=g&batch=3")
	if !slices.Equal(payloadsOf(m), []string{"1", "2", "3"}) {
		t.Fatalf("got %+v", m)
	}
	if out := doomed.EphemeralAck("q", "g", "", m[1]); out[0] != "acked" {
		t.Errorf("ack: %v", out)
	}
	if err := doomed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	doomed.ended(10 * time.Second)
	if m := other.EphemeralPop("q", "group=g&batch=9&autoAck=true"); !slices.Equal(payloadsOf(m), []string{"4"}) {
		t.Errorf("beside the leases: %+v", m)
	}
	again := other.EphemeralPop("q", "group=g&batch=9&wait=true&timeout=20000")
	within(t, "being available again", time.Since(claimed), 1900*time.Millisecond, 6*time.Second)
	if !slices.Equal(payloadsOf(again), []string{"1", "3"}) || again[0].Attempts != 2 || again[1].Attempts != 2 || again[0].ID != m[0].ID {
		t.Errorf("again: %+v", again)
	}
	if out := other.EphemeralAck("q", "g", "", again...); !slices.Equal(out, []string{"acked", "acked"}) {
		t.Errorf("acks: %v", out)
	}
}

// metric reads a series without labels.
func metric(t testing.TB, b *Broker, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindSubmatch(b.Must(200, "GET", "/metrics/prometheus", nil))
	if m == nil {
		t.Fatalf("no %s", name)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestEphemeral_R3_ContentsLost flushes Redis beneath brokers at work.
func TestEphemeral_R3_ContentsLost(t *testing.T) {
	t.Parallel()
	r := ownRedis(t)
	f := StartEphemeral(t, 2, "REDIS_URL="+r.URL())
	b := f.One()
	b.EphemeralConfigure("declared", `{"maxLength":3,"retryLimit":9}`)
	b.EphemeralConfigure("busy", `{"leaseSeconds":2,"retryLimit":50}`)
	b.EphemeralPush("declared", "p", "1", "2", "3")
	b.EphemeralPush("implicit", "p", "1")
	held := b.EphemeralPop("declared", "group=g&batch=2")
	heldToo := b.EphemeralPop("implicit", "")
	waiting := async(func() []EphemeralMessage {
		return f.Brokers[1].EphemeralPop("awaited", "wait=true&timeout=20000&autoAck=true")
	})
	ephemeralParked(t, f.Brokers[1], 1)
	for _, b := range f.Brokers { // which now knows what it could lose
		b.Must(200, "GET", "/api/v1/system/ephemeral", nil)
	}
	tr := startTraffic(t, "busy", "g", 3, 3, func() *Broker { return f.Next(t) })
	tr.until(60)
	if err := redisClient(t, r.URL()).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for i, b := range f.Brokers {
		if out := b.EphemeralAck("declared", "g", "", held[i]); out[0] != "stale" {
			t.Errorf("ack of before: %v", out)
		}
	}
	if out := b.EphemeralAck("implicit", "", "retry", heldToo...); out[0] != "stale" {
		t.Errorf("ack of before: %v", out)
	}
	if q := f.Brokers[1].EphemeralQueue("declared"); q == nil || q.Tier != "declared" || q.Options["maxLength"] != 3. || q.Depth != 0 {
		t.Errorf("%+v", q)
	}
	ephemeralRefused(t, b, 404, "ephemeral_queue_not_found", "GET", ephemeralAt+"queues/implicit/depth", nil)
	f.Brokers[1].EphemeralPush("declared", "p", "4", "5", "6")
	ephemeralRefused(t, b, 429, "queue_full", "POST", ephemeralAt+"push", EphemeralPushBody("declared", "p", "7"))
	if m := b.EphemeralPop("declared", "group=g&batch=9"); !slices.Equal(payloadsOf(m), []string{"4", "5", "6"}) || m[0].Attempts != 1 || m[0].ID == held[0].ID {
		t.Errorf("got %+v", m)
	}
	b.EphemeralPush("awaited", "p", "1")
	if m := await(t, waiting, "the pop from before"); len(m) != 1 {
		t.Errorf("got %+v", m)
	}
	for _, b := range f.Brokers {
		soon(t, 10*time.Second, func() bool { return metric(t, b, "queen_ephemeral_wipes_total") > 0 })
		if n := metric(t, b, "queen_ephemeral_wipes_total"); n != 1 {
			t.Errorf("one loss counted %d times", n)
		}
	}
	tr.until(150)
	tr.finish()
	// What was there when it happened is gone, at the most some batches. No call fails.
	if tr.answers[503]+tr.answers[0] > 0 || len(tr.missing()) > 100 {
		t.Errorf("%d messages lost, answers %v", len(tr.missing()), tr.answers)
	}
	if tr.outcomes["unknown"] > 0 {
		t.Errorf("outcomes %v", tr.outcomes)
	}
}

// TestEphemeral_R5_RedisAway takes Redis away from two brokers, and brings it back.
func TestEphemeral_R5_RedisAway(t *testing.T) {
	t.Parallel()
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		r := ownRedis(t)
		redisAway(t, r.URL(), time.Second, func() error { return r.Stop(context.Background()) }, func() error {
			u, err := url.Parse(r.URL())
			if err != nil {
				return err
			}
			port, err := strconv.Atoi(u.Port())
			if err != nil {
				return err
			}
			next, err := devdb.StartRedisWith(t.Context(), devdb.RedisOptions{Port: port})
			if err == nil {
				t.Cleanup(func() { _ = next.Stop(context.Background()) })
			}
			return err
		}, false)
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		r := ownRedis(t)
		redisAway(t, r.URL(), 7*time.Second, r.Pause, r.Resume, true)
	})
}

// ephemeralFamily is a call to each route.
var ephemeralFamily = []struct{ method, path, body string }{
	{"POST", "push", `{"queue":"q","messages":[{"payload":1}]}`},
	{"GET", "pop?queue=q", ""},
	{"POST", "ack", `{"queue":"q","acks":[{"id":"e:00112233aabbccdd:p:1"}]}`},
	{"POST", "reset", `{"queue":"q"}`},
	{"GET", "queues", ""},
	{"GET", "queues/q/depth", ""},
}

func redisAway(t *testing.T, address string, bound time.Duration, takeAway, bringBack func() error, kept bool) {
	f := StartEphemeral(t, 2, "REDIS_URL="+address)
	a, b := f.Brokers[0], f.Brokers[1]
	a.EphemeralConfigure("declared", `{"maxLength":3}`)
	a.EphemeralPush("kept", "p", "1")
	held := b.EphemeralPop("kept", "")
	a.Push(Item{Queue: "durable"})
	a.AckAll(a.Pop("durable", ""))
	ends := async(func() int { // before Redis is back
		status, _, _ := a.Do("GET", ephemeralPopPath("awaited", "wait=true&timeout=2500"), nil)
		return status
	})
	lives := async(func() []EphemeralMessage { return b.EphemeralPop("awaited", "wait=true&timeout=40000&autoAck=true") })
	ephemeralParked(t, a, 1)
	ephemeralParked(t, b, 1)
	if err := takeAway(); err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	for _, c := range ephemeralFamily {
		start := time.Now()
		_, header := ephemeralRefused(t, b, 503, "ephemeral_unavailable", c.method, ephemeralAt+c.path, c.body)
		if s, err := strconv.Atoi(header.Get("Retry-After")); err != nil || s < 1 {
			t.Errorf("%s: Retry-After %q", c.path, header.Get("Retry-After"))
		}
		within(t, c.path, time.Since(start), 0, bound)
	}
	durableWorks(t, a, b)
	a.EphemeralConfigure("new", `{"maxLength":4}`) // what is stored counts
	if status := await(t, ends, "the pop that ends now"); status != 503 {
		t.Errorf("a pop that ends while Redis is away: %d", status)
	}
	if awhile := 3*time.Second - time.Since(gone); awhile > 0 {
		time.Sleep(awhile)
	}
	if err := bringBack(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	for _, b := range f.Brokers {
		soon(t, 10*time.Second, func() bool {
			status, _, _ := b.Do("POST", ephemeralAt+"push", EphemeralPushBody("after", "p", "1"))
			return status == 201
		})
	}
	t.Logf("away for %v; pushes work %v later", back.Sub(gone), time.Since(back))
	a.EphemeralPush("awaited", "p", "1")
	if m := await(t, lives, "the pop that waits on"); len(m) != 1 {
		t.Errorf("got %+v", m)
	}
	want := map[bool]string{true: "acked", false: "stale"}[kept]
	if out := a.EphemeralAck("kept", "", "", held...); out[0] != want {
		t.Errorf("ack of before: %v, want %s", out, want)
	}
	for queue, most := range map[string]int{"declared": 3, "new": 4} {
		b.EphemeralPush(queue, "p", slices.Repeat([]string{"1"}, most)...)
		ephemeralRefused(t, a, 429, "queue_full", "POST", ephemeralAt+"push", EphemeralPushBody(queue, "p", "1"))
	}
}

// durableWorks uses everything else, with a Redis that is away.
func durableWorks(t *testing.T, a, b *Broker) {
	t.Helper()
	start := time.Now()
	for _, path := range []string{"/health", "/readyz"} {
		b.Must(200, "GET", path, nil)
	}
	a.PushN("durable", "p", "away", 3)
	b.AckAll(b.Pop("durable", "batch=10&wait=true&timeout=5000"))
	b.Must(200, "POST", "/api/v1/kv", `[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]`)
	within(t, "durable calls", time.Since(start), 0, 4*time.Second)
	got := parkPop(b, "durable", "wait=true&timeout=20000&autoAck=true")
	parked(t, b, "durable", 1)
	time.Sleep(100 * time.Millisecond)
	start = time.Now()
	a.Push(Item{Queue: "durable", TransactionID: "woken"})
	if p := await(t, got, "a durable delivery"); !slices.Equal(p.IDs(), []string{"woken"}) {
		t.Errorf("got %+v", p)
	}
	within(t, "a durable delivery without hints", time.Since(start), 0, 4*time.Second)
}

// TestEphemeral_DatabaseAway takes PostgreSQL away: only declarations need it.
func TestEphemeral_DatabaseAway(t *testing.T) {
	t.Parallel()
	f := StartEphemeral(t, 1) // for its database and its part of Redis
	p, address := newProxy(t, f.DB.URL)
	b := f.start(append(slices.Clone(f.env), "DATABASE_URL="+address, "QUEEN_STMT_TIMEOUT_MS=1000"))
	b.EphemeralConfigure("declared", `{"maxLength":3}`)
	b.EphemeralPush("q", "p", "1")
	for name, away := range map[string]func(){"refused": p.away, "silent": func() { p.hole.Store(true) }} {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			away()
			for i := range 30 {
				start := time.Now()
				b.EphemeralPush("q", "p", fmt.Sprint(i))
				m := b.EphemeralPop("q", "batch=10")
				if out := b.EphemeralAck("q", "", "", m...); len(m) == 0 || slices.Contains(out, "unknown") {
					t.Errorf("%+v %v", m, out)
				}
				b.EphemeralPush("new "+name+strconv.Itoa(i), "", "1")
				within(t, "push, pop, ack", time.Since(start), 0, 3*time.Second)
			}
			b.EphemeralPush("declared", name, "1", "2", "3")
			ephemeralRefused(t, b, 429, "queue_full", "POST", ephemeralAt+"push", EphemeralPushBody("declared", "p", "1"))
			b.EphemeralQueues()
			b.Must(200, "POST", ephemeralAt+"reset", `{"queue":"declared"}`)
			for _, c := range []struct{ method, path, body string }{
				{"POST", "configure", `{"queue":"refused"}`}, {"DELETE", "queue/declared", ""},
			} {
				start := time.Now()
				_, header := ephemeralRefused(t, b, 503, "ephemeral_unavailable", c.method, ephemeralAt+c.path, c.body)
				if header.Get("Retry-After") == "" {
					t.Errorf("%s: no Retry-After", c.path)
				}
				within(t, c.path, time.Since(start), 0, 5*time.Second)
			}
			p.back()
			p.cut()
			soon(t, 10*time.Second, func() bool {
				status, _, _ := b.Do("POST", ephemeralAt+"configure", `{"queue":"later","options":{"maxLength":1}}`)
				return status == 201
			})
			if q := b.EphemeralQueue("refused"); q != nil {
				t.Errorf("refused and there: %+v", q)
			}
			if q := b.EphemeralQueue("declared"); q == nil || q.Tier != "declared" {
				t.Errorf("not deleted and gone: %+v", q)
			}
		})
	}
}
