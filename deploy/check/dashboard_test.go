package check

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	GridPos struct{ H, W, X, Y int } `json:"gridPos"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

// grafana fills in the variables as Grafana does, with something that parses.
var grafana = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")

func TestDashboard(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal(readFile(t, "deploy/monitoring/dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	var rows []string
	ids := map[int]bool{}
	for i, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("%s: id %d is taken", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, other := range dashboard.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s lies over %s", p.Title, other.Title)
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%s: description %q, unit %q, %d queries", p.Title, p.Description, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		for _, q := range p.Targets {
			expr := grafana.Replace(q.Expr)
			if _, err := promQL.ParseExpr(expr); err != nil {
				t.Errorf("%s: %v in %s", p.Title, err, expr)
			}
		}
	}
	want := []string{"Traffic", "Latency", "Backlog", "Database", "Leases and redeliveries", "Ephemeral queues", "Background loops", "Process"}
	if !slices.Equal(rows, want) {
		t.Errorf("rows %v, want %v", rows, want)
	}
}

// TestChartHasTheSameMonitoring: Helm reads files of the chart only, so it has
// copies.
func TestChartHasTheSameMonitoring(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"alerts.yaml", "dashboard.json"} {
		own, err := os.ReadFile(filepath.Join(chartDir, "files", name))
		if err != nil || !bytes.Equal(own, readFile(t, "deploy/monitoring/"+name)) {
			t.Errorf("deploy/monitoring/%s was changed; cp it to deploy/helm/queenmq/files/ (%v)", name, err)
		}
	}
}
