package broker

import (
	"slices"
	"sync"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// maxHintPartitions is how many partitions a hint names; beyond that it means
// any.
const maxHintPartitions = 16

// announce wakes whoever waits here, and tells the other brokers.
func (b *Broker) announce(h mq.Hint) {
	b.Hinted(h)
	if len(h.Partitions) > maxHintPartitions {
		h.Partitions = nil
	}
	b.waker.Send(h)
}

// Hinted acts on a hint, ours or another broker's.
func (b *Broker) Hinted(h mq.Hint) {
	if h.Reload {
		b.cache.dropQueue(h.Queue)
	}
	b.lot.Wake(h.Queue, func(k popKey) bool {
		return (h.Group == 0 || k.group == h.Group) &&
			(!k.pinned || h.Partitions == nil || slices.Contains(h.Partitions, k.partition))
	})
	b.bells.ring(h.Queue)
}

// HintsLost wakes everybody: the connection that carries hints was down.
func (b *Broker) HintsLost() {
	for queue := range b.lot.Waiting() {
		b.lot.Wake(queue, nil)
	}
	b.bells.ringAll()
}

// bells wake those who wait outside a line: discovery pops, which look at many
// queues, and reads by offset.
type bells struct {
	mu     sync.Mutex
	closed bool
	one    map[int64]map[chan struct{}]struct{} // by queue
	all    map[chan struct{}]struct{}
}

func newBells() *bells {
	return &bells{one: map[int64]map[chan struct{}]struct{}{}, all: map[chan struct{}]struct{}{}}
}

// listen returns a channel that receives after something happened on one of
// the queues (none named: on any), and a function that ends it. The channel is
// closed when the broker drains.
func (l *bells) listen(queues ...int64) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		close(ch)
		return ch, func() {}
	}
	if len(queues) == 0 {
		l.all[ch] = struct{}{}
	}
	for _, q := range queues {
		if l.one[q] == nil {
			l.one[q] = map[chan struct{}]struct{}{}
		}
		l.one[q][ch] = struct{}{}
	}
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.all, ch)
		for _, q := range queues {
			delete(l.one[q], ch)
			if len(l.one[q]) == 0 {
				delete(l.one, q)
			}
		}
	}
}

func (l *bells) ring(queue int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	for ch := range l.one[queue] {
		ringOne(ch)
	}
	for ch := range l.all {
		ringOne(ch)
	}
}

func (l *bells) ringAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	for _, chs := range l.one {
		for ch := range chs {
			ringOne(ch)
		}
	}
	for ch := range l.all {
		ringOne(ch)
	}
}

func ringOne(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // rung already
	}
}

// close wakes everybody for good.
func (l *bells) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	done := map[chan struct{}]struct{}{}
	for _, chs := range l.one {
		for ch := range chs {
			done[ch] = struct{}{}
		}
	}
	for ch := range l.all {
		done[ch] = struct{}{}
	}
	for ch := range done {
		close(ch)
	}
}
