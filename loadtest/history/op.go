package history

// Kind says what an operation asked for.
type Kind string

// The kinds of operations.
const (
	Push    Kind = "push"
	Pop     Kind = "pop"
	Ack     Kind = "ack"
	Extend  Kind = "extend"
	Tx      Kind = "transaction"
	KV      Kind = "kv"
	Timers  Kind = "timers"
	Depth   Kind = "depth"   // Count is what a group has still to acknowledge
	Letters Kind = "letters" // Count is the number of dead letters
	Pending Kind = "pending" // Count is the number of timers that wait, up to one page
)

// Outcome is what the client knows about an operation.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"      // it happened as answered
	Fail    Outcome = "fail"    // it did not happen
	Unknown Outcome = "unknown" // it happened at some moment after its start, or never
)

// Run is what the whole history has in common.
type Run struct {
	Seed     uint64  `json:"seed"`
	Started  string  `json:"started"`
	Queues   []Queue `json:"queues"`
	Pipeline string  `json:"pipeline"` // the group that answers input with transactions
	Marker   string  `json:"marker"`   // a marker's key is this and the input's id; its value is the By of what wrote it
	// Tolerance, in microseconds, allows for clocks of different machines that do not run equally fast.
	Tolerance int64 `json:"tolerance"`
}

// Role is what a queue is for.
type Role string

// The roles.
const (
	Input  Role = "input"  // written by producers, read by all its groups
	Output Role = "output" // written by transactions
	Timed  Role = "timed"  // written by timers; it knows no duplicates, so that a timer fired twice shows
)

// Queue is one queue of the workload, with all the groups that read it.
type Queue struct {
	Name   string   `json:"name"`
	Role   Role     `json:"role"`
	Groups []string `json:"groups"`
}

// End closes a history. When the fleet could not be reached in the end, nothing is said about what is missing.
type End struct {
	Reached bool  `json:"reached"` // the final state was read
	Drained bool  `json:"drained"` // every group had acknowledged everything, and no timer waited
	At      int64 `json:"at"`
}

// Op is one request and what came of it. Instants are microseconds since the run started.
type Op struct {
	ID      int64   `json:"op"`
	Kind    Kind    `json:"kind"`
	Worker  string  `json:"worker"`
	Request string  `json:"request"` // retries of one request share it
	Try     int     `json:"try"`
	Start   int64   `json:"start"`
	End     int64   `json:"end"`
	Outcome Outcome `json:"outcome"`
	Status  int     `json:"status,omitempty"`
	Reason  string  `json:"reason,omitempty"` // of a refusal, or what went wrong
	Final   bool    `json:"final,omitempty"`  // read when everything had ended

	Queue  string `json:"queue,omitempty"`
	Group  string `json:"group,omitempty"`
	Lease  string `json:"lease,omitempty"`
	Length int64  `json:"length,omitempty"` // of the lease asked for, in microseconds
	Until  int64  `json:"until,omitempty"`  // the end of an extended lease as answered, by the fleet\'s clock; a pop tells none
	Count  int64  `json:"count,omitempty"`
	By     string `json:"by,omitempty"` // written into everything that a transaction writes

	Pushed []Message `json:"pushed,omitempty"`
	Popped []Message `json:"popped,omitempty"`
	Acked  []Message `json:"acked,omitempty"`
	Keys   []KeyOp   `json:"keys,omitempty"`
	Timers []TimerOp `json:"timers,omitempty"`
}

// Message is a message as one operation names it.
type Message struct {
	Queue     string `json:"queue,omitempty"` // that of the operation if empty
	Partition string `json:"partition"`
	ID        string `json:"id"`
	Offset    int64  `json:"offset"`             // -1 when not told
	Status    string `json:"status,omitempty"`   // verdict of a push, instruction of an ack
	Refused   string `json:"refused,omitempty"`  // why the instruction was not carried out
	Noop      bool   `json:"noop,omitempty"`     // the cursor was there already
	Released  bool   `json:"released,omitempty"` // this ended the lease
	Attempt   int64  `json:"attempt,omitempty"`
	Created   int64  `json:"created,omitempty"` // by the fleet's clock, in microseconds since 1970
	Sum       string `json:"sum,omitempty"`     // of the payload
	By        string `json:"by,omitempty"`      // of the transaction that wrote it, from its payload
}

// KeyOp is an operation on a key.
type KeyOp struct {
	Op      string `json:"op"`
	Key     string `json:"key"`
	Value   string `json:"value,omitempty"`  // JSON: put, or found
	Delta   int64  `json:"delta,omitempty"`  // of an incr
	Expect  *int64 `json:"expect,omitempty"` // a version, or 0 for none
	Applied bool   `json:"applied,omitempty"`
	Found   bool   `json:"found,omitempty"`
	Version int64  `json:"version,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Current string `json:"current,omitempty"` // JSON: what a write that was not applied found instead
}

// TimerOp is an operation on a timer.
type TimerOp struct {
	Op     string `json:"op"` // schedule or cancel
	Queue  string `json:"queue"`
	Key    string `json:"key"`
	ID     string `json:"id,omitempty"`    // of the message it becomes
	Delay  int64  `json:"delay,omitempty"` // in microseconds
	Due    int64  `json:"due,omitempty"`   // as answered, by the fleet's clock, in microseconds since 1970
	Status string `json:"status,omitempty"`
	Gone   string `json:"gone,omitempty"` // the id that a cancel took away
}
