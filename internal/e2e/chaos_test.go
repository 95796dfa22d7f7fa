package e2e

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
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

var chaosEnv = []string{"DB_POOL_SIZE=6", "QUEEN_STMT_TIMEOUT_MS=3000"}

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

// calm waits until both brokers answer again.
func (c *chaos) calm() {
	c.t.Helper()
	c.t.Logf("faults: %v", maps.Clone(c.faults))
	for i := range c.clients {
		eventually(c.t, func() bool {
			status, _, _, err := c.clients[i].Try(context.Background(), "GET", "/readyz", nil)
			return err == nil && status == http.StatusOK
		}, "broker %d", i)
	}
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
