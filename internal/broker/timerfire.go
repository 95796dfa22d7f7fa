package broker

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// timerMagazine is what firing needs of the store.
type timerMagazine interface {
	DueTimers(ctx context.Context, limit int) (mq.DueTimers, error)
	DueTimersOfOthers(ctx context.Context, busy []mq.UUID, after mq.UUID, each int) (found []mq.DueTimer, last mq.UUID, err error)
	FireTimers(ctx context.Context, due []mq.DueTimer, find func(tenant mq.UUID, queue string) *mq.QueueInfo) (mq.Fired, error)
	PostponeTimer(ctx context.Context, t *mq.DueTimer, d time.Duration, failure string) error
	BuryTimer(ctx context.Context, t *mq.DueTimer, queue *mq.QueueInfo, retries int32, failure string) (bool, error)
}

const (
	// One transaction fires at most so many, and about so many bytes.
	fireTimers = 256
	fireBytes  = 4 << 20
	// listTimers is how many are looked up at once, for several transactions.
	listTimers = 4 * fireTimers
	// fireOthers is how many timers of each other tenant go along with a
	// backlog.
	fireOthers = 4
	// How often the loop looks for timers that other brokers scheduled: soon
	// after something happened, then less and less.
	minTimerLook = 50 * time.Millisecond
	maxTimerLook = time.Second
	// timerTrouble is the pause after a failure that lies in the database, and
	// how long a destination is left alone that somebody holds.
	timerTrouble = time.Second
)

// timerClock wakes the firing loop.
type timerClock struct {
	mu   sync.Mutex
	at   time.Time     // when to look next; zero: nothing is expected
	rang chan struct{} // at became earlier
}

func newTimerClock() *timerClock {
	return &timerClock{rang: make(chan struct{}, 1)}
}

// expect says that a timer comes due.
func (c *timerClock) expect(in time.Duration) {
	at := time.Now().Add(in)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && !at.Before(c.at) {
		return
	}
	c.at = at
	select {
	case c.rang <- struct{}{}:
	default:
	}
}

// take forgets what was expected: the caller is about to look.
func (c *timerClock) take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Time{}
}

// sleep waits until a timer is expected, at most for the time given.
func (c *timerClock) sleep(ctx context.Context, most time.Duration) {
	end := time.Now().Add(most)
	for {
		c.mu.Lock()
		at := c.at
		c.mu.Unlock()
		if at.IsZero() || at.After(end) {
			at = end
		}
		left := time.Until(at)
		if left <= 0 {
			return
		}
		t := time.NewTimer(left)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
			return
		case <-c.rang:
			t.Stop()
		}
	}
}

// RunTimers fires timers until the context ends. Every broker runs it; they
// share the work by passing over what another one holds.
func (b *Broker) RunTimers(ctx context.Context) {
	look := minTimerLook
	var round fireRound
	for ctx.Err() == nil {
		b.timers.take()
		busy, wait, err := b.fireDue(ctx, &round)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				b.log.Warn("timers not fired", "error", err)
			}
			look, wait = timerTrouble, timerTrouble
		case busy && wait == 0:
			look = minTimerLook
			continue
		case busy:
			look = minTimerLook
		default:
			look = min(2*look, maxTimerLook)
		}
		if wait > 0 && err == nil {
			b.timers.expect(wait)
		}
		// Brokers that look at the same instant get in each other's way.
		b.timers.sleep(ctx, look-rand.N(look/4+1))
	}
}

// fireRound is where the loop is in its way round the tenants.
type fireRound struct{ after mq.UUID }

// fireDue fires what is due, up to a list. busy: something was. wait is how
// long to wait for more: zero not at all, below zero for as long as one likes.
func (b *Broker) fireDue(ctx context.Context, round *fireRound) (busy bool, wait time.Duration, err error) {
	if sw, err := b.Switches(ctx); err != nil || !sw.TimerFire {
		return false, -1, err
	}
	due, err := b.store.DueTimers(ctx, listTimers)
	if err != nil || len(due.Timers) == 0 {
		return false, due.Next, err
	}
	backlog := len(due.Timers) == listTimers
	todo := due.Timers
	if backlog {
		others, err := b.othersDue(ctx, todo, round)
		if err != nil {
			return true, -1, err
		}
		todo = append(others, todo...)
	}
	done := 0
	for len(todo) > 0 && ctx.Err() == nil {
		fit := fitTimers(todo)
		n, err := b.fireSet(ctx, todo[:fit])
		if err != nil {
			return true, -1, err
		}
		done += n
		todo = todo[fit:]
	}
	switch {
	case done == 0:
		// Another broker is at it.
		return true, -1, nil
	case backlog:
		return true, 0, nil
	case due.Next < 0:
		return true, -1, nil
	default:
		return true, max(due.Next, time.Millisecond), nil
	}
}

// othersDue finds timers of tenants that do not appear in a backlog.
func (b *Broker) othersDue(ctx context.Context, backlog []mq.DueTimer, round *fireRound) ([]mq.DueTimer, error) {
	var busy []mq.UUID
	known := map[mq.UUID]struct{}{}
	for i := range backlog {
		if _, again := known[backlog[i].Tenant]; !again {
			known[backlog[i].Tenant] = struct{}{}
			busy = append(busy, backlog[i].Tenant)
		}
	}
	found, last, err := b.store.DueTimersOfOthers(ctx, busy, round.after, fireOthers)
	round.after = last
	return found, err
}

// fitTimers is how many from the front fit one transaction, one at least.
func fitTimers(due []mq.DueTimer) int {
	bytes := 0
	for i := range due {
		if bytes += due[i].Size; i > 0 && (bytes > fireBytes || i >= fireTimers) {
			return i
		}
	}
	return len(due)
}

// fireSet fires a set in one transaction. When that fails for a reason that may
// lie in one of them, halves are tried until the bad one is alone; when somebody
// holds a destination, until that one is.
func (b *Broker) fireSet(ctx context.Context, due []mq.DueTimer) (done int, err error) {
	f, err := b.store.FireTimers(ctx, due, b.cache.queue)
	if err == nil {
		b.announceFired(&f)
		if len(f.Missing) > 0 {
			// Those that miss their place stay due and are found again.
			b.timers.expect(0)
			return f.Done + len(f.Missing), b.makePlaces(ctx, due, f.Missing)
		}
		return f.Done, nil
	}
	held := errors.Is(err, mq.ErrLockHeld)
	if isOutage(err) && !held {
		return 0, err
	}
	half := len(due) / 2
	if held {
		half = splitByPlace(due)
	}
	if half == 0 {
		for i := range due {
			if err := b.misfire(ctx, &due[i], err, held); err != nil {
				return i, err
			}
		}
		return len(due), nil
	}
	first, err := b.fireSet(ctx, due[:half])
	if err != nil {
		return first, err
	}
	second, err := b.fireSet(ctx, due[half:])
	return first + second, err
}

// splitByPlace sorts timers so that those of half of the destinations come first,
// and returns how many these are; zero when there is one destination only.
func splitByPlace(due []mq.DueTimer) int {
	number := map[mq.Place]int{}
	for i := range due {
		if _, known := number[due[i].Place()]; !known {
			number[due[i].Place()] = len(number)
		}
	}
	slices.SortStableFunc(due, func(x, y mq.DueTimer) int { return number[x.Place()] - number[y.Place()] })
	return slices.IndexFunc(due, func(t mq.DueTimer) bool { return number[t.Place()] >= len(number)/2 })
}

func (b *Broker) announceFired(f *mq.Fired) {
	for _, h := range f.Hints {
		b.announce(h)
	}
}

// makePlaces makes the queues and partitions that timers go to. When one cannot
// be made, that is a failure of the timers that go there.
func (b *Broker) makePlaces(ctx context.Context, due []mq.DueTimer, missing []mq.Place) error {
	for _, at := range missing {
		if q := b.cache.queue(at.Tenant, at.Queue); q != nil {
			b.cache.dropQueue(q.ID)
		}
	}
	for _, at := range missing {
		_, err := b.makePlace(ctx, at)
		switch {
		case err == nil:
			continue
		case isOutage(err):
			return err
		}
		for i := range due {
			if due[i].Place() != at {
				continue
			}
			if err := b.misfire(ctx, &due[i], err, false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *Broker) makePlace(ctx context.Context, at mq.Place) (*mq.QueueInfo, error) {
	q, err := b.ensureQueue(ctx, at.Tenant, at.Queue)
	if err != nil {
		return nil, err
	}
	return q, b.store.EnsurePartitions(ctx, q.ID, []string{at.Partition})
}

// misfire deals with one timer that could not be fired. Somebody who holds its
// destination is no fault of its own.
func (b *Broker) misfire(ctx context.Context, t *mq.DueTimer, cause error, held bool) error {
	if held {
		return b.store.PostponeTimer(ctx, t, timerTrouble, "")
	}
	now, err := b.store.ReadTimer(ctx, t.TimerID)
	if err != nil || now == nil || now.MessageID != t.MessageID {
		return err
	}
	text := cause.Error()
	text = strings.ToValidUTF8(text[:min(len(text), mq.MaxErrorBytes)], "")
	failures := now.Attempts + 1
	b.log.Warn("timer not fired", "tenant", t.Tenant.String(), "queue", t.Queue, "partition", t.Partition,
		"attempts", failures, "error", cause)
	if failures >= mq.MaxTimerAttempts {
		buried, err := b.bury(ctx, t, failures, text)
		if buried || err != nil && isOutage(err) {
			return err
		}
		// Where there is no place for its dead letter a timer is kept.
		b.log.Error("timer not given up: its dead letter cannot be filed", "tenant", t.Tenant.String(), "queue", t.Queue, "error", err)
	}
	return b.store.PostponeTimer(ctx, t, mq.TimerBackoff(now.Attempts), text)
}

func (b *Broker) bury(ctx context.Context, t *mq.DueTimer, failures int32, text string) (bool, error) {
	q, err := b.makePlace(ctx, t.Place())
	if err != nil {
		return false, err
	}
	buried, err := b.store.BuryTimer(ctx, t, q, failures, text)
	if buried {
		b.metrics.DeadLettered(1)
	}
	return buried, err
}
