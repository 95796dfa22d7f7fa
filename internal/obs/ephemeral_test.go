package obs

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestEphemeralReachesTheScrape(t *testing.T) {
	t.Parallel()
	m := NewMetrics(prometheus.NewRegistry())
	for _, gauge := range []string{"bytes", "queues", "parked_pops", "up"} {
		// A broker without Redis is not one whose Redis is down.
		if text := scrape(t, m.Handler()); strings.Contains(text, "queen_ephemeral_"+gauge) {
			t.Errorf("%s is told before it is known", gauge)
		}
	}
	wantLines(t, scrape(t, m.Handler()), "queen_ephemeral_pushed_total 0", `queen_ephemeral_dropped_total{reason="ttl"} 0`)
	m.EphemeralPushed(5)
	m.EphemeralPopped(4)
	m.EphemeralAcked(3)
	m.EphemeralDropped("bounds", 2)
	m.EphemeralDropped("bounds", 1)
	m.EphemeralDropped("retry", 7)
	m.EphemeralWiped()
	m.EphemeralGroupsForgotten(6)
	m.EphemeralHeld(400, 2)
	m.EphemeralUp(true)
	m.SetEphemeralParked(func() int { return 9 })
	wantLines(t, scrape(t, m.Handler()),
		"queen_ephemeral_pushed_total 5",
		"queen_ephemeral_popped_total 4",
		"queen_ephemeral_acked_total 3",
		`queen_ephemeral_dropped_total{reason="bounds"} 3`,
		`queen_ephemeral_dropped_total{reason="ttl"} 0`,
		`queen_ephemeral_dropped_total{reason="retry"} 7`,
		"queen_ephemeral_wipes_total 1",
		"queen_ephemeral_groups_forgotten_total 6",
		"queen_ephemeral_bytes 400",
		"queen_ephemeral_queues 2",
		"queen_ephemeral_parked_pops 9",
		"queen_ephemeral_up 1",
	)
	m.EphemeralUp(false)
	wantLines(t, scrape(t, m.Handler()), "queen_ephemeral_up 0")
}
