package broker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// cacheSize bounds each of the cache's maps; a full one starts over, which
// costs look-ups and nothing else.
const cacheSize = 50_000

type queueName struct {
	tenant mq.UUID
	name   string
}

type groupName struct {
	queue int64
	name  string
}

// cache remembers queues and groups. An entry is dropped when a hint, a refused
// write or its age says so.
type cache struct {
	ttl    time.Duration
	mu     sync.Mutex
	names  map[queueName]*cachedQueue
	ids    map[int64]*cachedQueue
	groups map[groupName]cachedGroup
}

type cachedQueue struct {
	*mq.QueueInfo
	at time.Time
}

type cachedGroup struct {
	mq.GroupInfo
	at time.Time
}

func newCache(ttl time.Duration) *cache {
	return &cache{
		ttl: ttl, names: map[queueName]*cachedQueue{}, ids: map[int64]*cachedQueue{},
		groups: map[groupName]cachedGroup{},
	}
}

func (c *cache) queue(tenant mq.UUID, name string) *mq.QueueInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh(c.names[queueName{tenant, name}])
}

func (c *cache) queueByID(id int64) *mq.QueueInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh(c.ids[id])
}

// nameOf is the name of a queue seen lately, whatever happened to it.
func (c *cache) nameOf(id int64) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.ids[id]; q != nil {
		return q.Name, true
	}
	return "", false
}

func (c *cache) fresh(q *cachedQueue) *mq.QueueInfo {
	if q == nil || time.Since(q.at) > c.ttl {
		return nil
	}
	return q.QueueInfo
}

func (c *cache) putQueue(q *mq.QueueInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ids) >= cacheSize {
		clear(c.names)
		clear(c.ids)
	}
	e := &cachedQueue{q, time.Now()}
	c.names[queueName{q.Tenant, q.Name}] = e
	c.ids[q.ID] = e
}

func (c *cache) dropQueue(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.ids[id]; q != nil {
		q.at = time.Time{} // out of date, but its name is good for a label
	}
	for k := range c.groups {
		if k.queue == id {
			delete(c.groups, k)
		}
	}
}

func (c *cache) group(queue int64, name string) (mq.GroupInfo, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, ok := c.groups[groupName{queue, name}]
	return g.GroupInfo, ok && time.Since(g.at) <= c.ttl
}

func (c *cache) putGroup(queue int64, name string, g mq.GroupInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.groups) >= cacheSize {
		clear(c.groups)
	}
	c.groups[groupName{queue, name}] = cachedGroup{g, time.Now()}
}

func (c *cache) dropGroup(queue int64, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.groups, groupName{queue, name})
}

// findQueue returns a queue, or a NotFound error.
func (b *Broker) findQueue(ctx context.Context, tenant mq.UUID, name string) (*mq.QueueInfo, error) {
	if q := b.cache.queue(tenant, name); q != nil {
		return q, nil
	}
	q, err := b.store.FindQueue(ctx, tenant, name)
	if mq.KindOf(err) == mq.KindNotFound {
		return nil, mq.NotFound("Queue not found")
	}
	if err != nil {
		return nil, err
	}
	b.cache.putQueue(q)
	return q, nil
}

// ensureQueue returns a queue, made with implicit options if it is new.
func (b *Broker) ensureQueue(ctx context.Context, tenant mq.UUID, name string) (*mq.QueueInfo, error) {
	if q := b.cache.queue(tenant, name); q != nil {
		return q, nil
	}
	return together(ctx, &b.lookups, "queue "+tenant.String()+" "+name, func(ctx context.Context) (*mq.QueueInfo, error) {
		q, err := b.findQueue(ctx, tenant, name)
		if mq.KindOf(err) != mq.KindNotFound {
			return q, err
		}
		if q, err = b.store.EnsureQueue(ctx, tenant, name); err != nil {
			return nil, err
		}
		b.cache.putQueue(q)
		return q, nil
	})
}

// together runs a look-up once for all that want the same at that moment: when
// thousands of consumers arrive at once, or the memory of a queue they all use
// is too old, one of them asks. It does not end with the caller who was first.
// What comes back may be a moment older than the call, as whatever is
// remembered; so this is not for look-ups that may find nothing.
func together[T any](ctx context.Context, g *singleflight.Group, key string, look func(context.Context) (T, error)) (T, error) {
	answer := g.DoChan(key, func() (any, error) { return look(context.WithoutCancel(ctx)) })
	var none T
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case r := <-answer:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(T), nil
	}
}

// ownQueue returns the queue of a number when it belongs to the tenant, else
// nil. A number is never used twice, so who owns it never changes.
func (b *Broker) ownQueue(ctx context.Context, tenant mq.UUID, id int64) (*mq.QueueInfo, error) {
	q := b.cache.queueByID(id)
	if q == nil {
		var err error
		q, err = b.store.FindQueueByID(ctx, id)
		if mq.KindOf(err) == mq.KindNotFound {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		b.cache.putQueue(q)
	}
	if q.Tenant != tenant {
		return nil, nil
	}
	return q, nil
}

// findGroup returns a group of a queue, or a NotFound error.
func (b *Broker) findGroup(ctx context.Context, queue int64, name string) (mq.GroupInfo, error) {
	if g, ok := b.cache.group(queue, name); ok {
		return g, nil
	}
	g, err := b.store.FindGroup(ctx, queue, name)
	if err == nil && g.Seeded {
		b.cache.putGroup(queue, name, g)
	}
	return g, err
}

// ensureGroup returns a group of a queue, registered and seeded.
func (b *Broker) ensureGroup(ctx context.Context, queue int64, name string, start mq.Start, conflation bool) (mq.GroupInfo, error) {
	if g, ok := b.cache.group(queue, name); ok {
		return g, nil
	}
	if name == mq.QueueMode {
		start, conflation = mq.Start{Mode: mq.StartAll}, false
	}
	key := fmt.Sprint("group ", queue, start.Mode, start.Time.UnixMicro(), conflation, name)
	return together(ctx, &b.lookups, key, func(ctx context.Context) (mq.GroupInfo, error) {
		g, err := b.store.EnsureGroup(ctx, queue, name, start, conflation)
		if err == nil {
			b.cache.putGroup(queue, name, g)
		}
		return g, err
	})
}
