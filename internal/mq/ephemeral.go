package mq

import "time"

// Limits of the calls to ephemeral queues.
const (
	MaxEphemeralName  = 512    // bytes of a queue, partition or group name
	MaxEphemeralItems = 10_000 // messages of a push or a pop, ids of an ack
	MaxEphemeralWait  = 300 * time.Second
)

// Codes of the calls to ephemeral queues.
const (
	CodeEphemeralBadRequest  = "ephemeral_bad_request"
	CodeEphemeralNotFound    = "ephemeral_queue_not_found"
	CodeEphemeralFull        = "queue_full"
	CodeEphemeralQuota       = "ephemeral_quota_exceeded"
	CodeEphemeralGated       = "feature_gated"
	CodeEphemeralUnavailable = "ephemeral_unavailable"
	CodeEphemeralDisabled    = "ephemeral_disabled"
	CodeEphemeralConfigure   = "ephemeral_configure_failed"
	CodeEphemeralDelete      = "ephemeral_delete_failed"
)

// EphemeralPush adds messages to one partition of an ephemeral queue, all or
// none.
type EphemeralPush struct {
	Tenant    UUID
	Queue     string
	Partition string
	Payloads  [][]byte // JSON text as it was sent
}

// EphemeralPop asks for messages of an ephemeral queue.
type EphemeralPop struct {
	Tenant     UUID
	Queue      string
	Partition  string // empty: all of them
	Group      string // empty: the group of those that name none
	Batch      int
	Wait       time.Duration // 0: answer at once
	AutoCommit bool          // committed at delivery: no lease
}

// EphemeralMessage is one delivered message.
type EphemeralMessage struct {
	ID        string
	Partition string
	Attempts  int // deliveries to this group, this one included
	Payload   []byte
}

// EphemeralDelivery is the answer to a pop.
type EphemeralDelivery struct {
	Pop      *EphemeralPop
	Messages []EphemeralMessage
}

// EphemeralVerdict is what a consumer says of a message.
type EphemeralVerdict uint8

// The verdicts. Failed and retry do the same.
const (
	EphemeralCompleted EphemeralVerdict = iota
	EphemeralRetry
)

// EphemeralAck settles messages of one group.
type EphemeralAck struct {
	Tenant UUID
	Queue  string
	Group  string
	Items  []EphemeralAckItem
}

// EphemeralAckItem is one id with its verdict.
type EphemeralAckItem struct {
	ID      string
	Verdict EphemeralVerdict
}

// EphemeralOutcome is what became of an acknowledged id.
type EphemeralOutcome string

// The outcomes.
const (
	EphemeralAcked       EphemeralOutcome = "acked"       // settled, also by running out of attempts
	EphemeralRedelivered EphemeralOutcome = "redelivered" // put back
	EphemeralStale       EphemeralOutcome = "stale"       // of an incarnation that is gone
	EphemeralUnknown     EphemeralOutcome = "unknown"     // no such lease
)

// EphemeralPolicy says what a push to a full queue does.
type EphemeralPolicy string

// The policies.
const (
	EphemeralReject     EphemeralPolicy = "reject"
	EphemeralDropOldest EphemeralPolicy = "dropOldest"
)

// EphemeralWindow lets a waiting pop gather.
type EphemeralWindow struct {
	MS    *int64 // at the most this long after the first message
	Count *int64 // or until this many are there
}

// EphemeralOptions is the declaration of an ephemeral queue, as it was sent:
// what is nil was not.
type EphemeralOptions struct {
	MaxBytes     *int64
	MaxLength    *int64
	Policy       *EphemeralPolicy
	TTLSeconds   *int64
	LeaseSeconds *int64
	RetryLimit   *int64
	Window       *EphemeralWindow
}

// EphemeralLimits are the options in force: every one has a value.
type EphemeralLimits struct {
	MaxBytes, MaxLength      int64
	Policy                   EphemeralPolicy
	TTLSeconds, LeaseSeconds int64
	RetryLimit               int64
	WindowMS, WindowCount    int64
}

// EphemeralDeclaration is a stored declaration. Versions rise with every
// change of any declaration.
type EphemeralDeclaration struct {
	Tenant  UUID
	Queue   string
	Version int64
	Options EphemeralOptions
}

// EphemeralGrant is what a tenant may use; a nil limit is none.
type EphemeralGrant struct {
	Tenant            UUID
	Enabled           bool
	MaxBytes          *int64
	MaxQueues         *int64
	MessagesPerSecond *float64
}

// EphemeralDrops counts messages that went unconsumed.
type EphemeralDrops struct{ Bounds, TTL, Retry int64 }

// EphemeralQueue describes a queue.
type EphemeralQueue struct {
	Queue                            string
	Declared                         bool
	Depth, Bytes, Partitions, Groups int64
	Drops                            EphemeralDrops
	Limits                           EphemeralLimits
}

// EphemeralDepth is what a queue holds.
type EphemeralDepth struct {
	Declared          bool
	Pending, Bytes    int64
	PartitionsPending int64
	Partitions        []EphemeralPartitionDepth // those that hold something, by name
	Groups            []EphemeralGroupDepth     // by name; one when one was asked for
}

// EphemeralPartitionDepth is what a partition holds.
type EphemeralPartitionDepth struct {
	Partition      string
	Pending, Bytes int64
}

// EphemeralGroupDepth is what is still owed to a group, leased messages
// included, and what was dropped before the group got it.
type EphemeralGroupDepth struct {
	Group            string
	Pending, Skipped int64
}

// EphemeralStatus describes the whole store.
type EphemeralStatus struct {
	Enabled         bool
	Bytes, MaxBytes int64 // of the whole installation
	Queues          int64
	GrantedTenants  int64
	RequireGrant    bool
	Epoch           string // of the store's contents; another one after they were lost
}

// EphemeralSettings is what brokers read from the database together.
type EphemeralSettings struct {
	Enabled      bool // no stored switch: true
	Declarations []EphemeralDeclaration
	Grants       []EphemeralGrant
}
