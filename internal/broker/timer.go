package broker

import (
	"context"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// TimerStore keeps timers.
type TimerStore interface {
	WriteTimers(ctx context.Context, c *mq.TimerCall) error
	ReadTimer(ctx context.Context, id mq.TimerID) (*mq.Timer, error)
	ListTimers(ctx context.Context, l mq.TimerList) (page []mq.Timer, more bool, err error)
	CountTimers(ctx context.Context, tenant mq.UUID, queue, prefix string) (int64, error)
	timerMagazine
}

// WriteTimers carries the operations of a call out together and writes their
// results into it.
func (b *Broker) WriteTimers(ctx context.Context, c *mq.TimerCall) error {
	if err := b.AdmitTimers(ctx, c); err != nil || len(c.Ops) == 0 {
		return err
	}
	if c.Schedules() {
		if err := b.SpendKVWrite(c.Tenant); err != nil {
			return err
		}
	}
	if err := b.store.WriteTimers(ctx, c); err != nil {
		return err
	}
	b.TimersWritten(c)
	return nil
}

// AdmitTimers refuses a call that may not be carried out now. A call that only
// cancels always may.
func (b *Broker) AdmitTimers(ctx context.Context, c *mq.TimerCall) error {
	if !c.Schedules() {
		return nil
	}
	sw, err := b.Switches(ctx)
	if err != nil {
		return err
	}
	if !sw.TimerSchedule {
		return &mq.TimerRefusal{
			Code: mq.CodeTimersDisabled, Reason: mq.CodeTimersDisabled, Detail: "scheduling is paused by the operator",
		}
	}
	for i := range c.Ops {
		op := &c.Ops[i]
		if op.Cancel || !op.Encrypted {
			continue
		}
		q, err := b.findQueue(ctx, c.Tenant, op.Queue)
		switch {
		case mq.KindOf(err) == mq.KindNotFound && err != nil:
		case err != nil:
			return err
		case q.Options.EncryptionEnabled:
			return mq.BadTimer(i, mq.ReasonTimersEncrypted, "the queue encrypts what it stores: an encrypted payload is refused")
		}
	}
	return nil
}

// TimersWritten tells the firing loop of what has committed.
func (b *Broker) TimersWritten(c *mq.TimerCall) {
	for i := range c.Ops {
		if !c.Ops[i].Cancel {
			b.timers.expect(c.Ops[i].Delay)
		}
	}
}

// Timer reads a pending timer, nil when there is none.
func (b *Broker) Timer(ctx context.Context, id mq.TimerID) (*mq.Timer, error) {
	return b.store.ReadTimer(ctx, id)
}

// Timers lists the pending timers of a queue, and says whether there are more.
func (b *Broker) Timers(ctx context.Context, l mq.TimerList) ([]mq.Timer, bool, error) {
	return b.store.ListTimers(ctx, l)
}

// CountTimers counts the timers of a queue whose keys begin with a prefix.
func (b *Broker) CountTimers(ctx context.Context, tenant mq.UUID, queue, prefix string) (int64, error) {
	return b.store.CountTimers(ctx, tenant, queue, prefix)
}
