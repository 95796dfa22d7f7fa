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

// ephemeralReport is what a run leaves behind. Ratios are of a broker's figure to the mean of Redis' before and after.
type ephemeralReport struct {
	Version string          `json:"version"`
	Started time.Time       `json:"started"`
	Command []string        `json:"command"`
	Machine machine         `json:"machine"`
	Redis   string          `json:"redis"`
	Brokers int             `json:"brokers"`
	Payload int             `json:"payloadBytes"`
	Reply   *replyReport    `json:"reply,omitempty"`
	Stream  []*streamReport `json:"stream,omitempty"`
	OK      bool            `json:"ok"`
}

type replyReport struct {
	Requesters int          `json:"requesters"`
	Responders int          `json:"responders"`
	Before     *replyResult `json:"redisBefore"`
	Fresh      *replyResult `json:"ephemeralInboxPerRequest"`
	Own        *replyResult `json:"ephemeralInboxPerRequester"`
	Durable    *replyResult `json:"durable"`
	After      *replyResult `json:"redisAfter"`
	Drift      float64      `json:"drift"`
	// How many times as long as over bare lists.
	FreshP50Ratio   float64 `json:"inboxPerRequestP50Ratio"`
	OwnP50Ratio     float64 `json:"inboxPerRequesterP50Ratio"`
	DurableP50Ratio float64 `json:"durableP50Ratio"`
}

type replyResult struct {
	Answered int64            `json:"answered"`
	Wrong    int64            `json:"wrongReplies"`
	Lost     int64            `json:"noReply"`
	Rate     float64          `json:"perSecond"`
	Trip     percentiles      `json:"roundTripMicros"`
	Errors   map[string]int64 `json:"errors,omitempty"`
	First    string           `json:"firstError,omitempty"`
}

type streamReport struct {
	Batch     int           `json:"batch"`
	Producers int           `json:"producers"`
	Consumers int           `json:"consumers"`
	Before    *streamResult `json:"redisBefore"`
	Broker    *streamResult `json:"ephemeral"`
	After     *streamResult `json:"redisAfter"`
	Drift     float64       `json:"drift"`
	// Shares of Redis' rates.
	PushRatio  float64 `json:"pushRatio"`
	CycleRatio float64 `json:"cycleRatio"`
}

type streamResult struct {
	Pushed     int64            `json:"pushed"`
	Delivered  int64            `json:"delivered"`
	Lost       int64            `json:"lost"`
	Duplicates int64            `json:"duplicates"`
	Foreign    int64            `json:"foreign"`
	Full       int64            `json:"queueFull"`
	Push       float64          `json:"pushPerSecond"`
	Cycle      float64          `json:"cyclePerSecond"`
	PushTime   percentiles      `json:"pushMicros"`
	PopTime    percentiles      `json:"popMicros"`
	AckTime    percentiles      `json:"ackMicros"`
	Errors     map[string]int64 `json:"errors,omitempty"`
	First      string           `json:"firstError,omitempty"`
}

func newEphemeralReport(c *ephemeralConfig) *ephemeralReport {
	hide := &config{command: c.command}
	return &ephemeralReport{
		Version: buildVersion(), Started: time.Now().UTC(), Command: append([]string{"loadtest"}, hide.commandLine()...),
		Machine: thisMachine(), Brokers: len(c.urls), Payload: c.payloadSize,
	}
}

func (run *replyRun) result(took time.Duration) *replyResult {
	return &replyResult{
		Answered: run.answered.Load(), Wrong: run.wrong.Load(), Lost: run.lost.Load(),
		Rate: float64(run.answered.Load()) / took.Seconds(), Trip: run.trip.snapshot().table(),
		Errors: run.errors.copy(), First: run.errors.firstText(),
	}
}

func (run *streamRun) result() *streamResult {
	res := &streamResult{
		Pushed: run.pushed.Load(), Delivered: run.delivered(), Duplicates: run.duplicates.Load(), Foreign: run.foreign.Load(), Full: run.full.Load(),
		Push: perSecond(run.pushed.Load(), run.lastPush.Load()), Cycle: perSecond(run.settled.Load(), run.lastSettle.Load()),
		PushTime: run.push.snapshot().table(), PopTime: run.pop.snapshot().table(), AckTime: run.ack.snapshot().table(),
		Errors: run.errors.copy(), First: run.errors.firstText(),
	}
	// Messages of pushes that failed may be among what was delivered: they hide no loss unless there were errors, and
	// a run with errors is no run.
	res.Lost = max(res.Pushed-res.Delivered, 0)
	return res
}

// finish compares, and judges: nothing lost, nothing twice, no reply to the wrong one, no errors.
func (r *ephemeralReport) finish() {
	r.OK = true
	if p := r.Reply; p != nil {
		base := float64(p.Before.Trip.P50+p.After.Trip.P50) / 2
		p.FreshP50Ratio, p.OwnP50Ratio = ratio(float64(p.Fresh.Trip.P50), base), ratio(float64(p.Own.Trip.P50), base)
		p.DurableP50Ratio = ratio(float64(p.Durable.Trip.P50), base)
		p.Drift = ratio(p.After.Rate, p.Before.Rate)
		for _, res := range []*replyResult{p.Before, p.Fresh, p.Own, p.Durable, p.After} {
			r.OK = r.OK && res.Answered > 0 && res.Wrong+res.Lost == 0 && len(res.Errors) == 0
		}
	}
	for _, s := range r.Stream {
		s.PushRatio = ratio(2*s.Broker.Push, s.Before.Push+s.After.Push)
		s.CycleRatio = ratio(2*s.Broker.Cycle, s.Before.Cycle+s.After.Cycle)
		s.Drift = ratio(s.After.Cycle, s.Before.Cycle)
		for _, res := range []*streamResult{s.Before, s.Broker, s.After} {
			r.OK = r.OK && res.Pushed > 0 && res.Lost+res.Duplicates+res.Foreign == 0 && len(res.Errors) == 0
		}
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (r *ephemeralReport) write(file string) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *ephemeralReport) print(w io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	m := r.Machine
	p("loadtest %s, %s, %d cores, %.1f GiB, %s %s, kernel %s", r.Version, m.Go, m.Cores, float64(m.MemoryBytes)/(1<<30), m.OS, m.Arch, m.Kernel)
	p("%s", strings.Join(r.Command, " "))
	p("%d brokers, Redis %s, payloads of %d bytes", r.Brokers, r.Redis, r.Payload)
	if r.Reply != nil {
		r.Reply.print(p)
	}
	for _, s := range r.Stream {
		s.print(p)
	}
	if r.OK {
		p("\nOK")
	} else {
		p("\nFAILED")
	}
}

func (r *replyReport) print(p func(string, ...any)) {
	p("\nrequest and reply, %d requesters, %d responders", r.Requesters, r.Responders)
	p("%-31s %10s %10s %10s %10s %8s", "", "answered/s", "p50", "p99", "max", "ratio")
	for _, row := range []struct {
		name  string
		res   *replyResult
		ratio float64
	}{
		{"redis LPUSH/BRPOP, before", r.Before, 0},
		{"ephemeral, inbox per request", r.Fresh, r.FreshP50Ratio},
		{"ephemeral, inbox per requester", r.Own, r.OwnP50Ratio},
		{"durable", r.Durable, r.DurableP50Ratio},
		{"redis LPUSH/BRPOP, after", r.After, 0},
	} {
		beside := ""
		if row.ratio > 0 {
			beside = fmt.Sprintf("%.2f", row.ratio)
		}
		p("%-31s %10.0f %10s %10s %10s %8s", row.name, row.res.Rate, micros(row.res.Trip.P50), micros(row.res.Trip.P99), micros(row.res.Trip.Max), beside)
		if row.res.Wrong+row.res.Lost > 0 {
			p("  ! %d wrong replies, %d without one", row.res.Wrong, row.res.Lost)
		}
		printErrors(p, row.res.Errors, row.res.First)
	}
	p("ratio: p50 beside the mean of both of Redis (machine drift during the run %.2f)", r.Drift)
}

func (s *streamReport) print(p func(string, ...any)) {
	p("\nstream, batch %d, %d producers, %d consumers", s.Batch, s.Producers, s.Consumers)
	p("%-31s %10s %10s %10s %10s %10s", "", "push/s", "cycle/s", "push p99", "pop p99", "ack p99")
	for _, row := range []struct {
		name string
		res  *streamResult
	}{{"redis XADD/XREADGROUP, before", s.Before}, {"ephemeral", s.Broker}, {"redis XADD/XREADGROUP, after", s.After}} {
		p("%-31s %10.0f %10.0f %10s %10s %10s", row.name, row.res.Push, row.res.Cycle,
			micros(row.res.PushTime.P99), micros(row.res.PopTime.P99), micros(row.res.AckTime.P99))
		p("  %d pushed, %d delivered, %d lost, %d duplicates, %d foreign, %d times full",
			row.res.Pushed, row.res.Delivered, row.res.Lost, row.res.Duplicates, row.res.Foreign, row.res.Full)
		printErrors(p, row.res.Errors, row.res.First)
	}
	p("ratio     push %.2f   cycle %.2f   (machine drift during the run %.2f)", s.PushRatio, s.CycleRatio, s.Drift)
}

func printErrors(p func(string, ...any), kinds map[string]int64, first string) {
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		p("  ! %d x %s, first: %s", kinds[kind], kind, first)
	}
}
