package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// oldSnapshot is a transaction that has seen the database and stays open, as a forgotten session or a backup does.
type oldSnapshot struct {
	conn *pgx.Conn
	tx   pgx.Tx
}

func openSnapshot(ctx context.Context, url string) (*oldSnapshot, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("snapshot: connect: %w", err)
	}
	s := &oldSnapshot{conn: conn}
	if _, err = conn.Exec(ctx, `SET idle_in_transaction_session_timeout = 0`); err == nil {
		s.tx, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	}
	if err == nil {
		err = s.look(ctx) // the first statement takes the snapshot
	}
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return s, nil
}

func (s *oldSnapshot) look(ctx context.Context) error {
	var n int64
	return s.tx.QueryRow(ctx, `SELECT count(*) FROM queen.queues`).Scan(&n)
}

// release ends it and fails if it had been ended before, by a server that does not allow such sessions.
func (s *oldSnapshot) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	defer func() { _ = s.conn.Close(ctx) }()
	if err := s.look(ctx); err != nil {
		return fmt.Errorf("the snapshot was gone before its time: %w", err)
	}
	if err := s.tx.Commit(ctx); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

func (s *scaleRun) snapshot(ctx context.Context) error {
	b, err := s.newBench(func(cfg *config) { cfg.partitions = int(s.c.size) })
	if err != nil {
		return err
	}
	before, err := s.measure(ctx, "without", b, s.c.baseline)
	if err != nil {
		return err
	}
	old, err := openSnapshot(ctx, s.c.run.databaseURL)
	if err != nil {
		return err
	}
	held, err := s.measure(ctx, fmt.Sprintf("snapshot held for %s", s.c.run.duration), b.again(nil), s.c.run.duration)
	if gone := old.release(ctx); gone != nil {
		return gone
	}
	if err != nil {
		return err
	}
	after, err := s.measure(ctx, "let go", b.again(nil), s.c.baseline)
	if err != nil {
		return err
	}
	end := held.Steady.From + held.Steady.Seconds
	last := s.rec.values(panelRate, "deliver", end-min(60, held.Steady.Seconds/4), end)
	s.rep.add(outcome{What: "acknowledged", Unit: unitRate, Baseline: before.Steady.Ack, Measured: held.Steady.Ack, AtLeast: 0.5})
	s.rep.add(outcome{What: "delivered in the last minute (or quarter) of it", Unit: unitRate, Baseline: before.Steady.Deliver, Measured: median(last)})
	s.rep.add(outcome{What: "acknowledged after it was let go", Unit: unitRate, Baseline: before.Steady.Ack, Measured: after.Steady.Ack})
	s.rep.add(outcome{
		What: "push p99", Unit: unitSeconds, Baseline: seconds(before.Steady.PushLatency.P99),
		Measured: seconds(held.Steady.PushLatency.P99),
	})
	return nil
}
