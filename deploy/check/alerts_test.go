package check

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	plabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"sigs.k8s.io/yaml"
)

var promQL = parser.NewParser(parser.Options{})

// alerts reads the rules as Prometheus does: expressions and templates included.
func alerts(t *testing.T) *rulefmt.RuleGroups {
	t.Helper()
	groups, errs := rulefmt.Parse(readFile(t, "deploy/monitoring/alerts.yaml"), false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	return groups
}

func TestAlertsAreComplete(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			if seen[r.Alert] || !strings.HasPrefix(r.Alert, "Queen") {
				t.Errorf("name %q", r.Alert)
			}
			seen[r.Alert] = true
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
				t.Errorf("%s has severity %q", r.Alert, r.Labels["severity"])
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s does not say what is wrong", r.Alert)
			}
		}
	}
	docs := string(readFile(t, "docs/operations.md"))
	for name := range seen {
		if !strings.Contains(docs, "`"+name+"`") {
			t.Errorf("docs/operations.md does not say what to do about %s", name)
		}
	}
}

// ruleTests has the form that `promtool test rules` reads.
type ruleTests struct {
	RuleFiles          []string `json:"rule_files"`
	EvaluationInterval string   `json:"evaluation_interval"`
	Tests              []struct {
		Name        string `json:"name"`
		Interval    string `json:"interval"`
		InputSeries []struct {
			Series string `json:"series"`
			Values string `json:"values"`
		} `json:"input_series"`
		AlertRuleTest []struct {
			EvalTime  string `json:"eval_time"`
			Alertname string `json:"alertname"`
			ExpAlerts []struct {
				ExpLabels map[string]string `json:"exp_labels"`
			} `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

func TestAlertsFire(t *testing.T) {
	t.Parallel()
	var file ruleTests
	if err := yaml.UnmarshalStrict(readFile(t, "deploy/monitoring/alerts_test.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	rules := map[string]rulefmt.Rule{}
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			rules[r.Alert] = r
		}
	}
	fired, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		series := load(t, duration(t, test.Interval), func(yield func(series, values string)) {
			for _, s := range test.InputSeries {
				yield(s.Series, s.Values)
			}
		})
		for _, check := range test.AlertRuleTest {
			rule, ok := rules[check.Alertname]
			if !ok {
				t.Fatalf("%s: no alert %s", test.Name, check.Alertname)
			}
			var want []string
			for _, e := range check.ExpAlerts {
				want = append(want, fmt.Sprint(e.ExpLabels))
			}
			got := firing(t, series, rule, duration(t, check.EvalTime), duration(t, file.EvaluationInterval))
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s, %s at %s: got %v, want %v", test.Name, check.Alertname, check.EvalTime, got, want)
			}
			if len(want) > 0 {
				fired[check.Alertname] = true
			} else {
				quiet[check.Alertname] = true
			}
		}
	}
	for name := range rules {
		if !fired[name] || !quiet[name] {
			t.Errorf("%s: tested firing %v, tested quiet %v", name, fired[name], quiet[name])
		}
	}
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := model.ParseDuration(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return time.Duration(d)
}

// firing lists the labels of the alerts of a rule that have held for as long as
// the rule wants at an instant, as Prometheus would see them.
func firing(t *testing.T, series memory, rule rulefmt.Rule, at, step time.Duration) []string {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: promQL})
	defer engine.Close()
	since := map[string]time.Duration{}
	for now := time.Duration(0); now <= at; now += step {
		q, err := engine.NewInstantQuery(t.Context(), series, nil, rule.Expr, time.UnixMilli(now.Milliseconds()))
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		vector, err := q.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		active := map[string]time.Duration{}
		for _, sample := range vector {
			set := sample.Metric.Map()
			delete(set, "__name__")
			maps.Copy(set, rule.Labels)
			key := fmt.Sprint(set)
			active[key] = now
			if before, ok := since[key]; ok {
				active[key] = before
			}
		}
		q.Close()
		since = active
	}
	var out []string
	for key, start := range since {
		if at-start >= time.Duration(rule.For) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// memory is a database of series for the engine to query.
type memory []promql.Series

// load reads the notation of promtool: 0+10x5 is six samples that rise by 10.
func load(t *testing.T, interval time.Duration, each func(yield func(series, values string))) memory {
	t.Helper()
	var all memory
	each(func(series, values string) {
		set, list, err := promQL.ParseSeriesDesc(series + " " + values)
		if err != nil {
			t.Fatalf("%s: %v", series, err)
		}
		s := promql.Series{Metric: set}
		for i, v := range list {
			if !v.Omitted {
				s.Floats = append(s.Floats, promql.FPoint{T: (time.Duration(i) * interval).Milliseconds(), F: v.Value})
			}
		}
		all = append(all, s)
	})
	return all
}

func (m memory) Querier(int64, int64) (storage.Querier, error) { return m, nil }

func (m memory) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*plabels.Matcher) storage.SeriesSet {
	found := &found{at: -1}
	for _, s := range m {
		if !slices.ContainsFunc(matchers, func(one *plabels.Matcher) bool { return !one.Matches(s.Metric.Get(one.Name)) }) {
			found.series = append(found.series, s)
		}
	}
	return found
}

func (memory) LabelValues(context.Context, string, *storage.LabelHints, ...*plabels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (memory) LabelNames(context.Context, *storage.LabelHints, ...*plabels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (memory) Close() error { return nil }

type found struct {
	series []promql.Series
	at     int
}

func (f *found) Next() bool                        { f.at++; return f.at < len(f.series) }
func (f *found) At() storage.Series                { return promql.NewStorageSeries(f.series[f.at]) }
func (f *found) Err() error                        { return nil }
func (f *found) Warnings() annotations.Annotations { return nil }
