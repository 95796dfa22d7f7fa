//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Options say what an installation consists of. Redis and nginx are always
// there.
type Options struct {
	Brokers int // default 2
	// Standby adds a streaming standby, which commits wait for.
	Standby bool
	// Asynchronous has no commit wait for the standby.
	Asynchronous bool
	// Pooled are the brokers, by number, that reach PostgreSQL through
	// PgBouncer in transaction mode.
	Pooled []int
	// Offsets are the brokers, by number, whose clock is off.
	Offsets map[int]time.Duration
	// Env is NAME=value for every broker.
	Env []string
}

// Cluster is one installation.
type Cluster struct {
	t        testing.TB
	dir      string
	launcher *launcher
	account  *account
	started  time.Time

	// URL is the balancer's, through a link.
	URL     string
	Client  *Link
	Brokers []*Broker

	mu      sync.Mutex
	events  []string
	pg      []*Postgres // the primary is the first
	redis   *Redis
	bouncer *PgBouncer
	nginx   *Nginx
	toPg    *Link // from PgBouncer to the primary
	follow  *Link // from the standby to the primary
	links   []*Link
}

// Start brings an installation up. It ends with the test; when the test fails,
// the faults and the end of every log are printed and the logs are kept.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts ten processes")
	}
	c := &Cluster{t: t, started: time.Now()}
	if err := c.start(o); err != nil {
		c.stop()
		c.report()
		t.Fatalf("start the cluster: %v", err)
	}
	t.Cleanup(func() {
		c.stop()
		c.report()
	})
	c.Note("ready")
	return c
}

func (c *Cluster) start(o Options) (err error) {
	if c.dir, err = os.MkdirTemp("", "queen-cluster-"); err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.startDatabase(o); err != nil {
		return err
	}
	c.redis = &Redis{c: c}
	if c.redis.port, err = freePort(); err != nil {
		return err
	}
	if err := c.redis.start(); err != nil {
		return err
	}
	if err := c.startBouncer(o); err != nil {
		return err
	}
	var upstreams []string
	for i := range max(o.Brokers, 2) {
		b, err := c.newBroker(i, o)
		if err != nil {
			return err
		}
		c.Brokers = append(c.Brokers, b)
		upstreams = append(upstreams, b.HTTP.Addr())
		if err := b.start(); err != nil {
			return err
		}
	}
	c.nginx = &Nginx{c: c}
	if c.nginx.port, err = freePort(); err != nil {
		return err
	}
	if err := c.nginx.start(upstreams); err != nil {
		return err
	}
	c.Client, err = c.link("clients", local(c.nginx.port))
	if err == nil {
		c.URL = "http://" + c.Client.Addr()
	}
	return err
}

// prepare makes the folder ready, and what children are started with.
func (c *Cluster) prepare() (err error) {
	if err := errors.Join(os.Chmod(c.dir, 0o755), os.Mkdir(filepath.Join(c.dir, "logs"), 0o755)); err != nil {
		return err
	}
	c.launcher = newLauncher()
	c.account, err = unprivileged()
	return err
}

func (c *Cluster) startDatabase(o Options) error {
	names := []string{"pg-a"}
	if o.Standby {
		names = append(names, "pg-b")
	}
	for i, name := range names {
		p := &Postgres{Name: name, c: c}
		var err error
		if i == 1 {
			if c.follow, err = c.link("standby to primary", c.pg[0].Addr()); err != nil {
				return err
			}
		}
		if p.Port, err = freePort(); err != nil {
			return err
		}
		if p.disk, err = c.launcher.newDisk(filepath.Join(c.dir, name), diskSize); err != nil {
			return err
		}
		if err := c.launcher.do(func() error { return c.account.own(p.disk.dir) }); err != nil {
			return err
		}
		c.pg = append(c.pg, p)
		if i == 0 {
			if err = p.fresh(); err == nil {
				err = p.start()
			}
		} else {
			err = p.copyFrom(c.pg[0])
		}
		if err != nil {
			return err
		}
	}
	switch {
	case o.Asynchronous:
		return c.Primary().awaitStreaming()
	case o.Standby:
		return c.synchronous()
	}
	return nil
}

// synchronous makes commits wait for the standby, once it follows.
func (c *Cluster) synchronous() error {
	primary := c.Primary()
	if err := primary.awaitStreaming(); err != nil {
		return err
	}
	return primary.Set("synchronous_standby_names", "*")
}

func (c *Cluster) startBouncer(o Options) (err error) {
	if len(o.Pooled) == 0 {
		return nil
	}
	if c.toPg, err = c.link("pgbouncer to the primary", c.pg[0].Addr()); err != nil {
		return err
	}
	c.bouncer = &PgBouncer{c: c}
	if c.bouncer.port, err = freePort(); err != nil {
		return err
	}
	return c.bouncer.start(c.toPg.Addr())
}

func (c *Cluster) link(name, target string) (*Link, error) {
	l, err := newLink(name, target)
	if err == nil {
		c.links = append(c.links, l)
	}
	return l, err
}

// brokerSettings keep time-outs short, so that a short run gets past them.
var brokerSettings = []string{
	"PORT=0", "QUEEN_BIND_ADDR=127.0.0.1", "DB_POOL_SIZE=8", "QUEEN_STMT_TIMEOUT_MS=4000",
	"QUEEN_KV_WRITE_RATE=0", "QUEEN_KV_READ_RATE=0",
}

func (c *Cluster) newBroker(i int, o Options) (*Broker, error) {
	b := &Broker{c: c, Name: fmt.Sprint("broker-", i), Offset: o.Offsets[i]}
	var err error
	if b.HTTP, err = c.link("nginx to "+b.Name, "127.0.0.1:1"); err != nil {
		return nil, err
	}
	if b.Hint, err = c.link(b.Name+" to redis", local(c.redis.port)); err != nil {
		return nil, err
	}
	var hosts []string
	query := "sslmode=disable"
	pooled := false
	for _, n := range o.Pooled {
		pooled = pooled || n == i
	}
	if pooled {
		if b.DB[0], err = c.link(b.Name+" to pgbouncer", local(c.bouncer.port)); err != nil {
			return nil, err
		}
		hosts = append(hosts, b.DB[0].Addr())
		query += "&default_query_exec_mode=" + poolerMode
	} else {
		for j, p := range c.pg {
			if b.DB[j], err = c.link(b.Name+" to "+p.Name, p.Addr()); err != nil {
				return nil, err
			}
			hosts = append(hosts, b.DB[j].Addr())
		}
		query += "&target_session_attrs=read-write"
	}
	b.env = append(append(b.env, brokerSettings...),
		fmt.Sprintf("DATABASE_URL=postgres://postgres@%s/queen?%s", strings.Join(hosts, ","), query),
		fmt.Sprintf("REDIS_URL=redis://%s/0", b.Hint.Addr()), "QUEEN_SERVER_ID="+b.Name)
	b.env = append(b.env, o.Env...)
	return b, nil
}

// poolerMode is what a connection through a transaction pooler takes: no
// statement that a session has prepared.
const poolerMode = "cache_describe"

// Primary is the server that takes writes.
func (c *Cluster) Primary() *Postgres {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pg[0]
}

func (c *Cluster) standby() *Postgres {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pg) < 2 {
		return nil
	}
	return c.pg[1]
}

// Promote makes the standby the primary. The old one must be gone; it stays so
// until Rebuild.
func (c *Cluster) Promote() error {
	next := c.standby()
	// Nobody follows it yet, so nobody can be waited for.
	if err := next.Set("synchronous_standby_names", ""); err != nil {
		return err
	}
	if err := next.Exec("SELECT pg_promote(true, 20)"); err != nil {
		return fmt.Errorf("promote %s: %w", next.Name, err)
	}
	c.mu.Lock()
	c.pg[0], c.pg[1] = c.pg[1], c.pg[0]
	c.mu.Unlock()
	c.follow.Retarget(next.Addr())
	if c.toPg != nil {
		c.toPg.Retarget(next.Addr())
		c.toPg.Cut()
	}
	return nil
}

// Rebuild makes what was the primary a standby of the new one.
func (c *Cluster) Rebuild() error {
	var err error
	// The connection it copies through may be broken by another fault.
	for range 5 {
		if err = c.standby().copyFrom(c.Primary()); err == nil {
			return c.synchronous()
		}
		c.Note("the copy failed: %v", err)
		time.Sleep(time.Second)
	}
	return err
}

// Note writes a line of the history that a failure prints.
func (c *Cluster) Note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.events = append(c.events, fmt.Sprintf("%s %7.3f  %s", now.UTC().Format("15:04:05.000"), now.Sub(c.started).Seconds(), fmt.Sprintf(format, args...)))
}

func (c *Cluster) logFile(name string) string { return filepath.Join(c.dir, "logs", name+".log") }

// stop ends everything, the parts that others need last.
func (c *Cluster) stop() {
	var all []*Process
	for _, b := range c.Brokers {
		all = append(all, b.proc)
	}
	if c.nginx != nil {
		_ = c.nginx.proc.Stop(syscall.SIGTERM, 5*time.Second)
	}
	if c.bouncer != nil {
		all = append(all, c.bouncer.proc)
	}
	if c.redis != nil {
		all = append(all, c.redis.proc)
	}
	for _, p := range all {
		_ = p.Stop(syscall.SIGKILL, 5*time.Second)
	}
	for _, p := range c.pg {
		_ = p.proc.Stop(syscall.SIGQUIT, 5*time.Second)
	}
	for _, l := range c.links {
		l.close()
	}
	if c.launcher != nil {
		c.launcher.close()
	}
}

// envKeep has a run that passed reported, and its logs kept, like one that failed.
const envKeep = "CLUSTER_KEEP"

// logTail is how much of each log a failure shows; the rest is in the files.
const logTail = 6000

func (c *Cluster) report() {
	if !c.t.Failed() && os.Getenv(envKeep) == "" {
		_ = os.RemoveAll(c.dir)
		return
	}
	logs, _ := filepath.Glob(filepath.Join(c.dir, "logs", "*.log"))
	for _, path := range logs {
		raw, _ := os.ReadFile(path)
		c.t.Logf("end of %s:\n%s", path, raw[max(0, len(raw)-logTail):])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t.Logf("what happened (UTC, seconds since the start):\n%s", strings.Join(c.events, "\n"))
}
