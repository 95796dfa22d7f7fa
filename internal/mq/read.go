package mq

import "time"

// Per-entry errors of the reads by offset.
const (
	ReadErrUnknown    = "UNKNOWN_TOPIC_OR_PARTITION"
	ReadErrOutOfRange = "OFFSET_OUT_OF_RANGE"
	ReadErrBadCursor  = "BAD_CURSOR"
)

// Limits of the reads by offset.
const (
	MaxReadEntries  = 1024
	MaxFetchRecords = 10000
	MaxFetchBytes   = 8 << 20
	MaxFetchTotal   = 64 << 20
	MaxFetchWait    = 30 * time.Second
	MaxChangedLimit = 1000
)

// FetchEntry asks for records of one partition from an offset on.
type FetchEntry struct {
	Queue     string
	Partition string
	Offset    int64
	MaxBytes  int
}

// Fetch is a read by offset: no lease, no cursor.
type Fetch struct {
	Tenant   UUID
	Entries  []FetchEntry
	Wait     time.Duration
	MinBytes int
}

// Record is one message read by offset.
type Record struct {
	Offset        int64
	TransactionID string
	Payload       []byte
	CreatedAt     time.Time
}

// FetchResult answers one entry.
type FetchResult struct {
	Records       []Record
	HighWatermark int64 // next offset
	LogStart      int64
	Err           string // one of the ReadErr values
}

// OffsetEntry asks for the first offset stored at or after a time.
type OffsetEntry struct {
	Queue     string
	Partition string
	Time      time.Time
}

// OffsetResult answers one entry; Found false means nothing is that late.
type OffsetResult struct {
	Found         bool
	Offset        int64
	CreatedAt     time.Time
	HighWatermark int64
	LogStart      int64
	Err           string
}

// ChangedEntry asks for the partitions of a queue, all of them or those
// written at or after Since, a page at a time.
type ChangedEntry struct {
	Queue string
	Since time.Time // zero: all
	After string    // name of the last partition of the page before; AfterSet
	// AfterSet tells the first page from one after a partition named "".
	AfterSet bool
	Limit    int
}

// ChangedResult answers one entry. More says that the page was filled.
type ChangedResult struct {
	Partitions []ChangedPartition
	More       bool
	Err        string
}

// ChangedPartition is one line of a sweep.
type ChangedPartition struct {
	ID         PartitionID
	Name       string
	LastOffset int64
	LogStart   int64
	LastWrite  time.Time // zero when never written
}

// SafeTime is an instant below which no message can still become visible.
type SafeTime struct {
	Time     time.Time
	Degraded bool
}

// MessageDetail is one message seen from outside any group.
type MessageDetail struct {
	MessageID     UUID
	TransactionID string
	TraceID       UUID
	ProducerSub   string
	Payload       []byte // nil when it can no longer be read
	Encrypted     bool   // the stored form is an envelope
	PartitionID   PartitionID
	Queue         string
	Partition     string
	Offset        int64
	CreatedAt     time.Time
	Options       Options
	DeadLetter    *DeadLetter // newest record at the address, if any
	Groups        []MessageGroup
}

// MessageGroup is what one group did with a message.
type MessageGroup struct {
	Group        string
	Consumed     bool
	LeaseExpires time.Time // zero unless under a live lease
}
