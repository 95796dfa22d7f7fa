package mq

import (
	"regexp"
	"time"
)

// Options are a queue's settings, in the units of the public API.
type Options struct {
	Namespace                   string
	Task                        string
	Priority                    int32
	LeaseTime                   int32 // seconds
	RetryLimit                  int32
	RetryDelay                  int32 // milliseconds; stored only
	MaxSize                     int32 // stored only
	TTL                         int32 // seconds; stored only
	DeadLetterQueue             bool
	DLQAfterMaxRetries          bool
	DelayedProcessing           int32 // seconds
	WindowBuffer                int32 // seconds
	RetentionEnabled            bool
	RetentionSeconds            int32
	CompletedRetentionSeconds   int32
	MaxWaitTimeSeconds          int32
	MinPopWaitTime              int32 // milliseconds, 0..60000
	EncryptionEnabled           bool
	DedupWindowSeconds          int32 // 0 is off
	RetentionSinkHold           string
	RetentionSinkHoldMaxSeconds int32
}

// Lease times of a queue nobody configured and of one that was.
const (
	ImplicitLeaseSeconds   = 60
	ConfiguredLeaseSeconds = 300
)

// DefaultOptions are those of a queue created by configure.
func DefaultOptions() Options {
	return Options{
		LeaseTime: ConfiguredLeaseSeconds, RetryLimit: 3, RetryDelay: 1000, TTL: 3600,
		DeadLetterQueue: true, DLQAfterMaxRetries: true, DedupWindowSeconds: 3600,
		RetentionSinkHoldMaxSeconds: 604800,
	}
}

// ImplicitOptions are those of a queue created by its first use.
func ImplicitOptions(queue string) Options {
	o := DefaultOptions()
	o.LeaseTime = ImplicitLeaseSeconds
	o.Namespace, o.Task = DeriveLabels(queue)
	return o
}

// DeadLetters reports whether a message whose retry budget is spent is filed
// in the dead-letter queue; both switches off means it is dropped.
func (o *Options) DeadLetters() bool { return o.DeadLetterQueue || o.DLQAfterMaxRetries }

// Hold is how long a message stays invisible after it was stored, at least.
func (o *Options) Hold() time.Duration {
	return time.Duration(max(o.DelayedProcessing, o.WindowBuffer, 0)) * time.Second
}

var sinkHold = regexp.MustCompile(`^[A-Za-z0-9._-]{0,64}$`)

// Normalize clamps what has a clamp and refuses what has a range. The error's
// Field is the option's wire name.
func (o *Options) Normalize() error {
	o.MinPopWaitTime = min(max(o.MinPopWaitTime, 0), 60000)
	o.DedupWindowSeconds = max(o.DedupWindowSeconds, 0)
	if !sinkHold.MatchString(o.RetentionSinkHold) {
		return Invalid("retentionSinkHold", "retentionSinkHold must match [A-Za-z0-9._-]{0,64}")
	}
	if o.RetentionSinkHoldMaxSeconds < 60 || o.RetentionSinkHoldMaxSeconds > 31536000 {
		return Invalid("retentionSinkHoldMaxSeconds", "retentionSinkHoldMaxSeconds must be between 60 and 31536000")
	}
	for _, f := range [][2]string{{"namespace", o.Namespace}, {"task", o.Task}} {
		if err := CheckName(f[0], f[1]); err != nil {
			return err
		}
	}
	return nil
}

// OptionChange sets one option; a nil Set resets it to its default.
type OptionChange struct {
	Name string // the wire name
	Set  func(*Options)
}

// Configure is one configure call.
type Configure struct {
	Tenant  UUID
	Queue   string
	Replace bool
	Changes []OptionChange
	// Labels sent at top level; empty means "not sent". They apply when the
	// changes do not name the label themselves.
	Namespace string
	Task      string
}

// Apply lays the changes over the options a queue has (current nil: a new
// queue, or replace) and returns the effective ones.
func (c *Configure) Apply(current *Options) (Options, error) {
	defaults := DefaultOptions()
	o := defaults
	if current != nil && !c.Replace {
		o = *current
	}
	named := map[string]bool{}
	for _, ch := range c.Changes {
		named[ch.Name] = true
		if ch.Set == nil {
			resetOption(&o, &defaults, ch.Name)
			continue
		}
		ch.Set(&o)
	}
	if c.Namespace != "" && !named["namespace"] {
		o.Namespace = c.Namespace
	}
	if c.Task != "" && !named["task"] {
		o.Task = c.Task
	}
	err := o.Normalize()
	return o, err
}

func resetOption(o, d *Options, name string) {
	switch name {
	case "namespace":
		o.Namespace = d.Namespace
	case "task":
		o.Task = d.Task
	case "priority":
		o.Priority = d.Priority
	case "leaseTime":
		o.LeaseTime = d.LeaseTime
	case "retryLimit":
		o.RetryLimit = d.RetryLimit
	case "retryDelay":
		o.RetryDelay = d.RetryDelay
	case "maxSize":
		o.MaxSize = d.MaxSize
	case "ttl":
		o.TTL = d.TTL
	case "deadLetterQueue":
		o.DeadLetterQueue = d.DeadLetterQueue
	case "dlqAfterMaxRetries":
		o.DLQAfterMaxRetries = d.DLQAfterMaxRetries
	case "delayedProcessing":
		o.DelayedProcessing = d.DelayedProcessing
	case "windowBuffer":
		o.WindowBuffer = d.WindowBuffer
	case "retentionEnabled":
		o.RetentionEnabled = d.RetentionEnabled
	case "retentionSeconds":
		o.RetentionSeconds = d.RetentionSeconds
	case "completedRetentionSeconds":
		o.CompletedRetentionSeconds = d.CompletedRetentionSeconds
	case "maxWaitTimeSeconds":
		o.MaxWaitTimeSeconds = d.MaxWaitTimeSeconds
	case "minPopWaitTime":
		o.MinPopWaitTime = d.MinPopWaitTime
	case "encryptionEnabled":
		o.EncryptionEnabled = d.EncryptionEnabled
	case "dedupWindowSeconds":
		o.DedupWindowSeconds = d.DedupWindowSeconds
	case "retentionSinkHold":
		o.RetentionSinkHold = d.RetentionSinkHold
	case "retentionSinkHoldMaxSeconds":
		o.RetentionSinkHoldMaxSeconds = d.RetentionSinkHoldMaxSeconds
	}
}

// Queue is a queue with its effective options.
type Queue struct {
	ID        int64
	Name      string
	Options   Options
	CreatedAt time.Time
}

// Counts are a backlog in messages.
type Counts struct {
	Total      int64 // retained
	Pending    int64 // not yet passed by the slowest named group, else by queue mode
	Processing int64 // the part of Pending under live leases
	DeadLetter int64
}

// Completed is what is retained and no longer pending.
func (c Counts) Completed() int64 { return max(c.Total-c.Pending, 0) }

// QueueFilter selects queues of the list; empty labels match everything.
type QueueFilter struct {
	Namespace string
	Task      string
	Limit     int // 0: all
	Offset    int
}

// QueueSummary is a line of the queue list.
type QueueSummary struct {
	Queue
	Partitions    int64
	Counts        Counts
	Segments      int64
	RetainedBytes int64
}

// QueueDetail is one queue with its partitions.
type QueueDetail struct {
	Queue
	Partitions    []PartitionDetail
	Totals        Counts
	Segments      int64
	RetainedBytes int64
}

// PartitionDetail is one partition of a queue. The times are zero when it
// retains nothing.
type PartitionDetail struct {
	ID        PartitionID
	Name      string
	CreatedAt time.Time
	Counts    Counts
	Oldest    time.Time
	Newest    time.Time
}

// Depth is the backlog of one group (or of the slowest one) on a queue.
type Depth struct {
	Queue             string
	Group             string // empty when none was asked for
	Pending           int64
	Processing        int64
	PartitionsPending int64
	PartitionsReady   int64
	Conflation        bool
	Partitions        []PartitionDepth
}

// PartitionDepth is one partition's share of a Depth.
type PartitionDepth struct {
	Partition  string
	Pending    int64
	Processing int64
}
