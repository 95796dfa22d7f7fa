package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
	"github.com/queenmq-go/queenmq/migrations"
)

// nextVersion is the schema with steps a later version could bring: a nullable
// column for each hot table, and an index built beside the work.
func nextVersion(t *testing.T) (steps fs.FS, names []string) {
	t.Helper()
	out := fstest.MapFS{}
	old, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range old {
		raw, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = &fstest.MapFile{Data: raw}
	}
	for i, table := range []string{"queues", "partitions", "segments", "message_ids", "consumer_groups", "cursors"} {
		name := fmt.Sprintf("0009%d_note_%s.sql", i, table)
		out[name] = &fstest.MapFile{Data: fmt.Appendf(nil, `-- +goose Up
SET LOCAL lock_timeout = '50ms';
ALTER TABLE queen.%s ADD COLUMN note text;
`, table)}
		names = append(names, name)
	}
	const index = "00099_index_notes.sql"
	out[index] = &fstest.MapFile{Data: []byte(`-- +goose NO TRANSACTION
-- +goose Up
CREATE INDEX CONCURRENTLY cursors_note_idx ON queen.cursors (note);
`)}
	return out, append(names, index)
}

// TestRolling_A8_MigrationUnderLoad migrates three times at once beneath two
// brokers at work, while somebody reads every table in one long transaction.
func TestRolling_A8_MigrationUnderLoad(t *testing.T) {
	t.Parallel()
	reading := 3 * time.Second
	if os.Getenv("QUEEN_MODEL_SECONDS") != "" {
		reading = 10 * time.Second
	}
	f := Start(t, Options{Brokers: 2})
	f.One().Configure("q", map[string]any{"leaseTime": 60})
	load := startRollingLoad(t, f)
	time.Sleep(500 * time.Millisecond) // statements are prepared everywhere

	reader, err := pgx.Connect(t.Context(), f.DB.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close(context.Background()) }()
	if _, err := reader.Exec(t.Context(), `BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ;
		SELECT count(*) FROM queen.cursors, queen.queues; SELECT count(*) FROM queen.segments, queen.partitions; SELECT count(*) FROM queen.message_ids`,
		pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	steps, names := nextVersion(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var applied []string
	for range 3 {
		wg.Go(func() {
			got, err := migrate.UpFrom(context.Background(), steps, f.DB.URL)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			applied = append(applied, got...)
		})
	}
	time.Sleep(reading)
	if _, err := reader.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	time.Sleep(500 * time.Millisecond) // on the new schema
	load.stop()

	slices.Sort(applied)
	if !slices.Equal(applied, names) {
		t.Errorf("all runs together applied %q, want each of %q once", applied, names)
	}
	var invalid int
	if err := f.DB.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM pg_index WHERE NOT indisvalid").Scan(&invalid); err != nil || invalid != 0 {
		t.Errorf("%d invalid indexes (%v)", invalid, err)
	}
	load.check()
	checkNothingStranded(t, f.DB.Pool(t))
}

// rollingLoad is a hundred calls a second over two brokers, none of which may
// fail, and none of whose messages may come twice.
type rollingLoad struct {
	t       *testing.T
	f       *Fleet
	ended   atomic.Bool
	wg      sync.WaitGroup
	calls   atomic.Int64
	slowest atomic.Int64
	pushed  atomic.Int64
	mu      sync.Mutex
	seen    map[string]int
}

func startRollingLoad(t *testing.T, f *Fleet) *rollingLoad {
	l := &rollingLoad{t: t, f: f, seen: map[string]int{}}
	for w := range 4 {
		b := f.Brokers[w%2]
		l.wg.Go(func() {
			for n := 0; !l.ended.Load() && !t.Failed(); n++ {
				l.timed(func() {
					b.Push(Item{Queue: "q", Partition: fmt.Sprint("p", n%5), TransactionID: fmt.Sprintf("%d-%d", w, n)})
				})
				l.pushed.Add(1)
				time.Sleep(60 * time.Millisecond)
			}
		})
		l.wg.Go(func() {
			for !l.ended.Load() && !t.Failed() {
				l.consume(b, "batch=3&partitions=2")
				time.Sleep(40 * time.Millisecond)
			}
		})
	}
	return l
}

func (l *rollingLoad) timed(call func()) {
	from := time.Now()
	call()
	l.calls.Add(1)
	for took := int64(time.Since(from)); ; {
		if old := l.slowest.Load(); took <= old || l.slowest.CompareAndSwap(old, took) {
			return
		}
	}
}

func (l *rollingLoad) consume(b *Broker, query string) bool {
	var got *PopAnswer
	l.timed(func() { got = b.Pop("q", query) })
	if got == nil {
		return false
	}
	l.timed(func() { b.AckAll(got) })
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range got.Messages {
		l.seen[m.TransactionID]++
	}
	return true
}

func (l *rollingLoad) stop() {
	l.ended.Store(true)
	l.wg.Wait()
}

func (l *rollingLoad) check() {
	for l.consume(l.f.One(), "batch=100&partitions=64") {
	}
	l.t.Logf("%d calls, the slowest took %v", l.calls.Load(), time.Duration(l.slowest.Load()))
	for id, n := range l.seen {
		if n != 1 {
			l.t.Errorf("%s was delivered %d times", id, n)
		}
	}
	if len(l.seen) != int(l.pushed.Load()) {
		l.t.Errorf("%d messages delivered, %d pushed", len(l.seen), l.pushed.Load())
	}
}
