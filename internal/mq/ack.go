package mq

import "time"

// AckStatus is what a consumer says of a message.
type AckStatus uint8

// The statuses. Among signals on one message the larger value wins.
const (
	AckCompleted AckStatus = iota
	AckRetry
	AckFailed
	AckDLQ
)

// ParseAckStatus reads the wire's word. Anything unknown counts as failed: a
// typo must never complete a message.
func ParseAckStatus(s string) AckStatus {
	switch s {
	case "completed", "success", "acked", "ok":
		return AckCompleted
	case "retry":
		return AckRetry
	case "dlq":
		return AckDLQ
	default:
		return AckFailed
	}
}

// AckItem acknowledges one message.
type AckItem struct {
	TransactionID string
	PartitionID   string // as the client sent it; malformed ones fail per item
	LeaseID       string // empty means none
	Status        AckStatus
	Error         string
}

// Ack is one call. Items of one (partition, lease) form one atomic step.
type Ack struct {
	Tenant UUID
	Group  string
	Items  []AckItem
}

// The texts of refused acknowledgements. Clients match on their beginnings.
const (
	AckErrNotOwned     = "partition not owned by tenant"
	AckErrNoConsumer   = "consumer not found"
	AckErrLease        = "invalid or expired lease"
	AckErrCommitted    = "already committed: the cursor moved past this message before this ack"
	AckErrUnresolvable = "unresolvable: no message with this transactionId can be acknowledged here"
	AckErrDLQRejected  = "dlq rejected"
)

// AckResult is the verdict on one item, in request order.
type AckResult struct {
	Success       bool
	Error         string
	LeaseReleased bool
	DLQ           bool
	Noop          bool
	Conflated     int64 // positions retired without delivery by a clean conflated ack
}

// Extension is the outcome of a lease extension.
type Extension struct {
	Renewed   int       // partitions whose lease was still live
	ExpiresAt time.Time // the earliest expiry among them; zero when none
}
