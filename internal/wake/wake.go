// Package wake carries hints between brokers: that something became claimable,
// or that what they remember of a queue is out of date.
//
// Hints are fire and forget, coalesced per tick, and sent after the commit they
// tell of. Losing every one of them costs latency only: parked pops look again
// by themselves, and whatever a broker remembers is checked by the store.
package wake

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Transport carries texts to every broker, the sender included.
type Transport interface {
	// Publish sends the texts in one trip.
	Publish(ctx context.Context, texts []string) error
	// Listen calls ready once it hears everything, then hear for every text,
	// until ctx ends or the connection is lost.
	Listen(ctx context.Context, ready func(), hear func(text string)) error
}

// Metrics counts hints.
type Metrics interface {
	HintsSent(n int)
	HintsReceived(n int)
}

// Config says what to do with what is heard.
type Config struct {
	Heard func(mq.Hint)
	// Missed is called when hints may have been lost.
	Missed  func()
	Metrics Metrics
	Logger  *slog.Logger
	// Tick is how long hints gather before they are sent.
	Tick time.Duration
}

// Bus sends and hears hints over one transport.
type Bus struct {
	transport Transport
	cfg       Config
	origin    string

	mu      sync.Mutex
	pending map[hintKey]*mq.Hint
	signal  chan struct{}
}

type hintKey struct{ queue, group int64 }

// maxPending bounds what gathers while the transport is away; hints beyond it
// are dropped.
const maxPending = 10_000

// New returns a bus. It sends and hears once Run is called.
func New(t Transport, cfg Config) *Bus {
	return &Bus{
		transport: t, cfg: cfg, origin: rand.Text()[:12],
		pending: map[hintKey]*mq.Hint{}, signal: make(chan struct{}, 1),
	}
}

// Send gathers a hint. It never blocks.
func (b *Bus) Send(h mq.Hint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := hintKey{h.Queue, h.Group}
	if old := b.pending[key]; old != nil {
		merge(old, &h)
		return
	}
	if len(b.pending) >= maxPending {
		return
	}
	h.Partitions = slices.Clone(h.Partitions)
	b.pending[key] = &h
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// maxPartitions is how many partitions one hint names; more means any.
const maxPartitions = 16

func merge(into, h *mq.Hint) {
	into.Reload = into.Reload || h.Reload
	if into.Partitions == nil || h.Partitions == nil {
		into.Partitions = nil
		return
	}
	for _, p := range h.Partitions {
		if !slices.Contains(into.Partitions, p) {
			into.Partitions = append(into.Partitions, p)
		}
	}
	if len(into.Partitions) > maxPartitions {
		into.Partitions = nil
	}
}

// Run sends and hears until ctx ends.
func (b *Bus) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { b.send(ctx) })
	wg.Go(func() { b.hear(ctx) })
	wg.Wait()
}

func (b *Bus) send(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.signal:
		}
		hints := b.take()
		texts := b.encode(hints)
		if len(texts) == 0 {
			continue
		}
		if err := b.publish(ctx, texts); err != nil && ctx.Err() == nil {
			if !failing { // once an outage
				b.cfg.Logger.Warn("hints not sent, other brokers look by themselves", "hints", len(texts), "error", err)
			}
			failing = true
			pause(ctx, retryPause)
			// Late is better than never, and what was said since joins them.
			for _, h := range hints {
				b.Send(*h)
			}
			continue
		}
		failing = false
		b.cfg.Metrics.HintsSent(len(texts))
		// The first hint after a quiet time leaves at once; those that come
		// while it travels and in the tick after it share the next trip.
		pause(ctx, b.cfg.Tick)
	}
}

func (b *Bus) publish(ctx context.Context, texts []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return b.transport.Publish(ctx, texts)
}

// retryPause is the rest after hints could not be sent.
const retryPause = 250 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// text is a hint on its way. Writers inside the database send the same, without
// an origin.
type text struct {
	Queue      int64    `json:"q"`
	Group      int64    `json:"g,omitempty"`
	Partitions []string `json:"p,omitempty"`
	Reload     bool     `json:"r,omitempty"`
	Origin     string   `json:"o,omitempty"`
}

// maxText keeps a hint below the limit of a notification.
const maxText = 7500

func (b *Bus) take() map[hintKey]*mq.Hint {
	b.mu.Lock()
	defer b.mu.Unlock()
	hints := b.pending
	b.pending = map[hintKey]*mq.Hint{}
	return hints
}

func (b *Bus) encode(hints map[hintKey]*mq.Hint) []string {
	texts := make([]string, 0, len(hints))
	for _, h := range hints {
		t := text{Queue: h.Queue, Group: h.Group, Partitions: h.Partitions, Reload: h.Reload, Origin: b.origin}
		raw, err := json.Marshal(t)
		if err == nil && len(raw) > maxText {
			t.Partitions = nil
			raw, err = json.Marshal(t)
		}
		if err == nil {
			texts = append(texts, string(raw))
		}
	}
	return texts
}

func (b *Bus) hear(ctx context.Context) {
	for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 2*time.Second) {
		err := b.transport.Listen(ctx, func() {
			wait = 100 * time.Millisecond
			// Whatever was said before we listened is lost on us.
			b.cfg.Missed()
		}, b.heard)
		if ctx.Err() != nil {
			return
		}
		b.cfg.Logger.Warn("hints of other brokers are not heard, trying again", "error", err)
		pause(ctx, wait)
	}
}

func (b *Bus) heard(raw string) {
	var t text
	if err := json.Unmarshal([]byte(raw), &t); err != nil || t.Origin == b.origin {
		return
	}
	b.cfg.Metrics.HintsReceived(1)
	b.cfg.Heard(mq.Hint{Queue: t.Queue, Group: t.Group, Partitions: t.Partitions, Reload: t.Reload})
}
