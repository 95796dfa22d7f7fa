package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// notifyChannel is where brokers, and queen.push inside the database, tell of
// what became claimable.
const notifyChannel = "queen_wake"

// Notifier carries hints by LISTEN and NOTIFY, each on a connection of its own:
// one coalesced statement a tick, never part of a transaction that writes.
type Notifier struct {
	url    string
	sender *pgx.Conn // used by one goroutine only
}

// NewNotifier returns a notifier that connects when it is used.
func NewNotifier(url string) *Notifier { return &Notifier{url: url} }

func (n *Notifier) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(n.url)
	if err != nil {
		return nil, fmt.Errorf("database url: %w", err)
	}
	noticeSilence(&cfg.Config)
	cfg.RuntimeParams["application_name"] = "queen hints"
	return pgx.ConnectConfig(ctx, cfg)
}

// Publish sends the texts as one statement.
func (n *Notifier) Publish(ctx context.Context, texts []string) error {
	if n.sender == nil || n.sender.IsClosed() {
		c, err := n.connect(ctx)
		if err != nil {
			return fmt.Errorf("connect for hints: %w", err)
		}
		n.sender = c
	}
	_, err := n.sender.Exec(ctx, "SELECT pg_notify($1, t) FROM unnest($2::text[]) AS t", notifyChannel, texts)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return nil
}

// Listen hears what is notified until ctx ends or the connection is lost.
func (n *Notifier) Listen(ctx context.Context, ready func(), hear func(string)) error {
	c, err := n.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect for hints: %w", err)
	}
	defer closeConn(c)
	if _, err := c.Exec(ctx, "LISTEN "+notifyChannel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ready()
	for {
		msg, err := waitHint(ctx, c)
		if err != nil {
			return err
		}
		if msg != "" {
			hear(msg)
		}
	}
}

// waitHint waits for one notification; after a silent while it makes a round
// trip, so that a dead connection is noticed, and returns nothing.
func waitHint(ctx context.Context, c *pgx.Conn) (string, error) {
	wait, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	msg, err := c.WaitForNotification(wait)
	switch {
	case err == nil:
		return msg.Payload, nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case wait.Err() != nil && !c.IsClosed():
		return "", c.Ping(ctx)
	default:
		return "", fmt.Errorf("wait for hints: %w", err)
	}
}

// Close ends the sending connection.
func (n *Notifier) Close() {
	if n.sender != nil {
		closeConn(n.sender)
	}
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}
