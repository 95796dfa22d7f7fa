// Package plot draws time series as small multiples: one SVG of several panels over one time axis, readable without
// fonts, scripts or colours from outside.
package plot

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"
)

// Figure is one SVG.
type Figure struct {
	Title    string
	Subtitle string
	Bands    []Band
	Panels   []Panel
}

// Band is a stretch of time with a name, the same in all panels.
type Band struct {
	From, To float64 // seconds
	Label    string
}

// Panel is one chart. All panels of a figure share the time axis.
type Panel struct {
	Title  string
	Unit   Unit
	Log    bool // values over several orders of magnitude; those not above zero are left out
	Series []Series
}

// Series is one line. A value that is no number breaks it.
type Series struct {
	Name string
	X    []float64 // seconds, rising
	Y    []float64
	// Colour 1, 2, … is the first, second, … of the palette, so that a thing has the same one in several panels; 0
	// is by position.
	Colour int
}

const (
	columns     = 2
	figureWidth = 920
	outer       = 14 // around everything
	panelWidth  = (figureWidth - 2*outer - gutter) / columns
	gutter      = 16
	plotHeight  = 136
	leftRoom    = 58 // for the labels of the value axis
	rightRoom   = 10
	titleRoom   = 22
	legendGap   = 7 // between the names and the label of the highest tick
	legendRow   = 15
	bottomRoom  = 38 // for the labels of the time axis
	charWidth   = 6.1
	swatch      = 16
)

// The lines' colours are told apart by colour-blind readers too, and dark enough for a light ground.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#555555", "#882255"}

const (
	ground   = "#ffffff" // opaque, so that the text can be read on a dark page
	frame    = "#d0d7de"
	ink      = "#1f2328"
	faint    = "#59636e"
	gridLine = "#e6e9ed"
	shade    = "#f3f5f8"
)

// canvas collects the document; its numbers are rounded to tenths of a pixel.
type canvas struct{ bytes.Buffer }

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

type textStyle struct {
	size   int
	colour string
	anchor string // start, middle or end
	bold   bool
	turn   bool // reads from below
}

func (c *canvas) text(x, y float64, s textStyle, words string) {
	extra := ""
	if s.anchor != "" && s.anchor != "start" {
		extra += ` text-anchor="` + s.anchor + `"`
	}
	if s.bold {
		extra += ` font-weight="600"`
	}
	if s.turn {
		extra += fmt.Sprintf(` transform="rotate(-90 %s %s)"`, px(x), px(y))
	}
	c.add(`<text x="%s" y="%s" font-size="%d" fill="%s"%s>%s</text>`, px(x), px(y), s.size, s.colour, extra, escape(words))
}

// WriteSVG writes the figure.
func (f *Figure) WriteSVG(w io.Writer) error {
	var body canvas
	y := f.heading(&body)
	scale := f.timeScale()
	for row := 0; row < len(f.Panels); row += columns {
		panels := f.Panels[row:min(row+columns, len(f.Panels))]
		legend := 0
		for i := range panels {
			legend = max(legend, legendRows(&panels[i]))
		}
		for i := range panels {
			box := area{
				left: float64(outer + i*(panelWidth+gutter) + leftRoom),
				top:  y + titleRoom + float64(legend*legendRow) + legendGap,
				w:    panelWidth - leftRoom - rightRoom, h: plotHeight,
			}
			f.panel(&body, &panels[i], box, y, scale)
		}
		y += titleRoom + float64(legend*legendRow) + legendGap + plotHeight + bottomRoom
	}
	height := int(math.Ceil(y)) + outer/2
	var doc canvas
	doc.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" `+
		`font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif">`, figureWidth, height, figureWidth, height)
	doc.add(`<title>%s</title>`, escape(f.Title))
	doc.add(`<rect x="0.5" y="0.5" width="%d" height="%d" rx="6" fill="%s" stroke="%s"/>`, figureWidth-1, height-1, ground, frame)
	doc.Write(body.Bytes())
	doc.add(`</svg>`)
	if _, err := w.Write(doc.Bytes()); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	return nil
}

// heading writes title, subtitle and the names of the bands, and returns where the panels start.
func (f *Figure) heading(c *canvas) float64 {
	y := float64(outer + 16)
	c.text(outer, y, textStyle{size: 16, colour: ink, bold: true}, f.Title)
	const limit = (figureWidth - 2*outer) / charWidth
	for _, line := range wrap(strings.Fields(f.Subtitle), " ", limit) {
		y += 17
		c.text(outer, y, textStyle{size: 11, colour: faint}, line)
	}
	var names []string
	for i, b := range f.Bands {
		names = append(names, fmt.Sprintf("%d %s", i+1, b.Label))
	}
	for _, line := range wrap(names, "  ·  ", limit) {
		y += 17
		c.text(outer, y, textStyle{size: 11, colour: ink}, line)
	}
	return y + 14
}

// timeScale covers all series and bands.
func (f *Figure) timeScale() axis {
	lo, hi := math.Inf(1), math.Inf(-1)
	widen := func(v float64) {
		if finite(v) {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	for _, p := range f.Panels {
		for _, s := range p.Series {
			for _, x := range s.X {
				widen(x)
			}
		}
	}
	for _, b := range f.Bands {
		widen(b.From)
		widen(b.To)
	}
	if lo > hi {
		lo, hi = 0, 1
	}
	return timeAxis(lo, hi)
}
