package obs

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func scrape(t *testing.T, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics/prometheus", http.NoBody))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-cache" {
		t.Errorf("cache control %q", got)
	}
	return w.Body.String()
}

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}

func TestCountersReachTheScrape(t *testing.T) {
	t.Parallel()
	m := NewMetrics(prometheus.NewRegistry())
	m.Pushed(2, 30)
	m.Messages("push", 5)
	m.Popped(3, 7)
	m.Acked(1, 4)
	m.Messages("fetch", 9)
	m.Redelivered(6)
	m.DeadLettered(1)
	m.HintsSent(2)
	m.HintsReceived(3)
	m.GatherFired("push", 20, 3*time.Millisecond)
	m.GatherFired("push", 2, time.Millisecond)
	m.Claimed(4 * time.Millisecond)
	m.Request("POST", "/api/v1/push", 201, 2*time.Millisecond)
	m.Request("BREW", "/api/v1/push", 405, time.Millisecond)
	m.SetPool(func() (size, idle, active int) { return 9, 5, 4 })
	m.SetParked(func() map[string]int { return map[string]int{"a\"b\\c\nd": 2, "bad\xff": 1} })

	wantLines(t, scrape(t, m.Handler()),
		"queen_process_push_requests_total 3",
		"queen_process_push_messages_total 35",
		"queen_process_pop_requests_total 3",
		"queen_process_pop_messages_total 7",
		"queen_process_ack_requests_total 1",
		"queen_process_ack_messages_total 4",
		"queen_redeliveries_total 6",
		"queen_dlq_total 1",
		"queen_wake_hints_sent_total 2",
		"queen_wake_hints_received_total 3",
		`queen_batches_fired_total{op="push"} 2`,
		`queen_batches_fired_total{op="ack"} 0`,
		`queen_batch_items_fired_total{op="push"} 22`,
		`queen_gather_items_bucket{op="push",le="2"} 1`,
		`queen_gather_items_sum{op="push"} 22`,
		`queen_db_batch_seconds_count{op="push"} 2`,
		`queen_claim_seconds_count 1`,
		`queen_request_seconds_count{code="201",route="POST /api/v1/push"} 1`,
		`queen_request_seconds_count{code="405",route="OTHER /api/v1/push"} 1`,
		"queen_db_pool_size 9",
		"queen_db_pool_idle 5",
		"queen_db_pool_active 4",
		`queen_parked_long_polls{queue="a\"b\\c\nd"} 2`,
		`queen_parked_long_polls{queue="bad?"} 1`,
		"queen_metrics_queues_omitted 0",
	)
}

func TestEveryFamilyIsExplained(t *testing.T) {
	t.Parallel()
	m := NewMetrics(prometheus.NewRegistry())
	text := scrape(t, m.Handler())
	for _, name := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(text, "# HELP "+name[1]+" ") {
			t.Errorf("%s has no HELP", name[1])
		}
	}
	for _, gauge := range []string{"queen_uptime_seconds", "queen_process_resident_memory_bytes"} {
		if !regexp.MustCompile(`(?m)^` + gauge + ` [0-9.e+-]+$`).MatchString(text) {
			t.Errorf("no %s", gauge)
		}
	}
	if ResidentMemory() < 1<<20 {
		t.Errorf("%d bytes of memory", ResidentMemory())
	}
}

func TestFailingPartDoesNotHideTheRest(t *testing.T) {
	t.Parallel()
	m := NewMetrics(prometheus.NewRegistry())
	m.Pushed(1, 1)
	down := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errors.New("database is away") })
	up := prometheus.NewRegistry()
	depth := prometheus.NewGauge(prometheus.GaugeOpts{Name: "queen_dlq_depth", Help: "Dead letters."})
	depth.Set(3)
	up.MustRegister(depth)
	wantLines(t, scrape(t, m.Handler(down, up)), "queen_process_push_messages_total 1", "queen_dlq_depth 3")
}

func TestQueuesAreCapped(t *testing.T) {
	t.Parallel()
	all := map[string]int{"idle": 1}
	for i := range 10 {
		all[fmt.Sprint("busy", i)] = 2
	}
	kept, omitted := busiest(all, 10)
	if _, ok := kept["idle"]; ok || len(kept) != 10 || omitted != 1 {
		t.Errorf("kept %v, omitted %d", kept, omitted)
	}
	if kept, omitted = busiest(all, 11); len(kept) != 11 || omitted != 0 {
		t.Errorf("kept %v, omitted %d", kept, omitted)
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := NewLogger(&out, slog.LevelWarn, true)
	log.Info("quiet")
	log.Warn("loud", "queue", "q")
	var rec map[string]any
	if err := json.Unmarshal([]byte(out.String()), &rec); err != nil || rec["msg"] != "loud" || rec["queue"] != "q" {
		t.Errorf("%q, %v", out.String(), err)
	}
	out.Reset()
	NewLogger(&out, slog.LevelDebug, false).Debug("text")
	if !strings.Contains(out.String(), "level=DEBUG msg=text") {
		t.Errorf("%q", out.String())
	}
}
