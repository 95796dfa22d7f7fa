package mq

// PushItem is one message to store.
type PushItem struct {
	Queue         string
	Partition     string // never empty: DefaultPartition when the caller sent none
	TransactionID string // dedup key; empty means the minted message id
	TraceID       UUID   // zero means none
	Payload       []byte // the JSON text exactly as received
}

// Push is one call: items are stored per (queue, partition) group, each group
// all or nothing, in item order.
type Push struct {
	Tenant      UUID
	ProducerSub string // the token's subject; empty means none
	Items       []PushItem
}

// PushStatus is an item's verdict.
type PushStatus uint8

// The verdicts of a push.
const (
	PushQueued PushStatus = iota
	PushDuplicate
	PushError
)

// String returns the wire's word.
func (s PushStatus) String() string {
	switch s {
	case PushQueued:
		return "queued"
	case PushDuplicate:
		return "duplicate"
	default:
		return "error"
	}
}

// PushResult is the verdict on one item, in request order.
type PushResult struct {
	Status        PushStatus
	MessageID     UUID // of a duplicate: the original's; zero when that can no longer be read
	TransactionID string
	Offset        int64  // of a duplicate: the original's
	Error         string // only with PushError
}
