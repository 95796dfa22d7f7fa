package broker

import (
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

var at = mq.QueueGroup{Queue: 1, Group: 2}

// clockAt is an instant of the database, in ms.
func clockAt(ms int) time.Time {
	return time.UnixMilli(1_700_000_000_000).Add(time.Duration(ms) * time.Millisecond)
}

// saw is a look at an instant that found nothing, or something ready at another.
func saw(now int, running, next int64, ready ...int) *mq.NextReady {
	n := &mq.NextReady{GroupExists: true, Seeded: true, Now: clockAt(now), OldestRunning: running, NextNumber: next}
	for _, ms := range ready {
		n.Ready = clockAt(ms)
	}
	return n
}

// look notes a look that begins now.
func look(f *floors, from time.Time, n *mq.NextReady) {
	time.Sleep(time.Microsecond)
	f.looked(at, from, n, time.Now(), time.Millisecond)
}

func TestFloorIsProvenByTwoLooks(t *testing.T) {
	t.Parallel()
	f := newFloors()
	look(f, time.Time{}, saw(1000, 5, 9)) // an instant
	look(f, time.Time{}, saw(2000, 5, 9)) // a number after it; 5 to 8 may be writing what is older
	if p := f.proven(at); !p.IsZero() {
		t.Fatalf("proven by one look: %v", p)
	}
	look(f, time.Time{}, saw(3000, 8, 11))
	if p := f.proven(at); !p.IsZero() {
		t.Fatalf("proven while 8 is running: %v", p)
	}
	look(f, time.Time{}, saw(4000, 9, 11))
	if p, want := f.proven(at), clockAt(1000).Add(-floorMargin); !p.Equal(want) {
		t.Fatalf("proven %v, want %v", p, want)
	}
	// The next proof began with the look that ended this one.
	look(f, f.proven(at), saw(5000, 12, 12))
	if p, want := f.proven(at), clockAt(3000).Add(-floorMargin); !p.Equal(want) {
		t.Fatalf("proven %v, want %v", p, want)
	}
}

func TestFloorStopsAtWork(t *testing.T) {
	t.Parallel()
	f := newFloors()
	look(f, time.Time{}, saw(1000, 5, 5))
	look(f, time.Time{}, saw(2000, 5, 5))
	look(f, time.Time{}, saw(3000, 5, 5, 500)) // ready for long, and locked by somebody
	if p := f.proven(at); !p.Equal(clockAt(500)) {
		t.Fatalf("proven over what is ready: %v", p)
	}
	look(f, f.proven(at), saw(4000, 5, 5, 2900)) // it was claimed; the next is younger than the margin
	if p, want := f.proven(at), clockAt(2000).Add(-floorMargin); !p.Equal(want) {
		t.Fatalf("proven %v, want %v", p, want)
	}
}

func TestLongScansAreMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFloors()
	f.claimed(at, time.Time{}, clockAt(5000), longScan/2)
	f.at[at].until = time.Now().Add(-time.Millisecond)
	if f.tired(at) {
		t.Error("a short scan is worth a look")
	}
	f.claimed(at, time.Time{}, clockAt(5000), 2*longScan)
	if f.tired(at) {
		t.Error("scans although it need not")
	}
	f.at[at].until = time.Now().Add(-time.Millisecond)
	if !f.tired(at) {
		t.Error("a long scan is not worth a look")
	}
}

func TestFloorIsNotProvenByLooksThatDoNotFollowEachOther(t *testing.T) {
	t.Parallel()
	f := newFloors()
	began := time.Now()
	look(f, time.Time{}, saw(1000, 5, 9))
	// Began before the look above was over: 9 may be older than its instant.
	f.looked(at, time.Time{}, saw(1001, 5, 9), began, time.Millisecond)
	look(f, time.Time{}, saw(3000, 9, 11))
	if p := f.proven(at); !p.IsZero() {
		t.Fatalf("proven: %v", p)
	}
	// And a look that saw a part proves nothing about the rest.
	g := newFloors()
	look(g, time.Time{}, saw(1000, 5, 5))
	look(g, time.Time{}, saw(2000, 5, 5))
	look(g, clockAt(500), saw(3000, 5, 5))
	if p := g.proven(at); !p.IsZero() {
		t.Fatalf("proven from the middle on: %v", p)
	}
}

func TestFloorsAreGivenUp(t *testing.T) {
	t.Parallel()
	f := newFloors()
	f.claimed(at, time.Time{}, clockAt(5000), 0)
	if g, want := f.guess(at), clockAt(5000).Add(-guessMargin); !g.Equal(want) {
		t.Fatalf("guess %v, want %v", g, want)
	}
	if p := f.proven(at); !p.IsZero() {
		t.Fatalf("a claim proves nothing: %v", p)
	}
	f.at[at].until = time.Now().Add(-time.Millisecond)
	if g := f.guess(at); !g.IsZero() {
		t.Fatalf("guess after its time: %v", g)
	}
	// Only a scan of everything brings them back, for longer when it is slow.
	f.claimed(at, clockAt(4000), clockAt(6000), 0)
	if g := f.guess(at); !g.IsZero() {
		t.Fatalf("guess from the middle on: %v", g)
	}
	f.claimed(at, time.Time{}, clockAt(6000), time.Second)
	if left := time.Until(f.at[at].until); left < 19*time.Second || left > 21*time.Second {
		t.Errorf("held for %v", left)
	}
}
