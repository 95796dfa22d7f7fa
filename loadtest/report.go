package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// report is what a run leaves behind: the numbers, and all that is needed to judge and repeat them.
type report struct {
	Version  string       `json:"version"`
	Started  time.Time    `json:"started"`
	Command  []string     `json:"command"`
	Machine  machine      `json:"machine"`
	Loop     string       `json:"loop"`
	Seconds  reportTimes  `json:"seconds"`
	Rates    rates        `json:"ratesPerSecond"`
	Latency  latencyTable `json:"latencyMicros"`
	Requests requests     `json:"requests"`
	Checks   checks       `json:"checks"`
	Floor    *floorReport `json:"floor,omitempty"`
	OK       bool         `json:"ok"`
}

type reportTimes struct {
	Produced float64 `json:"produced"`
	Total    float64 `json:"total"`
}

// rates count messages. Cycle is the one to compare: everything pushed, delivered to and acknowledged by every
// group, over the whole time from the first push to the last acknowledgement.
type rates struct {
	Push    float64 `json:"push"`
	Deliver float64 `json:"deliver"`
	Ack     float64 `json:"ack"`
	Cycle   float64 `json:"cycle"`
}

type latencyTable struct {
	Push     percentiles `json:"push"`
	Pop      percentiles `json:"pop"`
	Ack      percentiles `json:"ack"`
	EndToEnd percentiles `json:"endToEnd"`
}

type percentiles struct {
	Count uint64 `json:"count"`
	Mean  int64  `json:"mean"`
	P50   int64  `json:"p50"`
	P90   int64  `json:"p90"`
	P99   int64  `json:"p99"`
	P999  int64  `json:"p999"`
	Max   int64  `json:"max"`
}

type requests struct {
	Push       int64            `json:"push"`
	PushErrors map[string]int64 `json:"pushErrors,omitempty"`
	Retries    int64            `json:"pushRetries"`
	Scheduled  int64            `json:"scheduledMessages,omitempty"`
	Shed       int64            `json:"shedMessages,omitempty"`
	Pop        int64            `json:"pop"`
	PopEmpty   int64            `json:"popEmpty"`
	PopErrors  map[string]int64 `json:"popErrors,omitempty"`
	Ack        int64            `json:"ack"`
	AckErrors  map[string]int64 `json:"ackErrors,omitempty"`
	AckRefused int64            `json:"ackRefused"`
	FirstError string           `json:"firstError,omitempty"`
}

type checks struct {
	Pushed     int64        `json:"pushed"`
	Uncertain  int64        `json:"uncertain"`
	Refused    int64        `json:"refused"`
	BadStatus  int64        `json:"badPushAnswers"`
	BadOffset  int64        `json:"pushOffsetsNotRising"`
	Groups     []groupCheck `json:"groups,omitempty"`
	FirstWords []string     `json:"problems,omitempty"`
}

type groupCheck struct {
	Group       string `json:"group"`
	Delivered   int64  `json:"delivered"`
	Lost        int64  `json:"lost"`
	Duplicates  int64  `json:"duplicates"`
	Redelivered int64  `json:"redelivered"`
	Disorder    int64  `json:"disorder"`
	Misrouted   int64  `json:"misrouted"`
	Foreign     int64  `json:"foreign"`
	Vanished    int64  `json:"vanishedHandOuts"`
}

func (b *bench) report(ph phases) *report {
	r := &report{
		Version: buildVersion(), Started: b.start.UTC(), Command: append([]string{"loadtest"}, b.cfg.commandLine()...),
		Machine: thisMachine(), Loop: "closed",
		Seconds: reportTimes{Produced: ph.produced.Seconds(), Total: ph.total.Seconds()},
		Latency: latencyTable{
			Push: b.latency.push.snapshot().table(), Pop: b.latency.pop.snapshot().table(),
			Ack: b.latency.ack.snapshot().table(), EndToEnd: b.latency.endToEnd.snapshot().table(),
		},
		Requests: b.requests(),
		Checks:   b.checks(),
	}
	if b.cfg.rate > 0 {
		r.Loop = "open"
	}
	r.Rates = b.rates(ph, r.Checks)
	r.OK = r.Checks.clean(len(r.Requests.PopErrors) > 0) && ph.drained
	return r
}

func (b *bench) rates(ph phases, c checks) rates {
	out := rates{Push: float64(c.Pushed) / ph.produced.Seconds()}
	if b.cfg.noConsume {
		return out
	}
	var delivered int64
	slowest := c.Pushed
	for _, g := range c.Groups {
		delivered += g.Delivered
		slowest = min(slowest, g.Delivered)
	}
	out.Deliver = perSecond(delivered, b.counts.lastDelivery.Load())
	out.Ack = perSecond(b.counts.acked.Load(), b.counts.lastAck.Load())
	out.Cycle = perSecond(slowest, max(b.counts.lastAck.Load(), b.counts.lastDelivery.Load()))
	return out
}

func perSecond(n, nanos int64) float64 {
	if nanos <= 0 {
		return 0
	}
	return float64(n) / time.Duration(nanos).Seconds()
}

func (b *bench) requests() requests {
	c := &b.counts
	r := requests{
		Push: c.pushRequests.Load(), PushErrors: c.pushErrors.copy(), Retries: c.retries.Load(),
		Scheduled: c.scheduled.Load(), Shed: c.shed.Load(),
		Pop: c.popRequests.Load(), PopEmpty: c.popEmpty.Load(), PopErrors: c.popErrors.copy(),
		Ack: c.ackRequests.Load(), AckErrors: c.ackErrors.copy(), AckRefused: c.ackRefused.Load(),
	}
	for _, e := range []*errorCounts{&c.pushErrors, &c.popErrors, &c.ackErrors} {
		if r.FirstError == "" {
			r.FirstError = e.firstText()
		}
	}
	return r
}

func (e *errorCounts) copy() map[string]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.kinds)
}

func (e *errorCounts) firstText() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.first
}

func (b *bench) checks() checks {
	v := b.verify
	c := checks{
		Pushed: v.push.confirmed.Load(), Uncertain: v.push.uncertain.Load(), Refused: v.push.refused.Load(),
		BadStatus: v.push.badStatus.Load(), BadOffset: v.push.badOffset.Load(),
	}
	if !b.cfg.noConsume {
		for g, name := range b.groups {
			n := &v.groups[g]
			c.Groups = append(c.Groups, groupCheck{
				Group: name, Delivered: n.unique.Load(), Lost: v.lost(g), Duplicates: n.duplicates.Load(),
				Redelivered: n.redelivered.Load(), Disorder: n.disorder.Load(),
				Misrouted: n.misrouted.Load(), Foreign: n.foreign.Load(), Vanished: n.vanished.Load(),
			})
			v.nameLost(g)
		}
	}
	c.FirstWords = v.problems.all()
	return c
}

// nameLost puts the first lost messages of a group into words.
func (v *verifier) nameLost(group int) {
	for i, l := range v.lanes {
		if n, lowest := v.missing(group, i); n > 0 {
			v.problems.add("group %d: %d messages of %s/%s lost, the first is %d", group, n, l.queue, l.partition, lowest)
		}
	}
}

// clean reports whether the broker kept its promises. Redeliveries and refused requests are within them, and so is
// a hand-out that vanished with a pop that failed; without failed pops there is no excuse for one.
func (c checks) clean(popsFailed bool) bool {
	if c.BadStatus+c.BadOffset > 0 || c.Pushed == 0 {
		return false
	}
	for _, g := range c.Groups {
		if g.Lost+g.Duplicates+g.Disorder+g.Misrouted > 0 || g.Vanished > 0 && !popsFailed {
			return false
		}
	}
	return true
}

func (s *snapshot) table() percentiles {
	us := func(d time.Duration) int64 { return d.Microseconds() }
	return percentiles{
		Count: s.count, Mean: us(s.mean()), P50: us(s.percentile(50)), P90: us(s.percentile(90)),
		P99: us(s.percentile(99)), P999: us(s.percentile(99.9)), Max: us(time.Duration(s.max)),
	}
}

func (r *report) writeJSON(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *report) print(w io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	m := r.Machine
	p("loadtest %s, %s, %d cores, %.1f GiB, %s %s, kernel %s", r.Version, m.Go, m.Cores,
		float64(m.MemoryBytes)/(1<<30), m.OS, m.Arch, m.Kernel)
	p("%s", strings.Join(r.Command, " "))
	if r.Loop == modeFloor {
		r.Floor.print(p)
		return
	}
	p("")
	p("produced %.1fs, in all %.1fs, %s loop", r.Seconds.Produced, r.Seconds.Total, r.Loop)
	p("rates     push %.0f/s   deliver %.0f/s   ack %.0f/s   cycle %.0f/s",
		r.Rates.Push, r.Rates.Deliver, r.Rates.Ack, r.Rates.Cycle)
	p("")
	p("%-12s %10s %10s %10s %10s %10s %10s", "latency", "requests", "p50", "p90", "p99", "p99.9", "max")
	for _, row := range []struct {
		name string
		p    percentiles
	}{{"push", r.Latency.Push}, {"pop", r.Latency.Pop}, {"ack", r.Latency.Ack}, {"end to end", r.Latency.EndToEnd}} {
		p("%-12s %10d %10s %10s %10s %10s %10s", row.name, row.p.Count,
			micros(row.p.P50), micros(row.p.P90), micros(row.p.P99), micros(row.p.P999), micros(row.p.Max))
	}
	r.printRequests(p)
	r.printChecks(p)
	if r.Floor != nil {
		r.Floor.print(p)
	}
	if r.OK {
		p("\nOK")
	} else {
		p("\nFAILED")
	}
}

func micros(n int64) string { return short(time.Duration(n) * time.Microsecond) }

func (r *report) printRequests(p func(string, ...any)) {
	q := r.Requests
	p("")
	p("requests  push %d (retried %d)   pop %d (empty %d)   ack %d (refused items %d)",
		q.Push, q.Retries, q.Pop, q.PopEmpty, q.Ack, q.AckRefused)
	if r.Loop == "open" {
		p("open loop %d messages scheduled, %d shed", q.Scheduled, q.Shed)
	}
	for _, e := range []struct {
		name  string
		kinds map[string]int64
	}{{"push", q.PushErrors}, {"pop", q.PopErrors}, {"ack", q.AckErrors}} {
		for _, kind := range slices.Sorted(maps.Keys(e.kinds)) {
			p("errors    %s: %d x %s", e.name, e.kinds[kind], kind)
		}
	}
	if q.FirstError != "" {
		p("          first: %s", q.FirstError)
	}
}

func (r *report) printChecks(p func(string, ...any)) {
	c := r.Checks
	p("")
	p("pushed    %d confirmed, %d uncertain, %d refused, %d bad answers, %d offsets not rising",
		c.Pushed, c.Uncertain, c.Refused, c.BadStatus, c.BadOffset)
	for _, g := range c.Groups {
		p("%-9s %d delivered, %d lost, %d duplicates, %d redelivered, %d out of order, %d misrouted, %d foreign, %d vanished",
			g.Group, g.Delivered, g.Lost, g.Duplicates, g.Redelivered, g.Disorder, g.Misrouted, g.Foreign, g.Vanished)
	}
	for _, line := range c.FirstWords {
		p("  ! %s", line)
	}
}
