package e2e

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// recordHistory makes the database write down every change of a cursor, with
// the statement that made it. A cursor's changes are in the order in which they
// took effect, because each is written under the lock of its row.
func recordHistory(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, stmt := range []string{
		`CREATE TABLE public.history (seq bigint GENERATED ALWAYS AS IDENTITY, at timestamptz, statement text,
			before queen.cursors, after queen.cursors)`,
		`CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.history (at, statement, before, after)
			VALUES (clock_timestamp(), substring(current_query() from 'name: (\w+)'), OLD, NEW);
			RETURN NULL;
		END $$`,
		`CREATE TRIGGER note AFTER INSERT OR UPDATE ON queen.cursors FOR EACH ROW EXECUTE FUNCTION public.note()`,
	} {
		if _, err := pool.Exec(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
}

// cursorState is a cursor as the database saw it; instants are seconds from the
// change on.
type cursorState struct {
	Committed, BatchEnd, AttemptOffset *int64
	Attempts, Retries                  *int32
	Lease                              *string
	LeaseLeft                          *float64
	Idle, Conflated                    *bool
}

type change struct {
	Seq                         int64
	Statement, Partition, Group string
	Before, After               cursorState
}

func readHistory(t *testing.T, pool *pgxpool.Pool) []change {
	t.Helper()
	side := func(s string) string {
		s = "(h." + s + ")."
		return s + "committed, " + s + "batch_end, " + s + "attempt_offset, " + s + "attempt_count, " + s + "retry_count, " +
			s + "lease_id::text, extract(epoch FROM " + s + "lease_expires_at - h.at)::float8, " + s + "ready_at IS NULL, " + s + "lease_conflated"
	}
	rows, err := pool.Query(t.Context(), `SELECT h.seq, coalesce(h.statement, ''), p.name, g.name, `+side("before")+`, `+side("after")+`
		FROM public.history h
		JOIN queen.partitions p ON p.queue_id = (h.after).queue_id AND p.id = (h.after).partition_id
		JOIN queen.consumer_groups g ON g.queue_id = (h.after).queue_id AND g.id = (h.after).group_id
		ORDER BY h.seq`)
	if err != nil {
		t.Fatal(err)
	}
	var c change
	var out []change
	b, a := &c.Before, &c.After
	_, err = pgx.ForEachRow(rows, []any{
		&c.Seq, &c.Statement, &c.Partition, &c.Group,
		&b.Committed, &b.BatchEnd, &b.AttemptOffset, &b.Attempts, &b.Retries, &b.Lease, &b.LeaseLeft, &b.Idle, &b.Conflated,
		&a.Committed, &a.BatchEnd, &a.AttemptOffset, &a.Attempts, &a.Retries, &a.Lease, &a.LeaseLeft, &a.Idle, &a.Conflated,
	}, func() error {
		out = append(out, c)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type claimKey struct{ lease, partition string }

// checkHistory holds every change against the rules, and every claim against
// the delivery that told of it.
func (c *crowd) checkHistory(pool *pgxpool.Pool) {
	delivered := map[claimKey]delivery{}
	autoEnds := map[storedAt]bool{}
	for _, d := range c.deliveries {
		last := d.messages[len(d.messages)-1].Offset
		if d.lease == "" {
			autoEnds[storedAt{d.partition, last, d.group}] = true
			continue
		}
		key := claimKey{d.lease, d.partition}
		if _, twice := delivered[key]; twice {
			c.t.Errorf("lease %s of %s was delivered twice", d.lease, d.partition)
		}
		delivered[key] = d
	}
	statements := map[string]int{}
	for _, h := range readHistory(c.t, pool) {
		statements[h.Statement]++
		c.checkChange(&h)
		switch {
		case h.claimed():
			key := claimKey{*h.After.Lease, h.Partition}
			c.checkClaim(&h, delivered[key])
			delete(delivered, key)
		case h.Statement == "ClaimPartitions" && h.Before.Committed != nil && *h.After.Committed > *h.Before.Committed:
			if !autoEnds[storedAt{h.Partition, *h.After.Committed, h.Group}] {
				c.t.Errorf("change %d: committed at delivery, but nobody was told: %+v", h.Seq, h)
			}
		}
	}
	for key := range delivered {
		c.t.Errorf("lease %s of %s was delivered, but never granted", key.lease, key.partition)
	}
	c.t.Logf("changes of cursors: %v", statements)
	var letters int64
	if err := pool.QueryRow(c.t.Context(), "SELECT count(*) FROM queen.dead_letters").Scan(&letters); err != nil || letters != c.letters.Load() {
		c.t.Errorf("%d dead letters, callers were told of %d (%v)", letters, c.letters.Load(), err)
	}
}

func (h *change) claimed() bool {
	return h.After.Lease != nil && (h.Before.Lease == nil || *h.Before.Lease != *h.After.Lease)
}

func (c *crowd) checkChange(h *change) {
	b, a := &h.Before, &h.After
	if *a.Idle && a.Lease != nil {
		c.t.Errorf("change %d by %s left a lease nobody waits for: %s/%s", h.Seq, h.Statement, h.Group, h.Partition)
	}
	if b.Committed == nil {
		return // it was made
	}
	if *a.Committed < *b.Committed && h.Statement != "SeekCursors" {
		c.t.Errorf("change %d: %s moved the cursor of %s/%s back, %d → %d", h.Seq, h.Statement, h.Group, h.Partition, *b.Committed, *a.Committed)
	}
	if *a.Committed > *b.Committed && b.BatchEnd != nil && *a.Committed > *b.BatchEnd && h.Statement != "SeekCursors" && h.Statement != "ClaimPartitions" {
		c.t.Errorf("change %d: %s moved the cursor of %s/%s past its batch, %d → %d", h.Seq, h.Statement, h.Group, h.Partition, *b.BatchEnd, *a.Committed)
	}
	if *a.Retries > *b.Retries+1 || *a.Retries > *b.Retries && h.Statement != "SaveCursors" || *a.Retries > 2 {
		c.t.Errorf("change %d: %s charged %d → %d", h.Seq, h.Statement, *b.Retries, *a.Retries)
	}
	switch ended := b.Lease != nil && (a.Lease == nil || *a.Lease != *b.Lease); {
	case h.claimed() && h.Statement != "ClaimPartitions" && h.Statement != "ClaimNewest":
		c.t.Errorf("change %d: %s granted a lease", h.Seq, h.Statement)
	case ended && *b.LeaseLeft > 0 && (h.Statement == "ClaimPartitions" || h.Statement == "ClaimNewest"):
		c.t.Errorf("change %d: %s took %s/%s while a lease had %.3f s left", h.Seq, h.Statement, h.Group, h.Partition, *b.LeaseLeft)
	case ended && *b.LeaseLeft < -0.25 && h.Statement == "AckBatches":
		c.t.Errorf("change %d: a lease over for %.3f s completed %s/%s", h.Seq, -*b.LeaseLeft, h.Group, h.Partition)
	}
}

// checkClaim: the answer is the span that was leased, under the attempt that
// was counted, with all of the lease left.
func (c *crowd) checkClaim(h *change, d delivery) {
	b, a := &h.Before, &h.After
	if d.lease == "" {
		c.t.Errorf("change %d: lease %s of %s/%s reached nobody", h.Seq, *a.Lease, h.Group, h.Partition)
		return
	}
	first, last := d.messages[0].Offset, d.messages[len(d.messages)-1].Offset
	if *a.BatchEnd != last || !*a.Conflated && first != *b.Committed+1 || *a.Conflated && len(d.messages) != 1 {
		c.t.Errorf("change %d: leased (%d, %d] of %s/%s, delivered %d to %d", h.Seq, *b.Committed, *a.BatchEnd, h.Group, h.Partition, first, last)
	}
	want := int32(1)
	if b.AttemptOffset != nil && *b.AttemptOffset == *b.Committed+1 {
		want = *b.Attempts + 1
	}
	if *a.Attempts != want || d.messages[0].DeliveryAttempt != int(want) {
		c.t.Errorf("change %d: attempt %d stored, %d delivered, want %d", h.Seq, *a.Attempts, d.messages[0].DeliveryAttempt, want)
	}
	if lease := 30 * time.Second; *a.LeaseLeft < 0.5 || *a.LeaseLeft > lease.Seconds() {
		c.t.Errorf("change %d: granted with %.3f s left", h.Seq, *a.LeaseLeft)
	}
}
