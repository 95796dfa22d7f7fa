package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramBucketsCoverEveryValue(t *testing.T) {
	t.Parallel()
	for b := range bucketCount - 1 {
		top := uint64(bucketTop(b))
		if bucketOf(top) != b {
			t.Fatalf("top %d of bucket %d falls into %d", top, b, bucketOf(top))
		}
		if next := bucketOf(top + 1); next != b+1 {
			t.Fatalf("%d falls into bucket %d, want %d", top+1, next, b+1)
		}
	}
}

func TestHistogramPercentiles(t *testing.T) {
	t.Parallel()
	var h histogram
	values := make([]time.Duration, 20_000)
	for i := range values {
		values[i] = time.Duration(rand.ExpFloat64() * float64(5*time.Millisecond))
		h.record(values[i])
	}
	slices.Sort(values)
	s := h.snapshot()
	if s.percentile(100) != values[len(values)-1] {
		t.Errorf("max %s, want %s", s.percentile(100), values[len(values)-1])
	}
	for _, p := range []float64{0.1, 50, 90, 99, 99.9} {
		want := values[int(math.Ceil(p/100*float64(len(values))))-1]
		got := s.percentile(p)
		if ratio := float64(got) / float64(want); ratio < 1 || ratio > 1.017 {
			t.Errorf("p%v %s, want about %s", p, got, want)
		}
	}
}

func TestHistogramSince(t *testing.T) {
	t.Parallel()
	var h histogram
	h.record(time.Second)
	before := h.snapshot()
	h.record(time.Millisecond)
	d := h.snapshot().since(before)
	if d.count != 1 || d.percentile(99) < time.Millisecond || d.percentile(99) > 1020*time.Microsecond {
		t.Errorf("count %d, p99 %s", d.count, d.percentile(99))
	}
	var empty histogram
	if got := empty.snapshot().percentile(99); got != 0 {
		t.Errorf("empty p99 %s", got)
	}
}
