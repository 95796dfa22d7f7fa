package mq

import (
	"encoding/binary"
	"time"
)

// Limits of one pop.
const (
	DefaultPopBatch  = 200
	MaxPopPartitions = 64
	MaxPopWait       = 60 * time.Second
	DefaultLease     = 60 * time.Second
)

// StartMode says where a consumer group begins on first contact.
type StartMode uint8

// The start modes.
const (
	StartNew  StartMode = iota // after the current last message
	StartAll                   // at the oldest retained message
	StartTime                  // at the first message stored at or after a time
)

// Start is a group's stored starting point.
type Start struct {
	Mode StartMode
	Time time.Time // StartTime only
}

// Pop is one consume call.
type Pop struct {
	Tenant UUID
	// Exactly one scope: Queue (with Pinned and Partition, or wildcard), or
	// Discovery with Namespace and/or Task.
	Queue      string
	Partition  string
	Pinned     bool
	Discovery  bool
	Namespace  string
	Task       string
	Group      string // never empty: QueueMode when the caller sent none
	Batch      int    // message budget, at least 1
	Partitions int    // 1..MaxPopPartitions
	Wait       time.Duration
	AutoCommit bool // commit at delivery: no lease
	Lease      time.Duration
	Start      Start
	Conflation bool
	// ConflationSet tells an explicit conflation=false from an absent one.
	ConflationSet bool
}

// Delivery is a pop's answer. Without claims nothing was delivered.
type Delivery struct {
	LeaseID            UUID // zero when committed at delivery
	Group              string
	Claims             []Claim
	Conflation         bool // the answer was served under the last-value policy
	ConflationConflict bool // the caller asked for another policy than the stored one
}

// Messages counts the messages of all claims.
func (d *Delivery) Messages() int {
	n := 0
	for i := range d.Claims {
		n += d.Claims[i].Messages()
	}
	return n
}

// Claim is what one partition contributed.
type Claim struct {
	ID        PartitionID
	Queue     string
	Partition string
	Attempt   int
	Segments  []Segment
}

// Messages counts the claim's messages.
func (c *Claim) Messages() int {
	n := 0
	for i := range c.Segments {
		n += c.Segments[i].Len()
	}
	return n
}

// Segment is a run of messages stored together. Each message is a JSON object
// {"id","transactionId","traceId","producerSub","data"} with data last, in
// exactly the bytes that were stored.
type Segment struct {
	First     int64 // offset of the first message
	CreatedAt time.Time
	Body      []byte // the objects, each followed by one separator byte
	ends      []byte // big-endian uint32 per message: end of its object in the stored array
	base      uint32 // where Body starts in the stored array
}

// NewSegment describes the messages whose ends are given, inside a stored
// array of which body is the part from byte base on.
func NewSegment(first int64, createdAt time.Time, body, ends []byte, base uint32) Segment {
	return Segment{First: first, CreatedAt: createdAt, Body: body, ends: ends, base: base}
}

// Len is the number of messages.
func (s *Segment) Len() int { return len(s.ends) / 4 }

// Message returns the stored object of the i-th message.
func (s *Segment) Message(i int) []byte {
	from := uint32(0)
	if i > 0 {
		from = s.end(i-1) + 1
	}
	return s.Body[from:s.end(i)]
}

func (s *Segment) end(i int) uint32 {
	return binary.BigEndian.Uint32(s.ends[4*i:]) - s.base
}
