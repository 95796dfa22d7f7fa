package janitor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/janitor"
	"github.com/queenmq-go/queenmq/internal/mq"
)

const pending = 1 << 40

// heads checks a partition's marks against what it retains.
func (f *fixture) heads(partition, logStart, retained int64) {
	f.t.Helper()
	const row = `FROM queen.partitions p WHERE p.queue_id = $1 AND p.id = $2`
	if got := f.sql.one(`SELECT log_start `+row, f.queue.ID, partition); got != logStart {
		f.t.Errorf("log_start %d, want %d", got, logStart)
	}
	if got := f.sql.one(`SELECT last_offset - log_start + 1 `+row, f.queue.ID, partition); got != retained {
		f.t.Errorf("%d messages retained, want %d", got, retained)
	}
	if f.sql.one(`SELECT (p.oldest_at IS NOT DISTINCT FROM (SELECT min(s.created_at) FROM queen.segments s
		WHERE s.queue_id = p.queue_id AND s.partition_id = p.id))::int `+row, f.queue.ID, partition) != 1 {
		f.t.Error("oldest_at is not that of the oldest segment")
	}
}

func TestB176AgeRemovesWhatNobodyConsumed(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.RetentionEnabled, o.RetentionSeconds = true, 600 })
	g := f.group("slow")
	part := f.push("p", 10)
	f.age(part, 6)
	f.start(nil)
	eventually(t, func() bool { return f.segments() == 3 })
	f.someCycles()
	f.heads(part, 7, 3)
	// The consumer goes on behind the gap.
	if _, claims := f.lease(g, 100); len(claims) != 1 || claims[0].Segments[0].First != 7 || claims[0].Messages() != 3 {
		t.Errorf("claims %+v", claims)
	}
	f.age(part, pending)
	eventually(t, func() bool { return f.segments() == 0 })
	f.heads(part, 10, 0)
	if r := f.pushRun("p", 2); r.First != 10 {
		t.Errorf("first offset after emptying %d, want 10", r.First)
	}
	f.heads(part, 10, 2)
}

func TestB176CompletedKeepsABacklog(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.RetentionEnabled, o.CompletedRetentionSeconds = true, 600 })
	without := f.push("without groups", 3)
	f.age(without, pending)
	f.start(nil)
	f.someCycles()
	if n := f.segments(); n != 3 {
		t.Errorf("%d segments, want 3: a partition without groups lost some", n)
	}
}

func TestB177CompletedWaitsForTheSlowestGroup(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.RetentionEnabled, o.CompletedRetentionSeconds = true, 600 })
	fast, slow := f.group("fast"), f.group("slow")
	part := f.push("p", 10)
	f.age(part, 7)
	f.consume(fast, 10)
	f.start(nil)
	f.someCycles()
	f.heads(part, 0, 10)
	f.consume(slow, 4)
	eventually(t, func() bool { return f.segments() == 6 })
	f.someCycles()
	f.heads(part, 4, 6)
	f.consume(slow, 10)
	// 8 and 9 are consumed but young.
	eventually(t, func() bool { return f.segments() == 2 })
	f.someCycles()
	f.heads(part, 8, 2)
}

func TestB178OffMeansOffAndMaxWaitWorksAlone(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.RetentionSeconds, o.CompletedRetentionSeconds = 60, 60 })
	g := f.group("g")
	part := f.push("p", 4)
	f.age(part, pending)
	f.consume(g, 2)
	f.start(nil)
	f.someCycles()
	f.heads(part, 0, 4)
	f.queue = f.configure("q", func(o *mq.Options) { o.MaxWaitTimeSeconds = 600 })
	eventually(t, func() bool { return f.segments() == 0 })
	f.heads(part, 4, 0)
	if n := f.sql.one(`SELECT count(*) FROM queen.dead_letters`); n != 0 {
		t.Errorf("%d dead letters of evicted messages", n)
	}
}

func TestB179LeasedMessagesMayGo(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.MaxWaitTimeSeconds = 600 })
	g := f.group("g")
	part := f.push("p", 3)
	lease, claims := f.lease(g, 3)
	var fp mq.Fingerprint
	for i := range claims[0].Segments {
		var id mq.UUID
		e := claims[0].Segments[i].Message(0)
		id, _ = mq.ParseUUID(string(e[7:43])) // {"id":"…
		fp.Add(mq.HashID(id.String()))
	}
	f.age(part, pending)
	f.start(nil)
	eventually(t, func() bool { return f.segments() == 0 })
	acks := []mq.QueueAcks{{QueueID: f.queue.ID, Batches: []mq.BatchAck{{
		CursorKey: mq.CursorKey{Partition: part, Group: g.ID}, LeaseID: lease, Count: fp.Count, Mark: fp.Mark,
	}}}}
	if err := f.AckBatches(t.Context(), acks); err != nil || !acks[0].Results[0].Done {
		t.Fatalf("ack of a removed batch: %+v, %v", acks, err)
	}
	f.push("p", 1)
	if _, claims := f.lease(g, 3); len(claims) != 1 || claims[0].Segments[0].First != 3 {
		t.Errorf("later messages do not flow: %+v", claims)
	}
}

func TestWholeSegmentsOnly(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.RetentionEnabled, o.CompletedRetentionSeconds = true, 600 })
	g := f.group("g")
	part := f.pushRun("p", 10).PartitionID
	f.age(part, pending)
	f.consume(g, 9)
	f.start(nil)
	f.someCycles()
	f.heads(part, 0, 10)
	f.consume(g, 1)
	eventually(t, func() bool { return f.segments() == 0 })
	f.heads(part, 10, 0)
}

// Partitions that a dead group pins are the oldest ones; those behind them get
// their turn all the same, also when a cycle has no time for more than a few.
func TestPinnedPartitionsDoNotStarveOthers(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.RetentionEnabled, o.CompletedRetentionSeconds = true, 600 })
	g := f.group("g")
	for i := range 450 {
		f.push(fmt.Sprintf("pinned-%03d", i), 1)
	}
	f.sql.exec(`UPDATE queen.segments SET created_at = created_at - interval '2 hours'`)
	f.sql.exec(`UPDATE queen.partitions SET oldest_at = oldest_at - interval '2 hours'`)
	last := f.push("last", 2)
	f.age(last, pending)
	f.sql.exec(`UPDATE queen.cursors SET committed = 1 WHERE partition_id = $1`, last)
	_ = g
	f.start(func(c *janitor.Config) { c.RetentionInterval = 4 * time.Millisecond })
	eventually(t, func() bool {
		return f.sql.one(`SELECT log_start FROM queen.partitions WHERE id = $1`, last) == 2
	})
	if n := f.segments(); n != 450 {
		t.Errorf("%d segments of pinned partitions, want 450", n)
	}
}

// A partition that somebody's transaction holds is passed over.
func TestLockedPartitionDoesNotHoldOthersUp(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.MaxWaitTimeSeconds = 600 })
	held, free := f.push("held", 1), f.push("free", 1)
	f.age(held, pending)
	f.age(free, pending)
	release := f.hold(`SELECT FROM queen.partitions WHERE id = ` + fmt.Sprint(held) + ` FOR NO KEY UPDATE`)
	f.start(nil)
	eventually(t, func() bool { return f.segments() == 1 })
	f.heads(free, 1, 0)
	release()
	eventually(t, func() bool { return f.segments() == 0 })
}

// A backlog goes in steps, and pushes to its partition hardly notice.
func TestPushesAreNotHeldUpByRetention(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *mq.Options) { o.MaxWaitTimeSeconds = 600 })
	part := f.push("p", 1)
	const backlog = 30_000
	f.sql.exec(`INSERT INTO queen.segments SELECT queue_id, partition_id, end_offset + n, created_at, message_count, ends, marks, body
		FROM queen.segments, generate_series(1, $1) n`, backlog)
	f.sql.exec(`UPDATE queen.partitions SET last_offset = last_offset + $1`, backlog)
	f.age(part, pending)
	f.start(func(c *janitor.Config) { c.RetentionInterval = time.Second })
	var worst time.Duration
	pushes := int64(0)
	for f.sql.one(`SELECT log_start FROM queen.partitions WHERE id = $1`, part) <= backlog {
		from := time.Now()
		f.push("p", 1)
		worst = max(worst, time.Since(from))
		pushes++
	}
	t.Logf("%d segments removed beside %d pushes, the slowest of which took %v", backlog+1, pushes, worst)
	if worst > 250*time.Millisecond {
		t.Errorf("a push took %v beside retention", worst)
	}
	f.heads(part, backlog+1, pushes)
}
