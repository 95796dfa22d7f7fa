package mq

import "time"

// DeadLetter is a message filed after its retries, with a snapshot of what
// was known of it.
type DeadLetter struct {
	ID            UUID
	MessageID     UUID
	TransactionID string
	PartitionID   PartitionID
	Queue         string
	Partition     string
	Group         string
	Offset        int64
	RetryCount    int32
	Error         string
	Payload       []byte
	ProducerSub   string
	Encrypted     bool      // the stored form is an envelope
	CreatedAt     time.Time // when the message was stored
	FailedAt      time.Time
}

// DeadLetterFilter selects dead letters; empty fields match everything.
type DeadLetterFilter struct {
	Tenant    UUID
	Queue     string
	Partition string
	Group     string
	From, To  time.Time
	// TransactionID restricts the list to one message of Partition.
	TransactionID string
	Limit         int
	Offset        int
}

// Replay moves a dead letter back into a queue in one transaction.
type Replay struct {
	Tenant UUID
	ID     UUID // the dead letter's id; zero: the newest at PartitionID and TransactionID
	// Address of a message, when ID is zero.
	PartitionID   PartitionID
	TransactionID string
	// Destination; empty means the record's own.
	Queue     string
	Partition string
}

// Replayed is the outcome of a replay.
type Replayed struct {
	Letter    DeadLetter // without its payload
	Queue     string     // where it went
	Partition string
	Result    PushResult // PushQueued: moved; PushDuplicate: nothing written, record kept
}
