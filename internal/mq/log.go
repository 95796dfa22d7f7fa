package mq

import (
	"encoding/binary"
	"time"
)

// What the use cases exchange with a store: prepared, resolved, and without
// anything a transport sends.

// QueueInfo is a queue as the hot paths need it.
type QueueInfo struct {
	Queue
	Tenant        UUID
	Version       int32 // of the options; a stale one is refused by Append
	IDClass       int16 // where new ids of the queue go
	IDClassBefore int16 // where older ones may still be
}

// Message is a message ready to be stored.
type Message struct {
	ID            UUID
	TransactionID string
	TraceID       UUID
	ProducerSub   string
	Payload       []byte
	Hash          IDHash
	Probe         bool // the id may be stored already: look before appending
}

// Run is the new messages of one partition, stored at consecutive offsets or
// not at all. After an Append exactly one of three holds: Appended; Stored is
// not empty (nothing of the run was written); or neither, when the partition
// does not exist or the queue changed meanwhile.
type Run struct {
	Partition string
	Messages  []*Message

	Appended    bool
	PartitionID int64
	First       int64 // offset of the first message
	Stored      []StoredID
}

// StoredID says that a message of a run carries an id that is stored already.
type StoredID struct {
	Pos    int // in Run.Messages
	Offset int64
}

// Append is one queue's part of a gathered push.
type Append struct {
	Queue *QueueInfo
	Runs  []Run
}

// GroupInfo is a consumer group as the hot paths need it.
type GroupInfo struct {
	ID         int64
	Seeded     bool // every partition has its cursor
	Conflation bool
}

// ClaimRequest is one pop's part of a gathered claim on one (queue, group).
type ClaimRequest struct {
	LeaseID      UUID
	Partition    string // Pinned only
	Pinned       bool
	AutoCommit   bool
	Messages     int
	Partitions   int
	Bytes        int64 // of bodies, about; one segment is always handed out
	LeaseSeconds int32 // 0: the queue's
}

// ReadyQuery asks when a group has work next.
type ReadyQuery struct {
	QueueGroup
	Floor     time.Time     // what became ready before is not looked at; zero: everything is
	Horizon   time.Duration // nor what becomes ready later than in that time
	Pinned    bool          // only this partition, whatever the bounds
	Partition string
}

// NextReady tells a pop that got nothing when to look again without being woken.
type NextReady struct {
	GroupExists bool
	Seeded      bool
	In          time.Duration // until the next lease or hold ends; negative: nothing scheduled

	// What a pinned query does not answer: what the look saw, by the database's
	// clock and its numbers of transactions.
	Ready         time.Time // when the first one is or was ready, zero for none
	Now           time.Time
	OldestRunning int64 // transactions before this one were over
	NextNumber    int64 // this one and later ones had not begun to write
}

// CursorKey names a cursor within a queue.
type CursorKey struct {
	Partition int64
	Group     int64
}

// BatchAck completes a whole leased batch, recognised by its fingerprint.
type BatchAck struct {
	CursorKey
	LeaseID UUID
	Count   int32
	Mark    int64
}

// BatchAckResult says what became of a BatchAck.
type BatchAckResult struct {
	Done bool
	More bool // the partition is claimable again at once
}

// Cursor is the state of one (partition, group), as data-plane 1.1 has it.
type Cursor struct {
	CursorKey
	Committed     int64
	BatchEnd      int64 // -1 when no batch is leased
	LeaseID       UUID
	LeaseExpires  time.Time
	Conflated     bool
	LeaseCount    int32
	LeaseMark     int64
	AttemptOffset int64
	AttemptCount  int32
	RetryCount    int32
}

// AckRules is what a queue says of retries, with the clock leases are judged by.
type AckRules struct {
	RetryLimit  int32
	DeadLetters bool
	Now         time.Time
}

// CursorChange is what an ack decided of a cursor.
type CursorChange struct {
	CursorKey
	Committed     int64
	Release       bool
	AttemptOffset int64
	AttemptCount  int32 // 0: not tracked
	RetryCount    int32
}

// Fingerprint of ids: their count and the XOR of their marks. Two different
// sets of distinct ids agree by chance once in 2^64.
type Fingerprint struct {
	Count int32
	Mark  int64
}

// Add takes an id into the fingerprint.
func (f *Fingerprint) Add(h IDHash) {
	f.Count++
	f.Mark ^= h.Mark
}

// LockedAcks is a transaction in which cursors are locked for acknowledgement.
type LockedAcks struct {
	Cursors map[CursorKey]*Cursor
	Rules   AckRules
	Offsets map[AckID][]int64 // every stored offset of each id asked for
}

// AckID addresses an id within a queue.
type AckID struct {
	Partition int64
	Key       UUID
}

// AckQuery is what a LockedAcks is asked to lock and resolve.
type AckQuery struct {
	QueueID int64
	Cursors []CursorKey
	IDs     []AckID
}

// ScopedID mints a UUIDv7 that carries a queue number in its random part, for
// leases and dead letters: whatever names one also names its queue. 34 random
// bits and a millisecond clock with a counter remain.
func ScopedID(queue int64) UUID {
	u := NewID()
	r := binary.BigEndian.Uint64(u[8:])
	// variant (2) | queue (40) | random (22)
	binary.BigEndian.PutUint64(u[8:], 1<<63|uint64(queue)&(1<<40-1)<<22|r&(1<<22-1))
	return u
}

// ScopeOf returns the queue number a ScopedID carries.
func ScopeOf(u UUID) int64 {
	return int64(binary.BigEndian.Uint64(u[8:]) >> 22 & (1<<40 - 1))
}

// IDClass returns which class of message ids a queue with these options uses:
// 0 up to an hour, 1 up to a day, 2 longer.
func (o *Options) IDClass() int16 {
	switch keep := o.IDKeep(); {
	case keep <= time.Hour:
		return 0
	case keep <= 24*time.Hour:
		return 1
	default:
		return 2
	}
}

// MinIDKeep is how long an id is kept at least: it also resolves acks.
const MinIDKeep = 900 * time.Second

// IDKeep is how long the queue's ids are needed.
func (o *Options) IDKeep() time.Duration {
	return max(time.Duration(o.DedupWindowSeconds)*time.Second,
		time.Duration(o.CompletedRetentionSeconds)*time.Second, MinIDKeep)
}

// OffsetRef addresses a stored message within a queue.
type OffsetRef struct {
	Partition int64
	Offset    int64
}

// Claimed is the outcome of a gathered claim.
type Claimed struct {
	Claims [][]Claim // per request, in order; those of later ones are empty once one is
	Oldest time.Time // the earliest ready_at among what was claimed; zero when nothing was
}

// QueueGroup names a consumer group of a queue.
type QueueGroup struct {
	Queue int64
	Group int64
}

// QueueAcks is one queue's part of a gathered ack of whole batches. Results
// answer Batches index by index.
type QueueAcks struct {
	QueueID int64
	Batches []BatchAck
	Results []BatchAckResult
}

// Span asks for the ids stored in (After, Through] of a partition.
type Span struct {
	Partition      int64
	After, Through int64
	Read           bool
	IDs            []string
}

// AckDecision is what became of locked acks. When Spans is not empty nothing
// was decided yet: the ids stored in those spans are wanted first.
type AckDecision struct {
	Spans   []*Span
	Letters []*DeadLetter // to file: partition, offset, group, retry count and error are set
	// Reject is told the index of a letter whose message can no longer be read:
	// its cursor does not move onto it.
	Reject func(letter int)
	// Changes are the cursors to write, once every letter is filed or rejected.
	Changes func() []CursorChange
}

// RetentionRule is what a queue's options say of removal: by age alone
// (seconds, 0 is off) and by age of what every group has passed.
type RetentionRule struct {
	QueueID   int64
	Age       int32
	Completed int32
}

// AgePosition is a place in a walk over partitions by the age of their oldest
// message.
type AgePosition struct {
	OldestAt  time.Time
	Partition int64
}

// Hint tells other brokers that something became claimable, or that what they
// remember of a queue is out of date. Losing one costs latency only.
type Hint struct {
	Queue      int64
	Group      int64    // 0: every group
	Partitions []string // for those who wait for one by name; nil: any
	Reload     bool     // the queue's options, groups or existence changed
}
