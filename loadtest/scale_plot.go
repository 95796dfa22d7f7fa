package main

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/queenmq-go/queenmq/loadtest/plot"
)

// maxLines is how many tables a panel shows.
const maxLines = 5

// gap is how many seconds apart samples may be before the line between them is left out, because nothing is known of
// the time between. Clients are asked each second; the others less often while an answer takes long.
func (s *series) gap() float64 {
	switch s.Panel {
	case panelRate, panelPush, panelDeliver:
		return 3
	default:
		return 60
	}
}

// tableColours keep a table's colour the same in all panels.
var tableColours = []string{"segments", "message_ids", "cursors", "partitions", "queues", "consumer_groups", "dropped_queues", "dead_letters"}

func (r *scaleReport) writeSVG(file string) error {
	var b bytes.Buffer
	if err := r.figure().WriteSVG(&b); err != nil {
		return err
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write plots: %w", err)
	}
	return nil
}

func (r *scaleReport) figure() *plot.Figure {
	m := r.Machine
	database := "no database named"
	if r.Database != nil {
		database = "PostgreSQL " + r.Database.Version + ", " + r.Database.settingsText()
	}
	f := &plot.Figure{
		Title: fmt.Sprintf("%s: %d %s", r.Scenario, r.Size, r.SizeOf),
		Subtitle: fmt.Sprintf("%s · %s · %d cores %s, %.0f GiB, %s %s · %s · %s", strings.Join(r.publicCommand(), " "), r.Version, m.Cores,
			m.CPU, float64(m.MemoryBytes)/(1<<30), m.OS, m.Kernel, database, r.Started.Format("2 January 2006")),
	}
	for _, b := range r.Bands {
		f.Bands = append(f.Bands, plot.Band{From: b.From, To: b.To, Label: b.Name})
	}
	panels := []string{
		panelRate, panelPush, panelDeliver, panelMemory, panelHeap, panelIndex, panelDead, panelDeleted,
	}
	if r.Scenario == "parked" { // elsewhere it counts the run's own consumers
		panels = append(panels, panelParked)
	}
	for _, name := range panels {
		if p, found := r.panel(name); found {
			f.Panels = append(f.Panels, p)
		}
	}
	return f
}

// publicCommand leaves out where things are; the picture is for publishing.
func (r *scaleReport) publicCommand() []string {
	var out []string
	skip := false
	for _, arg := range r.Command {
		name, _, inline := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case skip:
			skip = false
		case strings.HasPrefix(arg, "-") && slices.Contains([]string{"url", "database-url", "json", "svg", "token"}, name):
			skip = !inline
		default:
			out = append(out, arg)
		}
	}
	return out
}

func (r *scaleReport) panel(name string) (plot.Panel, bool) {
	p := plot.Panel{Title: name, Log: name == panelPush || name == panelDeliver}
	var all []*series
	for _, s := range r.Series {
		if s.Panel == name {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return p, false
	}
	switch all[0].Unit {
	case unitBytes:
		p.Unit = plot.Bytes
	case unitSeconds:
		p.Unit = plot.Seconds
	default:
		p.Unit = plot.Count(all[0].Unit)
	}
	if len(all) > maxLines {
		slices.SortFunc(all, func(a, b *series) int { return cmp.Compare(b.last(), a.last()) })
		all = all[:maxLines]
		p.Title += fmt.Sprintf(" (the largest %d)", maxLines)
	}
	for _, s := range all {
		p.Series = append(p.Series, s.line())
	}
	return p, true
}

func (s *series) last() float64 { return s.Points[len(s.Points)-1][1] }

func (s *series) line() plot.Series {
	out := plot.Series{Name: s.Name, Colour: slices.Index(tableColours, s.Name) + 1}
	for i, p := range s.Points {
		if i > 0 && p[0]-s.Points[i-1][0] > s.gap() {
			out.X, out.Y = append(out.X, p[0]), append(out.Y, math.NaN())
		}
		out.X, out.Y = append(out.X, p[0]), append(out.Y, p[1])
	}
	return out
}
