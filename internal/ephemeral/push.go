package ephemeral

import (
	"context"
	"fmt"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Push stores all messages of p, or none.
func (s *Service) Push(ctx context.Context, p *mq.EphemeralPush) error {
	if err := s.admit(ctx, p.Tenant, len(p.Payloads)); err != nil {
		return err
	}
	if len(p.Payloads) == 0 {
		return nil
	}
	bytes := 0
	args := make([]any, 0, 2+len(p.Payloads))
	args = append(args, p.Partition, salt())
	for _, payload := range p.Payloads {
		bytes += len(payload)
		args = append(args, payload)
	}
	at := s.addressOf(p.Tenant, p.Queue)
	if err := s.reserve(ctx, at.tenant, p.Tenant, int64(bytes)); err != nil {
		return err
	}
	// The payloads are slices of the request: the call must not outlive us, so
	// it does not end with ctx. The client's own timeouts bound it.
	ctx = context.WithoutCancel(ctx)
	r, err := s.run(ctx, &call{script: pushScript, at: at, limits: s.declared.of(ctx, at.queue), args: args})
	switch {
	case err != nil:
		return err
	case r.word == wordFull:
		return &mq.Error{
			Kind: mq.KindOverloaded, Code: mq.CodeEphemeralFull,
			Message: fmt.Sprintf("queue %q is full, nothing was stored", p.Queue),
		}
	}
	s.usage.charge(at.tenant, int64(bytes))
	s.metrics.EphemeralPushed(len(p.Payloads))
	return nil
}
