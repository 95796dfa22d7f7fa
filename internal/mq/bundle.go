package mq

// Why a bundle was not committed. Several causes at once are reported in this
// order; a malformed bundle is refused before anything is looked at.
const (
	BundleBadRequest     = "bad_request"
	BundleRejectedAck    = "rejected_ack"
	BundleDuplicate      = "duplicate"
	BundlePrecondition   = "kv_precondition"
	BundleDuplicateWord  = "QDUP" // what the error text of a duplicate begins with
	BundleRejectedWord   = "QTXN" // what the error text of a refused ack begins with
	BundleErrNoParts     = "the bundle is empty: operations, kv and timers are all missing or empty"
	BundleErrNoQueue     = "a push needs a queue"
	BundleErrPartitionID = "a partitionId is malformed"
)

// BundleOp is one step of a bundle: exactly one of the two is set. Push items
// of one operation are steps of their own.
type BundleOp struct {
	Push *PushItem
	Ack  *BundleAck
}

// BundleAck acknowledges one message inside a bundle. Unlike in an Ack call the
// group belongs to the item.
type BundleAck struct {
	AckItem
	Group string // never empty
}

// Bundle is one transaction: everything in it commits, or nothing does.
type Bundle struct {
	Tenant         UUID
	ProducerSub    string
	Ops            []BundleOp
	RequiredLeases []string
	// Create asks for the places of the pushes to be made inside the transaction.
	Create bool
	KV     *KVCall    // nil without this rider
	Timers *TimerCall // nil without this rider
}

// BundleOpResult answers one step.
type BundleOpResult struct {
	TransactionID string
	MessageID     UUID // push
	Duplicate     bool // push: repeats the id of an earlier step
	DLQ           bool // ack: the message was filed by this bundle
}

// BundleResult is the outcome of a bundle. With Reason empty it was committed
// and Ops answers the steps in order; the answers of the riders are in their
// calls. Otherwise nothing was written.
type BundleResult struct {
	ID     UUID
	Ops    []BundleOpResult
	Reason string
	Error  string
	// Failed is the required kv operation that was lost; only with
	// BundlePrecondition. Its index counts the kv operations.
	Failed *KVFailure
}

// BundleWork is a bundle as a store takes it: resolved, grouped by queue.
type BundleWork struct {
	Tenant UUID
	KV     *KVCall      // nil without this rider
	Timers *TimerCall   // nil without this rider
	Pushes []BundlePush // ascending by queue
	Acks   []AckQuery   // ascending by queue
	// Create makes the queues (those without a number) and partitions of the
	// pushes inside the transaction first; a rollback leaves none of them.
	Create bool
}

// BundlePush is what a bundle pushes to one queue. Partitions[i] is where
// Messages[i] goes.
type BundlePush struct {
	Queue      *QueueInfo
	Partitions []string
	Messages   []*Message
}

// BundleLocked is a bundle's transaction once everything it touches is locked.
type BundleLocked struct {
	Acks   []*LockedAcks // as BundleWork.Acks
	Probes [][]BundleProbe
}

// BundleProbe says what a pushed message meets.
type BundleProbe struct {
	Missing bool  // its partition does not exist
	Stored  int64 // offset of a message that holds its id; -1: none
}

// BundleDecision is what becomes of locked work. When Spans asks for ids,
// nothing was decided yet.
type BundleDecision struct {
	Commit bool
	Acks   []*AckDecision // as BundleWork.Acks
	// Confirm is asked once the dead letters are filed, because one of them may
	// be gone: false rolls back.
	Confirm func() bool
}
