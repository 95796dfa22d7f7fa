package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/janitor"
	"github.com/queenmq-go/queenmq/internal/mq"
)

// watched notices when two janitors are inside one loop.
type watched struct {
	*fixture
	holder string
	seen   *sightings
}

type sightings struct {
	mu     sync.Mutex
	inside map[string]string
	turns  map[string]int // by loop and holder
	clash  string
}

func (w *watched) enter(loop string) func() {
	s := w.seen
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.inside[loop]; other != "" && other != w.holder {
		s.clash = loop
	}
	s.inside[loop] = w.holder
	s.turns[loop+" "+w.holder]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inside[loop] = ""
	}
}

func (w *watched) RetentionRules(ctx context.Context) ([]mq.RetentionRule, error) {
	defer w.enter("retention")()
	time.Sleep(3 * time.Millisecond)
	return w.fixture.RetentionRules(ctx)
}

func (w *watched) SweepDropped(ctx context.Context, limit int) (int, error) {
	defer w.enter("dropped")()
	time.Sleep(3 * time.Millisecond)
	return w.fixture.SweepDropped(ctx, limit)
}

func (w *watched) ExpireIDs(ctx context.Context) (int, error) {
	defer w.enter("ids")()
	time.Sleep(3 * time.Millisecond)
	return w.fixture.ExpireIDs(ctx)
}

func TestEachLoopRunsOnOneBroker(t *testing.T) {
	t.Parallel()
	f := setup(t, func(*mq.Options) {})
	seen := &sightings{inside: map[string]string{}, turns: map[string]int{}}
	start := func(holder string) func() {
		return f.startOn(&watched{f, holder, seen}, func(c *janitor.Config) {
			// Short enough that a janitor that forgot to renew would lose it.
			c.Holder, c.RetentionInterval, c.IDInterval, c.Lease = holder, 5*time.Millisecond, 5*time.Millisecond, 400*time.Millisecond
		})
	}
	turns := func(holder string) (n int) {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		n = 1 << 30
		for _, l := range []string{"retention", "dropped", "ids"} {
			n = min(n, seen.turns[l+" "+holder])
		}
		return n
	}
	stop := start("a")
	eventually(t, func() bool { return turns("a") > 3 })
	start("b")
	time.Sleep(time.Second)
	if n := turns("b"); n != 0 {
		t.Errorf("the second janitor had %d turns while the first was there", n)
	}
	stop()
	from := time.Now()
	eventually(t, func() bool { return turns("b") > 3 })
	t.Logf("taken over in %v", time.Since(from))
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if seen.clash != "" {
		t.Errorf("two janitors were in loop %s at once", seen.clash)
	}
}

// failing fails a few times and then works.
type failing struct {
	*fixture
	mu   sync.Mutex
	left int
}

func (s *failing) RetentionRules(ctx context.Context) ([]mq.RetentionRule, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left > 0 {
		s.left--
		return nil, errors.New("out of order")
	}
	return s.fixture.RetentionRules(ctx)
}

func TestErrorsAreLoggedOnceAndRepeated(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.MaxWaitTimeSeconds = 600 })
	f.age(f.push("p", 1), pending)
	var log lockedBuilder
	f.startOn(&failing{fixture: f, left: 5}, func(c *janitor.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	eventually(t, func() bool { return f.segments() == 0 })
	if n := strings.Count(log.String(), "out of order"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// hold opens a transaction beside everything else and leaves it open.
func (f *fixture) hold(sql string) (release func()) {
	f.t.Helper()
	tx, err := f.db.Pool(f.t).Begin(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), sql); err != nil {
		f.t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	f.t.Cleanup(release)
	return release
}

func TestDroppedQueueGoesInSteps(t *testing.T) {
	t.Parallel()
	f := setup(t, func(*mq.Options) {})
	gone := f.queue
	f.push("p", 40)
	f.push("p2", 25)
	if _, err := f.DeleteQueue(t.Context(), mq.DefaultTenant, "q"); err != nil {
		t.Fatal(err)
	}
	f.queue = f.configure("q", func(*mq.Options) {})
	f.push("p", 7)
	f.start(func(c *janitor.Config) { c.BatchSize = 10 })
	eventually(t, func() bool { return f.sql.one(`SELECT count(*) FROM queen.dropped_queues`) == 0 })
	if n := f.sql.one(`SELECT count(*) FROM queen.segments WHERE queue_id = $1`, gone.ID); n != 0 {
		t.Errorf("%d segments of the dropped queue left", n)
	}
	if n := f.segments(); n != 7 {
		t.Errorf("%d segments of the new queue, want 7", n)
	}
	n, err := f.SweepDropped(t.Context(), 10)
	if n != 0 || err != nil {
		t.Errorf("nothing left, yet %d, %v", n, err)
	}
}

func TestIdlePartitionsGoAndComeBack(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.MaxWaitTimeSeconds = 600 })
	g := f.group("g")
	idle, full, lettered, active, young := f.push("idle", 2), f.push("full", 1), f.push("lettered", 1), f.push("active", 1), f.push("young", 1)
	for _, p := range []int64{idle, lettered, active, young} {
		f.age(p, pending)
	}
	stop := f.start(nil)
	eventually(t, func() bool { return f.segments() == 1 })
	stop()
	f.sql.exec(`UPDATE queen.partitions SET created_at = created_at - interval '31 days', last_write_at = last_write_at - interval '31 days' WHERE id <> $1`, young)
	f.sql.exec(`UPDATE queen.cursors SET consumed_at = now() WHERE partition_id = $1`, active)
	f.sql.exec(`INSERT INTO queen.dead_letters (queue_id, id, partition_id, message_offset, message_id, id_hash, created_at, failed_at,
		retry_count, group_name, transaction_id, error, payload)
		VALUES ($1, gen_random_uuid(), $2, 0, gen_random_uuid(), gen_random_uuid(), now(), now(), 0, 'g', 't', '', '1')`, f.queue.ID, lettered)

	stop = f.start(nil) // off by default
	f.someCycles()
	if n := f.sql.one(`SELECT count(*) FROM queen.partitions`); n != 5 {
		t.Errorf("%d partitions with the cleanup off, want 5", n)
	}
	stop()
	f.start(func(c *janitor.Config) { c.PartitionCleanup = true })
	eventually(t, func() bool { return f.sql.one(`SELECT count(*) FROM queen.partitions WHERE id = $1`, idle) == 0 })
	f.someCycles()
	if n := f.sql.one(`SELECT count(*) FROM queen.partitions WHERE id = ANY ($1)`, []int64{full, lettered, active, young}); n != 4 {
		t.Errorf("%d of the 4 partitions in use left", n)
	}
	if n := f.sql.one(`SELECT count(*) FROM queen.cursors WHERE partition_id = $1`, idle); n != 0 {
		t.Errorf("%d cursors of the removed partition left", n)
	}
	r := f.pushRun("idle", 1)
	if r.PartitionID == idle || r.First != 0 {
		t.Errorf("recreated as %d from offset %d", r.PartitionID, r.First)
	}
	if n := f.sql.one(`SELECT count(*) FROM queen.cursors WHERE partition_id = $1 AND group_id = $2 AND ready_at IS NOT NULL`, r.PartitionID, g.ID); n != 1 {
		t.Errorf("the recreated partition has %d ready cursors, want 1", n)
	}
}

// Pushes to partitions that are being removed land in new ones; none is lost.
func TestPushBesideIdleCleanup(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.MaxWaitTimeSeconds = 600 })
	f.start(func(c *janitor.Config) { c.PartitionCleanup = true })
	var worst time.Duration
	for i := range 150 {
		name := fmt.Sprint("p", i%5)
		from := time.Now()
		r, err := f.tryPush(name, 1)
		if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(from))
		if n := f.sql.one(`SELECT count(*) FROM queen.segments WHERE partition_id = $1 AND end_offset = $2`, r.PartitionID, r.First); n != 1 {
			t.Fatalf("push %d is not there", i)
		}
		f.sql.exec(`DELETE FROM queen.segments WHERE partition_id = $1`, r.PartitionID)
		f.sql.exec(`UPDATE queen.partitions SET log_start = last_offset + 1, oldest_at = NULL, created_at = now() - interval '31 days',
			last_write_at = now() - interval '31 days' WHERE id = $1`, r.PartitionID)
	}
	t.Logf("slowest push %v", worst)
	if worst > 250*time.Millisecond {
		t.Errorf("a push took %v", worst)
	}
}
