package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// modelTime is how long the random tests run: a few seconds, or
// QUEEN_MODEL_SECONDS.
func modelTime(t *testing.T, short time.Duration) time.Duration {
	if text := os.Getenv("QUEEN_MODEL_SECONDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("QUEEN_MODEL_SECONDS: %v", err)
		}
		return time.Duration(n) * time.Second
	}
	return short
}

// modelSeed is the seed of a random test, QUEEN_MODEL_SEED to repeat one.
func modelSeed(t *testing.T) uint64 {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("QUEEN_MODEL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("QUEEN_MODEL_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with QUEEN_MODEL_SEED=%d", seed)
		}
	})
	return seed
}

// TestModel compares the answers of two brokers, call by call, with a model of
// the contract. Each queue has one caller, so its model is exact; many queues
// run at once, so that their calls share transactions.
func TestModel(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	pool := f.DB.Pool(t)
	seed := modelSeed(t)
	until := time.Now().Add(modelTime(t, 8*time.Second))
	skew := modelSkew(t, pool)
	var wg sync.WaitGroup
	var queues, calls, unclear atomic.Int64
	for w := range 32 {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		wg.Go(func() {
			for n := 0; time.Now().Before(until) && !t.Failed(); n++ {
				m := newModelRun(t, f, rnd, fmt.Sprintf("model-%d-%d", w, n), skew)
				m.run(20+rnd.IntN(120), until)
				if m.unclear {
					unclear.Add(1)
					continue
				}
				m.finish(pool)
				queues.Add(1)
				calls.Add(int64(m.calls))
			}
		})
	}
	wg.Wait()
	t.Logf("%d queues, %d calls compared, %d queues given up because a call met the end of a lease", queues.Load(), calls.Load(), unclear.Load())
	if !t.Failed() && queues.Load() <= unclear.Load() {
		t.Error("too slow to compare anything")
	}
	checkNothingStranded(t, pool)
}

// modelSkew is how far the database's clock is ahead of ours.
func modelSkew(t *testing.T, pool *pgxpool.Pool) time.Duration {
	var best, skew time.Duration = time.Hour, 0
	for range 5 {
		before := time.Now()
		var at time.Time
		if err := pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&at); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took < best {
			best, skew = took, at.Sub(before.Add(took/2))
		}
	}
	return skew
}

type modelRun struct {
	t       *testing.T
	f       *Fleet
	rnd     *rand.Rand
	q       *modelQueue
	skew    time.Duration
	trace   []string
	calls   int
	serial  int
	leases  []string // ever handed out
	unclear bool
}

func newModelRun(t *testing.T, f *Fleet, rnd *rand.Rand, name string, skew time.Duration) *modelRun {
	q := &modelQueue{
		name: name, dedup: rnd.IntN(3) > 0, retryLimit: rnd.IntN(3), letters: rnd.IntN(4) > 0,
		logs: map[string][]modelMessage{}, ids: map[string]string{},
	}
	for _, g := range []modelGroup{{name: "", all: true}, {name: "all", all: true}, {name: "new"}, {name: "last", all: true, conflating: true}} {
		g.cursors = map[string]*modelCursor{}
		q.groups = append(q.groups, &g)
	}
	window := 0
	if q.dedup {
		window = 3600
	}
	f.One().Configure(name, map[string]any{
		"retryLimit": q.retryLimit, "dedupWindowSeconds": window, "deadLetterQueue": q.letters, "dlqAfterMaxRetries": q.letters,
	})
	return &modelRun{t: t, f: f, rnd: rnd, q: q, skew: skew}
}

func (m *modelRun) broker() *Broker { return m.f.Brokers[m.rnd.IntN(len(m.f.Brokers))] }

func (m *modelRun) now() time.Time { return time.Now().Add(m.skew) }

func (m *modelRun) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

func (m *modelRun) failf(format string, args ...any) {
	m.t.Helper()
	m.t.Errorf("%s: "+format, append([]any{m.q.name}, args...)...)
	m.t.FailNow()
}

func (m *modelRun) run(steps int, until time.Time) {
	ended := false
	defer func() {
		if !ended {
			m.t.Logf("%s dedup=%v retryLimit=%d letters=%v:\n  %s", m.q.name, m.q.dedup, m.q.retryLimit, m.q.letters,
				strings.Join(m.trace[max(len(m.trace)-40, 0):], "\n  "))
		}
	}()
	for range steps {
		if m.unclear || m.t.Failed() || time.Now().After(until) {
			break
		}
		m.calls++
		switch n := m.rnd.IntN(100); {
		case n < 25:
			m.push()
		case n < 60:
			m.pop()
		case n < 88:
			m.ack()
		case n < 92:
			m.extend()
		case n < 95:
			m.seek()
		default:
			m.expire()
		}
	}
	ended = true
}

func (m *modelRun) partition() string { return fmt.Sprintf("p%d", m.rnd.IntN(4)) }

func (m *modelRun) push() {
	items := make([]Item, 1+m.rnd.IntN(6))
	for i := range items {
		m.serial++
		items[i] = Item{Queue: m.q.name, Partition: m.partition(), Payload: json.RawMessage(fmt.Sprintf(`{"n": %d}`, m.serial))}
		if m.rnd.IntN(2) == 0 {
			items[i].TransactionID = fmt.Sprintf("k%d", m.rnd.IntN(12))
		}
	}
	got := m.broker().Push(items...)
	type key struct{ partition, id string }
	leaders := map[key]int{}
	for i, it := range items {
		r := got[i]
		if r.Offset == nil {
			m.failf("push answered %+v", r)
		}
		m.note("push %s %q → %s %d", it.Partition, it.TransactionID, r.Status, *r.Offset)
		want, offset := "queued", int64(len(m.q.logs[it.Partition]))
		if it.TransactionID != "" {
			if lead, ok := leaders[key{it.Partition, it.TransactionID}]; ok {
				want, offset = "duplicate", *got[lead].Offset
			} else if stored := m.q.find(it.Partition, it.TransactionID); m.q.dedup && stored >= 0 {
				want, offset = "duplicate", stored
			}
			if _, ok := leaders[key{it.Partition, it.TransactionID}]; !ok {
				leaders[key{it.Partition, it.TransactionID}] = i
			}
		}
		if r.Status != want || *r.Offset != offset {
			m.failf("push of %q to %s: %s at %d, want %s at %d", it.TransactionID, it.Partition, r.Status, *r.Offset, want, offset)
		}
		if want == "queued" {
			m.q.append(it.Partition, modelMessage{id: r.MessageID, transactionID: r.TransactionID, payload: string(it.Payload)})
		} else if stored := m.q.logs[it.Partition][offset]; stored.id != r.MessageID {
			m.failf("duplicate of %s answered %s", stored.id, r.MessageID)
		}
	}
}

// leaseMargin is what the clocks of client and database may differ by.
const leaseMargin = 10 * time.Millisecond

// settle waits out every lease of a group that could end during the next call.
func (m *modelRun) settle(g *modelGroup) {
	for again := true; again; {
		again = false
		for _, c := range g.cursors {
			now := m.now()
			if c.leaseID != "" && c.live[0].Before(now.Add(400*time.Millisecond)) && c.live[1].Add(leaseMargin).After(now) {
				time.Sleep(c.live[1].Add(leaseMargin).Sub(now))
				again = true
			}
		}
	}
}

// met reports whether a lease that was live when a call began may have ended
// before its answer: what it saw is unknown then.
func (m *modelRun) met(g *modelGroup, began, answered time.Time) bool {
	for _, c := range g.cursors {
		if c.leaseID != "" && c.live[0].After(began) && c.live[0].Before(answered.Add(leaseMargin)) {
			m.unclear = true
		}
	}
	return m.unclear
}

func (m *modelRun) group() *modelGroup { return m.q.groups[m.rnd.IntN(len(m.q.groups))] }

func (m *modelRun) pop() {
	g := m.group()
	m.settle(g)
	batch, partitions := 1+m.rnd.IntN(6), 1+m.rnd.IntN(4)
	lease := []int{1, 2, 60}[m.rnd.IntN(3)]
	query := fmt.Sprintf("batch=%d&partitions=%d&leaseSeconds=%d", batch, partitions, lease)
	if g.name != "" {
		query += "&consumerGroup=" + g.name
		if g.all {
			query += "&subscriptionMode=all"
		}
	}
	auto, pinned := false, ""
	switch {
	case g.conflating:
		query += "&conflation=true"
	case m.rnd.IntN(5) == 0:
		query, auto = query+"&autoAck=true", true
	}
	if m.rnd.IntN(3) == 0 {
		pinned = m.partition()
	}
	m.q.register(g)
	began := m.now()
	open := m.q.claimable(g, began)
	var got *PopAnswer
	if pinned == "" {
		got = m.broker().Pop(m.q.name, query)
	} else {
		got = m.broker().PopPinned(m.q.name, pinned, query)
		if slices.Contains(open, pinned) {
			open = []string{pinned}
		} else {
			open = nil
		}
	}
	answered := m.now()
	if m.met(g, began, answered) {
		return
	}
	if got == nil || len(got.Messages) == 0 {
		m.note("pop %s %s → nothing", pinned, query)
		if len(open) > 0 {
			m.failf("pop %s %s got nothing, but %v is claimable", pinned, query, open)
		}
		return
	}
	m.note("pop %s %s → lease %.8s %v", pinned, query, got.LeaseID, offsetsOf(got))
	m.delivered(g, got, open, batch, partitions, auto, [2]time.Time{
		began.Add(time.Duration(lease) * time.Second), answered.Add(time.Duration(lease) * time.Second),
	})
}

func offsetsOf(p *PopAnswer) []string {
	var out []string
	for _, m := range p.Messages {
		out = append(out, fmt.Sprintf("%s/%d×%d", m.Partition, m.Offset, m.DeliveryAttempt))
	}
	return out
}

// delivered checks an answer against the model and moves the model along.
func (m *modelRun) delivered(g *modelGroup, got *PopAnswer, open []string, batch, partitions int, auto bool, until [2]time.Time) {
	var order []string
	parts := map[string][]Message{}
	for _, msg := range got.Messages {
		if len(order) == 0 || order[len(order)-1] != msg.Partition {
			order = append(order, msg.Partition)
		}
		parts[msg.Partition] = append(parts[msg.Partition], msg)
	}
	if len(order) != len(parts) || len(parts) > partitions || len(parts) != got.PartitionsClaimed || len(got.Messages) > batch {
		m.failf("%d messages of %v, partitionsClaimed %d, asked for %d of %d", len(got.Messages), order, got.PartitionsClaimed, batch, partitions)
	}
	if (got.LeaseID == "") != auto || slices.Contains(m.leases, got.LeaseID) && !auto {
		m.failf("lease %q with commit at delivery %v", got.LeaseID, auto)
	}
	m.leases = append(m.leases, got.LeaseID)
	left := batch
	for _, p := range order {
		if !slices.Contains(open, p) {
			m.failf("%s was delivered, claimable is %v", p, open)
		}
		msgs, c := parts[p], g.cursors[p]
		end := msgs[len(msgs)-1].Offset
		wantFirst, wantCount := c.committed+1, int(min(int64(left), m.q.pending(g, p)))
		if g.conflating {
			wantFirst, wantCount = int64(len(m.q.logs[p])-1), 1
		}
		attempt := 1
		if !auto {
			attempt = c.claim(end, got.LeaseID, g.conflating, until)
		}
		if len(msgs) != wantCount {
			m.failf("%d messages of %s, want %d", len(msgs), p, wantCount)
		}
		for i, msg := range msgs {
			if msg.Offset != wantFirst+int64(i) || msg.DeliveryAttempt != attempt || msg.LeaseID != got.LeaseID {
				m.failf("%s/%d attempt %d lease %s, want offset %d attempt %d", p, msg.Offset, msg.DeliveryAttempt, msg.LeaseID, wantFirst+int64(i), attempt)
			}
			m.same(p, msg)
		}
		if auto {
			c.seek(end)
		}
		m.q.ids[p] = msgs[0].PartitionID
		left -= len(msgs)
	}
}

// same compares a message with what was pushed.
func (m *modelRun) same(p string, msg Message) {
	at := &m.q.logs[p][msg.Offset]
	if at.id != msg.ID || at.transactionID != msg.TransactionID || at.payload != string(msg.Data) {
		m.failf("%s/%d is %s %s %s, pushed was %+v", p, msg.Offset, msg.ID, msg.TransactionID, msg.Data, *at)
	}
	m.stamp(p, msg.Offset, msg.CreatedAt)
}

// stamp notes when a message was stored: always the same, never falling.
func (m *modelRun) stamp(p string, offset int64, at time.Time) {
	log := m.q.logs[p]
	if known := log[offset].createdAt; !known.IsZero() && !known.Equal(at) {
		m.failf("%s/%d was created at %v and at %v", p, offset, known, at)
	}
	log[offset].createdAt = at
	for o := offset - 1; o >= 0; o-- {
		if before := log[o].createdAt; !before.IsZero() {
			if before.After(at) {
				m.failf("%s/%d created at %v, %d at %v", p, o, before, offset, at)
			}
			break
		}
	}
}

// expire waits until some short lease is over.
func (m *modelRun) expire() {
	g := m.group()
	for _, p := range slices.Sorted(keysOf(g.cursors)) {
		c := g.cursors[p]
		if left := c.live[1].Sub(m.now()); c.leaseID != "" && left > 0 && left < 3*time.Second {
			m.note("lease %.8s of %s runs out", c.leaseID, p)
			time.Sleep(left + leaseMargin)
			return
		}
	}
}

// checkNothingStranded fails when a cursor with work waits for nothing.
func checkNothingStranded(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	rows, err := pool.Query(context.Background(), `
		SELECT q.name, p.name, g.name, c.committed, p.last_offset, coalesce(c.lease_id::text, '')
		FROM queen.cursors c
		JOIN queen.partitions p ON p.queue_id = c.queue_id AND p.id = c.partition_id
		JOIN queen.queues q ON q.id = c.queue_id
		JOIN queen.consumer_groups g ON g.queue_id = c.queue_id AND g.id = c.group_id
		WHERE c.ready_at IS NULL AND (p.last_offset > c.committed OR c.lease_id IS NOT NULL)`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var queue, partition, group, lease string
		var committed, last int64
		if err := rows.Scan(&queue, &partition, &group, &committed, &last, &lease); err != nil {
			t.Fatal(err)
		}
		t.Errorf("stranded: %s/%s group %s committed %d of %d, lease %q", queue, partition, group, committed, last, lease)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func modelExtendPath(lease string) string { return "/api/v1/lease/" + lease + "/extend" }
