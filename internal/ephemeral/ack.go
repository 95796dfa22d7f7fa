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

// Ack settles messages, or puts them back. The outcomes are in the order of the
// items.
func (s *Service) Ack(ctx context.Context, a *mq.EphemeralAck) ([]mq.EphemeralOutcome, error) {
	if err := s.admit(ctx, a.Tenant, 0); err != nil {
		return nil, err
	}
	out := make([]mq.EphemeralOutcome, len(a.Items))
	args, index := make([]any, 1, 1+4*len(a.Items)), make([]int, 0, len(a.Items))
	args[0] = groupName(a.Group)
	for i := range a.Items {
		inc, partition, token, ok := readID(a.Items[i].ID)
		if !ok {
			out[i] = mq.EphemeralUnknown
			continue
		}
		verdict := verdictSettled
		if a.Items[i].Verdict != mq.EphemeralCompleted {
			verdict = verdictBack
		}
		args, index = append(args, partition, inc, token, verdict), append(index, i)
	}
	if len(index) == 0 {
		return out, nil
	}
	letters, err := s.settle(ctx, a.Tenant, a.Queue, args)
	if err != nil {
		return nil, err
	}
	acked := 0
	for n, i := range index {
		if n < len(letters) {
			out[i] = outcomes[letters[n]]
		}
		if out[i] == mq.EphemeralAcked {
			acked++
		}
	}
	s.metrics.EphemeralAcked(acked)
	return out, nil
}

func groupName(group string) string {
	if group == "" {
		return mq.QueueMode
	}
	return group
}

func (s *Service) settle(ctx context.Context, tenant mq.UUID, queue string, args []any) (letters string, err error) {
	at := s.addressOf(tenant, queue)
	r, err := s.run(ctx, &call{script: ackScript, at: at, limits: s.declared.of(ctx, at.queue), args: args})
	if err != nil || len(r.rest) == 0 {
		return "", err
	}
	return text(r.rest[0]), nil
}

// HandBack gives back what nobody has received, as if it had not been
// delivered. What was committed at delivery is gone.
func (s *Service) HandBack(ctx context.Context, d *mq.EphemeralDelivery) {
	if d == nil || d.Pop.AutoCommit || len(d.Messages) == 0 {
		return
	}
	args := make([]any, 1, 1+4*len(d.Messages))
	args[0] = groupName(d.Pop.Group)
	for i := range d.Messages {
		if inc, partition, token, ok := readID(d.Messages[i].ID); ok {
			args = append(args, partition, inc, token, verdictUndo)
		}
	}
	if _, err := s.settle(context.WithoutCancel(ctx), d.Pop.Tenant, d.Pop.Queue, args); err != nil {
		s.log.Warn("messages not given back, they come back when their lease ends", "queue", d.Pop.Queue, "error", err)
	}
}
