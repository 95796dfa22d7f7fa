package broker

import (
	"context"
	"errors"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/park"
)

// popKey is what pops wait for: the work of a group on a queue, or on one of
// its partitions.
type popKey struct {
	queue     int64
	group     int64
	pinned    bool
	partition string
}

// popRequest is one pop in the line of its key.
type popRequest struct {
	claim      mq.ClaimRequest
	group      string
	queueName  string
	conflation bool // the group's policy
}

// minPopBytes is what a pop may take however many share its transaction.
const minPopBytes = 512 << 10

// errGone says that the queue, the group or the cursors of a line do not exist
// any more.
var errGone = errors.New("queue or group is gone")

// Pop hands out messages, waiting for some up to p.Wait.
func (b *Broker) Pop(ctx context.Context, p mq.Pop) (*mq.Delivery, error) {
	if p.Discovery {
		return b.discover(ctx, p)
	}
	q, err := b.ensureQueue(ctx, p.Tenant, p.Queue)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(p.Wait)
	for {
		d, err := b.popQueue(ctx, &p, q, time.Until(deadline))
		if !errors.Is(err, errGone) {
			return d, err
		}
		// The queue or the group was deleted while we knew it. A queue that is
		// gone is not made again by somebody who merely waits on it.
		b.cache.dropQueue(q.ID)
		if q, err = b.reappear(ctx, &p, deadline); q == nil || err != nil {
			return b.nothing(&p, mq.GroupInfo{Conflation: p.Conflation}), err
		}
	}
}

// reappear waits for a deleted queue to exist again, until the deadline.
func (b *Broker) reappear(ctx context.Context, p *mq.Pop, deadline time.Time) (*mq.QueueInfo, error) {
	for {
		q, err := b.findQueue(ctx, p.Tenant, p.Queue)
		if err == nil || mq.KindOf(err) != mq.KindNotFound {
			return q, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, nil
		}
		bell, done := b.bells.listen()
		select {
		case <-ctx.Done():
			done()
			return nil, ctx.Err()
		case _, ok := <-bell:
			if !ok {
				return nil, nil
			}
		case <-time.After(min(left, b.cfg.RecheckMax)):
		}
		done()
	}
}

func (b *Broker) popQueue(ctx context.Context, p *mq.Pop, q *mq.QueueInfo, wait time.Duration) (*mq.Delivery, error) {
	g, err := b.ensureGroup(ctx, q.ID, p.Group, p.Start, p.Conflation)
	if err != nil {
		if mq.KindOf(err) == mq.KindNotFound {
			return nil, errGone
		}
		return nil, err
	}
	if g.Conflation && p.AutoCommit {
		return nil, mq.Invalid("commitOnDelivery", "this consumer group is conflating: its messages need a lease")
	}
	key := popKey{queue: q.ID, group: g.ID}
	if p.Pinned {
		key.pinned, key.partition = true, p.Partition
	}
	req := popRequest{claim: claimRequest(p, q.ID, b.cfg.PopBytes), group: p.Group, queueName: q.Name, conflation: g.Conflation}
	d, found, err := b.lot.Take(ctx, key, req, wait)
	if err != nil {
		return nil, err
	}
	if !found {
		return b.nothing(p, g), nil
	}
	d.Conflation, d.ConflationConflict = policy(p, g)
	return d, nil
}

func (b *Broker) nothing(p *mq.Pop, g mq.GroupInfo) *mq.Delivery {
	d := &mq.Delivery{Group: p.Group}
	d.Conflation, d.ConflationConflict = policy(p, g)
	return d
}

// policy says what a pop learns of the group's stored conflation policy.
func policy(p *mq.Pop, g mq.GroupInfo) (applied, conflict bool) {
	return g.Conflation, p.ConflationSet && p.Conflation != g.Conflation
}

func claimRequest(p *mq.Pop, queue int64, bytes int64) mq.ClaimRequest {
	return mq.ClaimRequest{
		LeaseID: mq.ScopedID(queue), Partition: p.Partition, Pinned: p.Pinned, AutoCommit: p.AutoCommit,
		Messages: p.Batch, Partitions: p.Partitions, Bytes: bytes, LeaseSeconds: int32(p.Lease / time.Second),
	}
}

// maxLooks is how often a pop that got nothing, although there is something,
// looks again at once.
const maxLooks = 3

// probe asks the store for the first pops of a line, in one transaction.
func (b *Broker) probe(key popKey, reqs []popRequest) park.Result[*mq.Delivery] {
	ctx := context.Background()
	claims := make([]mq.ClaimRequest, len(reqs))
	for i := range reqs {
		claims[i] = reqs[i].claim
		// What one transaction reads is in memory at once.
		claims[i].Bytes = max(reqs[i].claim.Bytes/int64(len(reqs)), minPopBytes)
	}
	start := time.Now()
	got, next, err := b.claim(ctx, key, reqs[0].conflation, claims)
	b.metrics.Claimed(time.Since(start))
	b.metrics.GatherFired("pop", len(reqs), time.Since(start))
	if err != nil {
		b.takeBackLater(key.queue, claims, err)
		return park.Result[*mq.Delivery]{Err: err, Retry: isOutage(err), Next: -1}
	}
	if !next.GroupExists || !next.Seeded && len(empties(got)) == len(reqs) {
		// Deleted, or deleted but for its registration: its cursors are to be
		// made again before anybody waits.
		b.floors.drop(mq.QueueGroup{Queue: key.queue, Group: key.group})
		return park.Result[*mq.Delivery]{Err: errGone, Next: -1}
	}
	res := park.Result[*mq.Delivery]{
		Answers: make([]*mq.Delivery, len(reqs)), Found: make([]bool, len(reqs)), Next: next.In,
	}
	for i := range reqs {
		// Each claim sees what is committed when it runs, so a later one may
		// get something although an earlier one did not.
		if len(got[i]) > 0 {
			res.Answers[i], res.Found[i] = b.delivery(&reqs[i], got[i]), true
		}
	}
	return res
}

// claim runs the claims of a line and, when one of them got nothing, tells when
// there is work next. What was claimed counts: an error after that is none.
func (b *Broker) claim(ctx context.Context, key popKey, conflation bool, claims []mq.ClaimRequest) ([][]mq.Claim, mq.NextReady, error) {
	g, at := mq.GroupInfo{ID: key.group, Conflation: conflation}, mq.QueueGroup{Queue: key.queue, Group: key.group}
	next := mq.NextReady{GroupExists: true, Seeded: true, In: -1}
	var floor time.Time
	if !key.pinned {
		if b.floors.tired(at) {
			// For where to begin. An error there is one here too.
			_, _ = b.ready(ctx, []popKey{key})
		}
		floor = b.floors.guess(at)
	}
	start := time.Now()
	got, err := b.store.Claim(ctx, key.queue, g, floor, claims)
	if err != nil {
		return nil, next, err
	}
	if !key.pinned {
		b.floors.claimed(at, floor, got.Oldest, time.Since(start))
	}
	out := got.Claims
	for look := range maxLooks + 1 {
		below := empties(out)
		if len(below) == 0 {
			break
		}
		ready, err := b.ready(ctx, []popKey{key})
		if err != nil {
			if len(below) < len(claims) {
				break // what was claimed is delivered, the rest looks again
			}
			return nil, next, err
		}
		// Something there is below the guess, or has come since, or a claim came
		// upon a cursor that was ready for nothing and has put it right: what
		// stands behind that one is ready still.
		if next = ready[0]; next.In != 0 || look == maxLooks {
			break
		}
		if err := b.claimBelow(ctx, key, g, claims, below, out); err != nil {
			return nil, next, err
		}
	}
	return out, next, nil
}

// claimBelow repeats the claims that got nothing, from where something may be.
func (b *Broker) claimBelow(ctx context.Context, key popKey, g mq.GroupInfo, claims []mq.ClaimRequest, below []int, out [][]mq.Claim) error {
	again := make([]mq.ClaimRequest, len(below))
	for i, at := range below {
		again[i] = claims[at]
	}
	var floor time.Time
	if !key.pinned {
		floor = b.floors.proven(mq.QueueGroup{Queue: key.queue, Group: key.group})
	}
	more, err := b.store.Claim(ctx, key.queue, g, floor, again)
	if err != nil {
		if len(below) < len(claims) {
			b.takeBackLater(key.queue, again, err)
			return nil // what was claimed is delivered, the rest asks again
		}
		return err
	}
	for i, at := range below {
		out[at] = more.Claims[i]
	}
	return nil
}

// ready asks when lines have work next.
func (b *Broker) ready(ctx context.Context, keys []popKey) ([]mq.NextReady, error) {
	asked := make([]mq.ReadyQuery, len(keys))
	horizon := b.lot.Pace() // by then it is asked again
	for i, k := range keys {
		asked[i] = mq.ReadyQuery{
			QueueGroup: mq.QueueGroup{Queue: k.queue, Group: k.group}, Horizon: horizon, Pinned: k.pinned, Partition: k.partition,
		}
		if !k.pinned {
			asked[i].Floor = b.floors.proven(asked[i].QueueGroup)
		}
	}
	start := time.Now()
	ready, err := b.store.ReadyGroups(ctx, asked)
	if err != nil {
		return nil, err
	}
	for i := range asked {
		if !asked[i].Pinned && ready[i].GroupExists {
			b.floors.looked(asked[i].QueueGroup, asked[i].Floor, &ready[i], start, time.Since(start)/time.Duration(len(asked)))
		}
	}
	return ready, nil
}

// look tells for many lines whether a claim is worth its transaction.
func (b *Broker) look(keys []popKey) ([]park.Glance, error) {
	ready, err := b.ready(context.Background(), keys)
	if err != nil {
		return nil, err
	}
	out := make([]park.Glance, len(keys))
	for i, r := range ready {
		// A group that is gone, or whose cursors are, is the claim's to find out.
		out[i] = park.Glance{Due: r.In == 0 || !r.GroupExists || !r.Seeded, Next: r.In}
	}
	return out, nil
}

// empties returns which claims got nothing.
func empties(claims [][]mq.Claim) []int {
	var out []int
	for i, c := range claims {
		if len(c) == 0 {
			out = append(out, i)
		}
	}
	return out
}

// takeBackLater gives leases back that may have been granted in a transaction
// whose outcome nobody heard. What fails here runs out by itself.
func (b *Broker) takeBackLater(queue int64, claims []mq.ClaimRequest, cause error) {
	if k := mq.KindOf(cause); k != mq.KindUnknown && k != mq.KindTimeout {
		return
	}
	leases := make([]mq.UUID, 0, len(claims))
	for i := range claims {
		if !claims[i].AutoCommit {
			leases = append(leases, claims[i].LeaseID)
		}
	}
	b.chores.after(time.Second, func() {
		for _, lease := range leases {
			if err := b.store.ReleaseLeases(context.Background(), []int64{queue}, lease); err != nil {
				return
			}
		}
		b.announce(mq.Hint{Queue: queue})
	})
}

func (b *Broker) delivery(r *popRequest, claims []mq.Claim) *mq.Delivery {
	d := &mq.Delivery{LeaseID: r.claim.LeaseID, Group: r.group, Claims: claims}
	if r.claim.AutoCommit {
		d.LeaseID = mq.UUID{}
	}
	again := 0
	for i := range claims {
		claims[i].Queue = r.queueName
		if claims[i].Attempt > 1 {
			again += claims[i].Messages()
		}
	}
	if again > 0 {
		b.metrics.Redelivered(again)
	}
	return d
}

// Release gives back the leases of a delivery that reached nobody, and wakes
// those who wait for its messages.
func (b *Broker) Release(ctx context.Context, d *mq.Delivery) {
	if d.LeaseID.IsZero() || len(d.Claims) == 0 {
		return
	}
	queues := deliveredQueues(d)
	if err := b.store.ReleaseLeases(ctx, queues, d.LeaseID); err != nil {
		b.log.Warn("lease not given back, it will run out", "lease", d.LeaseID.String(), "error", err)
		return
	}
	for _, q := range queues {
		b.announce(mq.Hint{Queue: q})
	}
}

func deliveredQueues(d *mq.Delivery) []int64 {
	var out []int64
	for i := range d.Claims {
		if id := d.Claims[i].ID.Queue; len(out) == 0 || out[len(out)-1] != id {
			out = append(out, id)
		}
	}
	return out
}

// ExtendLease moves the live leases of an id to the later of their end and now
// plus d. Unknown, expired and foreign ids renew nothing.
func (b *Broker) ExtendLease(ctx context.Context, tenant mq.UUID, leaseID string, d time.Duration) (mq.Extension, error) {
	id, ok := mq.ParseUUID(leaseID)
	if !ok {
		return mq.Extension{}, nil
	}
	var queues []int64
	if scope := mq.ScopeOf(id); scope != 0 {
		q, err := b.ownQueue(ctx, tenant, scope)
		if q == nil || err != nil {
			return mq.Extension{}, err
		}
		queues = []int64{q.ID}
	} else {
		// A discovery lease spans the queues of a tenant.
		all, err := b.store.ListQueues(ctx, tenant, mq.QueueFilter{})
		if err != nil {
			return mq.Extension{}, err
		}
		for _, q := range all {
			queues = append(queues, q.ID)
		}
	}
	if len(queues) == 0 {
		return mq.Extension{}, nil
	}
	return b.store.ExtendLeases(ctx, queues, id, int32(min(d/time.Second, 1<<31-1)))
}
