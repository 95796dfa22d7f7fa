//go:build linux

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// client is for single calls through the balancer.
func client(t *testing.T) *http.Client {
	c := &http.Client{Timeout: 90 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func must(t *testing.T, client *http.Client, want int, method, url string, body any) []byte {
	t.Helper()
	status, raw, err := Call(context.Background(), client, method, url, body)
	if err != nil || status != want {
		t.Fatalf("%s %s: %d %.300s %v", method, url, status, raw, err)
	}
	return raw
}

var parkedGauge = regexp.MustCompile(`(?m)^queen_parked_long_polls\{[^}]*\} (\d+)$`)

func (b *Broker) parked(t *testing.T, client *http.Client) (n int) {
	t.Helper()
	for _, m := range parkedGauge.FindAllSubmatch(must(t, client, 200, "GET", b.Direct+"/metrics/prometheus", nil), -1) {
		k, _ := strconv.Atoi(string(m[1]))
		n += k
	}
	return n
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// TestStopWithParkedPops stops a broker whose consumers wait: all of them are
// answered within a second, the others go on waiting, and no message goes to
// somebody who has left.
func TestStopWithParkedPops(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	h := client(t)
	const pops = 60
	type answer struct {
		status int
		body   string
		err    error
		at     time.Time
	}
	answers := make(chan answer, pops)
	for range pops {
		go func() {
			status, raw, err := Call(context.Background(), h, "GET", c.URL+"/api/v1/pop/queue/parked?wait=true&timeout=45000&batch=1&autoAck=true", nil)
			answers <- answer{status, string(raw), err, time.Now()}
		}()
	}
	doomed, other := c.Brokers[0], c.Brokers[1]
	eventually(t, 15*time.Second, "all pops are parked", func() bool { return doomed.parked(t, h)+other.parked(t, h) == pops })
	leave := doomed.parked(t, h)
	if leave < pops/4 || leave > pops*3/4 {
		t.Errorf("the balancer gave %d of %d pops to one broker", leave, pops)
	}
	from := time.Now()
	if err := doomed.terminate(); err != nil {
		t.Fatal(err)
	}
	for i := range leave {
		select {
		case a := <-answers:
			if a.err != nil || a.status != http.StatusNoContent || a.at.Sub(from) > time.Second {
				t.Errorf("parked pop answered %d %s %v after %v", a.status, a.body, a.err, a.at.Sub(from))
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%d of %d parked pops were answered", i, leave)
		}
	}
	t.Logf("%d parked pops were answered within %v", leave, time.Since(from))
	if err := doomed.proc.End(10 * time.Second); err != nil {
		t.Error(err)
	}
	if code := doomed.proc.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	// One message for each that is left: none may go astray.
	var items []string
	for i := range pops - leave {
		items = append(items, fmt.Sprintf(`{"queue":"parked","partition":"p%d","payload":{"n":%d}}`, i, i))
	}
	must(t, h, 201, "POST", c.URL+"/api/v1/push", `{"items":[`+strings.Join(items, ",")+`]}`)
	for i := range pops - leave {
		select {
		case a := <-answers:
			if a.err != nil || a.status != http.StatusOK {
				t.Errorf("parked pop answered %d %s %v", a.status, a.body, a.err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%d of %d messages were delivered", i, pops-leave)
		}
	}
}

// TestBrokersComeAndGo kills, pauses and restarts brokers under traffic.
func TestBrokersComeAndGo(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Brokers: 3})
	f := NewTraffic(c, "brokers", 6)
	f.AwaitAcks(time.Now(), 10*time.Second)
	for i, act := range []func(b *Broker) error{
		func(b *Broker) error { return b.Restart(syscall.SIGKILL, 300*time.Millisecond) },
		func(b *Broker) error { return b.Restart(syscall.SIGTERM, 300*time.Millisecond) },
		func(b *Broker) error { // for longer than a lease
			return b.pause(4 * time.Second)
		},
	} {
		c.Note("act %d on %s", i, c.Brokers[i].Name)
		if err := act(c.Brokers[i]); err != nil {
			t.Fatal(err)
		}
		f.AwaitAcks(time.Now(), 10*time.Second)
	}
	f.Finish(20 * time.Second)
}

// TestClock runs a broker whose clock is ten minutes ahead and one whose clock
// is as much behind: only the database's clock counts.
func TestClock(t *testing.T) {
	t.Parallel()
	const off = 10 * time.Minute
	c := Start(t, Options{Brokers: 3, Offsets: map[int]time.Duration{1: off, 2: -off}})
	h := client(t)
	for i, want := range []time.Duration{0, off, -off} {
		res, err := h.Get(c.Brokers[i].Direct + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		date, err := http.ParseTime(res.Header.Get("Date"))
		if got := time.Until(date); err != nil || got < want-3*time.Second || got > want+3*time.Second {
			t.Fatalf("%s: the Date of its answer is %v off, want %v (%v)", c.Brokers[i].Name, got, want, err)
		}
	}
	f := NewTraffic(c, "clock", 6)
	f.AwaitAcks(time.Now(), 10*time.Second)
	// Leases and timers of brokers that disagree by twenty minutes.
	for i, b := range c.Brokers {
		q := fmt.Sprint("lease", i)
		must(t, h, 201, "POST", c.Brokers[(i+1)%3].Direct+"/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":1}]}`, q))
		must(t, h, 200, "GET", b.Direct+"/api/v1/pop/queue/"+q+"?leaseSeconds=2", nil)
		from := time.Now()
		next := c.Brokers[(i+2)%3]
		must(t, h, 204, "GET", next.Direct+"/api/v1/pop/queue/"+q, nil)
		must(t, h, 200, "GET", next.Direct+"/api/v1/pop/queue/"+q+"?wait=true&timeout=10000", nil)
		if took := time.Since(from); took < 1500*time.Millisecond || took > 4*time.Second {
			t.Errorf("a lease of 2 s that %s gave ended after %v for %s", b.Name, took, next.Name)
		}
		tq := fmt.Sprint("timer", i)
		from = time.Now()
		must(t, h, 200, "POST", b.Direct+"/api/v1/timers", fmt.Sprintf(`[{"op":"schedule","queue":%q,"timerKey":"k","delayMs":1500,"txn":"t","payload":"MQ=="}]`, tq))
		must(t, h, 200, "GET", next.Direct+"/api/v1/pop/queue/"+tq+"?wait=true&timeout=10000", nil)
		if took := time.Since(from); took < 1400*time.Millisecond || took > 4*time.Second {
			t.Errorf("a timer of 1.5 s that %s set fired after %v", b.Name, took)
		}
	}
	f.Finish(20 * time.Second)
}
