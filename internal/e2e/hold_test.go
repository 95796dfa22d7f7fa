package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Here the database's clock is moved instead of waiting.
func eachClockedScene(t *testing.T, test func(f *Fleet, each func(func(s *scene)), pass func(seconds int))) {
	for _, brokers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d brokers", brokers), func(t *testing.T) {
			t.Parallel()
			f := Start(t, Options{Brokers: brokers})
			pool, offset := f.DB.Pool(t), 0
			each := func(do func(s *scene)) {
				for i := range 4 {
					s := &scene{t: t, queue: fmt.Sprintf("q%d", i), pinned: i&1 != 0}
					if i&2 != 0 {
						s.group = "workers"
					}
					s.producer, s.consumer, s.third = f.Brokers[0], f.Brokers[brokers-1], f.Brokers[0]
					do(s)
				}
			}
			test(f, each, func(seconds int) {
				offset += seconds
				setClock(t, pool, fmt.Sprintf("%d s", offset))
			})
		})
	}
}

func TestHold_B170_DelayedProcessing(t *testing.T) {
	t.Parallel()
	eachClockedScene(t, func(_ *Fleet, each func(func(s *scene)), pass func(int)) {
		each(func(s *scene) {
			s.producer.Configure(s.queue, map[string]any{"delayedProcessing": 200})
			s.mustNothing("")
			s.push(2)
			s.mustNothing("")
			s.mustNothing("autoAck=true")
		})
		pass(100)
		each(func(s *scene) {
			s.mustNothing("")
			s.pushOne("younger")
		})
		pass(110)
		each(func(s *scene) {
			s.consumer.AckAll(s.mustPop("", ids("m", 0, 2)...)) // the tail is still hidden
			s.mustNothing("")
		})
		pass(100)
		each(func(s *scene) { s.mustPop("", "younger") })
	})
}

func TestHold_B171_ALongPollReturnsAtTheInstant(t *testing.T) {
	t.Parallel()
	eachScene(t, deaf, func(t testing.TB, s *scene) {
		s.producer.Configure(s.queue, map[string]any{"delayedProcessing": 1})
		early := async(func() *PopAnswer { return s.popBy(s.third, "wait=true&timeout=15000&autoAck=true") })
		parked(t, s.third, s.queue, 1)
		start := time.Now()
		s.push(2)
		if p := await(t, early, "the pop"); !slices.Equal(p.IDs(), ids("m", 0, 2)) {
			t.Errorf("parked before the push: %q", p.IDs())
		}
		within(t, "the hold", time.Since(start), 950*time.Millisecond, time.Second+prompt)

		start = time.Now()
		s.pushOne("second")
		s.mustPop("wait=true&timeout=15000", "second")
		within(t, "the hold, parked after the push", time.Since(start), 950*time.Millisecond, time.Second+prompt)
	})
}

func TestHold_B172_ChangingTheDelay(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.push(2)
		s.producer.Configure(s.queue, map[string]any{"delayedProcessing": 300})
		s.mustNothing("")
		s.mustNothing("")
		s.producer.Configure(s.queue, map[string]any{"delayedProcessing": 0})
		s.mustPop("", ids("m", 0, 2)...)
	})
}

func TestHold_B172_LoweringTheDelayWakes(t *testing.T) {
	t.Parallel()
	eachScene(t, deaf, func(t testing.TB, s *scene) {
		s.producer.Configure(s.queue, map[string]any{"delayedProcessing": 300})
		s.push(2)
		got := async(func() *PopAnswer { return s.popBy(s.third, "wait=true&timeout=15000") })
		parked(t, s.third, s.queue, 1)
		start := time.Now()
		s.producer.Configure(s.queue, map[string]any{"delayedProcessing": 0})
		if p := await(t, got, "the pop"); !slices.Equal(p.IDs(), ids("m", 0, 2)) {
			t.Errorf("got %q", p.IDs())
		}
		within(t, "waking", time.Since(start), 0, 500*time.Millisecond+prompt)
	})
}

func TestHold_B172_APopUnderWayKnowsTheOldDelay(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Env: deaf})
	b := f.One()
	b.Configure("q", map[string]any{"delayedProcessing": 300})
	b.PushN("q", "p", "m", 2)
	// The pop finds that the message is due in 300 s and takes a while to say so.
	slowCommit(t, f, "queen.cursors", "UPDATE", "NEW.ready_at > queen.clock() + interval '100 s'", 0.3)
	got := async(func() *PopAnswer { return b.Pop("q", "wait=true&timeout=15000") })
	committing(t, f)
	b.Configure("q", map[string]any{"delayedProcessing": 0})
	start := time.Now()
	if p := await(t, got, "the pop"); !slices.Equal(p.IDs(), ids("m", 0, 2)) {
		t.Errorf("got %q", p.IDs())
	}
	within(t, "waking", time.Since(start), 0, 500*time.Millisecond+prompt)
}

func TestHold_DelayShowsTheNewestVisibleUnderConflation(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Configure("q", map[string]any{"delayedProcessing": 1})
	b.PushN("q", "p", "old", 2)
	time.Sleep(1050 * time.Millisecond)
	b.PushN("q", "p", "new", 2)
	p := b.Pop("q", lastValue)
	if !slices.Equal(p.IDs(), []string{"old-1"}) {
		t.Fatalf("got %q", p.IDs())
	}
	b.AckAll(p)
	if p := b.Pop("q", lastValue+"&wait=true&timeout=5000"); !slices.Equal(p.IDs(), []string{"new-1"}) {
		t.Errorf("got %q", p.IDs())
	}
}

func TestHold_B173_B174_WindowBuffer(t *testing.T) {
	t.Parallel()
	eachClockedScene(t, func(_ *Fleet, each func(func(s *scene)), pass func(int)) {
		each(func(s *scene) {
			s.producer.Configure(s.queue, map[string]any{"windowBuffer": 200})
			s.producer.PushN(s.queue, "other", "other", 1)
		})
		pass(110)
		each(func(s *scene) {
			s.push(3)
			s.mustNothing("batch=4")
		})
		pass(100)
		each(func(s *scene) {
			// The other partition is through its window, this one is not.
			if p := s.consumer.PopPinned(s.queue, "other", s.query("")); !slices.Equal(p.IDs(), []string{"other-0"}) {
				t.Errorf("the other partition: %q", p.IDs())
			}
			s.mustNothing("batch=4")
		})
		pass(110)
		each(func(s *scene) { s.mustPop("batch=4", ids("m", 0, 3)...) })
	})
}

func TestHold_B175_ASteadyWriterDoesNotStarve(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.producer.Configure(s.queue, map[string]any{"windowBuffer": 1})
		start := time.Now()
		stop := make(chan struct{})
		written := make(chan struct{})
		go func() {
			defer close(written)
			for {
				select {
				case <-stop:
					return
				case <-time.After(200 * time.Millisecond):
					s.producer.Push(Item{Queue: s.queue, Partition: partition})
				}
			}
		}()
		s.pushOne("first")
		p := s.pop("wait=true&timeout=10000")
		took := time.Since(start)
		close(stop)
		<-written
		if len(p.IDs()) == 0 || p.IDs()[0] != "first" {
			t.Fatalf("got %q", p.IDs())
		}
		within(t, "the oldest message", took, 950*time.Millisecond, time.Second+prompt)
	})
}
