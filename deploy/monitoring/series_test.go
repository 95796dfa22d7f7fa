// Package monitoring has the alerts and the dashboard. This test holds them to
// what brokers export: a series that nobody sends makes an alert that never
// fires, and nothing tells of it.
package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/queenmq-go/queenmq/internal/obs"
)

// family is what is known of a metric: its labels, and whether it is a
// histogram, which has no series of its own name.
type family struct {
	labels    []string
	histogram bool
}

var describe = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// exported collects what a broker describes, so that a family counts also while
// nothing has happened that it counts.
func exported(t *testing.T) map[string]family {
	t.Helper()
	reg := prometheus.NewRegistry()
	m := obs.NewMetrics(reg)
	// A histogram with labels shows that it is one once it has a value.
	m.GatherFired("push", 1, time.Millisecond)
	m.Request("GET", "/health", 200, time.Millisecond)
	m.SetParked(func() map[string]int { return map[string]int{"q": 1} })

	out := map[string]family{}
	descs := make(chan *prometheus.Desc, 1000)
	go func() { defer close(descs); reg.Describe(descs) }()
	for d := range descs {
		found := describe.FindStringSubmatch(d.String())
		if found == nil {
			t.Fatalf("cannot read %s", d)
		}
		f := out[found[1]]
		for label := range strings.SplitSeq(found[2], ",") {
			if label = strings.TrimSpace(label); label != "" {
				f.labels = append(f.labels, label)
			}
		}
		out[found[1]] = f
	}
	gathered, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gathered {
		f, ok := out[g.GetName()]
		if !ok && strings.HasPrefix(g.GetName(), "queen_") {
			t.Fatalf("%s is exported and not described", g.GetName())
		}
		f.histogram = g.GetType() == dto.MetricType_HISTOGRAM
		for _, series := range g.GetMetric() {
			for _, l := range series.GetLabel() {
				f.labels = append(f.labels, l.GetName())
			}
			if g.GetType() == dto.MetricType_SUMMARY {
				f.labels = append(f.labels, "quantile")
			}
		}
		out[g.GetName()] = f
	}
	if len(out) < 25 {
		t.Fatalf("only %d families: they were not collected", len(out))
	}
	return out
}

// The scrape itself adds these.
var scraped = []string{"job", "instance"}

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	selector = regexp.MustCompile(`\b([a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	series   = regexp.MustCompile(`^(queen|go|process)_`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
)

// wrong lists what an expression uses and nobody exports.
func wrong(known map[string]family, expr string) []string {
	var faults []string
	labels := slices.Clone(scraped)
	expr = quoted.ReplaceAllString(expr, `""`)
	for _, use := range selector.FindAllStringSubmatch(expr, -1) {
		name := use[1]
		if !series.MatchString(name) {
			continue
		}
		f, ok := known[name]
		own := slices.Concat(scraped, f.labels)
		if !ok || f.histogram {
			base := name
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, part)
			}
			if f = known[base]; base == name || !f.histogram {
				faults = append(faults, name)
				continue
			}
			own = slices.Concat(scraped, f.labels, []string{"le"})
		}
		labels = append(labels, own...)
		for _, m := range matcher.FindAllStringSubmatch(use[2], -1) {
			if !slices.Contains(own, m[1]) {
				faults = append(faults, name+"{"+m[1]+"}")
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !slices.Contains(labels, label) {
				faults = append(faults, "by ("+label+")")
			}
		}
	}
	return faults
}

func TestAlertsUseWhatIsExported(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	known, seen := exported(t), 0
	// An expression is on the line of its key, or indented below it.
	for _, expr := range regexp.MustCompile(`(?m)^ +expr: (.*(?:\n {10}.*)*)`).FindAllSubmatch(raw, -1) {
		seen++
		for _, fault := range wrong(known, string(expr[1])) {
			t.Errorf("%s is not exported, but used in\n%s", fault, expr[1])
		}
	}
	if want := strings.Count(string(raw), "- alert:"); seen != want || seen == 0 {
		t.Errorf("%d expressions of %d alerts were read", seen, want)
	}
}

func TestDashboardUsesWhatIsExported(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(raw, &dashboard); err != nil {
		t.Fatal(err)
	}
	known := exported(t)
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			for _, fault := range wrong(known, q.Expr) {
				t.Errorf("%s: %s is not exported", p.Title, fault)
			}
		}
	}
}

// TestWrong makes sure that the two tests above can fail.
func TestWrong(t *testing.T) {
	t.Parallel()
	known := exported(t)
	for expr, want := range map[string]string{
		`rate(queen_dlq_total{job="queenmq"}[5m])`:                              "",
		`sum by (job, le) (rate(queen_request_seconds_bucket{route="a"}[5m]))`:  "",
		`queen_db_pool_active / queen_db_pool_size > 0.8`:                       "",
		`go_gc_duration_seconds{quantile="1"}`:                                  "",
		`rate(queen_dlq_count_total[5m])`:                                       "queen_dlq_count_total",
		`queen_request_seconds`:                                                 "queen_request_seconds",
		`queen_dlq_total_bucket`:                                                "queen_dlq_total_bucket",
		`queen_dlq_total{queue="q"}`:                                            "queen_dlq_total{queue}",
		`sum by (queue) (queen_dlq_total)`:                                      "by (queue)",
		`queen_request_seconds_count{status="queen_nothing{a=b}",route="x{y}"}`: "queen_request_seconds_count{status}",
	} {
		if got := strings.Join(wrong(known, expr), " "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}
