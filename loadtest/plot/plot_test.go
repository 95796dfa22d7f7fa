package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden file")

func ramp(name string, n int, y func(i int) float64) Series {
	s := Series{Name: name}
	for i := range n {
		s.X = append(s.X, float64(i))
		s.Y = append(s.Y, y(i))
	}
	return s
}

func sample() *Figure {
	return &Figure{
		Title: "A <sample> & more", Subtitle: "what the panels show, " + strings.Repeat("and a long line of it ", 12),
		Bands: []Band{{0, 20, "baseline"}, {20, 22, "gap"}, {22, 60, "measured"}},
		Panels: []Panel{
			{Title: "rate", Unit: Count("messages/s"), Series: []Series{
				ramp("push", 60, func(i int) float64 { return 20000 + 3000*math.Sin(float64(i)/7) }),
				ramp("deliver", 60, func(i int) float64 { return 15000 + 200*float64(i) }),
			}},
			{Title: "latency", Unit: Seconds, Log: true, Series: []Series{
				ramp("p50", 60, func(i int) float64 { return 0.002 + 0.0001*float64(i) }),
				ramp("p99", 60, func(i int) float64 {
					if i == 30 {
						return math.NaN()
					}
					return 0.02 + 0.01*float64(i%9)
				}),
			}},
			{Title: "memory", Unit: Bytes, Series: []Series{ramp("broker", 60, func(i int) float64 { return 1e8 + 1e6*float64(i) })}},
			{Title: "nothing", Unit: Bytes, Series: []Series{{Name: "empty"}, {Name: "unknown", X: []float64{1}, Y: []float64{math.Inf(1)}}}},
			{Title: "one point", Unit: Count("connections"), Series: []Series{{Name: "a", X: []float64{10}, Y: []float64{7}}}},
		},
	}
}

func draw(t *testing.T, f *Figure) string {
	t.Helper()
	var b bytes.Buffer
	if err := f.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	t.Parallel()
	got := draw(t, sample())
	file := filepath.Join("testdata", "sample.svg")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the figure changed; look at it and run go test ./loadtest/plot -update")
	}
}

// parse checks that the document is well-formed and returns its elements by name.
func parse(t *testing.T, doc string) map[string][]xml.StartElement {
	t.Helper()
	out := map[string][]xml.StartElement{}
	for d := xml.NewDecoder(strings.NewReader(doc)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok {
			out[e.Name.Local] = append(out[e.Name.Local], e.Copy())
		}
	}
}

func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func TestDocument(t *testing.T) {
	t.Parallel()
	doc := draw(t, sample())
	all := parse(t, doc)
	for _, name := range []string{"script", "style", "image", "foreignObject", "use", "link"} {
		if len(all[name]) > 0 {
			t.Errorf("<%s> in the figure", name)
		}
	}
	if len(all["svg"]) != 1 || attr(all["svg"][0], "viewBox") == "" || len(all["title"]) != 1 {
		t.Error("no single svg with a viewBox and a title")
	}
	if got := len(all["g"]); got != 5 {
		t.Errorf("%d panels drawn, want 5", got)
	}
	if got := len(all["path"]); got != 6 {
		t.Errorf("%d lines drawn, want 6: empty series have none", got)
	}
	for _, want := range []string{"A &lt;sample&gt; &amp; more", ">messages/s<", ">ms<", ">MiB<", ">time (s)<", ">no data<", ">3 measured"[1:]} {
		if !strings.Contains(doc, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

var coordinates = regexp.MustCompile(`[ML](-?[0-9.]+) (-?[0-9.]+)`)

func points(t *testing.T, d string) (xs, ys []float64) {
	t.Helper()
	for _, m := range coordinates.FindAllStringSubmatch(d, -1) {
		x, errX := strconv.ParseFloat(m[1], 64)
		y, errY := strconv.ParseFloat(m[2], 64)
		if errX != nil || errY != nil {
			t.Fatalf("path %q", m[0])
		}
		xs, ys = append(xs, x), append(ys, y)
	}
	return xs, ys
}

func TestLinesStayInTheirPanel(t *testing.T) {
	t.Parallel()
	extreme := &Figure{Panels: []Panel{{Unit: Count("n"), Series: []Series{
		{Name: "wild", X: []float64{-5, 0, 3, 1e5}, Y: []float64{-1e9, 3, 7e12, 1}},
		{Name: "longer x", X: []float64{1, 2, 3}, Y: []float64{1}},
	}}, {Unit: Seconds, Log: true, Series: []Series{{Name: "log", X: []float64{1, 2, 3}, Y: []float64{1e-9, 5e3, 0}}}}}}
	for _, f := range []*Figure{sample(), extreme} {
		all := parse(t, draw(t, f))
		height, err := strconv.ParseFloat(attr(all["svg"][0], "height"), 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all["path"] {
			xs, ys := points(t, attr(e, "d"))
			if len(xs) == 0 {
				t.Errorf("a path without points: %q", attr(e, "d"))
			}
			for i := range xs {
				column := math.Mod(xs[i]-outer, panelWidth+gutter)
				if column < leftRoom-0.1 || column > panelWidth-rightRoom+0.1 || ys[i] < 0 || ys[i] > height-bottomRoom+0.1 {
					t.Errorf("point %g %g outside of its panel", xs[i], ys[i])
				}
			}
		}
	}
}

func TestColoursStayWithTheirThing(t *testing.T) {
	t.Parallel()
	line := func(colour int) Series { return Series{Name: "n", X: []float64{1}, Y: []float64{1}, Colour: colour} }
	all := parse(t, draw(t, &Figure{Panels: []Panel{
		{Series: []Series{line(0), line(0), line(3)}}, {Series: []Series{line(3), line(len(colours) + 1)}},
	}}))
	for i, want := range []int{0, 1, 2, 2, 0} {
		if got := attr(all["path"][i], "stroke"); got != colours[want] {
			t.Errorf("line %d is %s, want %s", i, got, colours[want])
		}
	}
}

func TestPathKeepsPeaksAndGaps(t *testing.T) {
	t.Parallel()
	s := ramp("long", 100000, func(i int) float64 {
		switch {
		case i == 50001:
			return 1000
		case i >= 70000 && i < 71000:
			return math.NaN()
		default:
			return float64(i % 10)
		}
	})
	time, values := timeAxis(0, 1e5), valueAxis(Count(""), 0, 1000, false)
	d := path(&s, area{0, 0, 400, 100}, time, values)
	_, ys := points(t, d)
	if len(ys) > 4*401 {
		t.Errorf("%d points on 400 pixels", len(ys))
	}
	top := math.Inf(1)
	for _, y := range ys {
		top = min(top, y)
	}
	if top != 0 {
		t.Errorf("the peak is at %g, want 0", top)
	}
	if got := strings.Count(d, "M"); got != 2 {
		t.Errorf("%d pieces, want 2: a gap breaks the line", got)
	}
}

func TestEmptyFigures(t *testing.T) {
	t.Parallel()
	for _, f := range []*Figure{{}, {Panels: []Panel{{}}}, {Bands: []Band{{1, 1, ""}}, Panels: []Panel{{Log: true}}}} {
		doc := draw(t, f)
		parse(t, doc)
		if strings.Contains(doc, "NaN") || strings.Contains(doc, "Inf") {
			t.Errorf("a number that is none: %s", doc)
		}
	}
}

func TestFigureReportsWriteErrors(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	_ = r.Close()
	if err := sample().WriteSVG(w); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}
