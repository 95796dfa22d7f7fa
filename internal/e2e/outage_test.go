package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/devdb"
	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// behindProxy runs brokers that reach their database through a proxy.
func behindProxy(t *testing.T, brokers int, env ...string) (*Fleet, *proxy) {
	t.Helper()
	f := &Fleet{t: t, DB: pgtest.New(t)}
	p, url := newProxy(t, f.DB.URL)
	env = append([]string{"DATABASE_URL=" + url, "DB_POOL_SIZE=8", "QUEEN_STMT_TIMEOUT_MS=3000"}, env...)
	for range brokers {
		f.Brokers = append(f.Brokers, f.start(env))
	}
	return f, p
}

// parkPop starts a pop that waits; the channel gets its answer, nil for none.
func parkPop(b *Broker, queue, query string) <-chan *PopAnswer {
	got := make(chan *PopAnswer, 1)
	go func() {
		defer close(got)
		got <- b.Pop(queue, query)
	}()
	return got
}

// want503 sends a push that has to be refused for now, in bounded time.
func want503(t *testing.T, b *Broker, within time.Duration, codes ...string) {
	t.Helper()
	from := time.Now()
	status, header, answer := b.Do("POST", "/api/v1/push", `{"items":[{"queue":"q","transactionId":"lost","payload":1}]}`)
	took := time.Since(from)
	var body struct{ Error, Code string }
	if err := json.Unmarshal(answer, &body); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(strings.Join(codes, " "), body.Code) || body.Code == "" {
		t.Errorf("push: %d %s (%v), want 503 with code %v", status, answer, err, codes)
	}
	if s, err := strconv.Atoi(header.Get("Retry-After")); err != nil || s < 1 {
		t.Errorf("Retry-After is %q", header.Get("Retry-After"))
	}
	if took > within {
		t.Errorf("push was answered after %v", took)
	}
}

func TestOutage_D4_DatabaseAwayAndBack(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name   string
		away   func(*proxy)
		pushes int
		within time.Duration
		codes  []string
	}{
		// A connection from before fails first, with the call on it.
		{"refused", (*proxy).away, 8, 2 * time.Second, []string{"retry", "outcome_unknown"}},
		// Packets vanish: the connection looks well until its time is up.
		{"silent", func(p *proxy) { p.hole.Store(true) }, 1, 9 * time.Second, []string{"retry", "timeout", "outcome_unknown"}},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			f, p := behindProxy(t, 1)
			b := f.One()
			b.PushN("q", "", "first", 1)
			b.AckAll(b.Pop("q", ""))
			waiting := parkPop(b, "q", "wait=true&timeout=30000")
			time.Sleep(200 * time.Millisecond)
			way.away(p)
			for range way.pushes {
				want503(t, b, way.within, way.codes...)
			}
			select {
			case got := <-waiting:
				t.Fatalf("parked pop was answered: %+v", got)
			default:
			}
			p.back()
			p.cut() // a host that is back has forgotten its connections
			back := time.Now()
			for !tryPush(b, "q", "after") {
				if time.Since(back) > 5*time.Second {
					t.Fatal("no push in 5 s")
				}
				time.Sleep(50 * time.Millisecond)
			}
			select {
			case got := <-waiting:
				if got == nil || got.Messages[0].DeliveryAttempt != 1 {
					t.Errorf("parked pop got %+v", got)
				}
				t.Logf("delivered %v after the database was back", time.Since(back))
			case <-time.After(5 * time.Second):
				t.Error("parked pop got nothing within 5 s")
			}
		})
	}
}

func tryPush(b *Broker, queue, id string) bool {
	status, _, _ := b.Do("POST", "/api/v1/push", PushBody(Item{Queue: queue, TransactionID: id}))
	return status == http.StatusCreated
}

func TestOutage_RealServerStopsAndStarts(t *testing.T) {
	t.Parallel()
	// Not below the test's own folder: a server started by root steps down to
	// a user that may not enter there.
	dir, err := os.MkdirTemp("", "queen-outage-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	start := func() *devdb.Server {
		s, err := devdb.Start(t.Context(), devdb.Options{Dir: dir, Persist: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	srv := start()
	defer func() { _ = srv.Stop(context.Background()) }()
	if _, err := migrate.Up(t.Context(), srv.URL()); err != nil {
		t.Fatal(err)
	}
	f := &Fleet{t: t, DB: &pgtest.DB{URL: srv.URL()}}
	b := f.start([]string{"DATABASE_URL=" + srv.URL(), "DB_POOL_SIZE=8"})
	b.PushN("q", "", "kept", 3)
	waiting := parkPop(b, "other", "wait=true&timeout=60000")
	time.Sleep(time.Second) // until it was looked for once
	if err := srv.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	want503(t, b, 2*time.Second, "retry", "outcome_unknown")
	if status, _, _ := b.Do("GET", "/readyz", nil); status != http.StatusServiceUnavailable {
		t.Errorf("readyz without a database: %d", status)
	}
	old := srv.URL()
	srv = start()
	if srv.URL() != old {
		t.Fatal("somebody took the port meanwhile")
	}
	back := time.Now()
	for !tryPush(b, "other", "x") {
		if time.Since(back) > 5*time.Second {
			t.Fatal("no push in 5 s")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if got := <-waiting; got == nil || time.Since(back) > 5*time.Second {
		t.Errorf("parked pop got %v after %v", got, time.Since(back))
	}
	// A connection from before may still be in the pool and fail one call.
	var kept PopAnswer
	soon(t, 5*time.Second, func() bool {
		status, _, answer := b.Do("GET", "/api/v1/pop/queue/q", nil)
		return status == http.StatusOK && json.Unmarshal(answer, &kept) == nil
	})
	if len(kept.IDs()) != 3 {
		t.Errorf("kept %v", kept.IDs())
	}
	b.Stop() // before its database
}

// TestOutage_TerminatedSessions ends the sessions of two brokers over and over
// while they work. Callers repeat what was answered 503, with the same ids:
// everything is stored once and consumed.
func TestOutage_TerminatedSessions(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: []string{"DB_POOL_SIZE=4"}})
	f.One().Configure("q", map[string]any{"leaseTime": 2, "retryLimit": 1000})
	until := time.Now().Add(modelTime(t, 3*time.Second))
	var wg sync.WaitGroup
	var killed, repeats atomic.Int64
	wg.Go(func() {
		c, err := pgx.Connect(context.Background(), f.DB.URL)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.Close(context.Background()) }()
		for time.Now().Before(until) {
			time.Sleep(60 * time.Millisecond)
			var n int64
			if err := c.QueryRow(context.Background(), `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.4`).Scan(&n); err != nil {
				t.Error(err)
				return
			}
			killed.Add(n)
		}
	})
	total := make([]int, 6)
	for w := range total {
		wg.Go(func() {
			for n := 0; time.Now().Before(until) && !t.Failed(); n++ {
				items := make([]Item, 5)
				for i := range items {
					items[i] = Item{Queue: "q", Partition: fmt.Sprint("p", w%3), TransactionID: fmt.Sprintf("%d-%d-%d", w, n, i)}
				}
				repeats.Add(pushUntilStored(t, f.Brokers[w%2], items))
				total[w] += len(items)
			}
		})
	}
	seen := consumeAll(t, f, &wg, until)
	wg.Wait()
	want := 0
	for _, n := range total {
		want += n
	}
	var messages, ids int
	if err := f.DB.Pool(t).QueryRow(t.Context(), `SELECT (SELECT sum(message_count) FROM queen.segments), (SELECT count(DISTINCT (partition_id, id_hash)) FROM queen.message_ids)`).Scan(&messages, &ids); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d messages, %d sessions ended, %d calls repeated", want, killed.Load(), repeats.Load())
	if messages != want || ids != want {
		t.Errorf("%d messages of %d ids are stored, want %d", messages, ids, want)
	}
	if got := seen(); got != want {
		t.Errorf("%d messages consumed, want %d", got, want)
	}
	if killed.Load() == 0 {
		t.Error("no session was ended")
	}
	checkNothingStranded(t, f.DB.Pool(t))
}

// pushUntilStored repeats a push until it is answered, and counts the repeats.
func pushUntilStored(t *testing.T, b *Broker, items []Item) (repeats int64) {
	for ; repeats < 200; repeats++ {
		status, _, answer := b.Do("POST", "/api/v1/push", PushBody(items...))
		if status == http.StatusCreated {
			return repeats
		}
		if status != http.StatusServiceUnavailable {
			t.Errorf("push: %d %s", status, answer)
			return repeats
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("push refused 200 times")
	return repeats
}

// consumeAll starts consumers that end when the queue stays empty after until.
// The function it returns tells how many different messages they completed.
func consumeAll(t *testing.T, f *Fleet, wg *sync.WaitGroup, until time.Time) func() int {
	var mu sync.Mutex
	seen := map[string]bool{}
	for w := range 3 {
		wg.Go(func() {
			b := f.Brokers[w%2]
			for !t.Failed() {
				status, _, answer := b.Do("GET", "/api/v1/pop/queue/q?batch=50&wait=true&timeout=2500", nil)
				if status == http.StatusNoContent && time.Now().After(until) {
					return
				}
				if status != http.StatusOK {
					if status >= 500 && status != http.StatusServiceUnavailable {
						t.Errorf("pop: %d %s", status, answer)
					}
					continue
				}
				var got PopAnswer
				if err := json.Unmarshal(answer, &got); err != nil {
					t.Error(err)
					return
				}
				var items []AckItem
				for _, m := range got.Messages {
					items = append(items, m.Ack("completed", ""))
				}
				body := map[string]any{"acknowledgments": items}
				if status, _, answer := b.Do("POST", "/api/v1/ack/batch", body); status != http.StatusOK && status != http.StatusServiceUnavailable {
					t.Errorf("ack: %d %s", status, answer)
				}
				mu.Lock()
				for _, m := range got.Messages {
					seen[m.TransactionID] = true
				}
				mu.Unlock()
			}
		})
	}
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
}

// TestOutage_AnswerLost loses the database's answer to a statement that it did
// carry out, for each kind of call.
func TestOutage_AnswerLost(t *testing.T) {
	t.Parallel()
	// One connection, on which every statement is prepared: what follows is
	// one trip each, and its answer is all that can get lost.
	f, p := behindProxy(t, 1, "QUEEN_STMT_TIMEOUT_MS=1000", "DB_POOL_SIZE=2")
	b := f.One()
	// Nobody else may use that connection.
	soon(t, 20*time.Second, func() bool {
		status, _, _ := b.Do("POST", "/api/v1/system/kv-timers", `{"timersFire":false}`)
		return status == http.StatusOK
	})
	b.PushN("q", "", "warm", 1)
	b.AckAll(b.Pop("q", ""))
	lose := func(call func()) {
		t.Helper()
		p.deaf.Store(true)
		call()
		if p.lost.Load() == 0 {
			t.Fatal("no answer was lost")
		}
		p.back()
		p.cut()
	}
	lose(func() { want503(t, b, 3*time.Second, "retry", "timeout", "outcome_unknown") })
	r := pushAgain(t, b, Item{Queue: "q", TransactionID: "lost", Payload: json.RawMessage(`1`)})
	if r.Status != "duplicate" || r.Offset == nil || *r.Offset != 1 {
		t.Errorf("repeated push: %+v", r)
	}

	b.Must(http.StatusNoContent, "GET", "/api/v1/pop/queue/nothing", nil)
	lose(func() {
		if status, _, answer := b.Do("GET", "/api/v1/pop/queue/q?leaseSeconds=60", nil); status != http.StatusServiceUnavailable {
			t.Errorf("pop: %d %s", status, answer)
		}
	})
	// The lease that may have been granted is given back.
	got := b.Pop("q", "wait=true&timeout=10000")
	if got == nil || got.Messages[0].TransactionID != "lost" || got.Messages[0].DeliveryAttempt != 1 {
		t.Fatalf("pop after a lost answer: %+v", got)
	}
	item := got.Messages[0].Ack("completed", "")
	lose(func() {
		if status, _, answer := b.Do("POST", "/api/v1/ack", item); status != http.StatusServiceUnavailable {
			t.Errorf("ack: %d %s", status, answer)
		}
	})
	var verdict []AckResult
	soon(t, 5*time.Second, func() bool {
		status, _, answer := b.Do("POST", "/api/v1/ack", item)
		return status == http.StatusOK && json.Unmarshal(answer, &verdict) == nil
	})
	if !verdict[0].Success {
		t.Errorf("repeated ack: %+v", verdict)
	}
	if got := b.Pop("q", ""); got != nil {
		t.Errorf("still there: %+v", got)
	}
}

func pushAgain(t *testing.T, b *Broker, item Item) PushResult {
	t.Helper()
	var r []PushResult
	soon(t, 5*time.Second, func() bool {
		status, _, answer := b.Do("POST", "/api/v1/push", PushBody(item))
		return status == http.StatusCreated && json.Unmarshal(answer, &r) == nil
	})
	return r[0]
}

func soon(t *testing.T, within time.Duration, done func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v", within)
		}
	}
}
