package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// scaleAgainst runs the program and returns its report, the plots and what it printed. Tests that call it keep the
// machine busy: they run one after the other, and not beside those that may not take long.
func scaleAgainst(t *testing.T, want int, args ...string) (rep *scaleReport, svg, out string) {
	t.Helper()
	dir := t.TempDir()
	jsonFile, svgFile := filepath.Join(dir, "out.json"), filepath.Join(dir, "out.svg")
	var stdout, stderr bytes.Buffer
	args = append([]string{"scale"}, args...)
	args = append(args, "--quiet", "--warm-up", "100ms", "--json", jsonFile, "--svg", svgFile)
	if got := realMain(args, &stdout, &stderr); got != want {
		t.Fatalf("%s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, want, &stdout, &stderr)
	}
	b, err := os.ReadFile(jsonFile)
	if err != nil {
		t.Fatal(err)
	}
	rep = &scaleReport{}
	if err := json.Unmarshal(b, rep); err != nil {
		t.Fatal(err)
	}
	b, err = os.ReadFile(svgFile)
	if err != nil {
		t.Fatal(err)
	}
	return rep, string(b), stdout.String()
}

func (r *scaleReport) phaseNames() []string {
	var names []string
	for _, p := range r.Phases {
		names = append(names, p.Name)
	}
	return names
}

func (r *scaleReport) outcome(t *testing.T, what string) outcome {
	t.Helper()
	for _, o := range r.Outcomes {
		if strings.HasPrefix(o.What, what) {
			return o
		}
	}
	t.Fatalf("no outcome %q in %+v", what, r.Outcomes)
	return outcome{}
}

func TestScaleScenariosOverAFake(t *testing.T) {
	for _, c := range []struct {
		args   string
		phases []string
		what   string
	}{
		{
			"partitions --size 250 --duration 300ms --producers 2 --consumers 2",
			[]string{"100 partitions", "making 250 partitions", "first read of each", "250 partitions", "100 partitions, again"},
			"acknowledged",
		},
		{
			"queues --size 12 --duration 300ms --producers 2",
			[]string{"first message of each", "first read of each", "12 queues", "12 queues", "12 queues, again"},
			"acknowledged",
		},
		{
			"groups --size 7 --duration 300ms --partitions 5 --max-lag 500 --producers 2 --consumers 2",
			[]string{"1 group", "7 groups", "1 group, again"},
			"pushed",
		},
		{
			"backlog --size 5000 --partitions 20 --batch 50",
			[]string{"pushing 100", "reading 100", "pushing 5000", "reading 5000"},
			"read and acknowledged",
		},
		{
			"parked --size 40 --duration 2500ms --rate 500 --partitions 10",
			[]string{"without parked pops", "with 40 parked pops", "without again"},
			"memory of a parked pop",
		},
	} {
		t.Run(strings.Fields(c.args)[0], func(t *testing.T) {
			f, url := startFake(t)
			rep, svg, out := scaleAgainst(t, exitOK, append(strings.Fields(c.args), "--url", url)...)
			if !rep.OK || !slices.Equal(rep.phaseNames(), c.phases) {
				t.Errorf("OK %v, phases %q\n%s", rep.OK, rep.phaseNames(), out)
			}
			if o := rep.outcome(t, c.what); o.Measured <= 0 {
				t.Errorf("outcome %+v", o)
			}
			if !strings.Contains(out, c.what) || !strings.Contains(svg, "<svg") {
				t.Errorf("the report lacks its outcome or its plots:\n%s", out)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			for queue := range f.configured {
				if !slices.Contains(f.deleted, queue) {
					t.Errorf("queue %s left behind", queue)
				}
			}
		})
	}
}

// The large phase goes on with the partitions that were made before: each got its first message there.
func TestScalePartitionsAreAllThere(t *testing.T) {
	f, url := startFake(t)
	rep, svg, _ := scaleAgainst(t, exitOK, "partitions", "--size", "1500", "--duration", "300ms", "--baseline-duration", "300ms", "--url", url)
	f.mu.Lock()
	made := map[string]int{}
	for _, p := range f.order {
		made[p.queue]++
	}
	f.mu.Unlock()
	if most := slices.Max(slices.Collect(maps.Values(made))); most != 1500 || len(made) != 2 {
		t.Errorf("partitions by queue: %v, want 1500 in one of two", made)
	}
	fill, read, large := rep.Phases[1], rep.Phases[2], rep.Phases[3]
	if fill.Checks.Pushed != 1500 || read.Checks.Groups[0].Delivered != 1500 {
		t.Errorf("made %d, read %d, want 1500", fill.Checks.Pushed, read.Checks.Groups[0].Delivered)
	}
	if !strings.Contains(svg, panelRate) || !strings.Contains(svg, panelPush) {
		t.Error("the plots lack rate or latency")
	}
	if large.Steady == nil || large.Steady.Ack <= 0 || large.Checks.Groups[0].Delivered != large.Checks.Pushed {
		t.Errorf("%+v, %+v", large.Steady, large.Checks)
	}
}

func TestScaleSeesFaults(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(f *fakeBroker)
		args   string
		broken func(g groupCheck) bool
	}{
		"loss in a backlog": {
			func(f *fakeBroker) { f.swallow = func(m *fakeMessage) bool { return m.offset == 3 } },
			"backlog --size 200 --partitions 4 --batch 10 --drain-timeout 100ms --patience 200ms",
			func(g groupCheck) bool { return g.Lost > 0 },
		},
		"loss while measuring": {
			func(f *fakeBroker) { f.swallow = func(m *fakeMessage) bool { return m.offset == 30 } },
			"groups --size 2 --duration 300ms --drain-timeout 100ms",
			func(g groupCheck) bool { return g.Lost > 0 },
		},
		"disorder": {
			func(f *fakeBroker) {
				f.deliver = func(batch []*fakeMessage) []*fakeMessage { slices.Reverse(batch); return batch }
			},
			"groups --size 2 --duration 300ms",
			func(g groupCheck) bool { return g.Disorder > 0 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, url := startFake(t)
			c.spoil(f)
			rep, _, out := scaleAgainst(t, exitFailed, append(strings.Fields(c.args), "--url", url)...)
			seen := false
			for _, p := range rep.Phases {
				for _, g := range p.Checks.Groups {
					seen = seen || c.broken(g)
				}
			}
			if rep.OK || !seen || !strings.Contains(out, "FAILED") {
				t.Errorf("OK %v\n%s", rep.OK, out)
			}
		})
	}
}

// A parked pop that is answered with anything but 204 is a failure the report names.
func TestParkedPopsTellOfFailures(t *testing.T) {
	f, url := startFake(t)
	f.refuse = func(r *http.Request) bool { return r.URL.Query().Get("consumerGroup") == "parked" }
	rep, _, _ := scaleAgainst(t, exitOK, "parked", "--size", "5", "--duration", "300ms", "--rate", "100", "--patience", "100ms", "--url", url)
	if !slices.ContainsFunc(rep.Notes, func(n string) bool { return strings.Contains(n, "a parked pop failed") && strings.Contains(n, "503") }) {
		t.Errorf("notes %q", rep.Notes)
	}
	if !slices.ContainsFunc(rep.Notes, func(n string) bool { return strings.HasPrefix(n, "0 pops were parked") }) {
		t.Errorf("notes %q", rep.Notes)
	}
}

func TestScaleFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"", "--size 3", "nothing", "snapshot", "retention", "partitions --size 0", "groups --duration 10ms", "parked extra",
		"backlog --batch 0", "queues --max-lag 0", "groups --rate -1",
	} {
		if _, err := parseScaleFlags(strings.Fields(args), &bytes.Buffer{}); err == nil {
			t.Errorf("%q accepted", args)
		}
	}
	for _, s := range scenarios() {
		c, err := parseScaleFlags([]string{s.name, "--database-url", "postgres://x"}, &bytes.Buffer{})
		if err != nil || c.size < 1 || c.run.duration <= 0 || c.baseline <= 0 {
			t.Errorf("%s with its defaults: %+v, %v", s.name, c, err)
		}
	}
	var out bytes.Buffer
	if code := realMain([]string{"scale", "--help"}, &out, &out); code != exitOK || !strings.Contains(out.String(), "retention") {
		t.Errorf("help: exit %d\n%s", code, &out)
	}
}

func TestOutcomesAreJudged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o     outcome
		ratio float64
		met   string
	}{
		{outcome{Baseline: 100, Measured: 71, AtLeast: 0.7}, 0.71, "true"},
		{outcome{Baseline: 100, Measured: 69, AtLeast: 0.7}, 0.69, "false"},
		{outcome{Baseline: 0, Measured: 69, AtLeast: 0.7}, 0, "false"},
		{outcome{Baseline: 2, Measured: 4, AtMost: 2}, 2, "true"},
		{outcome{Baseline: 2, Measured: 5, AtMost: 2}, 2.5, "false"},
		{outcome{Baseline: 0, Measured: 5, AtMost: 2}, 0, "false"},
		{outcome{Measured: 20481, AtMostValue: 20480}, 0, "false"},
		{outcome{Measured: 20480, AtMostValue: 20480}, 0, "true"},
		{outcome{Baseline: 4, Measured: 1}, 0.25, "none"},
	} {
		r := &scaleReport{}
		r.add(c.o)
		got, met := r.Outcomes[0], "none"
		if got.Met != nil {
			met = strconv.FormatBool(*got.Met)
		}
		if got.Ratio != c.ratio || met != c.met {
			t.Errorf("%+v: ratio %g met %s, want %g %s", c.o, got.Ratio, met, c.ratio, c.met)
		}
	}
}

func TestPlotLeavesOutWhereThingsAre(t *testing.T) {
	t.Parallel()
	r := &scaleReport{Command: strings.Fields("loadtest scale groups --url http://secret --database-url=postgres://secret --size 5 --svg secret")}
	if got := strings.Join(r.publicCommand(), " "); got != "loadtest scale groups --size 5" {
		t.Errorf("got %q", got)
	}
}

func TestPlotsShowTheLargestTables(t *testing.T) {
	t.Parallel()
	r := &scaleReport{Scenario: "partitions"}
	for i := range 8 {
		points := [][2]float64{{1, 1}, {2, float64(1000 * i)}, {200, float64(1000 * i)}}
		r.Series = append(r.Series, &series{Panel: panelHeap, Name: fmt.Sprintf("t%d", i), Unit: unitBytes, Points: points})
	}
	r.Series = worthShowing(r.Series)
	if len(r.Series) != 7 {
		t.Errorf("%d tables kept, want 7: one is tiny", len(r.Series))
	}
	p, found := r.panel(panelHeap)
	if !found || len(p.Series) != maxLines || p.Series[0].Name != "t7" {
		t.Errorf("panel %+v", p)
	}
	if n := len(p.Series[0].X); n != 4 {
		t.Errorf("%d points, want 4: the line breaks where nothing is known", n)
	}
	if _, found := r.panel(panelMemory); found {
		t.Error("a panel without samples")
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v    []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(c.v); got != c.want {
			t.Errorf("%v: %g, want %g", c.v, got, c.want)
		}
	}
}

// An interrupt ends the run and leaves the report of what there was.
func TestScaleInterrupted(t *testing.T) {
	f, url := startFake(t)
	c, err := parseScaleFlags([]string{"groups", "--size", "3", "--duration", "20s", "--warm-up", "100ms", "--quiet", "--url", url}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	rep, err := runScale(ctx, c, t.Output())
	if !errors.Is(err, errInterrupted) || rep == nil || rep.Complete || !rep.OK || len(rep.Phases) != 1 {
		t.Fatalf("%v, report %+v", err, rep)
	}
	var out bytes.Buffer
	if rep.print(&out); !strings.Contains(out.String(), "ENDED EARLY") {
		t.Errorf("printed\n%s", &out)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.deleted) != 2 {
		t.Errorf("deleted %v, want both queues gone", f.deleted)
	}
}
