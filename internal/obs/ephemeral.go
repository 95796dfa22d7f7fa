package obs

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// ephemeralMetrics is what is counted about ephemeral queues. Names of queues
// are never labels: inboxes come and go by the thousand.
type ephemeralMetrics struct {
	pushed, popped, acked, wipes, groupsForgotten prometheus.Counter

	dropped *prometheus.CounterVec

	held   atomic.Pointer[ephemeralHeld] // nil before it is known
	up     atomic.Pointer[bool]          // the same
	parked atomic.Pointer[func() int]    // nil on a broker without Redis

	bytesDesc, queuesDesc, parkedDesc, upDesc *prometheus.Desc
}

type ephemeralHeld struct{ bytes, queues int64 }

func newEphemeralMetrics() *ephemeralMetrics {
	gauge := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	e := &ephemeralMetrics{
		pushed:          counter("queen_ephemeral_pushed_total", "Messages this process put into ephemeral queues."),
		popped:          counter("queen_ephemeral_popped_total", "Messages this process delivered from ephemeral queues."),
		acked:           counter("queen_ephemeral_acked_total", "Messages of ephemeral queues that were settled by an ack to this process."),
		wipes:           counter("queen_ephemeral_wipes_total", "Times this process found that Redis had lost its contents."),
		groupsForgotten: counter("queen_ephemeral_groups_forgotten_total", "Groups of ephemeral queues forgotten because they did not pop for too long."),
		dropped: counters("queen_ephemeral_dropped_total",
			"Messages of ephemeral queues dropped unconsumed: by bounds, by age or after too many attempts.", "reason"),
		bytesDesc:  gauge("queen_ephemeral_bytes", "Bytes of payloads in all ephemeral queues of the installation, as this process knows."),
		queuesDesc: gauge("queen_ephemeral_queues", "Ephemeral queues of the installation, as this process knows."),
		parkedDesc: gauge("queen_ephemeral_parked_pops", "Pops of ephemeral queues waiting for a message."),
		upDesc:     gauge("queen_ephemeral_up", "Whether Redis answered this process last time, 1 or 0. Missing on a broker without Redis."),
	}
	for _, reason := range []string{"bounds", "ttl", "retry"} {
		e.dropped.WithLabelValues(reason)
	}
	return e
}

func (e *ephemeralMetrics) counters() []prometheus.Collector {
	return []prometheus.Collector{e.pushed, e.popped, e.acked, e.wipes, e.groupsForgotten, e.dropped, e}
}

// Describe implements prometheus.Collector.
func (e *ephemeralMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{e.bytesDesc, e.queuesDesc, e.parkedDesc, e.upDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (e *ephemeralMetrics) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	if held := e.held.Load(); held != nil {
		send(e.bytesDesc, float64(held.bytes))
		send(e.queuesDesc, float64(held.queues))
	}
	if f := e.parked.Load(); f != nil {
		send(e.parkedDesc, float64((*f)()))
	}
	if up := e.up.Load(); up != nil {
		v := 0.0
		if *up {
			v = 1
		}
		send(e.upDesc, v)
	}
}

// EphemeralPushed counts messages put into ephemeral queues.
func (m *Metrics) EphemeralPushed(n int) { m.ephemeral.pushed.Add(float64(n)) }

// EphemeralPopped counts messages delivered from ephemeral queues.
func (m *Metrics) EphemeralPopped(n int) { m.ephemeral.popped.Add(float64(n)) }

// EphemeralAcked counts messages of ephemeral queues that were settled.
func (m *Metrics) EphemeralAcked(n int) { m.ephemeral.acked.Add(float64(n)) }

// EphemeralDropped counts messages that went unconsumed. reason is a word of
// the code: bounds, ttl or retry.
func (m *Metrics) EphemeralDropped(reason string, n int) {
	m.ephemeral.dropped.WithLabelValues(reason).Add(float64(n))
}

// EphemeralWiped counts that the store was found empty.
func (m *Metrics) EphemeralWiped() { m.ephemeral.wipes.Inc() }

// EphemeralGroupsForgotten counts groups that stayed away for too long.
func (m *Metrics) EphemeralGroupsForgotten(n int) { m.ephemeral.groupsForgotten.Add(float64(n)) }

// EphemeralHeld says what the whole installation holds.
func (m *Metrics) EphemeralHeld(bytes, queues int64) {
	m.ephemeral.held.Store(&ephemeralHeld{bytes, queues})
}

// EphemeralUp says whether the store answers.
func (m *Metrics) EphemeralUp(up bool) { m.ephemeral.up.Store(&up) }

// SetEphemeralParked says where the number of waiting pops comes from.
func (m *Metrics) SetEphemeralParked(f func() int) { m.ephemeral.parked.Store(&f) }
