package workload

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// The groups. Input is read by two of them.
const (
	leasedGroup   = "leased"
	pipelineGroup = "pipeline"
	sinkGroup     = "sink"
)

const markerPrefix = "done:"

// lane is an input queue with what belongs to it.
type lane struct {
	index             int
	input, out, timed string
}

// run is one workload under way.
type run struct {
	cfg   *Config
	fleet *fleet
	rec   *recorder
	ns    string // of all keys
	lanes []lane

	// produce ends when producers are to stop; finish ends when everything is drained; hard ends everything.
	produce, finish, hard context.Context
	// settle ends when nobody should insist any longer on what was produced.
	settle context.Context

	produced atomic.Int64
	handled  [2]progress    // of the two input groups
	aside    sync.WaitGroup // what workers do beside their work
	besides  atomic.Int64   // how much of it is under way
	epoch    atomic.Int64   // of counters, the latest in use
}

// progress counts the messages that a group received for the first time.
type progress struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

func (p *progress) note(id string) {
	p.mu.Lock()
	p.seen[id] = struct{}{}
	p.mu.Unlock()
}

func (p *progress) count() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.seen))
}

// worker is one client.
type worker struct {
	*run
	name string
	rand *rand.Rand
	made int
}

func (r *run) worker(kind string, n int) *worker {
	name := kind + "-" + strconv.Itoa(n)
	return &worker{run: r, name: name, rand: rand.New(rand.NewPCG(r.cfg.Seed, hash(name)))}
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}

// beside lets another client do something while this one goes on.
func (w *worker) beside(kind string, do func(*worker)) {
	w.made++
	other := w.worker(w.name+"-"+kind, w.made)
	w.besides.Add(1)
	w.aside.Go(func() {
		defer w.besides.Add(-1)
		do(other)
	})
}

// request names the next logical request of the worker.
func (w *worker) request() string {
	w.made++
	return w.name + "/" + strconv.Itoa(w.made)
}

func (w *worker) backoff() *backoff { return &backoff{rand: w.rand} }

// call is one try of a request.
type call struct {
	op     *history.Op
	method string
	path   string
	body   []byte
	wait   time.Duration // that the fleet may take on purpose
	// read completes the operation from a 2xx answer. It may also say that nothing happened after all.
	read func(body []byte) error
}

// do sends one try and records it. The operation is complete, and not to be changed, when do returns.
func (w *worker) do(c *call) (later time.Duration) {
	op := c.op
	op.Worker = w.name
	op.Start = w.rec.now()
	a := w.fleet.send(w.hard, c.method, c.path, c.body, w.cfg.Timeout+c.wait)
	op.End = w.rec.now()
	op.Outcome, op.Status, op.Reason = a.outcome, a.status, a.reason
	if a.outcome == history.OK && c.read != nil && len(a.body) > 0 {
		if err := c.read(a.body); err != nil {
			op.Outcome, op.Reason = history.Unknown, unreadable(err)
		}
	}
	w.rec.add(op)
	return a.later
}

// insist repeats a request until it is answered or refused for good, or until the limit. build makes each try.
func (w *worker) insist(limit context.Context, build func(request string, try int) *call) *history.Op {
	request := w.request()
	pause := w.backoff()
	for try := 1; ; try++ {
		c := build(request, try)
		c.op.Request, c.op.Try = request, try
		later := w.do(c)
		if !again(c.op) || !pause.wait(limit, later) {
			return c.op
		}
	}
}

// again tells whether the same request may fare better.
func again(op *history.Op) bool {
	switch op.Outcome {
	case history.OK:
		// One partition may have been refused while others were served. What was stored is a duplicate then.
		return slices.ContainsFunc(op.Pushed, func(m history.Message) bool { return m.Status == "error" })
	case history.Unknown:
		return true
	case history.Fail:
	}
	return op.Status == 0 || op.Status == 429
}

// Remains are what a run leaves besides its history.
type Remains struct {
	Counts   Counts
	Refusals map[string]int64 // how often operations failed, by kind and reason
	CleanUp  func()           // deletes the queues
}

// Run drives the fleet and leaves the history in a file. An error means that the run did not work; there may be an
// history, and remains, all the same.
func Run(ctx context.Context, cfg *Config, path string, progressOut io.Writer) (*Remains, error) {
	id := strconv.FormatInt(time.Now().UnixMicro(), 36)
	if cfg.Prefix == "" {
		cfg.Prefix = "verify." + id
	}
	r := &run{
		cfg: cfg, ns: "verify." + id,
		fleet: newFleet(cfg, (cfg.Queues+2)*(3*cfg.Consumers+2)+cfg.Producers),
	}
	r.handled[0].seen, r.handled[1].seen = map[string]struct{}{}, map[string]struct{}{}
	record := history.Run{Seed: cfg.Seed, Pipeline: pipelineGroup, Marker: markerPrefix, Tolerance: 10_000}
	for i := range cfg.Queues {
		l := lane{
			index: i, input: fmt.Sprintf("%s.in.%d", cfg.Prefix, i),
			out: fmt.Sprintf("%s.out.%d", cfg.Prefix, i), timed: fmt.Sprintf("%s.timed.%d", cfg.Prefix, i),
		}
		r.lanes = append(r.lanes, l)
		record.Queues = append(record.Queues,
			history.Queue{Name: l.input, Role: history.Input, Groups: []string{leasedGroup, pipelineGroup}},
			history.Queue{Name: l.out, Role: history.Output, Groups: []string{sinkGroup}},
			history.Queue{Name: l.timed, Role: history.Timed, Groups: []string{sinkGroup}})
	}
	var err error
	if r.rec, err = newRecorder(path, &record); err != nil {
		return nil, err
	}
	end, err := r.phases(ctx, progressOut)
	if closeErr := r.rec.close(end); err == nil {
		err = closeErr
	}
	return &Remains{Counts: r.rec.snapshot(), Refusals: r.rec.reasons, CleanUp: r.cleanUp}, err
}

// phases sets the queues up, lets everybody work, drains, and reads what is left.
func (r *run) phases(ctx context.Context, progressOut io.Writer) (history.End, error) {
	// An interrupt ends producing only: what was produced is still worth checking.
	r.hard = context.WithoutCancel(ctx)
	if err := r.configure(ctx); err != nil {
		return history.End{}, err
	}
	var stopProducing, stop context.CancelFunc
	r.produce, stopProducing = context.WithTimeout(ctx, r.cfg.Duration)
	defer stopProducing()
	r.finish, stop = context.WithCancel(r.hard)
	settle, stopSettling := context.WithTimeout(r.hard, r.cfg.Duration+r.cfg.Drain)
	defer stopSettling()
	r.settle = settle
	defer stop()

	var producers, consumers sync.WaitGroup
	r.startProducers(&producers)
	r.startConsumers(&consumers)
	done := make(chan struct{})
	go r.tell(progressOut, done)
	producers.Wait()
	drained := r.drain()
	stop()
	consumers.Wait()
	r.aside.Wait()
	close(done)
	end := history.End{Drained: drained}
	end.Reached = r.readFinal()
	if !end.Reached {
		return end, fmt.Errorf("the final state could not be read; nothing was answered for %v", r.rec.silence().Round(time.Second))
	}
	return end, nil
}

func (r *run) startProducers(wg *sync.WaitGroup) {
	for n := range r.cfg.Producers {
		wg.Go(func() { r.worker("producer", n).producer() })
	}
	for n := range 2 {
		wg.Go(func() { r.worker("register", n).registers() })
	}
	wg.Go(func() { r.worker("reader", 0).counters() })
}

func (r *run) startConsumers(wg *sync.WaitGroup) {
	for i := range r.lanes {
		l := &r.lanes[i]
		for n := range r.cfg.Consumers {
			number := i*r.cfg.Consumers + n
			wg.Go(func() { r.worker(leasedGroup, number).leased(l) })
			wg.Go(func() { r.worker(pipelineGroup, number).pipeline(l) })
		}
		wg.Go(func() { r.worker("sink-out", i).sink(l.out) })
		wg.Go(func() { r.worker("sink-timed", i).sink(l.timed) })
	}
}

func (r *run) tell(out io.Writer, done <-chan struct{}) {
	if out == nil {
		return
	}
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			c := r.rec.snapshot()
			_, _ = fmt.Fprintf(out, "verify: %.0fs: %d produced, %d and %d received, %d operations, %d failed, %d unknown\n",
				time.Since(r.rec.start).Seconds(), r.produced.Load(), r.handled[0].count(), r.handled[1].count(),
				c.Operations, c.Failed, c.Unknown)
		}
	}
}
