package plot

import (
	"encoding/xml"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// area is where lines may be drawn.
type area struct{ left, top, w, h float64 }

func (a area) x(t axis, v float64) float64 { return a.left + t.at(v)*a.w }

func (a area) y(t axis, v float64) float64 { return a.top + (1-t.at(v))*a.h }

func (f *Figure) panel(c *canvas, p *Panel, box area, top float64, time axis) {
	c.add(`<g>`)
	c.text(box.left-leftRoom, top+13, textStyle{size: 12, colour: ink, bold: true}, p.Title)
	f.bands(c, box, time)
	values, found := p.valueAxis()
	grid(c, box, values, time)
	if !found {
		c.text(box.left+box.w/2, box.top+box.h/2, textStyle{size: 11, colour: faint, anchor: "middle"}, "no data")
	}
	p.legend(c, box.left-leftRoom, top+titleRoom)
	for i := range p.Series {
		if d := path(&p.Series[i], box, time, values); d != "" {
			c.add(`<path d="%s" fill="none" stroke="%s" stroke-width="1.4" stroke-linejoin="round" stroke-linecap="round"/>`, d, p.colour(i))
		}
	}
	c.add(`</g>`)
}

func (p *Panel) colour(i int) string {
	if c := p.Series[i].Colour; c > 0 {
		i = c - 1
	}
	return colours[i%len(colours)]
}

// valueAxis covers what can be drawn and reports whether there is anything.
func (p *Panel) valueAxis() (a axis, found bool) {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, s := range p.Series {
		for i, v := range s.Y {
			if i < len(s.X) && finite(s.X[i]) && p.shows(v) {
				lo, hi, found = min(lo, v), max(hi, v), true
			}
		}
	}
	if !found {
		return valueAxis(p.Unit, 0, 1, false), false
	}
	return valueAxis(p.Unit, lo, hi, p.Log), true
}

func (p *Panel) shows(v float64) bool { return finite(v) && (!p.Log || v > 0) }

// bands shades every other stretch and numbers those that are wide enough for a number.
func (f *Figure) bands(c *canvas, box area, time axis) {
	for i, b := range f.Bands {
		from, to := box.x(time, b.From), box.x(time, b.To)
		if i%2 == 1 {
			c.add(`<rect x="%s" y="%s" width="%s" height="%s" fill="%s"/>`, px(from), px(box.top), px(to-from), px(box.h), shade)
		}
		if to-from >= 10 {
			c.text((from+to)/2, box.top+11, textStyle{size: 10, colour: faint, anchor: "middle"}, strconv.Itoa(i+1))
		}
	}
}

func grid(c *canvas, box area, values, time axis) {
	small := textStyle{size: 10, colour: faint}
	for i, v := range values.ticks {
		y := box.y(values, v)
		c.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s"/>`, px(box.left), px(y), px(box.left+box.w), px(y), gridLine)
		s := small
		s.anchor = "end"
		c.text(box.left-5, y+3.5, s, values.names[i])
	}
	bottom := box.top + box.h
	c.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s"/>`, px(box.left), px(bottom), px(box.left+box.w), px(bottom), faint)
	s := small
	s.anchor = "middle"
	for i, v := range time.ticks {
		if at := time.at(v); at < 0 || at > 1.0001 {
			continue
		}
		x := box.x(time, v)
		c.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s"/>`, px(x), px(bottom), px(x), px(bottom+3), faint)
		c.text(x, bottom+14, s, time.names[i])
	}
	c.text(box.left+box.w/2, bottom+27, s, time.label)
	s.turn = true
	c.text(box.left-leftRoom+10, box.top+box.h/2, s, values.label)
}

// legend puts the names of the lines above them, as many in a row as fit.
func (p *Panel) legend(c *canvas, left, top float64) {
	p.eachName(func(i, row int, x float64) {
		y := top + float64(row*legendRow) + 4
		c.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="2.5"/>`,
			px(left+x), px(y), px(left+x+swatch-4), px(y), p.colour(i))
		c.text(left+x+swatch, y+3.5, textStyle{size: 11, colour: ink}, p.Series[i].Name)
	})
}

func legendRows(p *Panel) int {
	rows := 0
	p.eachName(func(_, row int, _ float64) { rows = row + 1 })
	return rows
}

func (p *Panel) eachName(place func(series, row int, x float64)) {
	row, x := 0, 0.0
	for i := range p.Series {
		w := swatch + 12 + charWidth*float64(utf8.RuneCountInString(p.Series[i].Name))
		if x > 0 && x+w > panelWidth {
			row, x = row+1, 0
		}
		place(i, row, x)
		x += w
	}
}

// path is the line of a series. Of the points in one pixel column the first, the lowest, the highest and the last
// are kept, so that a long run gives a small file and no peak is lost.
func path(s *Series, box area, time, values axis) string {
	var out strings.Builder
	move := true
	put := func(x, y float64) {
		first := move
		move = false
		if first {
			out.WriteByte('M')
		} else {
			out.WriteByte('L')
		}
		out.WriteString(px(x))
		out.WriteByte(' ')
		out.WriteString(px(y))
		if first {
			out.WriteString("h0") // a point between two gaps is a dot
		}
	}
	var col column
	for i := range min(len(s.X), len(s.Y)) {
		if !finite(s.X[i]) || !finite(s.Y[i]) || values.log && s.Y[i] <= 0 {
			col.flush(put)
			move = true
			continue
		}
		x, y := box.x(time, s.X[i]), box.y(values, s.Y[i])
		if len(col.xs) > 0 && math.Floor(x) != math.Floor(col.xs[0]) {
			col.flush(put)
		}
		col.xs, col.ys = append(col.xs, x), append(col.ys, y)
	}
	col.flush(put)
	return out.String()
}

type column struct{ xs, ys []float64 }

func (c *column) flush(put func(x, y float64)) {
	n := len(c.xs)
	if n == 0 {
		return
	}
	low, high := 0, 0
	for i, y := range c.ys {
		if y < c.ys[low] {
			low = i
		}
		if y > c.ys[high] {
			high = i
		}
	}
	for i := range c.xs {
		if i == 0 || i == low || i == high || i == n-1 {
			put(c.xs[i], c.ys[i])
		}
	}
	c.xs, c.ys = c.xs[:0], c.ys[:0]
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// px writes a coordinate in tenths of a pixel.
func px(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

func escape(s string) string {
	var b strings.Builder
	// A strings.Builder cannot fail.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

// wrap joins items to lines that fit.
func wrap(items []string, between string, limit float64) []string {
	var lines []string
	line := ""
	for _, item := range items {
		if line != "" && float64(utf8.RuneCountInString(line+between+item)) > limit {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += between
		}
		line += item
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
