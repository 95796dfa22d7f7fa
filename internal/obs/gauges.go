package obs

import (
	"cmp"
	"maps"
	"os"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxQueues bounds the series of one scrape. Beyond it the busiest queues are
// shown and the rest is counted in queen_metrics_queues_omitted.
const maxQueues = 5000

// gauges are read when somebody asks, instead of being kept up to date.
type gauges struct {
	m       *Metrics
	started time.Time

	uptime, memory, parked, omitted    *prometheus.Desc
	poolSize, poolIdle, poolActiveDesc *prometheus.Desc
}

func newGauges(m *Metrics, started time.Time) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &gauges{
		m: m, started: started,
		uptime:         desc("queen_uptime_seconds", "Time since this process started."),
		memory:         desc("queen_process_resident_memory_bytes", "Memory of this process that is in RAM."),
		parked:         desc("queen_parked_long_polls", "Pops waiting for a message.", "queue"),
		omitted:        desc("queen_metrics_queues_omitted", "Queues left out of this scrape because there are too many."),
		poolSize:       desc("queen_db_pool_size", "Connections to PostgreSQL that are open."),
		poolIdle:       desc("queen_db_pool_idle", "Connections to PostgreSQL that are free."),
		poolActiveDesc: desc("queen_db_pool_active", "Connections to PostgreSQL that are in use."),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.uptime, g.memory, g.parked, g.omitted, g.poolSize, g.poolIdle, g.poolActiveDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	send(g.uptime, time.Since(g.started).Seconds())
	send(g.memory, float64(ResidentMemory()))
	var size, idle, active int
	if f := g.m.pool.Load(); f != nil {
		size, idle, active = (*f)()
	}
	send(g.poolSize, float64(size))
	send(g.poolIdle, float64(idle))
	send(g.poolActiveDesc, float64(active))

	byQueue, omitted := map[string]int(nil), 0
	if f := g.m.parked.Load(); f != nil {
		byQueue, omitted = busiest((*f)(), maxQueues)
	}
	for queue, n := range byQueue {
		send(g.parked, float64(n), strings.ToValidUTF8(queue, "?"))
	}
	send(g.omitted, float64(omitted))
}

// busiest keeps the largest entries.
func busiest(all map[string]int, limit int) (kept map[string]int, omitted int) {
	if len(all) <= limit {
		return all, 0
	}
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b))
	})
	kept = make(map[string]int, limit)
	for _, name := range names[:limit] {
		kept[name] = all[name]
	}
	return kept, len(names) - limit
}

// ResidentMemory is the memory of this process in RAM. Where the system does
// not tell, it is what the Go runtime holds, which is close.
func ResidentMemory() uint64 {
	if raw, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(raw)); len(fields) > 1 {
			if pages, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
				return pages * uint64(os.Getpagesize())
			}
		}
	}
	sample := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(sample)
	return sample[0].Value.Uint64() - sample[1].Value.Uint64()
}
