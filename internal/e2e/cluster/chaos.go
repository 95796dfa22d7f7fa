//go:build linux

package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Chaos breaks an installation at moments, and in ways, drawn from a seed. The
// faults of a lane come one after the other, and each kind comes before any
// comes again; the two lanes know nothing of each other.
type Chaos struct {
	c      *Cluster
	pause  time.Duration // at the most, between two faults of a lane
	stop   chan struct{}
	lanes  sync.WaitGroup
	mu     sync.Mutex
	counts map[string]int
	errs   []error
}

// fault breaks something, and has mended it when it returns. The detail says
// what exactly, for the log.
type fault struct {
	name string
	act  func(c *Cluster, r *rand.Rand, detail func(string, ...any)) error
}

// NewChaos starts breaking things.
func NewChaos(c *Cluster, seed uint64) *Chaos {
	x := &Chaos{c: c, stop: make(chan struct{}), counts: map[string]int{}}
	// Some runs have time to do much between faults, others hardly any.
	x.pause = 300*time.Millisecond + randomly(rand.New(rand.NewPCG(seed, 101)), 2*time.Second)
	for i, faults := range [][]fault{databaseFaults(c), otherFaults(c)} {
		x.lanes.Go(func() { x.run(rand.New(rand.NewPCG(seed, uint64(i))), faults) })
	}
	return x
}

func (x *Chaos) run(r *rand.Rand, faults []fault) {
	for n := 0; ; n++ {
		if n%len(faults) == 0 {
			r.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		}
		select {
		case <-x.stop:
			return
		case <-time.After(100*time.Millisecond + randomly(r, x.pause)):
		}
		if err := x.inject(r, faults[n%len(faults)]); err != nil {
			return
		}
	}
}

func (x *Chaos) inject(r *rand.Rand, f fault) error {
	what := ""
	x.c.Note("fault: %s", f.name)
	err := f.act(x.c, r, func(format string, args ...any) {
		what = fmt.Sprintf(format, args...)
		x.c.Note("fault: %s: %s", f.name, what)
	})
	x.c.Note("mended: %s %s", f.name, what)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts[f.name]++
	if err != nil {
		x.errs = append(x.errs, fmt.Errorf("%s: %w", f.name, err))
		x.c.Note("could not be mended: %s: %v", f.name, err)
	}
	return err
}

// Finish waits for the faults under way to be mended, and returns how many there
// were of each kind.
func (x *Chaos) Finish() (map[string]int, []error) {
	close(x.stop)
	x.lanes.Wait()
	return x.counts, x.errs
}

func randomly(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most)))
}

// databaseFaults are those of which the database takes only one at a time.
func databaseFaults(c *Cluster) []fault {
	faults := []fault{
		{"PostgreSQL restart", func(c *Cluster, _ *rand.Rand, _ func(string, ...any)) error {
			return c.Primary().Restart(syscall.SIGINT)
		}},
		{"PostgreSQL crash", func(c *Cluster, r *rand.Rand, _ func(string, ...any)) error {
			c.Primary().Kill()
			time.Sleep(randomly(r, time.Second))
			return c.Primary().revive()
		}},
		{"sessions terminated", func(c *Cluster, r *rand.Rand, detail func(string, ...any)) error {
			share := 0.2 + 0.8*r.Float64()
			n, err := c.Primary().Int(`SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE backend_type = 'client backend' AND application_name <> $1 AND random() < $2`, harness, share)
			detail("%d", n)
			return err
		}},
		{"primary read-only", func(c *Cluster, r *rand.Rand, _ func(string, ...any)) error {
			if err := c.Primary().Set("default_transaction_read_only", "on"); err != nil {
				return err
			}
			time.Sleep(300*time.Millisecond + randomly(r, 1500*time.Millisecond))
			return c.Primary().Set("default_transaction_read_only", "")
		}},
	}
	if c.launcher.private {
		faults = append(faults, fault{"disk full", func(c *Cluster, r *rand.Rand, _ func(string, ...any)) error {
			p := c.Primary()
			if err := p.disk.fill(); err != nil {
				return err
			}
			p.exhaust()
			time.Sleep(randomly(r, time.Second))
			if err := p.disk.free(); err != nil {
				return err
			}
			return p.revive()
		}})
	}
	if c.standby() != nil {
		faults = append(faults, fault{"failover", func(c *Cluster, _ *rand.Rand, detail func(string, ...any)) error {
			detail("%s is killed", c.Primary().Name)
			c.Primary().Kill()
			if err := c.Promote(); err != nil {
				return err
			}
			c.Note("%s is promoted", c.Primary().Name)
			return c.Rebuild()
		}})
	}
	return faults
}

// otherFaults are those of brokers, connections and Redis.
func otherFaults(c *Cluster) []fault {
	faults := []fault{
		{"broker killed", onBroker(func(b *Broker, r *rand.Rand) error {
			return b.Restart(syscall.SIGKILL, randomly(r, time.Second))
		})},
		{"broker stopped", onBroker(func(b *Broker, r *rand.Rand) error {
			return b.Restart(syscall.SIGTERM, randomly(r, time.Second))
		})},
		{"broker paused", onBroker(func(b *Broker, r *rand.Rand) error {
			return b.pause(200*time.Millisecond + randomly(r, 4*time.Second))
		})},
		{"Redis gone", func(c *Cluster, r *rand.Rand, _ func(string, ...any)) error {
			if err := c.redis.proc.Stop(syscall.SIGKILL, 5*time.Second); err != nil {
				return err
			}
			time.Sleep(randomly(r, 2*time.Second))
			return c.redis.start()
		}},
		{"commit answers lost", func(c *Cluster, r *rand.Rand, detail func(string, ...any)) error {
			var all []*Link
			for _, b := range c.Brokers {
				all = append(all, b.DB[:]...)
			}
			l, n := pick(r, all), 1+r.IntN(8)
			detail("%d on %s", n, l.Name)
			l.LoseAnswers(n)
			time.Sleep(500 * time.Millisecond)
			return l.Heal()
		}},
	}
	for _, way := range linkFaults {
		faults = append(faults, fault{"connection " + way.name, func(c *Cluster, r *rand.Rand, detail func(string, ...any)) error {
			l := pick(r, c.links)
			detail("%s", l.Name)
			way.act(l)
			time.Sleep(50*time.Millisecond + randomly(r, way.most))
			return l.Heal()
		}})
	}
	if c.bouncer != nil {
		faults = append(faults, fault{"PgBouncer restart", func(c *Cluster, r *rand.Rand, _ func(string, ...any)) error {
			if err := c.bouncer.proc.Stop(syscall.SIGKILL, 5*time.Second); err != nil {
				return err
			}
			time.Sleep(randomly(r, 500*time.Millisecond))
			return c.bouncer.start(c.toPg.Addr())
		}})
	}
	return faults
}

// linkFaults are the ways to break a connection, and how long each may last.
var linkFaults = []struct {
	name string
	most time.Duration
	act  func(*Link)
}{
	{"cut", 50 * time.Millisecond, (*Link).Cut},
	{"refused", time.Second, (*Link).Away},
	{"answers lost", 500 * time.Millisecond, func(l *Link) { l.LoseAnswers(3) }},
	{"requests lost", time.Second, func(l *Link) { l.noAsk.Store(true) }},
	{"silent", time.Second, func(l *Link) { l.noTell.Store(true) }},
	{"vanished", 2 * time.Second, func(l *Link) { _ = l.Vanish() }},
	{"slow", 2 * time.Second, func(l *Link) { l.delay.Store(int64(60 * time.Millisecond)) }},
	{"half closed", 200 * time.Millisecond, func(l *Link) { l.HalfClose(true) }},
	{"half closed towards clients", 200 * time.Millisecond, func(l *Link) { l.HalfClose(false) }},
}

func onBroker(act func(*Broker, *rand.Rand) error) func(*Cluster, *rand.Rand, func(string, ...any)) error {
	return func(c *Cluster, r *rand.Rand, detail func(string, ...any)) error {
		b := c.Brokers[r.IntN(len(c.Brokers))]
		detail("%s", b.Name)
		return act(b, r)
	}
}

// pick chooses among the links that are there.
func pick(r *rand.Rand, all []*Link) *Link {
	there := slices.DeleteFunc(slices.Clone(all), func(l *Link) bool { return l == nil })
	return there[r.IntN(len(there))]
}
