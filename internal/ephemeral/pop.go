package ephemeral

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/park"
)

// maxProbe is how many pops of one kind share a trip.
const maxProbe = 16

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
	if err := s.admit(ctx, p.Tenant, 0); err != nil {
		return nil, err
	}
	if p.Group == "" {
		p.Group = mq.QueueMode
	}
	at := s.addressOf(p.Tenant, p.Queue)
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
	r, err := s.run(ctx, s.popCall(ctx, req, false))
	if err != nil {
		return nil, err
	}
	d, _, _ := s.delivery(req, r)
	return d, nil
}

func (s *Service) popCall(ctx context.Context, req *popRequest, gather bool) *call {
	p := req.pop
	mode, wait, enough := "lease", "0", int64(0)
	if p.AutoCommit {
		mode = "commit"
	}
	if p.Wait > 0 {
		wait = "1"
	}
	d := s.declared.of(ctx, req.at.queue)
	if gather {
		enough = int64(p.Batch)
		if d.limits.WindowCount > 0 {
			enough = min(enough, d.limits.WindowCount)
		}
	}
	return &call{
		script: popScript, at: req.at, limits: d,
		args: []any{p.Group, p.Partition, p.Batch, maxPopBytes, mode, wait, enough},
	}
}

// gathering says whether a pop goes on gathering, and for how long.
func (s *Service) gathering(req *popRequest, window time.Duration) (bool, time.Duration) {
	first := req.first.Load()
	if first == 0 {
		return true, -1
	}
	if window <= 0 {
		return true, -1 // no time rule: only the count and the pop's own time
	}
	left := window - time.Duration(time.Now().UnixMilli()-first)*time.Millisecond
	return left > 0, left
}

// probe looks for the first pops of a line, in one trip.
func (s *Service) probe(key popKey, reqs []*popRequest) park.Result[*mq.EphemeralDelivery] {
	ctx := context.Background()
	calls := make([]*call, len(reqs))
	for i, req := range reqs {
		gather := false
		if key.window {
			d := s.declared.of(ctx, key.queue)
			gather, _ = s.gathering(req, time.Duration(d.limits.WindowMS)*time.Millisecond)
		}
		calls[i] = s.popCall(ctx, req, gather)
	}
	replies, err := s.runAll(ctx, calls)
	res := park.Result[*mq.EphemeralDelivery]{
		Answers: make([]*mq.EphemeralDelivery, len(reqs)), Found: make([]bool, len(reqs)), Next: -1,
	}
	for i := range replies {
		d, next, there := s.delivery(reqs[i], replies[i])
		res.Answers[i], res.Found[i] = d, len(d.Messages) > 0
		if next >= 0 {
			res.Next = next
		}
		if there > 0 && !res.Found[i] {
			reqs[i].first.CompareAndSwap(0, time.Now().UnixMilli())
			d := s.declared.of(ctx, key.queue)
			if _, left := s.gathering(reqs[i], time.Duration(d.limits.WindowMS)*time.Millisecond); left > 0 && (res.Next < 0 || left < res.Next) {
				res.Next = left
			}
		}
	}
	if err != nil {
		// What the others got is delivered; those without an answer ask again.
		res.Err, res.Retry, res.Next = err, true, outagePause
	}
	return res
}

// outagePause is when parked pops look again at a Redis that is away.
const outagePause = 500 * time.Millisecond

// runAll runs the scripts of one queue in one trip. Replies come back for the
// calls before the first that failed.
func (s *Service) runAll(ctx context.Context, calls []*call) ([]reply, error) {
	if len(calls) == 1 {
		r, err := s.run(ctx, calls[0])
		if err != nil {
			return nil, err
		}
		return []reply{r}, nil
	}
	if err := s.reachable(); err != nil {
		return nil, err
	}
	cmds := make([]*redis.Cmd, len(calls))
	_, _ = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, c := range calls {
			cmds[i] = c.script.EvalSha(ctx, pipe, c.at.keys(), s.arguments(c)...)
		}
		return nil
	})
	replies := make([]reply, 0, len(calls))
	for i, cmd := range cmds {
		got, err := cmd.Slice()
		r := reply{}
		switch {
		case err == nil:
			r = s.read(got)
		case redis.HasErrorPrefix(err, "NOSCRIPT"):
			r.word = wordRedeclare // not run: run it alone, which loads the script
		default:
			return replies, s.failed(err)
		}
		if r.word == wordRedeclare {
			if r, err = s.run(ctx, calls[i]); err != nil {
				return replies, err
			}
		}
		replies = append(replies, r)
	}
	return replies, nil
}

// delivery reads the answer to a pop: the messages, when to look again, and how
// many messages are there that the pop did not want yet.
func (s *Service) delivery(req *popRequest, r reply) (d *mq.EphemeralDelivery, next time.Duration, there int64) {
	d = &mq.EphemeralDelivery{Pop: req.pop}
	if len(r.rest) < 2 {
		return d, -1, 0
	}
	next = -1
	if ms := number(r.rest[0]); ms >= 0 {
		next = time.Duration(ms) * time.Millisecond
	}
	there = number(r.rest[1])
	list := r.rest[2:]
	d.Messages = make([]mq.EphemeralMessage, 0, len(list)/5)
	var id strings.Builder
	for ; len(list) >= 5; list = list[5:] {
		part := text(list[0])
		id.Reset()
		writeID(&id, text(list[1]), part, text(list[2]))
		d.Messages = append(d.Messages, mq.EphemeralMessage{
			ID: id.String(), Partition: part, Attempts: int(number(list[3])), Payload: []byte(text(list[4])),
		})
	}
	return d, next, there
}

// writeID writes the printed form of a message's id.
func writeID(b *strings.Builder, inc, partition, token string) {
	b.Grow(len(inc) + len(partition) + len(token) + 4)
	b.WriteString("e:")
	b.WriteString(inc)
	b.WriteByte(':')
	b.WriteString(partition)
	b.WriteByte(':')
	b.WriteString(token)
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
