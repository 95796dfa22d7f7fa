package plot

import (
	"math"
	"strconv"
	"strings"
)

// Unit says how values are labelled.
type Unit struct {
	kind  unitKind
	label string
}

type unitKind int

const (
	plain unitKind = iota
	byteCount
	timeSpan
)

// Count is a plain number of something, or of something per second.
func Count(label string) Unit { return Unit{plain, label} }

// Bytes and Seconds pick their prefix to fit the values.
var (
	Bytes   = Unit{kind: byteCount}
	Seconds = Unit{kind: timeSpan}
)

type step struct {
	size  float64
	label string
}

var (
	byteSteps = []step{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "bytes"}}
	timeSteps = []step{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}}
)

// fit returns by how much values are divided for the axis, and the axis' label.
func (u Unit) fit(largest float64) (divisor float64, label string) {
	var steps []step
	switch u.kind {
	case byteCount:
		steps = byteSteps
	case timeSpan:
		steps = timeSteps
	case plain:
		return 1, u.label
	}
	for _, s := range steps {
		if largest >= s.size {
			return s.size, s.label
		}
	}
	last := steps[len(steps)-1]
	return last.size, last.label
}

// axis maps values to a share of the way along it.
type axis struct {
	lo, hi  float64 // in values
	divisor float64
	label   string
	log     bool
	ticks   []float64 // in values
	names   []string
}

func (a *axis) at(v float64) float64 {
	if a.log {
		return (math.Log(v) - math.Log(a.lo)) / (math.Log(a.hi) - math.Log(a.lo))
	}
	return (v - a.lo) / (a.hi - a.lo)
}

func timeAxis(lo, hi float64) axis {
	if hi <= lo {
		hi = lo + 1
	}
	a := axis{lo: lo, hi: hi, divisor: 1, label: "time (s)"}
	switch span := hi - lo; {
	case span > 3*3600:
		a.divisor, a.label = 3600, "time (h)"
	case span > 10*60:
		a.divisor, a.label = 60, "time (min)"
	}
	a.mark(linearTicks(lo/a.divisor, hi/a.divisor, 7))
	return a
}

// valueAxis starts at zero unless it is logarithmic, because a cut axis makes a small change look like a large one.
func valueAxis(u Unit, lo, hi float64, log bool) axis {
	if !log || lo <= 0 {
		lo, hi = min(lo, 0), max(hi, 0)
	}
	if hi <= lo {
		hi = lo + 1
	}
	divisor, label := u.fit(max(math.Abs(hi), math.Abs(lo)))
	a := axis{divisor: divisor, label: label, log: log && lo > 0}
	if a.log {
		ticks := logTicks(lo/divisor, hi/divisor)
		a.lo, a.hi = ticks[0]*divisor, ticks[len(ticks)-1]*divisor
		a.mark(ticks)
		return a
	}
	ticks := linearTicks(lo/divisor, hi/divisor, 5)
	gap := ticks[1] - ticks[0]
	if top := ticks[len(ticks)-1]; top < hi/divisor-gap*1e-6 {
		ticks = append(ticks, top+gap)
	}
	if lo < 0 && ticks[0] > lo/divisor+gap*1e-6 {
		ticks = append([]float64{ticks[0] - gap}, ticks...)
	}
	a.lo, a.hi = ticks[0]*divisor, ticks[len(ticks)-1]*divisor
	a.mark(ticks)
	return a
}

func (a *axis) mark(scaled []float64) {
	for _, t := range scaled {
		a.ticks = append(a.ticks, t*a.divisor)
		a.names = append(a.names, tickName(t))
	}
}

// linearTicks returns the multiples of 1, 2 or 5 times a power of ten inside lo…hi, about n of them and at least two.
func linearTicks(lo, hi float64, n int) []float64 {
	raw := (hi - lo) / float64(n)
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	gap := power
	for _, m := range []float64{1, 2, 5, 10} {
		if gap = m * power; gap >= raw*0.999 {
			break
		}
	}
	var out []float64
	first := math.Ceil(lo/gap - 1e-9)
	for i := first; i*gap <= hi+gap*1e-9 || len(out) < 2; i++ {
		out = append(out, i*gap)
	}
	return out
}

// logTicks returns powers of ten around lo…hi, with 2 and 5 between them while the range is small, thinned out while
// it is large.
func logTicks(lo, hi float64) []float64 {
	from, to := int(math.Floor(math.Log10(lo)+1e-9)), int(math.Ceil(math.Log10(hi)-1e-9))
	to = max(to, from+1)
	var all []float64
	for p := from; p <= to; p++ {
		for _, m := range []float64{1, 2, 5} {
			if m > 1 && (to-from > 2 || p == to) {
				continue
			}
			all = append(all, m*math.Pow(10, float64(p)))
		}
	}
	for len(all) > 2 && all[1] <= lo {
		all = all[1:]
	}
	for len(all) > 2 && all[len(all)-2] >= hi {
		all = all[:len(all)-1]
	}
	for len(all) > 8 {
		var half []float64
		for i := 0; i < len(all); i += 2 {
			half = append(half, all[i])
		}
		if last := all[len(all)-1]; half[len(half)-1] != last {
			half = append(half, last)
		}
		all = half
	}
	return all
}

func tickName(v float64) string {
	for _, s := range []step{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= s.size*0.9999 {
			return short(v/s.size) + s.label
		}
	}
	return short(v)
}

// short writes a number without noise of binary fractions.
func short(v float64) string {
	s := strconv.FormatFloat(v, 'g', 6, 64)
	if strings.ContainsAny(s, "e") {
		s = strconv.FormatFloat(v, 'f', -1, 64)
	}
	if s == "-0" {
		return "0"
	}
	return s
}
