package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// scaleReport is what a scale run leaves behind.
type scaleReport struct {
	Version  string        `json:"version"`
	Started  time.Time     `json:"started"`
	Command  []string      `json:"command"`
	Machine  machine       `json:"machine"`
	Database *databaseInfo `json:"database,omitempty"`
	Scenario string        `json:"scenario"`
	Size     int64         `json:"size"`
	SizeOf   string        `json:"sizeOf"`
	Phases   []*scalePhase `json:"phases"`
	Outcomes []outcome     `json:"outcomes"`
	Before   []tableSize   `json:"tablesBefore,omitempty"`
	After    []tableSize   `json:"tablesAfter,omitempty"`
	Notes    []string      `json:"notes,omitempty"`
	Bands    []band        `json:"bands"`
	Series   []*series     `json:"series"`
	Complete bool          `json:"complete"`
	OK       bool          `json:"ok"` // of the phases there are
}

// scalePhase is one phase: what a plain run reports, and what is measured of it.
type scalePhase struct {
	Name     string        `json:"name"`
	From     float64       `json:"from"`
	To       float64       `json:"to"`
	Settings phaseSettings `json:"settings"`
	Loop     string        `json:"loop"`
	Seconds  reportTimes   `json:"seconds"`
	Rates    rates         `json:"ratesPerSecond"`
	Latency  latencyTable  `json:"latencyMicros"`
	Requests requests      `json:"requests"`
	Checks   checks        `json:"checks"`
	Steady   *steady       `json:"steady,omitempty"`
	Memory   *memoryUse    `json:"brokerMemory,omitempty"`
	Tables   []tableSize   `json:"tables,omitempty"`
	OK       bool          `json:"ok"`
}

type phaseSettings struct {
	Queues        int     `json:"queues"`
	Partitions    int     `json:"partitionsPerQueue"`
	Groups        int     `json:"groups"`
	Producers     int     `json:"producers"`
	Consumers     int     `json:"consumersPerGroup"`
	Batch         int     `json:"batch"`
	PopBatch      int     `json:"popBatch"`
	PopPartitions int     `json:"popPartitions"`
	Payload       int     `json:"payloadBytes"`
	Rate          float64 `json:"openLoopRate,omitempty"`
	Dedup         bool    `json:"dedup"`
	PushOnly      bool    `json:"pushOnly,omitempty"`
}

func settingsOf(c *config) phaseSettings {
	return phaseSettings{
		Queues: c.queues, Partitions: c.partitions, Groups: c.groups, Producers: c.producers, Consumers: c.consumers,
		Batch: c.batch, PopBatch: c.popBatch, PopPartitions: c.popPartitions, Payload: c.payloadSize,
		Rate: c.rate, Dedup: c.dedup, PushOnly: c.noConsume,
	}
}

// steady is what happened between the end of the warm-up and the end of pushing.
type steady struct {
	From        float64     `json:"from"`
	Seconds     float64     `json:"seconds"`
	Push        float64     `json:"pushPerSecond"`
	Deliver     float64     `json:"deliverPerSecond"`
	Ack         float64     `json:"ackPerSecond"`
	PushLatency percentiles `json:"pushMicros"`
	EndToEnd    percentiles `json:"endToEndMicros"`
}

func steadyOf(from, to *progressMark) *steady {
	length := to.at.Sub(from.at)
	per := func(a, b int64) float64 { return perSecond(b-a, int64(length)) }
	return &steady{
		Seconds: length.Seconds(), Push: per(from.pushed, to.pushed), Deliver: per(from.delivered, to.delivered),
		Ack: per(from.acked, to.acked), PushLatency: to.push.since(from.push).table(),
		EndToEnd: to.endToEnd.since(from.endToEnd).table(),
	}
}

type memoryUse struct {
	Median int64 `json:"medianBytes"`
	Peak   int64 `json:"peakBytes"`
}

// outcome is one answer of the scenario. A goal is for the ratio or for the measured value; 0 is none.
type outcome struct {
	What        string  `json:"what"`
	Unit        string  `json:"unit"`
	Baseline    float64 `json:"baseline,omitempty"`
	Measured    float64 `json:"measured"`
	Ratio       float64 `json:"ratio,omitempty"`
	AtLeast     float64 `json:"goalRatioAtLeast,omitempty"`
	AtMost      float64 `json:"goalRatioAtMost,omitempty"`
	AtMostValue float64 `json:"goalAtMost,omitempty"`
	Met         *bool   `json:"goalMet,omitempty"`
}

func newScaleReport(c *scaleConfig) *scaleReport {
	return &scaleReport{
		Version: buildVersion(), Started: time.Now().UTC(), Command: append([]string{"loadtest"}, c.run.commandLine()...),
		Machine: thisMachine(), Scenario: c.scenario.name, Size: c.size, SizeOf: c.scenario.size,
	}
}

func (p *scalePhase) take(r *report) {
	p.Loop, p.Seconds, p.Rates, p.Latency = r.Loop, r.Seconds, r.Rates, r.Latency
	p.Requests, p.Checks, p.OK = r.Requests, r.Checks, r.OK
}

func (r *scaleReport) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *scaleReport) add(o outcome) {
	if o.Baseline > 0 {
		o.Ratio = o.Measured / o.Baseline
	}
	var met bool
	switch {
	case o.AtLeast > 0:
		met = o.Ratio >= o.AtLeast
	case o.AtMost > 0:
		// Nothing grows by a share out of nothing: without a baseline there is no ratio to judge.
		met = o.Baseline > 0 && o.Ratio <= o.AtMost
	case o.AtMostValue > 0:
		met = o.Measured <= o.AtMostValue
	default:
		r.Outcomes = append(r.Outcomes, o)
		return
	}
	o.Met = &met
	r.Outcomes = append(r.Outcomes, o)
}

func (r *scaleReport) addMemory(what string, before, after *scalePhase) {
	if before.Memory != nil && after.Memory != nil {
		r.add(outcome{What: what, Unit: unitBytes, Baseline: float64(before.Memory.Median), Measured: float64(after.Memory.Median)})
	}
}

// finish takes over what the recorder has. The run kept its promises if each of its phases did.
func (r *scaleReport) finish(rec *recorder) {
	r.Bands, r.Series = rec.bands, worthShowing(rec.series)
	r.Notes = append(r.Notes, rec.notes...)
	r.OK = len(r.Phases) > 0
	for _, p := range r.Phases {
		r.OK = r.OK && p.OK
	}
}

// worthShowing leaves out tables that are tiny beside the largest of their panel, and gauges that were always zero.
func worthShowing(all []*series) []*series {
	top := func(s *series) (v float64) {
		for _, p := range s.Points {
			v = max(v, p[1])
		}
		return v
	}
	largest := map[string]float64{}
	for _, s := range all {
		largest[s.Panel] = max(largest[s.Panel], top(s))
	}
	return slices.DeleteFunc(slices.Clone(all), func(s *series) bool {
		switch s.Panel {
		case panelHeap, panelIndex, panelDead:
			return top(s) <= largest[s.Panel]/100
		case panelParked:
			return top(s) == 0
		default:
			return false
		}
	})
}

func (r *scaleReport) writeFiles(jsonFile, svgFile string) error {
	var errs []error
	if jsonFile != "" {
		b, err := json.Marshal(r)
		if err == nil {
			err = os.WriteFile(jsonFile, append(b, '\n'), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("write report: %w", err))
		}
	}
	if svgFile != "" {
		errs = append(errs, r.writeSVG(svgFile))
	}
	return errors.Join(errs...)
}

func (r *scaleReport) print(w io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	m := r.Machine
	p("loadtest %s, %s, %d cores, %.1f GiB, %s %s, kernel %s", r.Version, m.Go, m.Cores,
		float64(m.MemoryBytes)/(1<<30), m.OS, m.Arch, m.Kernel)
	p("%s", strings.Join(r.Command, " "))
	if r.Database != nil {
		p("PostgreSQL %s, %s", r.Database.Version, r.Database.settingsText())
	}
	r.printPhases(p)
	r.printTables(p)
	r.printOutcomes(p)
	for _, note := range r.Notes {
		p("note: %s", note)
	}
	switch {
	case !r.OK:
		p("\nFAILED")
	case !r.Complete:
		p("\nENDED EARLY, nothing lost, doubled or out of order until then")
	default:
		p("\nOK: nothing lost, doubled or out of order")
	}
}

func (d *databaseInfo) settingsText() string {
	var parts []string
	for name, value := range d.Settings {
		parts = append(parts, name+"="+value)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func (r *scaleReport) printPhases(p func(string, ...any)) {
	p("\n%-32s %8s %10s %10s %10s %10s %10s %10s %10s", "phase", "seconds", "push/s", "deliver/s", "ack/s",
		"push p50", "push p99", "e2e p99", "broker")
	for _, ph := range r.Phases {
		s := ph.Steady
		if s == nil {
			s = &steady{
				Seconds: ph.To - ph.From, Push: ph.Rates.Push, Deliver: ph.Rates.Deliver, Ack: ph.Rates.Ack,
				PushLatency: ph.Latency.Push, EndToEnd: ph.Latency.EndToEnd,
			}
		}
		memory := "-"
		if ph.Memory != nil {
			memory = bytesText(float64(ph.Memory.Median))
		}
		p("%-32s %8.1f %10.0f %10.0f %10.0f %10s %10s %10s %10s", ph.Name, s.Seconds, s.Push, s.Deliver, s.Ack,
			micros(s.PushLatency.P50), micros(s.PushLatency.P99), micros(s.EndToEnd.P99), memory)
	}
	for _, ph := range r.Phases {
		ph.printTrouble(p)
	}
}

// printTrouble says what went wrong in a phase, nothing when nothing did.
func (p *scalePhase) printTrouble(line func(string, ...any)) {
	q := p.Requests
	if n := q.Shed; n > 0 {
		line("%s: %d of %d messages shed", p.Name, n, q.Scheduled)
	}
	for _, e := range []struct {
		name  string
		kinds map[string]int64
	}{{"push", q.PushErrors}, {"pop", q.PopErrors}, {"ack", q.AckErrors}} {
		for _, kind := range slices.Sorted(maps.Keys(e.kinds)) {
			line("%s: %s failed %d times: %s", p.Name, e.name, e.kinds[kind], kind)
		}
	}
	if q.FirstError != "" {
		line("%s: first error: %s", p.Name, q.FirstError)
	}
	if p.OK && len(p.Checks.FirstWords) == 0 {
		return
	}
	c := p.Checks
	var lost, doubled, disorder, redelivered int64
	for _, g := range c.Groups {
		lost, doubled, disorder, redelivered = lost+g.Lost, doubled+g.Duplicates, disorder+g.Disorder, redelivered+g.Redelivered
	}
	line("%s: %d pushed, %d uncertain, %d refused, %d lost, %d duplicates, %d redelivered, %d out of order",
		p.Name, c.Pushed, c.Uncertain, c.Refused, lost, doubled, redelivered, disorder)
	for _, words := range c.FirstWords {
		line("  ! %s", words)
	}
}

func (r *scaleReport) printTables(p func(string, ...any)) {
	if len(r.After) == 0 {
		return
	}
	p("\n%-20s %12s %12s %12s %12s %12s %12s", "table", "before", "indexes", "after", "indexes", "live rows", "dead rows")
	for _, a := range r.After {
		var b tableSize
		for _, t := range r.Before {
			if t.Table == a.Table {
				b = t
			}
		}
		p("%-20s %12s %12s %12s %12s %12d %12d", a.Table, bytesText(float64(b.Heap)), bytesText(float64(b.Index)),
			bytesText(float64(a.Heap)), bytesText(float64(a.Index)), a.Live, a.Dead)
	}
}

func (r *scaleReport) printOutcomes(p func(string, ...any)) {
	p("\n%-62s %14s %14s %7s  %s", "outcome", "baseline", "measured", "ratio", "goal")
	for _, o := range r.Outcomes {
		baseline, ratio := "", ""
		if o.Baseline > 0 {
			baseline, ratio = valueText(o.Baseline, o.Unit), fmt.Sprintf("%.2f", o.Ratio)
		}
		p("%-62s %14s %14s %7s  %s", o.What, baseline, valueText(o.Measured, o.Unit), ratio, o.goalText())
	}
}

func (o *outcome) goalText() string {
	if o.Met == nil {
		return ""
	}
	goal := fmt.Sprintf("at most %s", valueText(o.AtMostValue, o.Unit))
	switch {
	case o.AtLeast > 0:
		goal = fmt.Sprintf("at least %.2f", o.AtLeast)
	case o.AtMost > 0:
		goal = fmt.Sprintf("at most %.2f", o.AtMost)
	}
	if *o.Met {
		return goal + ": met"
	}
	return goal + ": missed"
}

func valueText(v float64, unit string) string {
	switch unit {
	case unitBytes:
		return bytesText(v)
	case unitSeconds:
		return short(time.Duration(v * float64(time.Second)))
	case unitRate:
		return fmt.Sprintf("%.0f/s", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

func bytesText(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size || n <= -u.size {
			return fmt.Sprintf("%.1f %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", n)
}
