package httpapi

import (
	"context"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Broker is every use case behind the routes.
type Broker interface {
	Messaging
	QueueAdmin
	GroupAdmin
	DeadLetterAdmin
	Reading
	State
	TimerPlane
	// Ping makes a round trip to the store.
	Ping(ctx context.Context) error
}

// Messaging is the message plane.
type Messaging interface {
	// Push stores the items. Their payloads lie in a buffer that is used again
	// once Push has returned without an error; after an error the buffer is
	// left alone, so work that outlives the call may still read it.
	Push(ctx context.Context, p mq.Push) ([]mq.PushResult, error)
	// Pop waits by itself when Wait is above zero. A delivery without claims
	// means that there was nothing.
	Pop(ctx context.Context, p mq.Pop) (*mq.Delivery, error)
	// Release gives back the leases of a delivery that reached nobody; the
	// attempt is not charged.
	Release(ctx context.Context, d *mq.Delivery)
	Ack(ctx context.Context, a mq.Ack) ([]mq.AckResult, error)
	// Transact runs a bundle: all of it or nothing. A refusal is a result.
	Transact(ctx context.Context, b mq.Bundle) (*mq.BundleResult, error)
	ExtendLease(ctx context.Context, tenant mq.UUID, leaseID string, d time.Duration) (mq.Extension, error)
}

// QueueAdmin configures and describes queues.
type QueueAdmin interface {
	Configure(ctx context.Context, c mq.Configure) (mq.Queue, error)
	DeleteQueue(ctx context.Context, tenant mq.UUID, queue string) (existed bool, err error)
	Queues(ctx context.Context, tenant mq.UUID, f mq.QueueFilter) ([]mq.QueueSummary, error)
	Queue(ctx context.Context, tenant mq.UUID, queue string) (*mq.QueueDetail, error)
	Depth(ctx context.Context, tenant mq.UUID, queue, group string) (*mq.Depth, error)
}

// GroupAdmin describes and moves consumer groups.
type GroupAdmin interface {
	Groups(ctx context.Context, tenant mq.UUID) ([]mq.GroupSummary, error)
	Lagging(ctx context.Context, tenant mq.UUID, minLag time.Duration) ([]mq.GroupPartition, error)
	Group(ctx context.Context, tenant mq.UUID, group string) ([]mq.GroupPartition, error)
	Seek(ctx context.Context, s mq.Seek) (partitions int64, err error)
	SetSubscription(ctx context.Context, tenant mq.UUID, group string, at time.Time) (rows int64, err error)
	DeleteGroup(ctx context.Context, tenant mq.UUID, group, queue string, queueSet, deleteMetadata bool) (partitions int64, err error)
}

// DeadLetterAdmin lists, replays and removes dead letters.
type DeadLetterAdmin interface {
	DeadLetters(ctx context.Context, f mq.DeadLetterFilter) ([]mq.DeadLetter, error)
	Replay(ctx context.Context, r mq.Replay) (*mq.Replayed, error)
	PurgeDeadLetters(ctx context.Context, tenant mq.UUID, queue, group string) (int64, error)
	DeleteDeadLetters(ctx context.Context, tenant mq.UUID, p mq.PartitionID, transactionID string) (int64, error)
}

// Reading reads messages outside any group.
type Reading interface {
	Message(ctx context.Context, tenant mq.UUID, p mq.PartitionID, transactionID string) (*mq.MessageDetail, error)
	Fetch(ctx context.Context, f mq.Fetch) ([]mq.FetchResult, error)
	FetchOffsets(ctx context.Context, tenant mq.UUID, entries []mq.OffsetEntry) ([]mq.OffsetResult, error)
	PartitionsChanged(ctx context.Context, tenant mq.UUID, entries []mq.ChangedEntry) (mq.SafeTime, []mq.ChangedResult, error)
}
