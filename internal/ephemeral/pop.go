package ephemeral

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/park"
)

// maxProbe is how many pops of one kind share a trip.
const maxProbe = 64

// maxPopBytes bounds the payloads of one answer, about.
const maxPopBytes = 16 << 20

// popKey is what pops wait for.
type popKey struct {
	queue     string
	partition string
	group     string
	auto      bool
	window    bool // the pops of this line gather
}

// popRequest is one pop in its line.
type popRequest struct {
	pop *mq.EphemeralPop
	at  address
	// first is when a gathering pop found something, in ms of this process;
	// zero before.
	first atomic.Int64
}

// Pop hands out messages, waiting for some up to p.Wait.
func (s *Service) Pop(ctx context.Context, p *mq.EphemeralPop) (*mq.EphemeralDelivery, error) {
	grant, err := s.admit(ctx, p.Tenant, 0)
	if err != nil {
		return nil, err
	}
	if p.Group == "" {
		p.Group = mq.QueueMode
	}
	at := s.addressOf(p.Tenant, p.Queue)
	if err := s.mayMake(ctx, at, grant); err != nil {
		return nil, err
	}
	limits := s.declared.of(ctx, at.queue).limits
	key := popKey{
		queue: at.queue, partition: p.Partition, group: p.Group, auto: p.AutoCommit,
		window: p.Wait > 0 && (limits.WindowMS > 0 || limits.WindowCount > 0),
	}
	req := &popRequest{pop: p, at: at}
	d, found, err := s.lot.Take(ctx, key, req, p.Wait)
	if err != nil {
		return nil, err
	}
	if !found && req.first.Load() != 0 {
		// Its own time is up, and what it was gathering is there.
		now, errNow := s.take(ctx, req)
		if errNow != nil {
			return nil, errNow
		}
		d, found = now, len(now.Messages) > 0
	}
	if !found {
		if p.Wait > 0 && ctx.Err() == nil {
			if err := s.reachable(); err != nil {
				return nil, err
			}
		}
		return &mq.EphemeralDelivery{Pop: p}, nil
	}
	s.metrics.EphemeralPopped(len(d.Messages))
	return d, nil
}

// take takes what is there for one pop, however little.
func (s *Service) take(ctx context.Context, req *popRequest) (*mq.EphemeralDelivery, error) {
	r, err := s.run(ctx, s.popCall(ctx, []*popRequest{req}, 0))
	if err != nil {
		return nil, err
	}
	got := s.deliveries([]*popRequest{req}, r)
	return got.list[0], nil
}

// popCall asks for what pops of one kind want.
func (s *Service) popCall(ctx context.Context, reqs []*popRequest, enough int64) *call {
	p := reqs[0].pop
	mode, wait := "lease", "0"
	if p.AutoCommit {
		mode = "commit"
	}
	for _, r := range reqs {
		if r.pop.Wait > 0 {
			wait = "1"
		}
	}
	args := make([]any, 0, 6+len(reqs))
	args = append(args, p.Group, p.Partition, maxPopBytes/len(reqs), mode, wait, enough)
	for _, r := range reqs {
		args = append(args, r.pop.Batch)
	}
	return &call{script: popScript, at: reqs[0].at, limits: s.declared.of(ctx, reqs[0].at.queue), args: args}
}

// probe looks for the first pops of a line.
func (s *Service) probe(key popKey, reqs []*popRequest) park.Result[*mq.EphemeralDelivery] {
	ctx := context.Background()
	res := park.Result[*mq.EphemeralDelivery]{
		Answers: make([]*mq.EphemeralDelivery, len(reqs)), Found: make([]bool, len(reqs)), Next: -1,
	}
	var enough int64
	if key.window {
		reqs = reqs[:1] // the others begin to gather when it is done
		enough = s.enough(ctx, reqs[0])
	}
	r, err := s.run(ctx, s.popCall(ctx, reqs, enough))
	if err != nil {
		res.Err, res.Retry, res.Next = err, true, outagePause
		return res
	}
	got := s.deliveries(reqs, r)
	res.Next = got.next
	for i, d := range got.list {
		res.Answers[i], res.Found[i] = d, len(d.Messages) > 0
	}
	if got.there > 0 && !res.Found[0] {
		if left := s.gather(ctx, reqs[0]); left > 0 && (res.Next < 0 || left < res.Next) {
			res.Next = left
		}
	}
	return res
}

// outagePause is when parked pops look again at a Redis that is away.
const outagePause = 500 * time.Millisecond

// enough is how many messages a pop with a window would rather wait for; 0 when
// it has waited long enough.
func (s *Service) enough(ctx context.Context, req *popRequest) int64 {
	l := s.declared.of(ctx, req.at.queue).limits
	first := req.first.Load()
	if first != 0 && l.WindowMS > 0 && time.Now().UnixMilli()-first >= l.WindowMS {
		return 0
	}
	if l.WindowCount > 0 {
		return min(int64(req.pop.Batch), l.WindowCount)
	}
	return int64(req.pop.Batch)
}

// gather notes that a pop with a window has found something, and tells how long
// it goes on waiting for more; 0 without a limit of its own.
func (s *Service) gather(ctx context.Context, req *popRequest) time.Duration {
	now := time.Now().UnixMilli()
	req.first.CompareAndSwap(0, now)
	l := s.declared.of(ctx, req.at.queue).limits
	return max(time.Duration(req.first.Load()+l.WindowMS-now)*time.Millisecond, 0)
}

// delivered is the answer to pops of one kind.
type delivered struct {
	list  []*mq.EphemeralDelivery
	next  time.Duration // until something may be due; negative: not known
	there int64         // messages that are there and were not enough
}

func (s *Service) deliveries(reqs []*popRequest, r reply) delivered {
	out := delivered{list: make([]*mq.EphemeralDelivery, len(reqs)), next: -1}
	for i, req := range reqs {
		out.list[i] = &mq.EphemeralDelivery{Pop: req.pop}
	}
	if len(r.rest) < 2 {
		return out
	}
	if ms := number(r.rest[0]); ms >= 0 {
		out.next = time.Duration(ms) * time.Millisecond
	}
	out.there = number(r.rest[1])
	rest := r.rest[2:]
	for i := range reqs {
		if len(rest) == 0 {
			break
		}
		out.list[i].Messages, rest = messages(rest)
	}
	return out
}

// runHead is how many values come before the payloads of a run: partition,
// incarnation, first sequence, salt, deliveries and how many payloads.
const runHead = 6

// messages reads the runs of one pop, and returns what comes after them.
func messages(list []any) (out []mq.EphemeralMessage, rest []any) {
	runs := number(list[0])
	list = list[1:]
	for ; runs > 0 && len(list) >= runHead; runs-- {
		partition, inc, salt := text(list[0]), text(list[1]), text(list[3])
		first, times := number(list[2]), int(number(list[4]))
		n := min(int(number(list[5])), len(list)-runHead)
		out = slices.Grow(out, n)
		for i, payload := range list[runHead : runHead+n] {
			out = append(out, mq.EphemeralMessage{
				ID: newID(inc, partition, first+int64(i), salt), Partition: partition, Attempts: times, Payload: []byte(text(payload)),
			})
		}
		list = list[runHead+n:]
	}
	return out, list
}

// newID prints the id of a message.
func newID(inc, partition string, seq int64, salt string) string {
	b := make([]byte, 0, len(inc)+len(partition)+len(salt)+24)
	b = append(append(append(append(b, "e:"...), inc...), ':'), partition...)
	b = strconv.AppendInt(append(b, ':'), seq, 10)
	return string(append(b, salt...))
}

// readID takes an id apart, from both ends: a partition may hold colons.
func readID(id string) (inc, partition, token string, ok bool) {
	rest, ok := strings.CutPrefix(id, "e:")
	if !ok {
		return "", "", "", false
	}
	inc, rest, ok = strings.Cut(rest, ":")
	end := strings.LastIndexByte(rest, ':')
	if !ok || end < 0 {
		return "", "", "", false
	}
	partition, token = rest[:end], rest[end+1:]
	return inc, partition, token, onlyOf(inc, "0123456789abcdef") && onlyOf(token, "0123456789")
}

// onlyOf says whether s is made of these characters, and is no longer than any
// number of ours.
func onlyOf(s, of string) bool {
	return s != "" && len(s) <= 24 && strings.Trim(s, of) == ""
}
