package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// recorder takes a sample a second of what the running phase's clients see, of the brokers' memory and of the
// database. What is expensive to ask for is asked less often than that.
type recorder struct {
	began    time.Time
	progress io.Writer
	brokers  []*brokerGauges
	database *databaseInfo
	sizes    *sizeReader
	reserve  int64

	stopped chan struct{}
	wg      sync.WaitGroup

	mu      sync.Mutex
	bands   []band
	bench   *bench
	last    progressMark
	diskLow func() // of the running phase
	series  []*series
	byName  map[string]*series
	extra   func(t float64) // asked with the sizes
	memory  float64
	tables  float64
	warned  map[string]bool
	notes   []string
}

// series is one line of a plot: [seconds since the start, value] per sample.
type series struct {
	Panel  string       `json:"panel"`
	Name   string       `json:"name"`
	Unit   string       `json:"unit"`
	Points [][2]float64 `json:"points"`
}

// band is a phase or a step between phases.
type band struct {
	Name string  `json:"name"`
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

const (
	panelRate    = "messages a second"
	panelPush    = "push latency"
	panelDeliver = "end-to-end latency"
	panelMemory  = "broker memory"
	panelHeap    = "tables"
	panelIndex   = "indexes"
	panelDead    = "dead row versions"
	panelParked  = "parked pops"
	panelDeleted = "retention"

	unitRate    = "messages/s"
	unitSeconds = "s"
	unitBytes   = "bytes"
	unitRows    = "rows"
)

// shortestSample is over how long a rate means anything.
const shortestSample = 100 * time.Millisecond

// longestRest is how far apart samples may get that take long.
const longestRest = 15 * time.Second

var errDiskLow = errors.New("little disk space left")

func newRecorder(ctx context.Context, c *scaleConfig, progress io.Writer) (*recorder, error) {
	r := &recorder{
		began: time.Now(), progress: progress, reserve: c.reserve, stopped: make(chan struct{}),
		byName: map[string]*series{}, warned: map[string]bool{},
	}
	for _, url := range c.run.urls {
		cl, err := newClient([]string{url}, c.run.token, 1)
		if err != nil {
			return nil, err
		}
		r.brokers = append(r.brokers, &brokerGauges{client: cl})
	}
	if c.run.databaseURL == "" {
		return r, nil
	}
	var err error
	if r.sizes, err = openSizes(ctx, c.run.databaseURL); err != nil {
		return nil, err
	}
	r.database, err = r.sizes.info(ctx)
	return r, err
}

func (r *recorder) start() {
	r.began = time.Now()
	r.every(0, r.sampleClients)
	r.every(5, r.sampleBrokers)
	if r.sizes != nil {
		r.every(10, r.sampleTables)
	}
}

// every takes a sample each second, and then rests for a multiple of what it took.
func (r *recorder) every(rest int, sample func(ctx context.Context)) {
	r.wg.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		next := time.NewTimer(time.Second)
		defer next.Stop()
		for {
			select {
			case <-r.stopped:
				return
			case began := <-next.C:
				sample(ctx)
				took := time.Since(began)
				next.Reset(max(time.Second-took, min(time.Duration(rest)*took, longestRest), 10*time.Millisecond))
			}
		}
	})
}

func (r *recorder) stop() {
	close(r.stopped)
	r.wg.Wait()
	for _, b := range r.brokers {
		b.client.close()
	}
	if r.sizes != nil {
		r.sizes.close()
	}
}

func (r *recorder) now() float64 { return time.Since(r.began).Seconds() }

// begin starts a band and returns its instant.
func (r *recorder) begin(name string, b *bench, diskLow func()) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.now()
	r.bands = append(r.bands, band{Name: name, From: at})
	r.bench, r.diskLow = b, diskLow
	r.last = progressMark{at: time.Now()}
	if r.progress != nil {
		_, _ = fmt.Fprintf(r.progress, "-- %s\n", name)
	}
	return at
}

func (r *recorder) end() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.now()
	r.bands[len(r.bands)-1].To = at
	if r.bench != nil && time.Since(r.last.at) > shortestSample {
		r.sampleBench() // a short phase shall not go without one
	}
	r.bench, r.diskLow = nil, nil
	return at
}

// put adds a value. The caller holds the lock.
func (r *recorder) put(panel, name, unit string, t, v float64) {
	key := panel + "\x00" + name
	s := r.byName[key]
	if s == nil {
		s = &series{Panel: panel, Name: name, Unit: unit}
		r.byName[key] = s
		r.series = append(r.series, s)
	}
	s.Points = append(s.Points, [2]float64{t, v})
}

// failed tells of a sample that could not be had, once of each kind. The caller holds the lock.
func (r *recorder) failed(what string, err error) {
	if r.warned[what] {
		return
	}
	r.warned[what] = true
	r.notes = append(r.notes, fmt.Sprintf("no sample of %s at %.0fs: %v", what, r.now(), err))
}

func (r *recorder) sampleClients(context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bench != nil {
		r.sampleBench()
	}
}

// sampleBench adds what happened since the last sample. The caller holds the lock.
func (r *recorder) sampleBench() {
	m := r.bench.mark(time.Now())
	t, seconds := r.now(), m.at.Sub(r.last.at).Seconds()
	r.put(panelRate, "push", unitRate, t, float64(m.pushed-r.last.pushed)/seconds)
	r.put(panelRate, "deliver", unitRate, t, float64(m.delivered-r.last.delivered)/seconds)
	for _, l := range []struct {
		panel string
		s     *snapshot
	}{{panelPush, m.push.since(r.last.push)}, {panelDeliver, m.endToEnd.since(r.last.endToEnd)}} {
		if l.s.count > 0 {
			r.put(l.panel, "p50", unitSeconds, t, l.s.percentile(50).Seconds())
			r.put(l.panel, "p99", unitSeconds, t, l.s.percentile(99).Seconds())
		}
	}
	if r.progress != nil {
		_, _ = fmt.Fprintf(r.progress, "%s  broker %s  tables %s\n",
			m.line(&r.last, r.began), bytesText(r.memory), bytesText(r.tables))
	}
	r.last = m
}

func (r *recorder) sampleBrokers(ctx context.Context) {
	var memory, parked float64
	var err error
	for _, b := range r.brokers {
		var m, p float64
		if m, p, err = b.read(ctx); err != nil {
			break
		}
		memory, parked = memory+m, parked+p
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed("the brokers' gauges", err)
		return
	}
	r.memory = memory
	r.put(panelMemory, "resident", unitBytes, r.now(), memory)
	r.put(panelParked, "parked", "connections", r.now(), parked)
}

func (r *recorder) sampleTables(ctx context.Context) {
	tables, err := r.sizes.read(ctx)
	free, known := r.sizes.diskFree()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed("the tables", err)
		return
	}
	t := r.now()
	r.tables = 0
	for _, s := range tables {
		r.put(panelHeap, s.Table, unitBytes, t, float64(s.Heap))
		r.put(panelIndex, s.Table, unitBytes, t, float64(s.Index))
		r.put(panelDead, s.Table, unitRows, t, float64(s.Dead))
		r.tables += float64(s.Heap + s.Index)
	}
	if known && free < r.reserve && r.diskLow != nil {
		r.diskLow()
	}
	if r.extra != nil {
		r.extra(t)
	}
}

// readSizes reads the tables now; nil without a database.
func (r *recorder) readSizes(ctx context.Context) []tableSize {
	if r.sizes == nil {
		return nil
	}
	tables, err := r.sizes.read(ctx)
	if err != nil {
		r.mu.Lock()
		r.failed("the tables", err)
		r.mu.Unlock()
	}
	return tables
}

// values returns what a series holds between two instants.
func (r *recorder) values(panel, name string, from, to float64) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.byName[panel+"\x00"+name]
	if s == nil {
		return nil
	}
	var out []float64
	for _, p := range s.Points {
		if p[0] >= from && p[0] <= to {
			out = append(out, p[1])
		}
	}
	return out
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// memoryIn is the brokers' memory in a stretch of time, nil when no sample fell into it.
func (r *recorder) memoryIn(from, to float64) *memoryUse {
	v := r.values(panelMemory, "resident", from, to)
	if len(v) == 0 {
		return nil
	}
	return &memoryUse{Median: int64(median(v)), Peak: int64(slices.Max(v))}
}
