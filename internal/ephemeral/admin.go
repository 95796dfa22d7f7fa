package ephemeral

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// buriedFor is how long Redis remembers a deletion against brokers that have
// not heard of it.
const buriedFor = 10 * time.Minute

// Configure declares a queue, in place of what was declared before. What is
// stored counts; Redis, when it is away, learns of it with the next call.
func (s *Service) Configure(ctx context.Context, tenant mq.UUID, queue string, o mq.EphemeralOptions) error {
	grant, err := s.admit(ctx, tenant, 0)
	if err != nil {
		return err
	}
	at := s.addressOf(tenant, queue)
	if err := s.mayMake(ctx, at, grant); mq.KindOf(err) == mq.KindForbidden {
		return err
	}
	version, err := s.store.PutEphemeral(ctx, tenant, queue, o)
	if err != nil {
		return declarationFault(err, mq.CodeEphemeralConfigure)
	}
	s.declared.remember(at.queue, version, &o)
	if _, err := s.run(ctx, &call{script: configureScript, at: at, limits: s.declared.of(ctx, at.queue)}); err != nil {
		s.log.Warn("declaration is stored and not in force yet", "queue", queue, "error", err)
	}
	s.tell(ctx, at.queue)
	return nil
}

// declarationFault says in the words of these routes that the database failed.
func declarationFault(err error, code string) error {
	switch mq.KindOf(err) {
	case mq.KindUnavailable, mq.KindBusy, mq.KindTimeout, mq.KindUnknown:
		return &mq.Error{
			Kind: mq.KindUnavailable, Code: mq.CodeEphemeralUnavailable, RetryAfter: time.Second,
			Message: "declarations are not reachable", Err: err,
		}
	default:
		return &mq.Error{Kind: mq.KindInternal, Code: code, Message: "the declaration could not be changed", Err: err}
	}
}

// Reset drops all messages of a queue and returns how many there were.
func (s *Service) Reset(ctx context.Context, tenant mq.UUID, queue string) (dropped int64, err error) {
	if _, err := s.admit(ctx, tenant, 0); err != nil {
		return 0, err
	}
	at := s.addressOf(tenant, queue)
	r, err := s.run(ctx, &call{script: resetScript, at: at, limits: s.declared.of(ctx, at.queue)})
	if err != nil || len(r.rest) == 0 {
		return 0, err
	}
	return number(r.rest[0]), nil
}

// Delete removes a queue, its groups and its declaration.
func (s *Service) Delete(ctx context.Context, tenant mq.UUID, queue string) (deleted, declared bool, err error) {
	if _, err := s.admit(ctx, tenant, 0); err != nil {
		return false, false, err
	}
	at := s.addressOf(tenant, queue)
	version, declared, err := s.store.DeleteEphemeral(ctx, tenant, queue)
	if err != nil {
		return false, false, declarationFault(err, mq.CodeEphemeralDelete)
	}
	s.declared.forget(at.queue)
	r, err := s.run(ctx, &call{
		script: deleteScript, at: at, limits: s.declared.of(ctx, at.queue), args: []any{version, buriedFor.Milliseconds()},
	})
	if err != nil {
		return false, false, err
	}
	s.tell(ctx, at.queue)
	return declared || r.word != wordNone, declared, nil
}

// Queues lists the queues of a tenant: those Redis holds, and those that are
// declared and were not used since Redis lost its contents.
func (s *Service) Queues(ctx context.Context, tenant mq.UUID) (list []mq.EphemeralQueue, cellBytes int64, err error) {
	if _, err := s.admit(ctx, tenant, 0); err != nil {
		return nil, 0, err
	}
	prefix := tenantKey(tenant) + "/"
	held, err := s.registered(ctx, prefix)
	if err != nil {
		return nil, 0, err
	}
	if err := s.readUsage(ctx); err != nil {
		return nil, 0, err
	}
	known := s.declared.all()
	for _, q := range held {
		if d, ok := known[q.id]; ok {
			if q.Declared = true; d.version >= q.version {
				q.Limits = d.limits
			}
			delete(known, q.id)
		}
		list = append(list, q.EphemeralQueue)
	}
	for id, d := range known {
		if name, ok := strings.CutPrefix(id, prefix); ok {
			if _, name, ok = names(prefix + name); ok {
				list = append(list, mq.EphemeralQueue{Queue: name, Declared: true, Limits: d.limits})
			}
		}
	}
	slices.SortFunc(list, func(a, b mq.EphemeralQueue) int { return strings.Compare(a.Queue, b.Queue) })
	total, _ := s.usage.sums()
	return list, total, nil
}

// entry is a queue as the registry knows it.
type entry struct {
	mq.EphemeralQueue
	id      string
	base    string
	version int64
}

// registered reads what Redis holds of queues whose id begins with a prefix.
func (s *Service) registered(ctx context.Context, prefix string) ([]entry, error) {
	cmds, err := s.everywhere(ctx, queuesScript, func(base string) ([]string, []any) {
		return []string{address{base: base}.registry(), base + "x"}, []any{prefix}
	})
	if err != nil {
		return nil, err
	}
	var out []entry
	for i, cmd := range cmds {
		rows, _ := cmd.Val().([]any)
		for _, row := range rows {
			if e, ok := readEntry(row); ok {
				e.base = s.bucket(i)
				out = append(out, e)
			}
		}
	}
	return out, nil
}

func readEntry(row any) (e entry, ok bool) {
	v, isList := row.([]any)
	if !isList || len(v) < 17 {
		return e, false
	}
	n := make([]int64, 14)
	for i := range n {
		n[i] = number(v[i])
	}
	e.id, e.version = text(v[14]), n[0]
	_, e.Queue, ok = names(e.id)
	e.Declared, e.Depth, e.Bytes = n[0] > 0, n[1], n[2]
	e.Drops = mq.EphemeralDrops{Bounds: n[3], TTL: n[4], Retry: n[5]}
	e.Partitions, e.Groups = number(v[15]), number(v[16])
	e.Limits = mq.EphemeralLimits{
		MaxBytes: n[6], MaxLength: n[7], Policy: mq.EphemeralReject, TTLSeconds: n[9], LeaseSeconds: n[10],
		RetryLimit: n[11], WindowMS: n[12], WindowCount: n[13],
	}
	if n[8] == 1 {
		e.Limits.Policy = mq.EphemeralDropOldest
	}
	return e, ok
}

// retract makes those queues implicit that Redis takes for declared although
// the declaration is gone: deleted while a broker did not hear of it.
func (s *Service) retract(ctx context.Context) error {
	held, err := s.registered(ctx, "")
	if err != nil {
		return err
	}
	known := s.declared.all()
	newest := int64(0)
	for _, d := range known {
		newest = max(newest, d.version)
	}
	for i := range held {
		q := &held[i]
		if _, ok := known[q.id]; ok || q.version == 0 || q.version > newest {
			continue // a later one may have been made since we read
		}
		at := addressIn(q.base, q.id)
		limits := declaration{limits: s.cfg.inForce(&mq.EphemeralOptions{})}
		if _, err := s.run(ctx, &call{script: configureScript, at: at, limits: limits, args: []any{q.version}}); err != nil {
			return err
		}
	}
	return nil
}

// Depth tells what a queue holds and what its groups are owed.
func (s *Service) Depth(ctx context.Context, tenant mq.UUID, queue, group string) (*mq.EphemeralDepth, error) {
	if _, err := s.admit(ctx, tenant, 0); err != nil {
		return nil, err
	}
	at := s.addressOf(tenant, queue)
	d := s.declared.of(ctx, at.queue)
	r, err := s.run(ctx, &call{script: depthScript, at: at, limits: d, args: []any{group}})
	switch {
	case err != nil:
		return nil, err
	case r.word == wordNone && d.version > 0:
		return &mq.EphemeralDepth{Declared: true}, nil
	case r.word == wordNone:
		return nil, &mq.Error{Kind: mq.KindNotFound, Code: mq.CodeEphemeralNotFound, Message: "no such ephemeral queue"}
	case len(r.rest) < 5:
		return nil, fault(errAnswer)
	}
	out := &mq.EphemeralDepth{Declared: number(r.rest[0]) > 0, Pending: number(r.rest[1]), Bytes: number(r.rest[2])}
	parts, _ := r.rest[3].([]any)
	for ; len(parts) >= 3; parts = parts[3:] {
		out.Partitions = append(out.Partitions, mq.EphemeralPartitionDepth{
			Partition: text(parts[0]), Pending: number(parts[1]), Bytes: number(parts[2]),
		})
	}
	owed, _ := r.rest[4].([]any)
	for ; len(owed) >= 3; owed = owed[3:] {
		out.Groups = append(out.Groups, mq.EphemeralGroupDepth{
			Group: text(owed[0]), Pending: number(owed[1]), Skipped: number(owed[2]),
		})
	}
	out.PartitionsPending = int64(len(out.Partitions))
	slices.SortFunc(out.Partitions, func(a, b mq.EphemeralPartitionDepth) int { return strings.Compare(a.Partition, b.Partition) })
	slices.SortFunc(out.Groups, func(a, b mq.EphemeralGroupDepth) int { return strings.Compare(a.Group, b.Group) })
	return out, nil
}

// Status describes the store.
func (s *Service) Status(ctx context.Context) (mq.EphemeralStatus, error) {
	if s.redis == nil {
		return mq.EphemeralStatus{}, fault(errNoRedis)
	}
	if err := s.readUsage(ctx); err != nil {
		return mq.EphemeralStatus{}, err
	}
	if err := s.watchEpoch(ctx); err != nil {
		return mq.EphemeralStatus{}, err
	}
	enabled, _ := s.declared.settings(ctx, mq.DefaultTenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := mq.EphemeralStatus{
		Enabled: enabled, MaxBytes: s.cfg.MaxBytes, GrantedTenants: s.declared.granted(),
		RequireGrant: s.cfg.RequireGrant, Epoch: s.epoch,
	}
	st.Bytes, st.Queues = s.usage.sums()
	return st, nil
}

// SetEnabled turns the whole family on or off, for all brokers.
func (s *Service) SetEnabled(ctx context.Context, on bool) error {
	if err := s.store.SetEphemeralEnabled(ctx, on); err != nil {
		return declarationFault(err, mq.CodeEphemeralConfigure)
	}
	s.declared.turn(on)
	if s.redis != nil {
		s.tell(ctx, "")
	}
	return nil
}
