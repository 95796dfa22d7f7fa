package wake_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore"
	"github.com/queenmq-go/queenmq/internal/pgtest"
	"github.com/queenmq-go/queenmq/internal/wake"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

// ear is one bus and what it hears.
type ear struct {
	t   *testing.T
	bus *wake.Bus

	mu             sync.Mutex
	heard          []mq.Hint
	missed         int
	sent, received int
}

func (e *ear) HintsSent(n int)     { e.mu.Lock(); e.sent += n; e.mu.Unlock() }
func (e *ear) HintsReceived(n int) { e.mu.Lock(); e.received += n; e.mu.Unlock() }

// listen runs a bus until the test ends, and waits until it hears.
func listen(t *testing.T, transport wake.Transport, tick time.Duration) *ear {
	t.Helper()
	e := &ear{t: t}
	e.bus = wake.New(transport, wake.Config{
		Heard:   func(h mq.Hint) { e.mu.Lock(); e.heard = append(e.heard, h); e.mu.Unlock() },
		Missed:  func() { e.mu.Lock(); e.missed++; e.mu.Unlock() },
		Metrics: e, Logger: slog.New(slog.DiscardHandler), Tick: tick,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		e.bus.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	e.eventually("listening", func() bool { return e.missed > 0 })
	return e
}

func (e *ear) eventually(what string, ok func() bool) {
	e.t.Helper()
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		yes := ok()
		e.mu.Unlock()
		if yes {
			return
		}
		if time.Now().After(end) {
			e.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// hears waits for a hint of a queue and returns all that came.
func (e *ear) hears(queue int64) []mq.Hint {
	e.t.Helper()
	var out []mq.Hint
	e.eventually(fmt.Sprintf("a hint of queue %d", queue), func() bool {
		out = slices.Clone(e.heard)
		return slices.ContainsFunc(e.heard, func(h mq.Hint) bool { return h.Queue == queue })
	})
	return out
}

// transports are the real ones. cut ends the connection that listens.
func transports(t *testing.T, test func(t *testing.T, open func() wake.Transport, cut func())) {
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		pool := db.Pool(t)
		open := func() wake.Transport {
			n := pgstore.NewNotifier(db.URL)
			t.Cleanup(n.Close)
			return n
		}
		test(t, open, func() {
			var n int
			err := pool.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'queen hints'`).Scan(&n)
			if err != nil || n == 0 {
				t.Fatalf("cut %d connections: %v", n, err)
			}
		})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		opts, err := redis.ParseURL(pgtest.Redis(t))
		if err != nil {
			t.Fatal(err)
		}
		name := strings.ReplaceAll(t.Name(), "/", "-")
		admin := redis.NewClient(opts)
		t.Cleanup(func() { _ = admin.Close() })
		open := func() wake.Transport {
			named := *opts
			named.ClientName = name
			c := redis.NewClient(&named)
			t.Cleanup(func() { _ = c.Close() })
			return wake.NewRedis(c, name+":")
		}
		test(t, open, func() {
			list, err := admin.ClientList(t.Context()).Result()
			if err != nil {
				t.Fatal(err)
			}
			cut := 0
			for line := range strings.Lines(list) {
				if !strings.Contains(line, " name="+name+" ") {
					continue
				}
				id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
				if err := admin.ClientKillByFilter(t.Context(), "ID", id).Err(); err != nil {
					t.Fatal(err)
				}
				cut++
			}
			if cut == 0 {
				t.Fatal("nobody was connected")
			}
		})
	})
}

func TestHintsReachTheOthers(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func() wake.Transport, _ func()) {
		a, b, c := listen(t, open(), time.Millisecond), listen(t, open(), time.Millisecond), listen(t, open(), time.Millisecond)
		want := mq.Hint{Queue: 7, Group: 3, Partitions: []string{"p", `żółć "x"`, ""}, Reload: true}
		a.bus.Send(want)
		for _, e := range []*ear{b, c} {
			if got := e.hears(7); len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
				t.Errorf("heard %+v, want %+v", got, want)
			}
		}
		// What b says comes after, so a has heard its own by then.
		b.bus.Send(mq.Hint{Queue: 8})
		if got := a.hears(8); len(got) != 1 || got[0].Partitions != nil {
			t.Errorf("a heard %+v", got)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.sent != 1 || a.received != 1 {
			t.Errorf("a counted %d sent, %d received", a.sent, a.received)
		}
	})
}

func TestALongHintFits(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func() wake.Transport, _ func()) {
		a, b := listen(t, open(), time.Millisecond), listen(t, open(), time.Millisecond)
		var names []string
		for i := range 16 {
			names = append(names, strings.Repeat("ż", 400)+fmt.Sprint(i)) // more than a notification takes
		}
		a.bus.Send(mq.Hint{Queue: 7, Partitions: names})
		if got := b.hears(7); got[0].Partitions != nil {
			t.Errorf("%d names got through", len(got[0].Partitions))
		}
	})
}

func TestABrokenConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func() wake.Transport, cut func()) {
		a, b := listen(t, open(), time.Millisecond), listen(t, open(), time.Millisecond)
		a.bus.Send(mq.Hint{Queue: 1})
		b.hears(1)
		cut()
		// Whatever was said meanwhile may be lost, and the listener says so.
		b.eventually("a reconnect", func() bool { return b.missed >= 2 })
		a.eventually("a reconnect", func() bool { return a.missed >= 2 })
		for i := int64(2); ; i++ {
			a.bus.Send(mq.Hint{Queue: i})
			b.mu.Lock()
			heard := slices.ContainsFunc(b.heard, func(h mq.Hint) bool { return h.Queue >= 2 })
			b.mu.Unlock()
			if heard {
				return
			}
			if i > 1000 {
				t.Fatal("nothing is heard any more")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// fake is a transport in memory whose trips a test can hold up or fail.
type fake struct {
	mu    sync.Mutex
	trips [][]string
	err   error
	began int
	gate  chan struct{}
	hear  func(string)
}

func (f *fake) Publish(ctx context.Context, texts []string) error {
	f.mu.Lock()
	f.began++
	f.mu.Unlock()
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.trips = append(f.trips, texts)
	return nil
}

func (f *fake) Listen(ctx context.Context, ready func(), hear func(string)) error {
	f.mu.Lock()
	f.hear = hear
	f.mu.Unlock()
	ready()
	<-ctx.Done()
	return ctx.Err()
}

func TestHintsOfAQueueShareATrip(t *testing.T) {
	t.Parallel()
	f := &fake{gate: make(chan struct{})}
	e := listen(t, f, time.Millisecond)
	e.bus.Send(mq.Hint{Queue: 99}) // is on its way, and held up
	e.eventually("the first trip", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.began == 1
	})
	for i := range 1000 {
		e.bus.Send(mq.Hint{Queue: 1, Partitions: []string{fmt.Sprintf("p%d", i%4)}})
		e.bus.Send(mq.Hint{Queue: 2, Partitions: []string{fmt.Sprintf("p%d", i)}}) // too many to name
		e.bus.Send(mq.Hint{Queue: 3, Group: int64(i % 2)})
	}
	e.bus.Send(mq.Hint{Queue: 1, Reload: true, Partitions: []string{"p0"}})
	close(f.gate)
	e.eventually("both trips", func() bool { return e.sent >= 5 })
	f.mu.Lock()
	defer f.mu.Unlock()
	var texts []string
	for _, trip := range f.trips {
		texts = append(texts, trip...)
	}
	all := strings.Join(texts, "\n")
	if len(f.trips) > 2 || len(texts) != 5 || !strings.Contains(all, `"p":["p0","p1","p2","p3"],"r":true`) {
		t.Errorf("%d trips of %s", len(f.trips), all)
	}
	if !slices.ContainsFunc(texts, func(s string) bool { return strings.HasPrefix(s, `{"q":2,"o":`) }) {
		t.Errorf("the hint that names too many: %s", all)
	}
}

func TestAHintThatIsNotSentCostsNothingElse(t *testing.T) {
	t.Parallel()
	f := &fake{err: errors.New("away")}
	e := listen(t, f, time.Millisecond)
	start := time.Now()
	for i := range int64(30_000) { // more than are kept
		e.bus.Send(mq.Hint{Queue: i})
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("sending blocked for %v", took)
	}
	f.mu.Lock()
	f.err = nil
	f.mu.Unlock()
	// It tries again by itself, with what comes after.
	e.eventually("hints to be sent again", func() bool {
		e.bus.Send(mq.Hint{Queue: 1})
		return e.sent > 0
	})
}

func TestNoiseIsPassedOver(t *testing.T) {
	t.Parallel()
	f := &fake{}
	e := listen(t, f, time.Millisecond)
	for _, raw := range []string{"", "nope", "[]", "5", `{"q":"x"}`, "\x00", `{"q":1.5}`} {
		f.hear(raw)
	}
	f.hear(`{"q":4,"unknown":true}`) // as a writer inside the database says it
	if len(e.heard) != 1 || e.heard[0].Queue != 4 || e.heard[0].Partitions != nil {
		t.Errorf("heard %+v", e.heard)
	}
}
