package ephemeral

import (
	"context"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Verdicts as the script takes them.
const (
	verdictBack    = "0"
	verdictSettled = "1"
	verdictUndo    = "2" // back, and the delivery does not count
)

var outcomes = map[byte]mq.EphemeralOutcome{
	'a': mq.EphemeralAcked, 'r': mq.EphemeralRedelivered, 's': mq.EphemeralStale, 'u': mq.EphemeralUnknown,
}

// ackUnit is one call's ids on their way.
type ackUnit struct {
	at   address
	args []any // group, how many, then four for each id
	n    int
	done chan acked
}

type acked struct {
	letters string
	err     error
}

func (s *Service) newAck(tenant mq.UUID, queue, group string, size int) *ackUnit {
	if group == "" {
		group = mq.QueueMode
	}
	u := &ackUnit{at: s.addressOf(tenant, queue), args: make([]any, 2, 2+4*size), done: make(chan acked, 1)}
	u.args[0] = group
	return u
}

// add adds an id, unless it is none of ours.
func (u *ackUnit) add(id, verdict string) bool {
	inc, partition, token, ok := readID(id)
	if ok {
		u.n++
		u.args = append(u.args, partition, inc, token, verdict)
	}
	return ok
}

// settle sends the ids with those of other calls and waits for what became of
// them.
func (s *Service) settle(u *ackUnit) (letters string, err error) {
	if u.n == 0 {
		return "", nil
	}
	u.args[1] = u.n
	s.acks.Add(u, laneOf(u.at.queue), u.n, 64*u.n)
	a := <-u.done
	if a.err == nil && len(a.letters) != u.n {
		return "", fault(errAnswer)
	}
	return a.letters, a.err
}

// Ack settles messages, or puts them back. The outcomes are in the order of the
// items.
func (s *Service) Ack(ctx context.Context, a *mq.EphemeralAck) ([]mq.EphemeralOutcome, error) {
	if _, err := s.admit(ctx, a.Tenant, 0); err != nil {
		return nil, err
	}
	out, index := make([]mq.EphemeralOutcome, len(a.Items)), make([]int, 0, len(a.Items))
	u := s.newAck(a.Tenant, a.Queue, a.Group, len(a.Items))
	for i := range a.Items {
		verdict := verdictSettled
		if a.Items[i].Verdict != mq.EphemeralCompleted {
			verdict = verdictBack
		}
		out[i] = mq.EphemeralUnknown
		if u.add(a.Items[i].ID, verdict) {
			index = append(index, i)
		}
	}
	letters, err := s.settle(u)
	if err != nil {
		return nil, err
	}
	acked := 0
	for n, i := range index {
		out[i] = outcomes[letters[n]]
		if out[i] == mq.EphemeralAcked {
			acked++
		}
	}
	s.metrics.EphemeralAcked(acked)
	return out, nil
}

// HandBack gives back what nobody has received, as if it had not been
// delivered. What was committed at delivery is gone.
func (s *Service) HandBack(_ context.Context, d *mq.EphemeralDelivery) {
	if d == nil || d.Pop.AutoCommit || len(d.Messages) == 0 {
		return
	}
	u := s.newAck(d.Pop.Tenant, d.Pop.Queue, d.Pop.Group, len(d.Messages))
	for i := range d.Messages {
		u.add(d.Messages[i].ID, verdictUndo)
	}
	if _, err := s.settle(u); err != nil {
		s.log.Warn("messages not given back, they come back when their lease ends", "queue", d.Pop.Queue, "error", err)
	}
}

// flushAcks settles what was gathered: one script for each queue, all in one
// trip.
func (s *Service) flushAcks(units []*ackUnit) {
	ctx := context.Background()
	s.gathered(ctx, queuesOf(units, func(u *ackUnit) string { return u.at.queue }), func(i []int) *call {
		first := units[i[0]]
		c := &call{script: ackScript, at: first.at, limits: s.declared.of(ctx, first.at.queue), args: []any{len(i)}}
		for _, n := range i {
			c.args = append(c.args, units[n].args...)
		}
		return c
	}, func(i []int, r reply, err error) {
		letters := ""
		if len(r.rest) > 0 {
			letters = text(r.rest[0])
		}
		for _, n := range i {
			u := units[n]
			end := min(u.n, len(letters))
			u.done <- acked{letters[:end], err}
			letters = letters[end:]
		}
	})
}
