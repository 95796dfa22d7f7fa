package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// farPast is a floor that hides nothing.
var farPast = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Claim runs the claims of several pops of one (queue, group) in one
// transaction, in order. When one of them got nothing it looks, in a second
// trip, when the group has work next. floor is a lower bound of the scan; zero
// scans everything.
func (s *Store) Claim(ctx context.Context, queue int64, group mq.GroupInfo, floor time.Time, reqs []mq.ClaimRequest) (mq.Claimed, error) {
	if floor.IsZero() {
		floor = farPast
	}
	var b batch
	q := b.queries()
	for i := range reqs {
		queueClaim(ctx, q, queue, group, floor, &reqs[i])
	}
	out := mq.Claimed{Claims: make([][]mq.Claim, len(reqs)), Next: mq.NextReady{GroupExists: true, Seeded: true, In: -1}}
	empty, some := false, false
	err := s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		empty, some = false, false
		for i := range reqs {
			out.Claims[i] = nil
			if err := readClaims(br, queue, &out.Claims[i], &out.Oldest); err != nil {
				return err
			}
			if len(out.Claims[i]) == 0 {
				empty = true
			} else {
				some = true
			}
		}
		return nil
	})
	if err == nil && empty {
		var next []mq.NextReady
		if next, err = s.ReadyGroups(ctx, []mq.QueueGroup{{Queue: queue, Group: group.ID}}); err == nil {
			out.Next = next[0]
		} else if some {
			err = nil // what was claimed is delivered; the rest looks again
		}
	}
	return out, translate(err)
}

func queueClaim(ctx context.Context, q *db.Queries, queue int64, group mq.GroupInfo, floor time.Time, r *mq.ClaimRequest) {
	if group.Conflation {
		_, _ = q.ClaimNewest(ctx, db.ClaimNewestParams{
			LeaseSeconds: r.LeaseSeconds, QueueID: queue, Pinned: r.Pinned, GroupID: group.ID, Floor: &floor,
			MaxPartitions: int32(min(r.Partitions, r.Messages)), PartitionName: r.Partition, LeaseID: r.LeaseID,
		})
		return
	}
	_, _ = q.ClaimPartitions(ctx, db.ClaimPartitionsParams{
		LeaseSeconds: r.LeaseSeconds, QueueID: queue, MaxMessages: int64(r.Messages), MaxBytes: r.Bytes,
		Pinned: r.Pinned, GroupID: group.ID, Floor: &floor, MaxPartitions: int32(r.Partitions),
		PartitionName: r.Partition, AutoCommit: r.AutoCommit, LeaseID: r.LeaseID,
	})
}

// readClaims collects one claim's rows. Bodies are read as the raw bytes in the
// connection's buffer and copied once, and only the part that is handed out.
func readClaims(br pgx.BatchResults, queue int64, claims *[]mq.Claim, oldest *time.Time) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	var (
		partition, end           int64
		name                     string
		ready, created           time.Time
		attempt, count, from, to int32
		ends, body               pgtype.DriverBytes
	)
	_, err = pgx.ForEachRow(rows, []any{&partition, &name, &ready, &attempt, &end, &count, &from, &to, &created, &ends, &body}, func() error {
		n := len(*claims)
		if n == 0 || (*claims)[n-1].ID.Partition != partition {
			*claims = append(*claims, mq.Claim{
				ID: mq.PartitionID{Queue: queue, Partition: partition}, Partition: name, Attempt: max(int(attempt), 1),
			})
			n++
			if oldest.IsZero() || ready.Before(*oldest) {
				*oldest = ready
			}
		}
		first, part, partEnds, base, err := cut(end, count, ends, body, int(from), int(to))
		if err != nil {
			return err
		}
		c := &(*claims)[n-1]
		c.Segments = append(c.Segments, mq.NewSegment(first, created, part, partEnds, base))
		return nil
	})
	return err
}

func readNext(br pgx.BatchResults, next *mq.NextReady) error {
	var ready *time.Time
	var now time.Time
	*next = mq.NextReady{In: -1}
	err := br.QueryRow().Scan(&ready, &now, &next.Seeded)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	next.GroupExists = err == nil
	if ready != nil {
		next.In = max(ready.Sub(now), 0)
	}
	return err
}

// ReadyGroups reports which of the (queue, group) pairs have something to claim.
func (s *Store) ReadyGroups(ctx context.Context, pairs []mq.QueueGroup) ([]mq.NextReady, error) {
	var b batch
	q := b.queries()
	for _, p := range pairs {
		_, _ = q.NextReady(ctx, db.NextReadyParams{QueueID: p.Queue, GroupID: p.Group})
	}
	out := make([]mq.NextReady, len(pairs))
	err := s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		for i := range out {
			if err := readNext(br, &out[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return out, translate(err)
}

// ExtendLeases moves the live leases of an id on a queue. It returns how many
// there were and the earliest of their new ends.
func (s *Store) ExtendLeases(ctx context.Context, queues []int64, lease mq.UUID, seconds int32) (mq.Extension, error) {
	var b batch
	q := b.queries()
	for _, id := range queues {
		_, _ = q.ExtendLeases(ctx, db.ExtendLeasesParams{QueueID: id, LeaseID: lease, Seconds: seconds})
	}
	var out mq.Extension
	err := s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		out = mq.Extension{}
		for range queues {
			rows, err := br.Query()
			if err != nil {
				return err
			}
			var at time.Time
			if _, err = pgx.ForEachRow(rows, []any{&at}, func() error {
				out.Renewed++
				if out.ExpiresAt.IsZero() || at.Before(out.ExpiresAt) {
					out.ExpiresAt = at
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return out, translate(err)
}

// ReleaseLeases gives the leases of an answer back that reached nobody.
func (s *Store) ReleaseLeases(ctx context.Context, queues []int64, lease mq.UUID) error {
	var b batch
	q := b.queries()
	for _, id := range queues {
		_, _ = q.ReleaseLeases(ctx, db.ReleaseLeasesParams{QueueID: id, LeaseID: lease})
	}
	return translate(s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		for range queues {
			if _, err := br.Exec(); err != nil {
				return err
			}
		}
		return nil
	}))
}
