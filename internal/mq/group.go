package mq

import "time"

// GroupSummary is one (group, queue) of the consumer group list.
type GroupSummary struct {
	Group             string
	Queue             string
	Cursors           int64 // partitions the group has a cursor on
	PartitionsWithLag int64
	TotalLag          int64
	MaxTimeLag        time.Duration // age of the oldest unconsumed message
	EverConsumed      bool
	Start             Start
	RegisteredAt      time.Time
	Conflation        bool
}

// GroupPartition is a group's state on one partition.
type GroupPartition struct {
	Group         string
	Queue         string
	Conflation    bool
	Partition     string
	ID            PartitionID
	Committed     int64
	OffsetLag     int64
	TimeLag       time.Duration
	LeaseActive   bool
	OldestPending time.Time // zero when there is no lag
}

// Seek moves a group's cursors on a queue: to the end, or to the first
// message stored at or after a time.
type Seek struct {
	Tenant    UUID
	Group     string
	Queue     string
	Partition string // PartitionSet only
	// PartitionSet restricts the seek to one partition.
	PartitionSet bool
	ToEnd        bool
	Time         time.Time
}
