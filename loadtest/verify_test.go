package main

import (
	"fmt"
	"testing"
)

// pushedLane returns a verifier with one lane into which n messages were pushed.
func pushedLane(n int, exclusive bool) *verifier {
	l := &lane{queue: "q", partition: "p", lastOffset: -1, next: int64(n)}
	v := newVerifier(1, []*lane{l}, 1, exclusive)
	items := make([]stored, n)
	for i := range items {
		items[i] = stored{status: []byte("queued"), offset: int64(i)}
	}
	v.pushed(l, 0, n, items, false)
	return v
}

func got(attempt int64, seqs ...int64) []delivery {
	var out []delivery
	for _, seq := range seqs {
		out = append(out, delivery{
			partition: []byte("p"), offset: seq, attempt: attempt, stamp: stamp{run: 1, seq: seq, ok: true},
		})
	}
	return out
}

type verdict struct{ lost, duplicates, redelivered, disorder, misrouted, foreign, vanished int64 }

func (v *verifier) verdict() verdict {
	g := &v.groups[0]
	return verdict{
		v.lost(0), g.duplicates.Load(), g.redelivered.Load(), g.disorder.Load(), g.misrouted.Load(), g.foreign.Load(),
		g.vanished.Load(),
	}
}

func TestVerifyDeliveries(t *testing.T) {
	t.Parallel()
	foreign := got(1, 0)
	foreign[0].stamp.run = 2
	misrouted := got(1, 0, 1, 2)
	misrouted[1].partition = []byte("other")
	swapped := got(1, 0, 1, 2)
	swapped[1].offset, swapped[2].offset = 2, 1
	for _, c := range []struct {
		name      string
		exclusive bool
		answers   [][]delivery
		want      verdict
	}{
		{"everything", true, [][]delivery{got(1, 0, 1), got(1, 2)}, verdict{}},
		{"nothing", true, nil, verdict{lost: 3}},
		{"the last is lost", true, [][]delivery{got(1, 0, 1)}, verdict{lost: 1}},
		{"the middle is lost", true, [][]delivery{got(1, 0), got(1, 2)}, verdict{lost: 1}},
		{"twice in one answer", true, [][]delivery{got(1, 0, 1, 1, 2)}, verdict{duplicates: 1, disorder: 1}},
		{"twice in two answers", true, [][]delivery{got(1, 0, 1, 2), got(1, 2)}, verdict{duplicates: 1}},
		{"redelivered", true, [][]delivery{got(1, 0, 1), got(2, 0, 1), got(1, 2)}, verdict{redelivered: 2}},
		{"redelivered with more", true, [][]delivery{got(1, 0, 1), got(2, 1, 2)}, verdict{redelivered: 1}},
		{"swapped in one answer", true, [][]delivery{got(1, 1, 0, 2)}, verdict{disorder: 1}},
		{"swapped answers under lease", true, [][]delivery{got(1, 1, 2), got(1, 0)}, verdict{disorder: 1}},
		{"swapped answers without lease", false, [][]delivery{got(1, 1, 2), got(1, 0)}, verdict{}},
		{"offsets against numbers", false, [][]delivery{swapped}, verdict{disorder: 1}},
		{"offsets against numbers in two answers", false, [][]delivery{swapped[:2], swapped[2:]}, verdict{disorder: 1}},
		{"a hand-out that never arrived", true, [][]delivery{got(2, 0, 1, 2)}, verdict{vanished: 1}},
		{"redelivered with more behind", true, [][]delivery{got(1, 0), got(2, 0, 1, 2)}, verdict{redelivered: 1}},
		{"other run", true, [][]delivery{foreign, got(1, 0, 1, 2)}, verdict{foreign: 1}},
		{"other partition", true, [][]delivery{misrouted}, verdict{misrouted: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := pushedLane(3, c.exclusive)
			for _, answer := range c.answers {
				v.received(0, answer, func(*delivery) {})
			}
			if got := v.verdict(); got != c.want {
				t.Errorf("%+v, want %+v: %v", got, c.want, v.problems.all())
			}
			if want := c.want.lost == 0; v.complete() != want {
				t.Errorf("complete %v, want %v", v.complete(), want)
			}
		})
	}
}

func TestVerifyPushAnswers(t *testing.T) {
	t.Parallel()
	item := func(status string, offset int64) stored { return stored{status: []byte(status), offset: offset} }
	for _, c := range []struct {
		name    string
		items   []stored
		retried bool
		want    string
	}{
		{"queued", []stored{item("queued", 0), item("queued", 1)}, false, "2 0 0 0 0"},
		{"no offsets", []stored{item("queued", -1), item("queued", -1)}, false, "2 0 0 0 0"},
		{"offset repeats", []stored{item("queued", 4), item("queued", 4)}, false, "2 0 0 0 1"},
		{"duplicate out of nowhere", []stored{item("duplicate", 0), item("queued", 1)}, false, "2 0 0 1 0"},
		{"duplicate after a retry", []stored{item("duplicate", 0), item("duplicate", 1)}, true, "2 0 0 0 0"},
		{"refused", []stored{item("queued", 0), item("error", -1)}, false, "1 0 1 0 0"},
		{"unknown status", []stored{item("queued", 0), item("stored", 1)}, false, "2 0 0 1 0"},
		{"short answer", []stored{item("queued", 0)}, false, "1 1 0 1 0"},
	} {
		l := &lane{queue: "q", partition: "p", lastOffset: -1, next: 2}
		v := newVerifier(1, []*lane{l}, 1, true)
		v.pushed(l, 0, 2, c.items, c.retried)
		p := &v.push
		got := fmt.Sprint(p.confirmed.Load(), p.uncertain.Load(), p.refused.Load(), p.badStatus.Load(), p.badOffset.Load())
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if lost := v.lost(0); lost != p.confirmed.Load() {
			t.Errorf("%s: %d lost of %d confirmed", c.name, lost, p.confirmed.Load())
		}
	}
}

func TestVerifyCountsAcrossWords(t *testing.T) {
	t.Parallel()
	v := pushedLane(1000, true)
	for seq := int64(0); seq < 1000; seq++ {
		if seq != 63 && seq != 64 && seq != 999 {
			v.received(0, got(1, seq), func(*delivery) {})
		}
	}
	if n, lowest := v.missing(0, 0); n != 3 || lowest != 63 {
		t.Errorf("%d missing from %d on, want 3 from 63 on", n, lowest)
	}
}
