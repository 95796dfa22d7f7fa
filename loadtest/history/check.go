package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Guarantee names a promise.
type Guarantee string

// The guarantees.
const (
	NoLoss      Guarantee = "O1 no loss"
	NoInvention Guarantee = "O1 no invention"
	Order       Guarantee = "O2 order"
	Exclusive   Guarantee = "O3 exclusive lease"
	Effect      Guarantee = "O4 effect once, whole"
	Cursor      Guarantee = "cursor only advances"
	Dedup       Guarantee = "one message per id"
	Timer       Guarantee = "timer not early, at most once, not after its cancel"
	Linear      Guarantee = "keys are linearizable"
	Protocol    Guarantee = "well-formed requests are served"
)

// Violation is a promise that was not kept.
type Violation struct {
	Guarantee Guarantee `json:"guarantee"`
	Queue     string    `json:"queue,omitempty"`
	Partition string    `json:"partition,omitempty"`
	Group     string    `json:"group,omitempty"`
	Offset    int64     `json:"offset"` // -1 when it is about no offset
	ID        string    `json:"id,omitempty"`
	Text      string    `json:"text"`
	Ops       []*Op     `json:"-"` // the whole history of the message, in the order of time
}

// Result is what a history says about the fleet.
type Result struct {
	Violations []Violation
	// Undecided names keys whose answers had too many possible orders for the time that Check takes.
	Undecided []string
}

// searchLimit bounds the search of one key's order.
const searchLimit = 20 * time.Second

type place struct{ queue, partition string }

type reader struct {
	place
	group string
}

type name struct{ queue, id string }

// mention is a message as an operation names it.
type mention struct {
	op *Op
	m  *Message
}

// message is all that the history says of one.
type message struct {
	name
	partition string
	offset    int64 // the first one told, -1 if none was
	pushes    []mention
	pops      []mention
	acks      []mention
	timers    []*Op
}

type checker struct {
	h         *History
	queues    map[string]*Queue
	messages  map[name]*message
	names     []name // of messages, in the order in which they came up
	cursors   map[reader][]passed
	committed map[string]bool
	result    Result
}

// Check decides which promises were broken.
func Check(h *History) *Result {
	c := &checker{h: h, queues: map[string]*Queue{}, messages: map[name]*message{}}
	for i := range h.Run.Queues {
		c.queues[h.Run.Queues[i].Name] = &h.Run.Queues[i]
	}
	c.index()
	c.cursors = passes(h)
	c.checkProtocol()
	c.checkMessages()
	c.checkLogs()
	c.checkReaders()
	c.checkLeases()
	c.checkEffects()
	c.checkTimers()
	c.checkKeys()
	c.checkFinal()
	return &c.result
}

func (c *checker) index() {
	for _, op := range c.h.Ops {
		for i := range op.Pushed {
			m := c.message(op, &op.Pushed[i])
			m.pushes = append(m.pushes, mention{op, &op.Pushed[i]})
		}
		for i := range op.Popped {
			m := c.message(op, &op.Popped[i])
			m.pops = append(m.pops, mention{op, &op.Popped[i]})
		}
		for i := range op.Acked {
			m := c.message(op, &op.Acked[i])
			m.acks = append(m.acks, mention{op, &op.Acked[i]})
		}
		for i := range op.Timers {
			if t := &op.Timers[i]; t.ID != "" {
				m := c.named(name{t.Queue, t.ID})
				m.timers = append(m.timers, op)
			}
		}
	}
}

func (op *Op) queueOf(m *Message) string {
	if m.Queue != "" {
		return m.Queue
	}
	return op.Queue
}

func (c *checker) named(n name) *message {
	m := c.messages[n]
	if m == nil {
		m = &message{name: n, offset: -1}
		c.messages[n] = m
		c.names = append(c.names, n)
	}
	return m
}

func (c *checker) message(op *Op, seen *Message) *message {
	m := c.named(name{op.queueOf(seen), seen.ID})
	if m.partition == "" {
		m.partition = seen.Partition
	}
	if m.offset < 0 {
		m.offset = seen.Offset
	}
	return m
}

// told is the set of operations in which a message comes up, in the order of time.
func (m *message) told() []*Op {
	var ops []*Op
	for _, list := range [][]mention{m.pushes, m.pops, m.acks} {
		for _, one := range list {
			ops = append(ops, one.op)
		}
	}
	return inOrder(append(ops, m.timers...))
}

func inOrder(ops []*Op) []*Op {
	slices.SortStableFunc(ops, byStart)
	return slices.Compact(ops)
}

func byStart(a, b *Op) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.ID, b.ID)) }

// report files a violation that concerns a message. Further operations may belong to its story.
func (c *checker) report(g Guarantee, m *message, group string, more []*Op, format string, args ...any) {
	c.result.Violations = append(c.result.Violations, Violation{
		Guarantee: g, Queue: m.queue, Partition: m.partition, Group: group, Offset: m.offset, ID: m.id,
		Text: fmt.Sprintf(format, args...), Ops: inOrder(append(m.told(), more...)),
	})
}

// Unreadable starts the reason of an operation whose answer was whole but made no sense.
const Unreadable = "unreadable answer"

// checkProtocol looks for requests that were refused although nothing was wrong with them.
func (c *checker) checkProtocol() {
	for _, op := range c.h.Ops {
		refused := op.Status >= 400 && op.Status < 500 && op.Status != 408 && op.Status != 429 && op.Status != 499
		if refused || op.Status/100 == 2 && strings.HasPrefix(op.Reason, Unreadable) {
			c.result.Violations = append(c.result.Violations, Violation{
				Guarantee: Protocol, Queue: op.Queue, Group: op.Group, Offset: -1,
				Text: fmt.Sprintf("%s answered %d: %s", op.Kind, op.Status, op.Reason), Ops: []*Op{op},
			})
		}
	}
}

// checkFinal holds the state in the end against the workload: it dead-letters nothing, and drains everything.
func (c *checker) checkFinal() {
	for _, op := range c.h.Ops {
		if !op.Final || op.Outcome != OK || op.Count == 0 {
			continue
		}
		what := map[Kind]string{
			Depth: "messages that were not acknowledged", Letters: "dead letters", Pending: "timers that wait",
		}[op.Kind]
		if what == "" {
			continue
		}
		c.result.Violations = append(c.result.Violations, Violation{
			Guarantee: NoLoss, Queue: op.Queue, Group: op.Group, Offset: -1,
			Text: fmt.Sprintf("in the end there are %d %s", op.Count, what), Ops: []*Op{op},
		})
	}
}
