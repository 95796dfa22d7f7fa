package e2e

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

func keysOf[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

var modelStatuses = []string{"", "completed", "completed", "completed", "ok", "failed", "failed", "retry", "dlq", "nonsense"}

// pickAcks makes up what a client might acknowledge of a partition.
func (m *modelRun) pickAcks(g *modelGroup, p string) []modelAck {
	c, log := g.cursors[p], m.q.logs[p]
	from, to := c.committed+1, c.batchEnd
	if to < 0 {
		to = int64(len(log)) - 1
	}
	var out []modelAck
	switch n := m.rnd.IntN(10); {
	case n < 4 && c.batchEnd >= 0: // everything
		for off := from; off <= to; off++ {
			out = append(out, modelAck{log[off].transactionID, "completed"})
		}
	case n < 6 && from <= to: // one message
		off := from + m.rnd.Int64N(to-from+1)
		out = append(out, modelAck{log[off].transactionID, modelStatuses[m.rnd.IntN(len(modelStatuses))]})
	default: // some of the batch, with strays below, above and from nowhere
		low, high := max(from-2, 0), min(to+2, int64(len(log))-1)
		for off := low; off <= high; off++ {
			if m.rnd.IntN(2) == 0 {
				out = append(out, modelAck{log[off].transactionID, modelStatuses[m.rnd.IntN(len(modelStatuses))]})
			}
		}
		if m.rnd.IntN(6) == 0 || len(out) == 0 {
			out = append(out, modelAck{"nowhere", "completed"})
		}
	}
	m.rnd.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func (m *modelRun) pickLease(c *modelCursor) string {
	switch n := m.rnd.IntN(20); {
	case n < 14:
		return c.leaseID
	case n < 17 || len(m.leases) == 0:
		return ""
	case n < 19:
		return m.leases[m.rnd.IntN(len(m.leases))]
	default:
		return uuid.NewString()
	}
}

// ack sends one call over one or two partitions, which are judged apart.
func (m *modelRun) ack() {
	g := m.group()
	known := slices.DeleteFunc(slices.Sorted(keysOf(g.cursors)), func(p string) bool { return m.q.ids[p] == "" })
	if len(known) == 0 {
		return
	}
	m.settle(g)
	m.rnd.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
	known = known[:min(len(known), 1+m.rnd.IntN(2))]
	var items []AckItem
	var picked [][]modelAck
	var leases []string
	for _, p := range known {
		acks, lease := m.pickAcks(g, p), m.pickLease(g.cursors[p])
		picked, leases = append(picked, acks), append(leases, lease)
		for _, a := range acks {
			items = append(items, AckItem{TransactionID: a.transactionID, PartitionID: m.q.ids[p], LeaseID: lease, Status: a.status, Error: "no"})
		}
	}
	began := m.now()
	got := m.broker().Ack(g.name, items...)
	if m.met(g, began, m.now()) {
		return
	}
	for i, p := range known {
		m.note("ack %s/%s cursor %+v lease %.8s %v", g.name, p, *g.cursors[p], leases[i], picked[i])
		for j, want := range m.q.ack(g, p, leases[i], picked[i], began) {
			r := got[0]
			got = got[1:]
			text := ""
			if r.Error != nil {
				text = *r.Error
			}
			ok := r.Success == want.success && r.LeaseReleased == want.released && r.DLQ == want.dlq && r.Noop == want.noop &&
				r.Conflated == want.conflated && strings.HasPrefix(text, want.errorPrefix) && (text == "") == (want.errorPrefix == "")
			if !ok {
				m.failf("ack of %+v: %+v %q, want %+v", picked[i][j], r, text, want)
			}
		}
		m.note("  → cursor %+v", *g.cursors[p])
	}
}

func (m *modelRun) extend() {
	g := m.group()
	m.settle(g)
	lease := uuid.NewString()
	for _, p := range slices.Sorted(keysOf(g.cursors)) {
		if id := g.cursors[p].leaseID; id != "" && m.rnd.IntN(2) == 0 {
			lease = id
		}
	}
	seconds := 1 + m.rnd.IntN(3)
	began := m.now()
	var got struct {
		Renewed      int        `json:"renewed"`
		NewExpiresAt *time.Time `json:"newExpiresAt"`
	}
	m.broker().MustInto(&got, http.StatusOK, "POST", modelExtendPath(lease), map[string]any{"seconds": seconds})
	answered := m.now()
	if m.met(g, began, answered) {
		return
	}
	m.note("extend %.8s by %d → %d", lease, seconds, got.Renewed)
	renewed := 0
	var low, high time.Time
	for _, c := range g.cursors {
		if c.leaseID != lease || !c.leased(began) {
			continue
		}
		renewed++
		for i, at := range []time.Time{began, answered} {
			if end := at.Add(time.Duration(seconds) * time.Second); end.After(c.live[i]) {
				c.live[i] = end
			}
		}
		if low.IsZero() || c.live[0].Before(low) {
			low = c.live[0]
		}
		if high.IsZero() || c.live[1].Before(high) {
			high = c.live[1]
		}
	}
	if renewed != got.Renewed {
		m.failf("extension of %s renewed %d, want %d", lease, got.Renewed, renewed)
	}
	if (got.NewExpiresAt == nil) != (renewed == 0) {
		m.failf("extension renewed %d and ends at %v", renewed, got.NewExpiresAt)
	}
	if renewed > 0 && (got.NewExpiresAt.Before(low.Add(-leaseMargin)) || got.NewExpiresAt.After(high.Add(leaseMargin))) {
		m.failf("lease ends at %v, want %v to %v", got.NewExpiresAt, low, high)
	}
}

// seek moves a group to the end of one or all partitions, or to a time.
func (m *modelRun) seek() {
	g := m.group()
	if !g.registered || len(m.q.logs) == 0 {
		return
	}
	places := slices.Sorted(keysOf(m.q.logs))
	name := g.name
	if name == "" {
		name = "__QUEUE_MODE__"
	}
	path := "/api/v1/consumer-groups/" + name + "/queues/" + m.q.name
	if m.rnd.IntN(2) == 0 {
		places = []string{places[m.rnd.IntN(len(places))]}
		path += "/partitions/" + places[0]
	}
	body := map[string]any{"toEnd": true}
	var at time.Time
	if m.rnd.IntN(3) > 0 {
		for _, p := range places {
			m.learnTimes(p)
		}
		log := m.q.logs[places[m.rnd.IntN(len(places))]]
		at = log[m.rnd.IntN(len(log))].createdAt
		body = map[string]any{"timestamp": at.Format(time.RFC3339Nano)}
	}
	m.note("seek %s %v %v", name, places, body)
	m.broker().Must(http.StatusOK, "POST", path+"/seek", body)
	for _, p := range places {
		log := m.q.logs[p]
		to := int64(len(log)) - 1
		if !at.IsZero() {
			if i := slices.IndexFunc(log, func(x modelMessage) bool { return !x.createdAt.Before(at) }); i >= 0 {
				to = int64(i) - 1
			}
		}
		g.cursors[p].seek(to)
	}
}

// learnTimes reads a partition by offset, which also shows that nothing was
// removed and that reading moves nothing.
func (m *modelRun) learnTimes(p string) {
	var got struct {
		Entries []struct {
			Records []struct {
				Offset        int64     `json:"offset"`
				TransactionID string    `json:"transactionId"`
				TS            time.Time `json:"ts"`
			} `json:"records"`
		} `json:"entries"`
	}
	m.broker().MustInto(&got, http.StatusOK, "POST", "/api/v1/fetch",
		map[string]any{"entries": []any{map[string]any{"queue": m.q.name, "partition": p, "offset": 0}}})
	records := got.Entries[0].Records
	if len(records) != len(m.q.logs[p]) {
		m.failf("%s holds %d messages, want %d", p, len(records), len(m.q.logs[p]))
	}
	for i, r := range records {
		if r.Offset != int64(i) || r.TransactionID != m.q.logs[p][i].transactionID {
			m.failf("%s: record %d is %+v", p, i, r)
		}
		m.stamp(p, r.Offset, r.TS)
	}
}

// finish compares what is stored with the model, then consumes all the rest.
func (m *modelRun) finish(pool *pgxpool.Pool) {
	for p := range m.q.logs {
		m.learnTimes(p)
	}
	for _, g := range m.q.groups {
		if g.registered {
			m.compare(pool, g)
			m.drain(g)
			m.compare(pool, g)
		}
	}
}

func (m *modelRun) compare(pool *pgxpool.Pool, g *modelGroup) {
	name := g.name
	if name == "" {
		name = "__QUEUE_MODE__"
	}
	ctx := context.Background()
	rows, err := pool.Query(ctx, `
		SELECT p.name, c.committed, c.retry_count, c.ready_at IS NULL, coalesce(c.lease_id::text, '')
		FROM queen.cursors c
		JOIN queen.queues q ON q.id = c.queue_id AND q.name = $1
		JOIN queen.consumer_groups g ON g.queue_id = q.id AND g.id = c.group_id AND g.name = $2
		JOIN queen.partitions p ON p.queue_id = q.id AND p.id = c.partition_id`, m.q.name, name)
	if err != nil {
		m.failf("%v", err)
	}
	defer rows.Close()
	seen := 0
	for rows.Next() {
		var p, lease string
		var committed int64
		var retries int
		var idle bool
		if err := rows.Scan(&p, &committed, &retries, &idle, &lease); err != nil {
			m.failf("%v", err)
		}
		c := g.cursors[p]
		seen++
		if c == nil || c.committed != committed || c.retries != retries || c.leaseID != lease {
			m.failf("cursor %s/%s is %d retries %d lease %q, want %+v", name, p, committed, retries, lease, c)
		}
		if idle && (m.q.pending(g, p) > 0 || lease != "") {
			m.failf("cursor %s/%s is stranded", name, p)
		}
	}
	if rows.Err() != nil || seen != len(g.cursors) {
		m.failf("%d cursors of %s, want %d (%v)", seen, name, len(g.cursors), rows.Err())
	}
	var letters int
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM queen.dead_letters d JOIN queen.queues q ON q.id = d.queue_id
		WHERE q.name = $1 AND d.group_name = $2`, m.q.name, name).Scan(&letters); err != nil || letters != g.letters {
		m.failf("%d dead letters of %s, want %d (%v)", letters, name, g.letters, err)
	}
}

// drain completes what is leased, then pops and completes until nothing is
// left. Everything from the cursor on has to come.
func (m *modelRun) drain(g *modelGroup) {
	for _, p := range slices.Sorted(keysOf(g.cursors)) {
		if c := g.cursors[p]; c.batchEnd > c.committed {
			last := m.q.logs[p][c.batchEnd].transactionID
			m.broker().Ack(g.name, AckItem{TransactionID: last, PartitionID: m.q.ids[p]})
			m.q.ack(g, p, "", []modelAck{{last, "completed"}}, m.now())
		}
	}
	query := fmt.Sprintf("batch=1000&partitions=64&leaseSeconds=60&consumerGroup=%s&conflation=%v", g.name, g.conflating)
	if g.name == "" {
		query = "batch=1000&partitions=64&leaseSeconds=60"
	}
	for m.settle(g); len(m.q.claimable(g, m.now())) > 0; {
		now := m.now()
		open := m.q.claimable(g, now)
		got := m.broker().Pop(m.q.name, query)
		if got == nil || len(got.Messages) == 0 {
			m.failf("group %q got nothing, but %v is claimable", g.name, open)
		}
		m.delivered(g, got, open, 1000, 64, false, [2]time.Time{now.Add(time.Minute), m.now().Add(time.Minute)})
		m.broker().AckAll(got)
		for _, p := range open {
			if c := g.cursors[p]; c.leaseID == got.LeaseID {
				m.q.complete(c, c.batchEnd)
			}
		}
	}
	for p := range g.cursors {
		if m.q.pending(g, p) > 0 && g.cursors[p].leaseID == "" {
			m.failf("group %q: %s is not drained", g.name, p)
		}
	}
}
