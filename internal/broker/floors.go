package broker

import (
	"sync"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// floors keeps, per group, where a scan of the claim index may begin. Behind it
// are the dead entries of earlier claims, which vacuum removes at some time, and
// not at all while anybody holds an old snapshot.
//
// One bound is a guess: what was claimed last, less a margin, since what is older
// was claimed before. A push that takes long to commit may be older still. The
// other one is proven, and what is found nowhere above it does not exist. Proof
// takes two looks. The first, at an instant, notes the number that the next
// transaction will get. The second, once all transactions before that number are
// over, finds the oldest that is ready: nothing older exists, and whoever begins
// later stamps what it makes ready later than the instant.
//
// That rests on a clock that does not go back by more than the margin. In case it
// does, as it may when a standby takes over, both are given up from time to time
// for a scan of everything.
type floors struct {
	mu sync.Mutex
	at map[mq.QueueGroup]*floor
}

type floor struct {
	guess  time.Time
	proven time.Time
	until  time.Time     // when both are given up, by our clock
	now    time.Time     // the database's clock at the last look
	nowAt  time.Time     // and when we learnt that, by ours
	took   time.Duration // by the last scan of everything
	// What becomes ready from now on is ready later than open, if everybody before
	// that number is over.
	open       time.Time
	openNumber int64
}

const (
	guessMargin = 40 * time.Millisecond // longer than most commits take
	floorMargin = 200 * time.Millisecond
	floorLife   = time.Second
	floorShare  = 20 // a full scan takes no more than one part of so many
	// What is worth a look beforehand, so that the claims need not do it too.
	longScan = 10 * time.Millisecond
)

func newFloors() *floors { return &floors{at: map[mq.QueueGroup]*floor{}} }

// guess is where a claim may begin that hopes to find something; zero: at the
// beginning.
func (f *floors) guess(at mq.QueueGroup) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.valid(at)
	if fl.guess.After(fl.proven) {
		return fl.guess
	}
	return fl.proven
}

// tired tells that a claim would scan everything, and that this takes long.
func (f *floors) tired(at mq.QueueGroup) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.valid(at)
	return fl.until.IsZero() && fl.took > longScan
}

// proven is where a look may begin that wants to be sure; zero: at the beginning.
func (f *floors) proven(at mq.QueueGroup) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.valid(at).proven
}

// claimed notes the oldest of what a claim from a floor on got, if anything.
func (f *floors) claimed(at mq.QueueGroup, from, oldest time.Time, took time.Duration) {
	if oldest.IsZero() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.valid(at)
	fl.renew(from, took)
	if !fl.until.IsZero() {
		fl.guess = oldest.Add(-guessMargin)
	}
}

// looked notes what a look from a floor on saw that began at an instant of our
// clock.
func (f *floors) looked(at mq.QueueGroup, from time.Time, saw *mq.NextReady, began time.Time, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.valid(at)
	fl.renew(from, took)
	covered := !from.After(fl.proven) && !fl.until.IsZero()
	if covered && fl.openNumber > 0 && saw.OldestRunning >= fl.openNumber {
		bound := fl.open.Add(-floorMargin)
		if !saw.Ready.IsZero() && saw.Ready.Before(bound) {
			bound = saw.Ready
		}
		if bound.After(fl.proven) {
			fl.proven = bound
		}
		fl.openNumber = 0
	}
	// The instant must be before the number was read, so both are not of one look.
	if fl.openNumber == 0 && !fl.now.IsZero() && began.After(fl.nowAt) {
		fl.open, fl.openNumber = fl.now, saw.NextNumber
	}
	if saw.Now.After(fl.now) {
		fl.now, fl.nowAt = saw.Now, time.Now()
	}
}

// renew begins a time in which the floors hold, after a scan of everything.
func (fl *floor) renew(from time.Time, took time.Duration) {
	if from.IsZero() {
		fl.took, fl.until = took, time.Now().Add(max(floorLife, floorShare*took))
	}
}

// valid is the entry of a group, without bounds whose time is over. The lock is
// held.
func (f *floors) valid(at mq.QueueGroup) *floor {
	fl := f.at[at]
	if fl == nil {
		if len(f.at) >= cacheSize {
			clear(f.at)
		}
		fl = &floor{}
		f.at[at] = fl
	}
	if time.Now().After(fl.until) {
		fl.guess, fl.proven, fl.until = time.Time{}, time.Time{}, time.Time{}
	}
	return fl
}

func (f *floors) drop(at mq.QueueGroup) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.at, at)
}
