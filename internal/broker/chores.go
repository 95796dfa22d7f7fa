package broker

import (
	"sync"
	"time"
)

// chores are small things to do a moment later, beside all requests. What is
// still to come when the broker drains is dropped: each only speeds up what
// happens by itself in the end.
type chores struct {
	mu     sync.Mutex
	timers map[*time.Timer]struct{}
	busy   sync.WaitGroup
	closed bool
}

func newChores() *chores { return &chores{timers: map[*time.Timer]struct{}{}} }

func (c *chores) after(d time.Duration, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		c.mu.Lock()
		_, due := c.timers[t]
		delete(c.timers, t)
		if due {
			c.busy.Add(1)
		}
		c.mu.Unlock()
		if due {
			defer c.busy.Done()
			do()
		}
	})
	c.timers[t] = struct{}{}
}

// close drops what is to come and waits for what is under way.
func (c *chores) close() {
	c.mu.Lock()
	c.closed = true
	for t := range c.timers {
		t.Stop()
	}
	clear(c.timers)
	c.mu.Unlock()
	c.busy.Wait()
}
