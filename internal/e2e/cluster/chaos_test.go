//go:build linux

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What a run is told by the environment.
const (
	envSeed    = "CLUSTER_SEED"    // the first seed; by default a new one each time
	envSeeds   = "CLUSTER_SEEDS"   // how many, one after the other
	envFor     = "CLUSTER_FOR"     // or for how long to go on, such as 4h
	envSeconds = "CLUSTER_SECONDS" // of load and faults for each seed
)

// TestChaos runs loadtest's verifying workload, with transactions, timers and
// two groups, through nginx against an installation that is being broken, and
// lets its checker judge what the clients saw.
func TestChaos(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(envSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
	}
	seeds := number(t, envSeeds, 1)
	length := time.Duration(number(t, envSeconds, 12)) * time.Second
	var until time.Time
	if text := os.Getenv(envFor); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", envFor, err)
		}
		until = time.Now().Add(d)
	}
	total := &tally{faults: map[string]int{}, messages: map[string]int64{}}
	for n := 0; n < seeds || time.Now().Before(until); n++ {
		s := seed + uint64(n)
		if !t.Run(fmt.Sprint("seed ", s), func(t *testing.T) { chaos(t, s, length, total) }) {
			break // the next seeds would only push the first failure out of sight
		}
	}
	t.Logf("%d seeds from %d: %s", total.runs, seed, total)
}

// number reads a variable.
func number(t *testing.T, name string, byDefault int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number above 0", name, text)
	}
	return n
}

// tally adds up what runs did.
type tally struct {
	runs       int
	faults     map[string]int
	messages   map[string]int64
	operations int64
	unknown    int64
	violations int
}

func (y *tally) String() string {
	faults := 0
	text := ""
	for _, name := range slices.Sorted(maps.Keys(y.faults)) {
		faults += y.faults[name]
		text += fmt.Sprintf(", %s %d", name, y.faults[name])
	}
	return fmt.Sprintf("messages %v, %d operations, %d of them without a known outcome, %d violations, %d faults%s",
		y.messages, y.operations, y.unknown, y.violations, faults, text)
}

// summary is the part of loadtest's that is read here.
type summary struct {
	Messages   map[string]int64
	Operations struct{ Operations, Unknown, Retries int64 }
	Drained    bool
	Violations int
	Undecided  []string
	OK         bool
}

// installation draws what there is to break: three brokers, mostly one of them
// behind PgBouncer and one with a clock that is minutes off.
func installation(seed uint64) Options {
	r := rand.New(rand.NewPCG(seed, 100))
	o := Options{Brokers: 3, Standby: true}
	if r.IntN(3) > 0 {
		o.Pooled = []int{2}
	}
	if r.IntN(3) > 0 {
		off := 2*time.Minute + randomly(r, 13*time.Minute).Round(time.Second)
		if r.IntN(2) == 0 {
			off = -off
		}
		o.Offsets = map[int]time.Duration{1: off}
	}
	return o
}

func chaos(t *testing.T, seed uint64, length time.Duration, total *tally) {
	bin, err := Built("loadtest")
	if err != nil {
		t.Fatal(err)
	}
	o := installation(seed)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with %s=%d %s=%d go test -run TestChaos ./internal/e2e/cluster", envSeed, seed, envSeconds, int(length.Seconds()))
		}
	})
	c := Start(t, o)
	c.Note("seed %d, behind PgBouncer: %v, clocks off by %v", seed, o.Pooled, o.Offsets)
	result := filepath.Join(c.dir, "summary.json")
	load, err := c.launcher.start(program{
		name: "loadtest", dir: c.dir, log: c.logFile("loadtest"), onDeath: syscall.SIGKILL,
		command: []string{
			bin, "verify", "--url", c.URL, "--seed", fmt.Sprint(seed), "--duration", length.String(), "--quiet", "--keep",
			"--history", filepath.Join(c.dir, "logs", "history.jsonl"), "--json", result, "--lease", "3s", "--timeout", "6s", "--drain-timeout", "60s",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	x := NewChaos(c, seed)
	time.Sleep(length)
	faults, errs := x.Finish()
	for _, err := range errs {
		t.Errorf("a fault could not be mended: %v", err)
	}
	c.Note("all faults are mended")
	if err := load.End(150 * time.Second); err != nil {
		t.Error(err)
	}
	c.Note("loadtest ended")
	printed, _ := os.ReadFile(c.logFile("loadtest"))
	var s summary
	raw, err := os.ReadFile(result)
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	var exit *exec.ExitError
	if err != nil || errors.As(load.err, &exit) || !s.OK || !s.Drained {
		t.Errorf("seed %d: loadtest verify: %v, %v\n%s", seed, load.err, err, printed)
	}
	consistent(t, c)
	sound(t, c)
	total.add(faults, s)
	t.Logf("seed %d: %v; %s; faults %v", seed, o, lastLine(printed), faults)
}

func (y *tally) add(faults map[string]int, s summary) {
	y.runs++
	for name, n := range faults {
		y.faults[name] += n
	}
	for role, n := range s.Messages {
		y.messages[role] += n
	}
	y.operations += s.Operations.Operations
	y.unknown += s.Operations.Unknown
	y.violations += s.Violations
}

func lastLine(raw []byte) string {
	lines := slices.DeleteFunc(strings.Split(string(raw), "\n"), func(l string) bool { return l == "" })
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// mostMemory bounds a broker at work while others are down, O5; one built with
// the race detector takes several times as much.
const mostMemory = 300 << 20

// sound asks the brokers themselves: none has panicked, raced, met an error of
// its own, or grown.
func sound(t *testing.T, c *Cluster) {
	t.Helper()
	for _, b := range c.Brokers {
		if !b.proc.Running() {
			t.Errorf("nobody stopped it: %v", b.proc.ended())
			continue
		}
		for _, text := range []string{"DATA RACE", "panic: ", "level=ERROR"} {
			if n := logged(c, b.Name, text); n > 0 {
				t.Errorf("the log of %s has %q %d times", b.Name, text, n)
			}
		}
		peak, err := b.proc.peakMemory()
		if err != nil || peak > mostMemory && os.Getenv(raceFlag) == "" {
			t.Errorf("%s took %d MiB (%v)", b.Name, peak>>20, err)
		}
	}
}

// consistent asks the database, past the brokers, whether it contradicts itself.
func consistent(t *testing.T, c *Cluster) {
	t.Helper()
	for what, query := range map[string]string{
		"cursors that nothing would ever make claimable": `SELECT count(*) FROM queen.cursors c JOIN queen.partitions p ON p.queue_id = c.queue_id AND p.id = c.partition_id
			WHERE c.ready_at IS NULL AND (p.last_offset <> c.committed OR c.lease_id IS NOT NULL)`,
		"cursors too many of a group in a partition": `SELECT count(*) FROM (SELECT 1 FROM queen.cursors GROUP BY queue_id, partition_id, group_id HAVING count(*) > 1) twice`,
		"partitions whose messages are not numbered without gaps": `SELECT count(*) FROM queen.partitions p, LATERAL (
			SELECT coalesce(sum(message_count), 0) n, coalesce(max(end_offset), -1) last FROM queen.segments s
			WHERE s.queue_id = p.queue_id AND s.partition_id = p.id) s WHERE s.n <> s.last + 1 OR s.last <> p.last_offset`,
		"ids that stand for two messages": `SELECT count(*) FROM (SELECT 1 FROM queen.message_ids GROUP BY queue_id, partition_id, id_hash HAVING count(*) > 1) twice`,
	} {
		if n, err := c.Primary().Int(query); err != nil || n > 0 {
			t.Errorf("%d %s (%v)", n, what, err)
		}
	}
}
