//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLostCommitAnswer loses the database's answer to a push that was committed:
// the client is told that nobody knows, and a repeat finds the message there.
func TestLostCommitAnswer(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	h := client(t)
	b := c.Brokers[0]
	push := func(n int) (int, string) {
		status, raw, err := Call(t.Context(), h, "POST", b.Direct+"/api/v1/push",
			fmt.Sprintf(`{"items":[{"queue":"lost","partition":"p","transactionId":"m%d","payload":%d}]}`, n, n))
		if err != nil {
			t.Fatal(err)
		}
		return status, string(raw)
	}
	push(0) // queue, partition and statements are known from here on
	unknown := 0
	for n := 1; n <= 10; n++ {
		before, err := c.Primary().Int("SELECT count(*) FROM queen.message_ids")
		if err != nil {
			t.Fatal(err)
		}
		b.DB[0].LoseAnswers(1)
		status, answer := push(n)
		if err := b.DB[0].Heal(); err != nil {
			t.Fatal(err)
		}
		after, err := c.Primary().Int("SELECT count(*) FROM queen.message_ids")
		if err != nil {
			t.Fatal(err)
		}
		// A background statement may have lost its answer instead.
		if status == http.StatusCreated {
			continue
		}
		if status != http.StatusServiceUnavailable {
			t.Errorf("push without an answer of the database: %d %s", status, answer)
		}
		if after == before+1 {
			unknown++
			if status, answer := push(n); status != http.StatusCreated || !json.Valid([]byte(answer)) || !strings.Contains(answer, `"duplicate"`) {
				t.Errorf("the repeat of a push that was stored: %d %s", status, answer)
			}
			continue
		}
		push(n)
	}
	if unknown == 0 {
		t.Error("no answer was lost after a commit")
	}
	t.Logf("%d of 10 pushes were committed without an answer", unknown)
}

// TestConnections breaks each kind of connection in each way under traffic.
func TestConnections(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	f := NewTraffic(c, "links", 6)
	f.AwaitAcks(time.Now(), 10*time.Second)
	b := c.Brokers[0]
	for _, l := range []*Link{c.Client, b.HTTP, b.DB[0], b.Hint} {
		for name, act := range map[string]func(){
			"cut":                  l.Cut,
			"away":                 func() { l.Away(); time.Sleep(300 * time.Millisecond) },
			"answers lost":         func() { l.LoseAnswers(2); time.Sleep(200 * time.Millisecond) },
			"nothing is sent":      func() { l.noAsk.Store(true); time.Sleep(300 * time.Millisecond) },
			"nothing arrives":      func() { l.noTell.Store(true); time.Sleep(300 * time.Millisecond) },
			"slow":                 func() { l.delay.Store(int64(100 * time.Millisecond)); time.Sleep(300 * time.Millisecond) },
			"servers hear the end": func() { l.HalfClose(true); time.Sleep(100 * time.Millisecond) },
			"clients hear the end": func() { l.HalfClose(false); time.Sleep(100 * time.Millisecond) },
		} {
			c.Note("%s: %s", l.Name, name)
			act()
			if err := l.Heal(); err != nil {
				t.Fatal(err)
			}
			if took := f.AwaitAcks(time.Now(), 15*time.Second); took > 10*time.Second {
				t.Errorf("%s, %s: writes again after %v", l.Name, name, took)
			}
		}
	}
	f.Finish(20 * time.Second)
}

// TestRedisGone takes Redis away: hints get lost, messages do not.
func TestRedisGone(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	f := NewTraffic(c, "redis", 4)
	f.AwaitAcks(time.Now(), 10*time.Second)
	c.Note("redis is gone")
	if err := c.redis.proc.Stop(syscall.SIGKILL, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	h := client(t)
	// A consumer parked on one broker finds what came in through another.
	done := make(chan int, 1)
	go func() {
		status, _, _ := Call(context.Background(), h, "GET", c.Brokers[0].Direct+"/api/v1/pop/queue/unheard?wait=true&timeout=20000", nil)
		done <- status
	}()
	eventually(t, 10*time.Second, "the pop is parked", func() bool { return c.Brokers[0].parked(t, h) > 0 })
	time.Sleep(time.Second)
	must(t, h, 201, "POST", c.Brokers[1].Direct+"/api/v1/push", `{"items":[{"queue":"unheard","payload":1}]}`)
	pushed := time.Now()
	// POP_WAIT_MAX_INTERVAL_MS is a second.
	if status, took := <-done, time.Since(pushed); status != http.StatusOK || took > 3*time.Second {
		t.Errorf("without hints a message was found after %v, status %d", took, status)
	}
	f.AwaitAcks(time.Now(), 5*time.Second)
	if err := c.redis.start(); err != nil {
		t.Fatal(err)
	}
	c.Note("redis is back")
	time.Sleep(500 * time.Millisecond)
	f.Finish(20 * time.Second)
}

// TestPgBouncer runs every broker through a pooler in transaction mode.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Pooled: []int{0, 1}})
	f := NewTraffic(c, "pooled", 6)
	f.AwaitAcks(time.Now(), 10*time.Second)
	toolsWork(t, c)
	checkSeesPooler(t, c)
	time.Sleep(2 * time.Second)
	c.Note("pgbouncer restarts")
	if err := c.bouncer.proc.Stop(syscall.SIGKILL, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := c.bouncer.start(c.toPg.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Logf("writes again after %v", f.AwaitAcks(time.Now(), 10*time.Second))
	f.Finish(20 * time.Second)
	for _, b := range c.Brokers {
		if n := logged(c, b.Name, "level=ERROR"); n > 0 {
			t.Errorf("%s logged %d errors", b.Name, n)
		}
	}
}

// checkSeesPooler has the check tell a URL that fits the pooler from one that
// does not.
func checkSeesPooler(t *testing.T, c *Cluster) {
	t.Helper()
	b := *c.Brokers[0]
	if out, err := b.tool("check"); err != nil || !strings.Contains(out, "in transaction mode, which DATABASE_URL says") {
		t.Errorf("queen check: %v\n%s", err, out)
	}
	b.env = slices.Clone(b.env)
	for i, v := range b.env {
		b.env[i] = strings.Replace(v, "&default_query_exec_mode="+poolerMode, "", 1)
	}
	if out, err := b.tool("check"); err == nil || !strings.Contains(out, "add default_query_exec_mode=cache_describe") {
		t.Errorf("queen check without the parameter: %v\n%s", err, out)
	}
}

// logged counts the lines of a log that contain a text.
func logged(c *Cluster, name, text string) int {
	raw, _ := os.ReadFile(c.logFile(name))
	return strings.Count(string(raw), text)
}
