package janitor_test

import (
	"context"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/janitor"
	"github.com/queenmq-go/queenmq/internal/mq"
)

// slice makes a slice of message ids that began at a time in the past, with one
// id of the fixture's queue in it.
func (f *fixture) slice(class int, ago string) {
	f.t.Helper()
	widths := []string{"30 minutes", "6 hours", "7 days"}
	const at = `date_bin($2::interval, now() - $3::interval, '2020-01-06 00:00:00+00')`
	f.sql.exec(`SELECT queen.ensure_id_slices($1, `+at+`)`, class, widths[class], ago)
	f.sql.exec(`INSERT INTO queen.message_ids SELECT $1, `+at+`, $4, 1, 0, gen_random_uuid()`, class, widths[class], ago, f.queue.ID)
}

func (f *fixture) ids(class int) int64 {
	return f.sql.one(`SELECT count(*) FROM queen.message_ids WHERE window_class = $1`, class)
}

func TestIDSlicesAreMadeAheadAndDropped(t *testing.T) {
	t.Parallel()
	f := setup(t, func(*mq.Options) {}) // an hour's window: class 0
	f.slice(0, "3 hours")
	f.slice(0, "50 minutes") // begun then, needed still
	f.slice(1, "40 hours")
	f.slice(2, "40 days")
	f.sql.exec(`DELETE FROM queen.message_ids WHERE window_class = 0 AND created_at > now()`)
	// The fleet was down and no slice is there for now.
	f.sql.exec(`DO $$ DECLARE s regclass; BEGIN
		FOR s IN SELECT inhrelid FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = 'queen.message_ids'::regclass
			AND c.relname >= 'message_ids_0_' || to_char(now() AT TIME ZONE 'UTC' - interval '30 minutes', 'YYYYMMDDHH24MI') AND c.relname < 'message_ids_1'
		LOOP EXECUTE 'DROP TABLE ' || s; END LOOP; END $$`)
	f.start(nil)
	eventually(t, func() bool { return f.ids(0) == 1 && f.ids(1) == 0 && f.ids(2) == 0 })
	eventually(t, func() bool {
		return f.sql.one(`SELECT count(*) FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = 'queen.message_ids'::regclass
			AND c.relname >= 'message_ids_0_' || to_char(now() AT TIME ZONE 'UTC' - interval '30 minutes', 'YYYYMMDDHH24MI') AND c.relname < 'message_ids_1'`) >= 3
	})
	f.push("p", 1) // has a place for its id
}

func TestLongWindowKeepsItsIDs(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.DedupWindowSeconds = 100 * 86400 })
	f.slice(2, "60 days")
	f.slice(2, "120 days")
	f.slice(0, "3 hours")
	// Class 0 is still probed for this queue.
	f.sql.exec(`UPDATE queen.queues SET id_class_before = 0, id_class_until = now() + interval '1 minute'`)
	f.start(nil)
	eventually(t, func() bool { return f.ids(2) == 1 })
	if f.ids(0) != 1 {
		t.Error("ids of the class before were dropped while the queue may need them")
	}
	f.sql.exec(`UPDATE queen.queues SET id_class_until = now() - interval '1 second'`)
	eventually(t, func() bool { return f.ids(0) == 0 })
	eventually(t, func() bool {
		return f.sql.one(`SELECT count(*) FROM queen.queues WHERE id_class_before = 2 AND id_class_until IS NULL AND version = $1`, f.queue.Version+1) == 1
	})
}

// While some transaction may use the slice that is to go, the drop waits and
// pushes do not: the detach is a concurrent one. What remains of an interrupted
// one is finished. And a janitor that waits stops at once.
func TestDetachHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	f := setup(t, func(*mq.Options) {})
	f.push("p", 1)
	f.slice(0, "3 hours")
	release := f.hold(`SELECT count(*) FROM queen.message_ids`)
	stop := f.start(nil)
	detaching := func() int64 {
		return f.sql.one(`SELECT count(*) FROM pg_inherits WHERE inhparent = 'queen.message_ids'::regclass AND inhdetachpending`)
	}
	eventually(t, func() bool { return detaching() == 1 })
	var worst time.Duration
	for range 50 {
		from := time.Now()
		f.push("p", 1)
		worst = max(worst, time.Since(from))
	}
	t.Logf("slowest push beside a detach %v", worst)
	if worst > 250*time.Millisecond || detaching() != 1 {
		t.Errorf("a push took %v beside a detach (%d under way)", worst, detaching())
	}
	from := time.Now()
	stop()
	if d := time.Since(from); d > time.Second {
		t.Errorf("stopping took %v", d)
	}
	if detaching() != 1 {
		t.Fatal("the interrupted detach left nothing to finish; the test is void")
	}
	release()
	f.start(func(c *janitor.Config) { c.Holder = "another" })
	eventually(t, func() bool {
		return detaching() == 0 && f.sql.one(`SELECT count(*) FROM queen.message_ids WHERE created_at < now() - interval '2 hours'`) == 0
	})
}

func TestDetachedSliceIsDropped(t *testing.T) {
	t.Parallel()
	f := setup(t, func(*mq.Options) {})
	f.slice(0, "3 hours")
	f.sql.exec(`DO $$ DECLARE s regclass := (SELECT min(inhrelid::regclass::text)::regclass FROM pg_inherits WHERE inhparent = 'queen.message_ids'::regclass);
		BEGIN EXECUTE 'ALTER TABLE queen.message_ids DETACH PARTITION ' || s; END $$`)
	orphans := func() int64 {
		return f.sql.one(`SELECT count(*) FROM pg_class c WHERE relkind = 'r' AND relname ~ '^message_ids_._' AND NOT relispartition`)
	}
	if orphans() != 1 {
		t.Fatal("no orphan to begin with")
	}
	n, err := f.ExpireIDs(context.Background())
	if err != nil || n < 1 || orphans() != 0 {
		t.Errorf("%d dropped, %v, %d orphans left", n, err, orphans())
	}
}
