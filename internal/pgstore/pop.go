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
// transaction, in order. floor is a lower bound of the scan; zero scans
// everything.
func (s *Store) Claim(ctx context.Context, queue int64, group mq.GroupInfo, floor time.Time, reqs []mq.ClaimRequest) (mq.Claimed, error) {
	var b batch
	q := b.queries()
	for i := range reqs {
		queueClaim(ctx, q, queue, group, orFarPast(floor), &reqs[i])
	}
	out := mq.Claimed{Claims: make([][]mq.Claim, len(reqs))}
	err := s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		for i := range reqs {
			out.Claims[i] = nil
			if err := readClaims(br, queue, &out.Claims[i], &out.Oldest); err != nil {
				return err
			}
		}
		return nil
	})
	return out, translate(err)
}

func orFarPast(floor time.Time) time.Time {
	if floor.IsZero() {
		return farPast
	}
	return floor
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

// ReadyGroups reports which groups have something to claim.
func (s *Store) ReadyGroups(ctx context.Context, asked []mq.ReadyQuery) ([]mq.NextReady, error) {
	var b batch
	q := b.queries()
	for _, a := range asked {
		if a.Pinned {
			_, _ = q.NextReadyOf(ctx, db.NextReadyOfParams{QueueID: a.Queue, PartitionName: a.Partition, GroupID: a.Group})
			continue
		}
		floor := orFarPast(a.Floor)
		_, _ = q.NextReady(ctx, db.NextReadyParams{QueueID: a.Queue, GroupID: a.Group, Floor: &floor, HorizonSeconds: a.Horizon.Seconds()})
	}
	out := make([]mq.NextReady, len(asked))
	err := s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		for i := range out {
			if err := readNext(br, asked[i].Pinned, &out[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return out, translate(err)
}

func readNext(br pgx.BatchResults, pinned bool, next *mq.NextReady) error {
	*next = mq.NextReady{In: -1}
	var ready *time.Time
	into := []any{&ready, &next.Now, &next.Seeded, &next.OldestRunning, &next.NextNumber}
	if pinned {
		into = into[:3]
	}
	err := br.QueryRow().Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	next.GroupExists = err == nil
	if ready != nil {
		next.Ready, next.In = *ready, max(ready.Sub(next.Now), 0)
	}
	return err
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
