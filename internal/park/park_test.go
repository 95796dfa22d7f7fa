package park_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/park"
)

// store is a pile of answers per key, and what probes of it do.
type store struct {
	t   *testing.T
	lot *park.Lot[string, int, int, int]

	mu      sync.Mutex
	pile    map[string][]int
	probes  int
	asked   [][]int // the requests of each probe
	undone  []int
	next    time.Duration
	err     error
	retry   bool
	skip    map[int]bool // requests that find nothing whatever there is
	entered chan struct{}
	hold    chan struct{}
}

type lotConfig = park.Config[string, int, int, int]

// newStore returns a store whose lot re-checks next to never, unless a test
// changes that.
func newStore(t *testing.T, change ...func(*lotConfig)) *store {
	s := &store{t: t, pile: map[string][]int{}, next: -1, skip: map[int]bool{}}
	cfg := lotConfig{
		Topic: func(k string) int { return len(k) }, Probe: s.probe, Undo: s.undo,
		Interval: time.Hour, MaxInterval: time.Hour, Threshold: 3, Factor: 2, MaxProbe: 4,
	}
	for _, c := range change {
		c(&cfg)
	}
	s.lot = park.New(cfg)
	t.Cleanup(s.lot.Drain)
	return s
}

func (s *store) probe(key string, reqs []int) park.Result[int] {
	s.mu.Lock()
	s.probes++
	s.asked = append(s.asked, slices.Clone(reqs))
	entered, hold := s.entered, s.hold
	s.mu.Unlock()
	if entered != nil {
		entered <- struct{}{}
		<-hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return park.Result[int]{Err: s.err, Retry: s.retry, Next: -1}
	}
	res := park.Result[int]{Next: s.next}
	for i, r := range reqs {
		if s.skip[r] || len(s.pile[key]) == 0 {
			continue
		}
		if res.Found == nil {
			res.Answers, res.Found = make([]int, len(reqs)), make([]bool, len(reqs))
		}
		res.Answers[i], res.Found[i] = s.pile[key][0], true
		s.pile[key] = s.pile[key][1:]
	}
	return res
}

func (s *store) undo(a int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undone = append(s.undone, a)
}

// put adds answers and wakes the key's line.
func (s *store) put(key string, answers ...int) {
	s.mu.Lock()
	s.pile[key] = append(s.pile[key], answers...)
	s.mu.Unlock()
	s.lot.Wake(len(key), func(k string) bool { return k == key })
}

// gate makes every probe stop inside until it is let go.
func (s *store) gate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entered, s.hold = make(chan struct{}), make(chan struct{})
}

// open ends the gate; probes that are inside go on.
func (s *store) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.hold)
	s.entered, s.hold = nil, nil
}

type answer struct {
	req, value int
	found      bool
	err        error
}

// take asks beside the test.
func (s *store) take(ctx context.Context, key string, req int, wait time.Duration) <-chan answer {
	ch := make(chan answer, 1)
	go func() {
		v, found, err := s.lot.Take(ctx, key, req, wait)
		ch <- answer{req, v, found, err}
	}()
	return ch
}

func (s *store) eventually(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		yes := ok()
		s.mu.Unlock()
		if yes {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// parked waits until n stand in line and nobody looks.
func (s *store) parked(key string, n, probes int) {
	s.t.Helper()
	s.eventually("requests to be parked", func() bool { return s.lot.Waiting()[len(key)] == n && s.probes >= probes })
}

func get(t *testing.T, ch <-chan answer) answer {
	t.Helper()
	select {
	case a := <-ch:
		return a
	case <-time.After(10 * time.Second):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func none(t *testing.T, ch <-chan answer) {
	t.Helper()
	select {
	case a := <-ch:
		t.Fatalf("an answer: %+v", a)
	case <-time.After(30 * time.Millisecond):
	}
}

func TestTakeWithoutWaitAsksOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if _, found, err := s.lot.Take(t.Context(), "k", 1, 0); found || err != nil {
		t.Fatal(found, err)
	}
	s.put("k", 7)
	if v, found, err := s.lot.Take(t.Context(), "k", 1, 0); v != 7 || !found || err != nil {
		t.Fatal(v, found, err)
	}
	if s.probes != 2 || len(s.lot.Waiting()) != 0 {
		t.Fatalf("%d probes, waiting %v", s.probes, s.lot.Waiting())
	}
}

func TestThoseWhoCameFirstAreAnsweredFirst(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var chs []<-chan answer
	for i := range 6 {
		chs = append(chs, s.take(t.Context(), "k", i, time.Minute))
		s.parked("k", i+1, i+1)
	}
	s.put("k", 100, 101, 102)
	for i := range 3 {
		if a := get(t, chs[i]); a.value != 100+i || !a.found {
			t.Errorf("request %d: %+v", i, a)
		}
	}
	none(t, chs[3])
	s.put("k", 103, 104, 105)
	for i := 3; i < 6; i++ {
		if a := get(t, chs[i]); a.value != 100+i {
			t.Errorf("request %d: %+v", i, a)
		}
	}
}

func TestOneEmptyProbeAnswersTheWholeLine(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.gate()
	first := s.take(t.Context(), "k", 0, 0)
	<-s.entered
	var rest []<-chan answer
	for i := range 50 {
		rest = append(rest, s.take(t.Context(), "k", 1+i, 0))
	}
	s.eventually("the line", func() bool { return s.lot.Waiting()[1] == 51 })
	s.open()
	for _, ch := range append(rest, first) {
		if a := get(t, ch); a.found || a.err != nil {
			t.Errorf("%+v", a)
		}
	}
	if s.probes != 2 {
		t.Errorf("%d probes for 51 requests: %v", s.probes, s.asked)
	}
}

func TestProbesGrowWhileTheyFind(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var chs []<-chan answer
	for i := range 12 {
		chs = append(chs, s.take(t.Context(), "k", i, time.Minute))
		s.parked("k", i+1, i+1)
	}
	s.mu.Lock()
	s.asked = nil
	s.mu.Unlock()
	s.put("k", slices.Repeat([]int{1}, 12)...)
	for _, ch := range chs {
		get(t, ch)
	}
	s.eventually("the last probe", func() bool { return len(s.asked) >= 5 || s.lot.Waiting()[1] == 0 })
	var sizes []int
	for _, reqs := range s.asked {
		sizes = append(sizes, len(reqs))
	}
	if want := []int{1, 2, 4, 4, 1}; !slices.Equal(sizes, want) {
		t.Errorf("probe sizes %v, want %v", sizes, want)
	}
}

func TestALaterRequestMayBeAnsweredAndAnEarlierNot(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.gate()
	s.skip[1] = true
	first := s.take(t.Context(), "k", 0, time.Minute) // makes the next probe one of two
	<-s.entered
	waiting := s.take(t.Context(), "k", 1, time.Minute)
	s.eventually("the line", func() bool { return s.lot.Waiting()[1] == 2 })
	asking := s.take(t.Context(), "k", 2, 0)
	s.eventually("the line", func() bool { return s.lot.Waiting()[1] == 3 })
	s.mu.Lock()
	s.pile["k"] = []int{10, 20}
	s.mu.Unlock()
	s.open()
	if a := get(t, first); a.value != 10 {
		t.Errorf("%+v", a)
	}
	if a := get(t, asking); a.value != 20 || !a.found {
		t.Errorf("%+v", a)
	}
	none(t, waiting)
	s.mu.Lock()
	s.skip[1] = false
	s.mu.Unlock()
	s.put("k", 30)
	if a := get(t, waiting); a.value != 30 {
		t.Errorf("%+v", a)
	}
}

func TestAWakeDuringAProbeIsNotLost(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.gate()
	ch := s.take(t.Context(), "k", 1, time.Minute)
	<-s.entered
	s.lot.Wake(1, nil) // of something this probe does not see any more
	s.open()
	s.eventually("another probe", func() bool { return s.probes == 2 })
	none(t, ch)
	s.put("k", 5)
	if a := get(t, ch); a.value != 5 {
		t.Errorf("%+v", a)
	}
}

func TestWakeMatchesTopicAndKey(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b := s.take(t.Context(), "a", 1, time.Minute), s.take(t.Context(), "b", 2, time.Minute)
	other := s.take(t.Context(), "other", 3, time.Minute)
	s.parked("a", 2, 3)
	s.mu.Lock()
	s.pile = map[string][]int{"a": {1}, "b": {2}, "other": {3}}
	s.mu.Unlock()
	s.lot.Wake(2, nil)
	s.lot.Wake(1, func(k string) bool { return k == "b" })
	get(t, b)
	none(t, a)
	none(t, other)
	s.lot.Wake(1, nil)
	get(t, a)
	s.lot.Wake(5, nil)
	get(t, other)
}

func TestTheDeadline(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	start := time.Now()
	if _, found, err := s.lot.Take(t.Context(), "k", 1, 60*time.Millisecond); found || err != nil {
		t.Fatal(found, err)
	}
	if took := time.Since(start); took < 60*time.Millisecond || took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if len(s.lot.Waiting()) != 0 {
		t.Errorf("left over: %v", s.lot.Waiting())
	}
}

func TestADeadlineDuringAProbeStillTakesItsAnswer(t *testing.T) {
	t.Parallel()
	for _, found := range []bool{true, false} {
		s := newStore(t)
		s.gate()
		ch := s.take(t.Context(), "k", 1, 20*time.Millisecond)
		<-s.entered
		time.Sleep(40 * time.Millisecond) // past the deadline
		none(t, ch)
		if found {
			s.mu.Lock()
			s.pile["k"] = []int{9}
			s.mu.Unlock()
		}
		s.open()
		if a := get(t, ch); a.found != found || a.err != nil {
			t.Errorf("%+v", a)
		}
		if len(s.undone) > 0 {
			t.Errorf("undone: %v", s.undone)
		}
	}
}

func TestACallerWhoLeaves(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	parkedOne := s.take(ctx, "k", 1, time.Minute)
	s.parked("k", 1, 1)
	cancel()
	if a := get(t, parkedOne); !errors.Is(a.err, context.Canceled) {
		t.Errorf("%+v", a)
	}
	s.put("k", 5)
	if len(s.lot.Waiting()) != 0 || s.probes != 1 {
		t.Errorf("waiting %v after %d probes", s.lot.Waiting(), s.probes)
	}

	// In flight: the answer is taken back.
	s.gate()
	ctx, cancel = context.WithCancel(t.Context())
	ch := s.take(ctx, "k", 2, time.Minute)
	<-s.entered
	cancel()
	if a := get(t, ch); !errors.Is(a.err, context.Canceled) {
		t.Errorf("%+v", a)
	}
	s.open()
	s.eventually("the answer to be taken back", func() bool { return slices.Equal(s.undone, []int{5}) })
}

func TestErrors(t *testing.T) {
	t.Parallel()
	s := newStore(t, func(c *lotConfig) { c.Interval, c.MaxInterval = 5*time.Millisecond, 5*time.Millisecond })
	ch := s.take(t.Context(), "k", 1, time.Minute)
	s.parked("k", 1, 1)
	boom := errors.New("boom")
	s.mu.Lock()
	s.err, s.retry = boom, true
	before := s.probes
	s.mu.Unlock()
	s.eventually("probes that fail", func() bool { return s.probes > before+2 })
	none(t, ch) // it was waiting already
	for _, wait := range []time.Duration{0, time.Minute} {
		if a := get(t, s.take(t.Context(), "k", 2, wait)); !errors.Is(a.err, boom) {
			t.Errorf("a request that is new: %+v", a)
		}
	}
	s.mu.Lock()
	s.retry = false
	s.mu.Unlock()
	if a := get(t, ch); !errors.Is(a.err, boom) {
		t.Errorf("%+v", a)
	}
}

func TestTheStoreSaysWhenToLookAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.next = 50 * time.Millisecond
	start := time.Now()
	ch := s.take(t.Context(), "k", 1, time.Minute)
	s.parked("k", 1, 1)
	s.mu.Lock()
	s.pile["k"] = []int{1} // nobody is woken
	s.mu.Unlock()
	get(t, ch)
	if took := time.Since(start); took < 50*time.Millisecond || took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// Something is ready, and somebody else holds it for long.
func TestWhatIsHeldElsewhereIsNotAskedForWithoutPause(t *testing.T) {
	t.Parallel()
	s := newStore(t, func(c *lotConfig) { c.Interval, c.MaxInterval = 100*time.Millisecond, time.Second })
	s.next = 0
	ch := s.take(t.Context(), "k", 1, 500*time.Millisecond)
	get(t, ch)
	if s.probes > 60 {
		t.Errorf("%d probes in half a second", s.probes)
	}
}

func TestTheSlowRecheckGrows(t *testing.T) {
	t.Parallel()
	s := newStore(t, func(c *lotConfig) {
		c.Interval, c.MaxInterval, c.Threshold, c.Factor = 20*time.Millisecond, 200*time.Millisecond, 2, 3
	})
	get(t, s.take(t.Context(), "k", 1, time.Second))
	// 20 20 20 60 180 200 200 200, each up to an eighth shorter.
	if s.probes < 5 || s.probes > 11 {
		t.Errorf("%d probes in a second", s.probes)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	parkedOne := s.take(t.Context(), "k", 1, time.Minute)
	s.parked("k", 1, 1)
	s.gate()
	entered := s.entered
	asking := s.take(t.Context(), "other", 2, time.Minute)
	<-entered
	drained := make(chan struct{})
	go func() {
		s.lot.Drain()
		close(drained)
	}()
	if a := get(t, parkedOne); a.found || a.err != nil {
		t.Errorf("%+v", a)
	}
	select {
	case <-drained:
		t.Fatal("drained while a probe was in flight")
	case <-time.After(20 * time.Millisecond):
	}
	s.mu.Lock()
	s.pile["other"] = []int{4}
	s.mu.Unlock()
	s.open()
	if a := get(t, asking); a.value != 4 {
		t.Errorf("%+v", a)
	}
	<-drained
	// Later ones are served, but do not wait.
	if a := get(t, s.take(t.Context(), "k", 3, time.Minute)); a.found || a.err != nil {
		t.Errorf("%+v", a)
	}
	s.put("k", 6)
	if a := get(t, s.take(t.Context(), "k", 3, time.Minute)); a.value != 6 {
		t.Errorf("%+v", a)
	}
}
