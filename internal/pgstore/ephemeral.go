package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// settingEphemeral is the switch of ephemeral queues, beside those of the
// key/value store and the timers.
const settingEphemeral = "ephemeral"

// EphemeralSettings reads what brokers know of ephemeral queues, all tenants'
// together: declarations, grants and the switch, in one round trip.
func (s *Store) EphemeralSettings(ctx context.Context) (mq.EphemeralSettings, error) {
	var b batch
	q := b.queries()
	_, _ = q.ListEphemeralQueues(ctx)
	_, _ = q.ListEphemeralGrants(ctx)
	_, _ = q.ReadSettings(ctx)
	var out mq.EphemeralSettings
	err := s.run(ctx, s.cold, &b, func(br pgx.BatchResults) error {
		out = mq.EphemeralSettings{Enabled: true}
		queues, err := collect[db.ListEphemeralQueuesRow](br)
		if err != nil {
			return err
		}
		for i := range queues {
			out.Declarations = append(out.Declarations, declaration(&queues[i]))
		}
		grants, err := collect[db.ListEphemeralGrantsRow](br)
		if err != nil {
			return err
		}
		for _, g := range grants {
			out.Grants = append(out.Grants, mq.EphemeralGrant{
				Tenant: g.Tenant, Enabled: g.Enabled, MaxBytes: g.MaxBytes, MaxQueues: g.MaxQueues, MessagesPerSecond: g.MessagesPerSecond,
			})
		}
		settings, err := collect[db.ReadSettingsRow](br)
		for _, r := range settings {
			if r.Name == settingEphemeral {
				out.Enabled = r.Value != settingOff
			}
		}
		return err
	})
	return out, err
}

// collect reads the rows of one statement of a batch.
func collect[T any](br pgx.BatchResults) ([]T, error) {
	rows, err := br.Query()
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// EphemeralDeclaration reads the declaration of a queue; nil when there is none.
func (s *Store) EphemeralDeclaration(ctx context.Context, tenant mq.UUID, queue string) (*mq.EphemeralDeclaration, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	row, err := db.New(s.cold).FindEphemeralQueue(ctx, db.FindEphemeralQueueParams{Tenant: tenant, Name: queue})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // none is an answer, not a fault
	}
	if err != nil {
		return nil, translate(err)
	}
	found := db.ListEphemeralQueuesRow(row)
	d := declaration(&found)
	return &d, nil
}

func declaration(r *db.ListEphemeralQueuesRow) mq.EphemeralDeclaration {
	o := mq.EphemeralOptions{
		MaxBytes: r.MaxBytes, MaxLength: r.MaxLength, Policy: (*mq.EphemeralPolicy)(r.Policy),
		TTLSeconds: r.TtlSeconds, LeaseSeconds: r.LeaseSeconds, RetryLimit: r.RetryLimit,
	}
	if r.WindowSet {
		o.Window = &mq.EphemeralWindow{MS: r.WindowMs, Count: r.WindowCount}
	}
	return mq.EphemeralDeclaration{Tenant: r.Tenant, Queue: r.Name, Version: r.Version, Options: o}
}

// PutEphemeral stores a declaration in place of whatever there was.
func (s *Store) PutEphemeral(ctx context.Context, tenant mq.UUID, queue string, o mq.EphemeralOptions) (version int64, err error) {
	p := db.PutEphemeralQueueParams{
		Tenant: tenant, Name: queue, MaxBytes: o.MaxBytes, MaxLength: o.MaxLength, Policy: (*string)(o.Policy),
		TtlSeconds: o.TTLSeconds, LeaseSeconds: o.LeaseSeconds, RetryLimit: o.RetryLimit,
	}
	if w := o.Window; w != nil {
		p.WindowSet, p.WindowMs, p.WindowCount = true, w.MS, w.Count
	}
	err = s.changeEphemeral(ctx, tenant, queue, func(q *db.Queries) { _, _ = q.PutEphemeralQueue(ctx, p) }, &version)
	return version, err
}

// DeleteEphemeral removes a declaration. The version is of this call even when
// there was nothing to remove.
func (s *Store) DeleteEphemeral(ctx context.Context, tenant mq.UUID, queue string) (version int64, existed bool, err error) {
	p := db.DeleteEphemeralQueueParams{Tenant: tenant, Name: queue}
	err = s.changeEphemeral(ctx, tenant, queue, func(q *db.Queries) { _, _ = q.DeleteEphemeralQueue(ctx, p) }, &version, &existed)
	return version, existed, err
}

// changeEphemeral runs one statement under the lock of a queue's name and reads
// its row. The lock comes first, in a statement of its own, so that versions
// rise in the order of the commits.
func (s *Store) changeEphemeral(ctx context.Context, tenant mq.UUID, queue string, change func(*db.Queries), into ...any) error {
	var b batch
	q := b.queries()
	_ = q.LockEphemeralQueue(ctx, db.LockEphemeralQueueParams{Tenant: tenant, Name: queue})
	change(q)
	return s.run(ctx, s.cold, &b, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		return br.QueryRow().Scan(into...)
	})
}

// SetEphemeralEnabled turns ephemeral queues on or off, for the whole fleet.
func (s *Store) SetEphemeralEnabled(ctx context.Context, on bool) error {
	value := settingOff
	if on {
		value = settingOn
	}
	ctx, cancel := s.detach(ctx)
	defer cancel()
	return translate(db.New(s.cold).SaveSettings(ctx, db.SaveSettingsParams{Names: []string{settingEphemeral}, Values: []string{value}}))
}
