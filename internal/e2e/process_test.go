package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// process is a broker of its own, as an operator runs it.
type process struct {
	*Broker
	cmd  *exec.Cmd
	done chan error
}

// TestProcess runs what takes a real process. The binary is built once.
func TestProcess(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "queen")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/queen").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// One after the other: they measure.
	t.Run("killed with leases", func(t *testing.T) { killedWithLeases(t, bin) })
	t.Run("stopped with parked pops", func(t *testing.T) { stoppedWithParkedPops(t, bin) })
	t.Run("body over the limit", func(t *testing.T) { bodyOverTheLimit(t, bin) })
	t.Run("two thousand parked pops", func(t *testing.T) { manyParkedPops(t, bin) })
	t.Run("memory under load", func(t *testing.T) { memoryUnderLoad(t, bin) })
}

var listening = regexp.MustCompile(`broker is listening.* url=(\S+)`)

// serve starts a broker on a database and returns when it answers.
func serve(t *testing.T, bin, database string, env ...string) *process {
	t.Helper()
	cmd := exec.Command(bin, "serve")
	cmd.Env = append([]string{"DATABASE_URL=" + database, "PORT=0", "QUEEN_BIND_ADDR=127.0.0.1", "DB_POOL_SIZE=8"}, env...)
	logs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Broker: &Broker{t: t}, cmd: cmd, done: make(chan error, 1)}
	url, text := make(chan string, 1), &bytes.Buffer{}
	go func() {
		for lines := bufio.NewScanner(logs); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				url <- m[1]
			}
			fmt.Fprintln(text, lines.Text())
		}
		p.done <- cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		p.t.Logf("broker ended: %v", <-p.done)
		p.client.CloseIdleConnections()
		if t.Failed() {
			t.Logf("log of the broker:\n%s", text)
		}
	})
	p.client = &http.Client{Timeout: 90 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	select {
	case p.URL = <-url:
	case <-time.After(30 * time.Second):
		t.Fatal("broker did not start")
	}
	return p
}

// ended waits for the process and returns its exit code.
func (p *process) ended(within time.Duration) int {
	select {
	case err := <-p.done:
		p.done <- err
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		return 0
	case <-time.After(within):
		p.t.Fatalf("broker still runs after %v", within)
		return -1
	}
}

// memory reads a field of the process's status, in bytes.
func (p *process) memory(field string) int {
	p.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if name, value, _ := strings.Cut(line, ":"); name == field {
			kb, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				p.t.Fatal(err)
			}
			return kb << 10
		}
	}
	p.t.Fatalf("no %s in the status", field)
	return 0
}

func killedWithLeases(t *testing.T, bin string) {
	db := pgtest.New(t)
	doomed, other := serve(t, bin, db.URL), serve(t, bin, db.URL)
	doomed.PushN("q", "", "m", 10)
	leased := time.Now() // or a little later
	if got := doomed.Pop("q", "batch=6&leaseSeconds=2"); len(got.IDs()) != 6 {
		t.Fatalf("got %v", got.IDs())
	}
	if err := doomed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := other.Pop("q", ""); got != nil {
		t.Errorf("delivered while leased: %v", got.IDs())
	}
	got := other.Pop("q", "wait=true&timeout=10000")
	if took := time.Since(leased); took < 2*time.Second || took > 6*time.Second {
		t.Errorf("came back after %v, want the lease of 2 s", took)
	}
	if len(got.IDs()) != 10 || got.Messages[0].DeliveryAttempt != 2 {
		t.Errorf("came back: %v, attempt %d", got.IDs(), got.Messages[0].DeliveryAttempt)
	}
	other.AckAll(got)
}

func stoppedWithParkedPops(t *testing.T, bin string) {
	p := serve(t, bin, pgtest.New(t).URL)
	const pops = 100
	var wg sync.WaitGroup
	var empty atomic.Int64
	for i := range pops {
		wg.Go(func() {
			status, _, answer, err := p.Try(context.Background(), "GET", fmt.Sprintf("/api/v1/pop/queue/q%d?wait=true&timeout=60000", i%10), nil)
			if err != nil || status != http.StatusNoContent {
				t.Errorf("parked pop: %d %s %v", status, answer, err)
				return
			}
			empty.Add(1)
		})
	}
	awaitParked(t, p.Broker, pops)
	from := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	took := time.Since(from)
	// A connection on which nothing was asked yet is given five seconds.
	code := p.ended(10 * time.Second)
	t.Logf("%d parked pops answered in %v, ended after %v", empty.Load(), took, time.Since(from))
	if took > time.Second || code != 0 {
		t.Errorf("answered after %v, exit code %d", took, code)
	}
}

var parkedGauge = regexp.MustCompile(`(?m)^queen_parked_long_polls\{[^}]*\} (\d+)$`)

// awaitParked waits until a broker has n parked pops, over all queues.
func awaitParked(t *testing.T, b *Broker, n int) {
	t.Helper()
	eventually(t, func() bool {
		total := 0
		for _, m := range parkedGauge.FindAllSubmatch(b.Must(200, "GET", "/metrics/prometheus", nil), -1) {
			k, _ := strconv.Atoi(string(m[1]))
			total += k
		}
		return total >= n
	}, "%d parked pops", n)
}

// bodyOverTheLimit announces a body that is too large and never sends it: the
// answer must not wait for it.
func bodyOverTheLimit(t *testing.T, bin string) {
	p := serve(t, bin, pgtest.New(t).URL)
	c, err := net.Dial("tcp", strings.TrimPrefix(p.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	fmt.Fprintf(c, "POST /api/v1/push HTTP/1.1\r\nHost: queen\r\nContent-Length: %d\r\n\r\n{", 64<<20+1)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusRequestEntityTooLarge || !bytes.Contains(body, []byte(`"payload_too_large"`)) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

func manyParkedPops(t *testing.T, bin string) {
	p := serve(t, bin, pgtest.New(t).URL)
	const pops, queues = 2000, 20
	for i := range queues {
		p.Push(Item{Queue: fmt.Sprint("q", i)})
		p.AckAll(p.Pop(fmt.Sprint("q", i), ""))
	}
	before := p.memory("VmRSS")
	crowd := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: pops}}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	delivered := make(chan struct{}, pops)
	for i := range pops {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/api/v1/pop/queue/q%d?wait=true&timeout=60000&batch=1&autoAck=true", p.URL, i%queues), nil)
			res, err := crowd.Do(req)
			if err != nil {
				return
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode == http.StatusOK {
				delivered <- struct{}{}
			}
		})
	}
	awaitParked(t, p.Broker, pops)
	each := (p.memory("VmRSS") - before) / pops
	var worst time.Duration
	for i := range queues {
		from := time.Now()
		p.Push(Item{Queue: fmt.Sprint("q", i)})
		worst = max(worst, time.Since(from))
		await(t, delivered, "a delivery to a parked pop")
	}
	t.Logf("%d parked pops take %d bytes each; pushes beside them %v at the most", pops, each, worst)
	// The aim is 20 KB; docs/performance.md says where it stands. The bound is
	// wider than what is measured by what the garbage collector leaves about.
	if each > 40<<10 {
		t.Errorf("a parked pop takes %d bytes", each)
	}
	if worst > 500*time.Millisecond {
		t.Errorf("a push beside parked pops took %v", worst)
	}
	stop()
	wg.Wait()
	crowd.CloseIdleConnections()
}

// memoryUnderLoad pushes and pops large and small messages beside parked pops,
// as fast as they are answered.
func memoryUnderLoad(t *testing.T, bin string) {
	p := serve(t, bin, pgtest.New(t).URL)
	until := time.Now().Add(modelTime(t, 4*time.Second))
	ctx, stop := context.WithCancel(t.Context())
	var wg, idle sync.WaitGroup
	for i := range 500 {
		idle.Go(func() {
			_, _, _, _ = p.Try(ctx, "GET", fmt.Sprintf("/api/v1/pop/queue/idle%d?wait=true&timeout=60000", i%50), nil)
		})
	}
	var bytesIn, bytesOut, refused atomic.Int64
	load := func(n int, act func(i int)) {
		for i := range n {
			wg.Go(func() {
				for time.Now().Before(until) && !t.Failed() {
					act(i)
				}
			})
		}
	}
	push := func(queue string, size, items, i int) {
		all := make([]Item, items)
		for j := range all {
			all[j] = Item{Queue: queue, Partition: fmt.Sprint(i), Payload: []byte(`"` + strings.Repeat("x1y2", size/4) + `"`)}
		}
		body := PushBody(all...)
		switch status, _, answer := p.Do("POST", "/api/v1/push", body); status {
		case http.StatusCreated:
			bytesIn.Add(int64(len(body)))
		case http.StatusTooManyRequests, http.StatusServiceUnavailable:
			refused.Add(1)
			time.Sleep(100 * time.Millisecond)
		default:
			t.Errorf("push: %d %.200s", status, answer)
		}
	}
	// A deep backlog, and many who want much of it at once.
	for i := range 80 {
		push("deep", 128<<10, 24, i%16)
	}
	load(24, func(i int) { push("big", 4<<20, 1, i) })
	load(16, func(i int) { push("small", 256, 100, i) })
	for _, q := range []string{"deep", "big", "small"} {
		load(24, func(int) {
			status, _, answer := p.Do("GET", "/api/v1/pop/queue/"+q+"?batch=1000&partitions=8&autoAck=true&wait=true&timeout=500", nil)
			bytesOut.Add(int64(len(answer)))
			if status != http.StatusOK && status != http.StatusNoContent && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
				t.Errorf("pop: %d %.200s", status, answer)
			}
		})
	}
	wg.Wait()
	stop()
	idle.Wait()
	peak := p.memory("VmHWM")
	t.Logf("%d MiB in, %d MiB out, %d calls told to wait, %d MiB of memory at the most",
		bytesIn.Load()>>20, bytesOut.Load()>>20, refused.Load(), peak>>20)
	if peak > 256<<20 {
		t.Errorf("the broker took %d MiB", peak>>20)
	}
}
