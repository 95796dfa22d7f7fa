package e2e

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// chaos is two brokers as processes, with a proxy before and behind each, and a
// seeded source of faults.
type chaos struct {
	t      *testing.T
	bin    string
	seed   uint64
	nodes  [2]*process
	front  [2]*proxy // between clients and a broker
	back   [2]*proxy // between a broker and the database
	dbURL  [2]string
	urls   [2]string
	pool   *pgxpool.Pool // of the test, which no fault ends
	faults map[string]int

	clients [2]*Broker

	// What became of the transactions that settle sent.
	committed, rolled, unknown, twins, late atomic.Int64
}

func newChaos(t *testing.T) *chaos {
	c := &chaos{t: t, seed: modelSeed(t), bin: filepath.Join(t.TempDir(), "queen"), faults: map[string]int{}}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", c.bin, "../../cmd/queen").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	db := pgtest.New(t)
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 3
	cfg.ConnConfig.RuntimeParams["application_name"] = observer
	if c.pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.pool.Close)
	for i := range c.nodes {
		c.back[i], c.dbURL[i] = newProxy(t, db.URL)
		c.nodes[i] = serve(t, c.bin, c.dbURL[i], chaosEnv...)
		c.front[i], c.urls[i] = newProxy(t, c.nodes[i].URL)
		c.clients[i] = &Broker{t: t, URL: c.urls[i], client: &http.Client{
			Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16},
		}}
		t.Cleanup(c.clients[i].client.CloseIdleConnections)
	}
	return c
}

const observer = "observer"

var chaosEnv = []string{"DB_POOL_SIZE=6", "QUEEN_STMT_TIMEOUT_MS=3000", "QUEEN_KV_WRITE_RATE=0", "QUEEN_KV_READ_RATE=0"}

func (c *chaos) random(stream int) *rand.Rand {
	return rand.New(rand.NewPCG(c.seed, uint64(stream)))
}

// client speaks to a broker through its proxy.
func (c *chaos) client(i int) *Broker { return c.clients[i] }

// fault breaks something, and mends it.
func (c *chaos) fault(r *rand.Rand) {
	i := r.IntN(2)
	name := []string{"kill", "cut clients", "cut database", "client answers lost", "commit answers lost", "sessions terminated"}[r.IntN(6)]
	c.faults[name]++
	switch name {
	case "kill":
		c.restart(i)
	case "cut clients":
		c.front[i].cut()
	case "cut database":
		c.back[i].cut()
	case "client answers lost":
		c.deafen(c.front[i], r)
	case "commit answers lost":
		c.deafen(c.back[i], r)
	case "sessions terminated":
		c.read(`SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> '` + observer + `' AND random() < 0.4`)
	}
}

func (c *chaos) deafen(p *proxy, r *rand.Rand) {
	p.deaf.Store(true)
	time.Sleep(time.Duration(5+r.IntN(40)) * time.Millisecond)
	p.back()
	p.cut()
}

// restart kills a broker and starts it again where it was.
func (c *chaos) restart(i int) {
	u, err := url.Parse(c.nodes[i].URL)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.nodes[i].cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	c.nodes[i].ended(10 * time.Second)
	c.front[i].cut()
	c.nodes[i] = serve(c.t, c.bin, c.dbURL[i], append([]string{"PORT=" + u.Port()}, chaosEnv...)...)
}

// calm waits until both brokers answer again, and for the second after which a
// pool tries an idle connection before it hands it out.
func (c *chaos) calm() {
	c.t.Helper()
	c.t.Logf("faults: %v", maps.Clone(c.faults))
	for i := range c.clients {
		eventually(c.t, func() bool {
			status, _, _, err := c.clients[i].Try(context.Background(), "GET", "/readyz", nil)
			return err == nil && status == http.StatusOK
		}, "broker %d", i)
	}
	lapse()
}

// read asks the database for a number.
func (c *chaos) read(query string) (n int) {
	if err := c.pool.QueryRow(context.Background(), query).Scan(&n); err != nil {
		c.t.Errorf("%s: %v", query, err)
	}
	return n
}

// until repeats a call, at either broker, until it is answered as wanted.
func (c *chaos) until(r *rand.Rand, want int, path string, body any) bool {
	for range 300 {
		status, _, answer, err := c.client(r.IntN(2)).Try(context.Background(), "POST", path, body)
		if err == nil && status == want {
			return true
		}
		if err == nil && status != http.StatusServiceUnavailable {
			c.t.Errorf("%s: %d %s", path, status, answer)
			return false
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.t.Errorf("%s: no answer in 300 tries", path)
	return false
}

// breakUntil injects faults at random moments, and waits until they are over.
func (c *chaos) breakUntil(until time.Time) {
	c.t.Helper()
	r := c.random(1000)
	for time.Now().Before(until) && !c.t.Failed() {
		time.Sleep(100*time.Millisecond + time.Duration(r.IntN(300))*time.Millisecond)
		c.fault(r)
	}
	c.calm()
}

// settle sends a transaction until its outcome is known: twice at once now and
// then, or after its lease. True when it was committed, as far as is known;
// losses are the reasons for which it may be refused even when sent once.
func (c *chaos) settle(r *rand.Rand, name string, body []byte, losses ...string) bool {
	late := r.IntN(25) == 0
	if late { // its lease is over, whether somebody else has the messages or not
		c.late.Add(1)
		time.Sleep(1300 * time.Millisecond)
	}
	commits, doubt := 0, false
	for try := range 100 {
		n := 1
		if r.IntN(8) == 0 {
			n, doubt = 2, true
			c.twins.Add(1)
		}
		answers := make([]bundleAnswer, n)
		var wg sync.WaitGroup
		for i := range answers {
			b := c.client((r.IntN(2) + i) % 2)
			wg.Go(func() { answers[i] = c.commit(b, body) })
		}
		wg.Wait()
		refused := false
		for _, a := range answers {
			switch {
			case a.Success:
				commits++
			case a.Reason == "":
				doubt = true
			default:
				refused = true
				if !doubt && !slices.Contains(losses, a.Reason) {
					c.t.Errorf("step %s, sent once, is refused: %+v", name, a)
				}
			}
		}
		switch {
		case commits > 1:
			c.t.Errorf("step %s was committed twice", name)
		case late && commits > 0:
			c.t.Errorf("step %s was committed after its lease", name)
		}
		if commits > 0 {
			c.committed.Add(1)
			return true
		}
		if refused {
			if c.rolled.Add(1); doubt {
				c.unknown.Add(1) // it may have been committed before
			}
			return false
		}
		if try == 99 {
			c.t.Errorf("step %s: no outcome in 100 tries", name)
		}
		time.Sleep(30 * time.Millisecond)
	}
	return false
}

// commit sends a transaction once. Without a reason and success the outcome is
// unknown.
func (c *chaos) commit(b *Broker, body []byte) (a bundleAnswer) {
	status, _, raw, err := b.Try(context.Background(), "POST", transactionPath, body)
	switch {
	case err != nil || status == http.StatusServiceUnavailable:
	case status != http.StatusOK || json.Unmarshal(raw, &a) != nil:
		c.t.Errorf("transaction: %d %s", status, raw)
	case !a.Success && !slices.Contains([]string{"rejected_ack", "duplicate", "kv_precondition"}, a.Reason):
		c.t.Errorf("transaction: %s", raw)
	}
	return a
}

// consume pops at either broker and hands over what came, until done is closed.
// Now and then the worker dies with what it was given.
func (c *chaos) consume(r *rand.Rand, query string, done <-chan struct{}, handle func(PopAnswer)) {
	for {
		select {
		case <-done:
			return
		default:
		}
		status, _, raw, err := c.client(r.IntN(2)).Try(context.Background(), "GET", query, nil)
		if err != nil || status != http.StatusOK {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		var got PopAnswer
		if err := json.Unmarshal(raw, &got); err != nil {
			c.t.Errorf("pop: %v", err)
			return
		}
		if r.IntN(12) > 0 {
			handle(got)
		}
	}
}

// watch asks the database for numbers, in one snapshot each time, and hands
// them to ok, which says whether they belong together.
func (c *chaos) watch(done <-chan struct{}, query string, ok func([]int) bool) {
	for looks := 0; ; looks++ {
		select {
		case <-done:
			if looks < 20 {
				c.t.Errorf("looked %d times only", looks)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
		var got []int
		if err := c.pool.QueryRow(context.Background(), query).Scan(&got); err != nil {
			c.t.Errorf("observer: %v", err)
			return
		}
		if !ok(got) {
			c.t.Errorf("part of a step is visible: %v", got)
			return
		}
	}
}
