package obs

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics counts what this process does. The names are part of the public
// surface: dashboards and alerts are built on them.
//
// No label ever carries a message id or a partition, and the op label only what
// the code itself names, so the number of series does not grow with use. Queue
// names are the one exception and capped, see maxQueues.
type Metrics struct {
	reg *prometheus.Registry

	requests, messages map[string]prometheus.Counter // by op: push, pop, ack

	redelivered, deadLettered, hintsSent, hintsReceived prometheus.Counter

	batchesFired, batchItems *prometheus.CounterVec
	gatherItems, batchTime   *prometheus.HistogramVec
	claimTime                prometheus.Histogram
	requestTime              *prometheus.HistogramVec

	ephemeral *ephemeralMetrics

	pool   atomic.Pointer[func() (size, idle, active int)]
	parked atomic.Pointer[func() map[string]int]
}

// Operations that are counted by name, and shown with zero before their first
// use, so that a rate() over them starts at once.
var operations = []string{"push", "pop", "ack"}

// NewMetrics registers every family in reg, those of the Go runtime included.
func NewMetrics(reg *prometheus.Registry) *Metrics {
	m := &Metrics{
		reg:      reg,
		requests: map[string]prometheus.Counter{},
		messages: map[string]prometheus.Counter{},

		redelivered:   counter("queen_redeliveries_total", "Messages delivered again because their lease ran out or they were given back."),
		deadLettered:  counter("queen_dlq_total", "Messages this process moved to the dead letters."),
		hintsSent:     counter("queen_wake_hints_sent_total", "Wake-up hints sent to other brokers."),
		hintsReceived: counter("queen_wake_hints_received_total", "Wake-up hints received from other brokers."),

		batchesFired: counters("queen_batches_fired_total", "Gathered batches sent to the database.", "op"),
		batchItems:   counters("queen_batch_items_fired_total", "Requests in the gathered batches sent to the database.", "op"),
		gatherItems: histograms("queen_gather_items", "Requests that shared one trip to the database.",
			prometheus.ExponentialBuckets(1, 2, 12), "op"),
		batchTime: histograms("queen_db_batch_seconds", "Time one gathered batch took in the database.", seconds, "op"),
		claimTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "queen_claim_seconds", Help: "Time one claim of messages took in the database.", Buckets: seconds,
		}),
		// Waiting pops last as long as they are told to, hence the long end.
		requestTime: histograms("queen_request_seconds", "Time to answer an HTTP request, waiting for messages included.",
			[]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 30, 60}, "route", "code"),
	}
	m.ephemeral = newEphemeralMetrics()
	reg.MustRegister(m.ephemeral.counters()...)
	reg.MustRegister(m.redelivered, m.deadLettered, m.hintsSent, m.hintsReceived,
		m.batchesFired, m.batchItems, m.gatherItems, m.batchTime, m.claimTime, m.requestTime,
		collectors.NewGoCollector(), newGauges(m, time.Now()))
	for _, op := range operations {
		m.requests[op] = counter("queen_process_"+op+"_requests_total", "Calls of "+op+" answered by this process.")
		m.messages[op] = counter("queen_process_"+op+"_messages_total", "Messages in the calls of "+op+" answered by this process.")
		reg.MustRegister(m.requests[op], m.messages[op])
		m.batchesFired.WithLabelValues(op)
		m.batchItems.WithLabelValues(op)
	}
	return m
}

// seconds spans a trip inside one machine room up to the statement timeout.
var seconds = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// Pushed counts answered push calls and the messages in them.
func (m *Metrics) Pushed(requests, messages int) { m.count("push", requests, messages) }

// Popped counts answered pop calls, empty ones too, and delivered messages.
func (m *Metrics) Popped(requests, messages int) { m.count("pop", requests, messages) }

// Acked counts answered ack calls and the messages they named.
func (m *Metrics) Acked(requests, messages int) { m.count("ack", requests, messages) }

// Messages is the same for a caller that has the operation as a word, one call
// each time. Count in one place only: either here or with the three above.
func (m *Metrics) Messages(op string, n int) { m.count(op, 1, n) }

func (m *Metrics) count(op string, requests, messages int) {
	c, ok := m.requests[op]
	if !ok {
		return // an operation that has no family of its own
	}
	c.Add(float64(requests))
	m.messages[op].Add(float64(messages))
}

// Redelivered counts messages that went out before.
func (m *Metrics) Redelivered(n int) { m.redelivered.Add(float64(n)) }

// DeadLettered counts messages given up on.
func (m *Metrics) DeadLettered(n int) { m.deadLettered.Add(float64(n)) }

// HintsSent counts wake-up hints to other brokers.
func (m *Metrics) HintsSent(n int) { m.hintsSent.Add(float64(n)) }

// HintsReceived counts wake-up hints from other brokers.
func (m *Metrics) HintsReceived(n int) { m.hintsReceived.Add(float64(n)) }

// GatherFired records one gathered batch: how many requests shared it and how
// long the database took. op is a word of the code, never a caller's.
func (m *Metrics) GatherFired(op string, items int, d time.Duration) {
	m.batchesFired.WithLabelValues(op).Inc()
	m.batchItems.WithLabelValues(op).Add(float64(items))
	m.gatherItems.WithLabelValues(op).Observe(float64(items))
	m.batchTime.WithLabelValues(op).Observe(d.Seconds())
}

// Claimed records how long one claim took.
func (m *Metrics) Claimed(d time.Duration) { m.claimTime.Observe(d.Seconds()) }

// Request records one answered HTTP request. route is the template of the
// route, not the path.
func (m *Metrics) Request(method, route string, status int, d time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		method = "OTHER" // a client may invent any word
	}
	m.requestTime.WithLabelValues(method+" "+route, strconv.Itoa(status)).Observe(d.Seconds())
}

// SetPool says where the numbers of the connection pool come from.
func (m *Metrics) SetPool(f func() (size, idle, active int)) { m.pool.Store(&f) }

// SetParked says where the numbers of waiting pops by queue come from.
func (m *Metrics) SetParked(f func() map[string]int) { m.parked.Store(&f) }
