package plot

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// nice reports whether v is 1, 2 or 5 times a power of ten.
func nice(v float64) bool {
	m := v / math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	return slices.ContainsFunc([]float64{1, 2, 5, 10}, func(want float64) bool { return math.Abs(m-want) < 1e-6 })
}

func TestLinearTicksAreNice(t *testing.T) {
	t.Parallel()
	for _, hi := range []float64{1e-6, 0.3, 1, 1.01, 7, 9.99, 60, 61, 999, 34400, 1e6, 7.3e12} {
		for _, lo := range []float64{0, hi / 3, -hi} {
			ticks := linearTicks(lo, hi, 5)
			if len(ticks) < 2 || len(ticks) > 12 {
				t.Errorf("%g…%g: %v", lo, hi, ticks)
				continue
			}
			gap := ticks[1] - ticks[0]
			if !nice(gap) {
				t.Errorf("%g…%g: steps of %g", lo, hi, gap)
			}
			for i, v := range ticks {
				if math.Abs(v/gap-math.Round(v/gap)) > 1e-6 {
					t.Errorf("%g…%g: tick %g is no multiple of %g", lo, hi, v, gap)
				}
				if i > 0 && math.Abs(v-ticks[i-1]-gap) > gap*1e-6 {
					t.Errorf("%g…%g: uneven: %v", lo, hi, ticks)
				}
			}
		}
	}
}

func TestLogTicksCoverTheRange(t *testing.T) {
	t.Parallel()
	for _, r := range [][2]float64{{1, 1}, {0.9, 1.1}, {3, 40}, {0.2, 0.21}, {1e-3, 5e3}, {1e-12, 1e12}, {100, 1000}} {
		ticks := logTicks(r[0], r[1])
		if len(ticks) < 2 || len(ticks) > 9 || ticks[0] > r[0]*1.000001 || ticks[len(ticks)-1] < r[1]*0.999999 {
			t.Errorf("%v: %v", r, ticks)
		}
		for i, v := range ticks {
			if !nice(v) || i > 0 && v <= ticks[i-1] {
				t.Errorf("%v: %v", r, ticks)
			}
		}
	}
}

func TestValueAxisHoldsItsValues(t *testing.T) {
	t.Parallel()
	for _, u := range []Unit{Count("n"), Bytes, Seconds} {
		for _, log := range []bool{false, true} {
			for _, r := range [][2]float64{{0, 0}, {1, 1}, {3e-5, 0.2}, {5, 1.7e9}, {-4, 9}, {-7, -3}} {
				a := valueAxis(u, r[0], r[1], log)
				for _, v := range r {
					if at := a.at(v); at < -1e-9 || at > 1+1e-9 {
						t.Errorf("%v log=%v: %g stands at %g", u, log, v, at)
					}
				}
				if !a.log && (a.at(0) < -1e-9 || a.at(0) > 1+1e-9) {
					t.Errorf("%v: zero is not on the axis of %v", u, r)
				}
			}
		}
	}
}

func TestUnitsFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unit  Unit
		top   float64
		label string
		last  string
	}{
		{Count("messages/s"), 34400, "messages/s", "40k"},
		{Count("rows"), 2.1e6, "rows", "2.5M"},
		{Bytes, 3 << 30, "GiB", "3"},
		{Bytes, 300 << 20, "MiB", "300"},
		{Bytes, 12, "bytes", "15"},
		{Seconds, 0.0008, "µs", "800"},
		{Seconds, 0.25, "ms", "250"},
		{Seconds, 12, "s", "15"},
	} {
		a := valueAxis(c.unit, 0, c.top, false)
		if a.label != c.label || a.names[0] != "0" || a.names[len(a.names)-1] != c.last {
			t.Errorf("%g: label %q, ticks %s", c.top, a.label, strings.Join(a.names, " "))
		}
	}
	for span, want := range map[float64]string{30: "time (s)", 1800: "time (min)", 20000: "time (h)"} {
		if a := timeAxis(0, span); a.label != want {
			t.Errorf("%g s: %q", span, a.label)
		}
	}
}

func TestTickNames(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 0.1 + 0.2: "0.3", 5: "5", 1000: "1k", 2500: "2.5k", 1e6: "1M", 3e9: "3G", -2000: "-2k", 1e-7: "0.0000001",
	} {
		if got := tickName(v); got != want {
			t.Errorf("%g: %q, want %q", v, got, want)
		}
	}
}
