package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestStatus_Probes(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for path, want := range map[string]string{
		"/health": `{"status":"healthy","database":"connected","engine":"queenmq-go","version":"test"}`,
		"/livez":  `{"status":"ok","engine":"queenmq-go"}`,
		"/readyz": `{"status":"ready","engine":"queenmq-go"}`,
		"/status": `{"status":"ok","engine":"queenmq-go"}`,
	} {
		answered(b, 200, want, "GET", path, nil)
		if status, _, body := b.Do("HEAD", path, nil); status != 200 || len(body) > 0 {
			t.Errorf("HEAD %s: %d %q", path, status, body)
		}
	}
	b.Node.Drain()
	answered(b, 503, `{"status":"draining","engine":"queenmq-go"}`, "GET", "/readyz", nil)
	answered(b, 200, `{"status":"ok","engine":"queenmq-go"}`, "GET", "/livez", nil)
	answered(b, 200, `{"status":"healthy",<more>}`, "GET", "/health", nil)
}

// Without its database a broker is alive, unhealthy and still shows what it
// has counted.
func TestStatus_DatabaseGone(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.PushN("q", "p", "m", 1)
	elsewhere := pgtest.NewEmpty(t).Pool(t)
	for _, stmt := range []string{
		`ALTER DATABASE "` + f.DB.Name + `" WITH ALLOW_CONNECTIONS false`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '` + f.DB.Name + `'`,
	} {
		if _, err := elsewhere.Exec(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/health": `{"status":"unhealthy","database":"disconnected","engine":"queenmq-go","version":"test"}`,
		"/readyz": `{"status":"database unavailable","engine":"queenmq-go"}`,
	} {
		answered(b, 503, want, "GET", path, nil)
		if _, header, _ := b.Do("GET", path, nil); header.Get("Retry-After") == "" { // B17
			t.Errorf("%s: headers %v", path, header)
		}
	}
	answered(b, 200, `{"status":"ok","engine":"queenmq-go"}`, "GET", "/status", nil)
	answered(b, 200, `{"status":"ok","engine":"queenmq-go"}`, "GET", "/livez", nil)
	if page := string(b.Must(200, "GET", "/metrics/prometheus", nil)); !strings.Contains(page, "queen_process_push_messages_total 1\n") {
		t.Errorf("metrics: %s", page)
	}
}

func TestStatus_Metrics(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.PushN("q", "p", "m", 3)
	p := delivers(b, "q", "", "m-0", "m-1", "m-2")
	acked(b, "", pick(p, "0 dlq"), "ok+released+dlq")
	b.AckAll(delivers(b, "q", "", "m-1", "m-2"))

	status, header, body := b.Do("GET", "/metrics/prometheus", nil)
	if ct := header.Get("Content-Type"); status != 200 || !strings.HasPrefix(ct, "text/plain; version=0.0.4; charset=utf-8") || header.Get("Cache-Control") != "no-cache" {
		t.Errorf("%d %v", status, header)
	}
	page := "\n" + string(body)
	for _, line := range []string{
		"queen_process_push_requests_total 1", "queen_process_push_messages_total 3",
		"queen_process_pop_requests_total 2", "queen_process_pop_messages_total 5",
		"queen_process_ack_requests_total 2", "queen_process_ack_messages_total 3",
		"queen_dlq_total 1",
	} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	types := map[string]string{
		"queen_uptime_seconds": "gauge", "queen_process_resident_memory_bytes": "gauge",
		"queen_db_pool_size": "gauge", "queen_db_pool_idle": "gauge", "queen_db_pool_active": "gauge",
		"queen_batches_fired_total": "counter", "queen_batch_items_fired_total": "counter",
	}
	for _, op := range []string{"push", "pop", "ack"} {
		types["queen_process_"+op+"_requests_total"] = "counter"
		types["queen_process_"+op+"_messages_total"] = "counter"
	}
	for family, kind := range types {
		if !strings.Contains(page, "\n# HELP "+family+" ") || !strings.Contains(page, "\n# TYPE "+family+" "+kind+"\n") || !strings.Contains(page, "\n"+family) {
			t.Errorf("family %s is not there as a %s", family, kind)
		}
	}
}

func TestStatus_UnservedRoutes(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, r := range [][2]string{
		{"POST", "/api/v1/nope"},
		{"GET", "/api/v1/nope"},
		{"DELETE", "/api/v1/nope/deeper"},
		{"POST", "/nope"},
		{"GET", "/api/v1/messages/17"},
		{"PUT", "/api/v2/push"},
	} { // B15
		answered(b, http.StatusNotFound, `{"error":"Not Found","code":"no_such_route"}`, r[0], r[1], nil)
	}
	for _, r := range [][3]string{
		{"GET", "/api/v1/push", "POST"},
		{"PUT", "/api/v1/ack", "POST"},
		{"POST", "/api/v1/pop/queue/q", "GET"},
		{"POST", "/api/v1/dlq", "GET, HEAD, DELETE"},
		{"DELETE", "/health", "GET, HEAD"},
	} {
		answered(b, http.StatusMethodNotAllowed, `{"error":<text>,"code":<text>}`, r[0], r[1], nil)
		if _, header, _ := b.Do(r[0], r[1], nil); header.Get("Allow") != r[2] {
			t.Errorf("%s %s: Allow is %q", r[0], r[1], header.Get("Allow"))
		}
	}
	// A HEAD takes no messages.
	b.PushN("q", "p", "m", 1)
	if status, _, _ := b.Do("HEAD", "/api/v1/pop/queue/q", nil); status != http.StatusMethodNotAllowed {
		t.Errorf("HEAD of a pop: %d", status)
	}
	delivers(b, "q", "", "m-0")
}
