package main

import (
	"context"
	"net/http"
	"time"
)

// consumer pops one queue for one group and acknowledges what it got.
type consumer struct {
	*bench
	group    int
	name     string
	path     string
	wait     time.Duration
	buf      []byte
	ackBuf   []byte
	ackBody  []byte
	messages []delivery
}

const (
	minIdle = time.Millisecond
	maxIdle = 50 * time.Millisecond
	// errorPause keeps a broker that is down from being hammered, and the log readable.
	errorPause = 200 * time.Millisecond
	ackTries   = 3
)

func (b *bench) newConsumer(group, queue int, wait time.Duration) *consumer {
	return &consumer{
		bench: b, group: group, name: b.groups[group], wait: wait,
		path: popPath(b.cfg, b.queues[queue], b.groups[group], wait),
	}
}

// loop runs until ctx ends. It is the end that cuts a parked long poll short.
func (c *consumer) loop(ctx context.Context) {
	idle := minIdle
	for ctx.Err() == nil {
		n, err := c.once(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return
		case err != nil:
			sleep(ctx, errorPause)
		case n > 0:
			idle = minIdle
		case c.wait == 0:
			sleep(ctx, idle)
			idle = min(2*idle, maxIdle)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// once pops one answer, checks it and acknowledges it.
func (c *consumer) once(ctx context.Context) (int, error) {
	reqCtx, cancel := context.WithTimeout(ctx, c.cfg.timeout+c.wait)
	defer cancel()
	began := time.Now()
	c.counts.popRequests.Add(1)
	var status int
	var err error
	c.buf, status, err = c.client.do(reqCtx, http.MethodGet, c.path, nil, c.buf)
	if err != nil {
		if ctx.Err() == nil {
			c.counts.popErrors.add(err)
		}
		return 0, err
	}
	if status == http.StatusNoContent {
		c.counts.popEmpty.Add(1)
		return 0, nil
	}
	c.messages, err = scanPop(c.buf, c.messages)
	if err != nil {
		c.counts.popErrors.add(err)
		return 0, err
	}
	if len(c.messages) == 0 {
		c.counts.popEmpty.Add(1)
		return 0, nil
	}
	now := time.Now()
	c.latency.pop.record(now.Sub(began))
	at := int64(now.Sub(c.start))
	c.verify.received(c.group, c.messages, func(d *delivery) {
		c.latency.endToEnd.record(time.Duration(at - d.stamp.at))
	})
	c.counts.lastDelivery.Store(at)
	return len(c.messages), c.acknowledge()
}

// acknowledge does not stop with the run: a delivered batch left unacknowledged would come back as a redelivery.
func (c *consumer) acknowledge() error {
	switch c.cfg.ack {
	case ackAuto:
		c.acked(len(c.messages))
		return nil
	case ackSingle:
		for i := range c.messages {
			c.ackBody = ackBody(c.ackBody, c.name, &c.messages[i])
			if err := c.sendAck("/api/v1/ack"); err != nil {
				return err
			}
		}
		return nil
	default:
		c.ackBody = ackBatchBody(c.ackBody, c.name, c.messages)
		return c.sendAck("/api/v1/ack/batch")
	}
}

func (c *consumer) acked(n int) {
	c.counts.acked.Add(int64(n))
	c.counts.lastAck.Store(int64(time.Since(c.start)))
}

func (c *consumer) sendAck(path string) error {
	for try := 1; ; try++ {
		began := time.Now()
		err := c.tryAck(path)
		if err == nil {
			c.latency.ack.record(time.Since(began))
			return nil
		}
		c.counts.ackErrors.add(err)
		c.ackBody = append([]byte(nil), c.ackBody...)
		if !retryable(err) || try == ackTries {
			return err
		}
		time.Sleep(errorPause)
	}
}

func (c *consumer) tryAck(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.timeout)
	defer cancel()
	c.counts.ackRequests.Add(1)
	var err error
	c.ackBuf, _, err = c.client.do(ctx, http.MethodPost, path, c.ackBody, c.ackBuf)
	if err != nil {
		return err
	}
	accepted, refused, reason, err := scanAck(c.ackBuf)
	if err != nil {
		return err
	}
	c.acked(accepted)
	if refused > 0 {
		// Not retried: the broker said no, and the lease's end brings the messages back.
		c.counts.ackRefused.Add(int64(refused))
		c.verify.problems.add("group %s: %d acks refused: %s", c.name, refused, reason)
	}
	return nil
}
