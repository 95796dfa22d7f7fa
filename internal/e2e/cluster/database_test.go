//go:build linux

package cluster

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestFailover kills the primary's host and promotes the standby, twice. With
// synchronous replication nothing acknowledged is lost, and writing goes on by
// itself within ten seconds of the promotion.
func TestFailover(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Standby: true})
	f := NewTraffic(c, "failover", 6)
	f.AwaitAcks(time.Now(), 10*time.Second)
	for range 2 {
		time.Sleep(500 * time.Millisecond)
		from := time.Now()
		c.Note("kill %s", c.Primary().Name)
		c.Primary().Kill()
		if err := c.Promote(); err != nil {
			t.Fatal(err)
		}
		c.Note("promoted %s", c.Primary().Name)
		promoted := time.Now()
		took := f.AwaitAcks(promoted, 20*time.Second)
		t.Logf("writes again %v after the promotion, which took %v", took, promoted.Sub(from))
		if took > 10*time.Second {
			t.Errorf("writes came back %v after the promotion", took)
		}
		if err := c.Rebuild(); err != nil {
			t.Fatal(err)
		}
		c.Note("%s follows", c.standby().Name)
		toolsWork(t, c)
	}
	f.Finish(20 * time.Second)
}

// TestPrimaryVanishes has the primary's host lose power: no connection to it is
// ever closed, and new ones get no answer. That is noticed long before the limit
// of a statement, which is the usual half minute here.
func TestPrimaryVanishes(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Standby: true, Env: []string{"QUEEN_STMT_TIMEOUT_MS=30000"}})
	f := NewTraffic(c, "vanish", 6)
	f.AwaitAcks(time.Now(), 10*time.Second)
	for _, b := range c.Brokers {
		if err := b.DB[0].Vanish(); err != nil {
			t.Fatal(err)
		}
	}
	c.Primary().Kill()
	c.Note("%s has vanished", c.Primary().Name)
	if err := c.Promote(); err != nil {
		t.Fatal(err)
	}
	took := f.AwaitAcks(time.Now(), 60*time.Second)
	t.Logf("writes again %v after the promotion", took)
	if took > 10*time.Second {
		t.Errorf("writes came back %v after the promotion", took)
	}
	f.Finish(20 * time.Second)
}

// toolsWork runs what an operator runs beside the brokers, with their settings.
func toolsWork(t *testing.T, c *Cluster) {
	t.Helper()
	for _, args := range [][]string{{"check"}, {"migrate", "status"}, {"migrate", "up"}} {
		if out, err := c.Brokers[0].tool(args...); err != nil {
			t.Errorf("queen %v: %v\n%s", args, err, out)
		}
	}
}

// TestAsynchronousFailover shows that TestFailover can fail, and what it means
// not to wait for the standby: one that is behind takes over, and what was
// acknowledged meanwhile is gone. The check has to say so.
func TestAsynchronousFailover(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Standby: true, Asynchronous: true})
	f := NewTraffic(c, "async", 4)
	f.AwaitAcks(time.Now(), 10*time.Second)
	c.follow.Away()
	c.Note("the standby hears nothing")
	f.AwaitAcks(time.Now(), 10*time.Second)
	time.Sleep(time.Second)
	c.Primary().Kill()
	if err := c.Promote(); err != nil {
		t.Fatal(err)
	}
	f.AwaitAcks(time.Now(), 20*time.Second)
	found := f.Judge(5 * time.Second)
	if len(found) == 0 {
		t.Error("acknowledged messages are gone, and the check found nothing missing")
	}
	t.Logf("%d findings", len(found))
}

// TestReadOnly turns the primary read-only, as a switch-over does before it
// moves.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	f := NewTraffic(c, "readonly", 4)
	f.AwaitAcks(time.Now(), 10*time.Second)
	p := c.Primary()
	if err := p.Set("default_transaction_read_only", "on"); err != nil {
		t.Fatal(err)
	}
	c.Note("read-only")
	time.Sleep(500 * time.Millisecond)
	from := time.Now()
	time.Sleep(1500 * time.Millisecond)
	if n := f.ackedSince(from); n > 0 {
		t.Errorf("%d pushes were acknowledged after the primary turned read-only", n)
	}
	if err := p.Set("default_transaction_read_only", ""); err != nil {
		t.Fatal(err)
	}
	c.Note("writable")
	t.Logf("writes again after %v", f.AwaitAcks(time.Now(), 10*time.Second))
	f.Finish(20 * time.Second)
}

// TestReadOnlySwitch leaves the old primary up and read-only beside a promoted
// standby: connections to it are alive, and of no use.
func TestReadOnlySwitch(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Standby: true})
	f := NewTraffic(c, "switch", 4)
	f.AwaitAcks(time.Now(), 10*time.Second)
	if err := c.Primary().Set("default_transaction_read_only", "on"); err != nil {
		t.Fatal(err)
	}
	c.Note("%s is read-only", c.Primary().Name)
	time.Sleep(500 * time.Millisecond) // what was under way has ended, and is replicated
	if err := c.Promote(); err != nil {
		t.Fatal(err)
	}
	c.Note("promoted %s", c.Primary().Name)
	t.Logf("writes again after %v", f.AwaitAcks(time.Now(), 10*time.Second))
	f.Finish(20 * time.Second)
}

// TestPostgresRestart restarts the server with and without a checkpoint.
func TestPostgresRestart(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	f := NewTraffic(c, "restart", 4)
	f.AwaitAcks(time.Now(), 10*time.Second)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		c.Note("restart by %v", sig)
		if err := c.Primary().Restart(sig); err != nil {
			t.Fatal(err)
		}
		t.Logf("%v: writes again after %v", sig, f.AwaitAcks(time.Now(), 10*time.Second))
	}
	f.Finish(20 * time.Second)
}

// TestDiskFull takes the last byte of the database's disk and gives it back.
// PostgreSQL may end; somebody has to start it again then, and nothing else.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	if !c.launcher.private {
		if os.Getenv("CI") == "true" {
			t.Fatal(ErrNoDisk)
		}
		t.Skip(ErrNoDisk)
	}
	f := NewTraffic(c, "full", 4)
	f.AwaitAcks(time.Now(), 10*time.Second)
	p := c.Primary()
	if err := p.disk.fill(); err != nil {
		t.Fatal(err)
	}
	c.Note("disk full")
	p.exhaust()
	from := time.Now()
	time.Sleep(time.Second)
	if n := f.ackedSince(from); n > 0 {
		t.Errorf("%d pushes were acknowledged after the disk was full", n)
	}
	if err := p.disk.free(); err != nil {
		t.Fatal(err)
	}
	c.Note("disk free, server running: %v", p.proc.Running())
	if err := p.revive(); err != nil {
		t.Fatal(err)
	}
	t.Logf("writes again after %v", f.AwaitAcks(time.Now(), 15*time.Second))
	f.Finish(20 * time.Second)
}
