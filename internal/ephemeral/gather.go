package ephemeral

import (
	"context"
	"hash/fnv"
	"sync"

	"github.com/redis/go-redis/v9"
)

// laneOf keeps the calls on one queue in one line.
func laneOf(queue string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(queue))
	return h.Sum64()
}

// queuesOf groups what was gathered by queue, as positions, in the order of the
// first call on each.
func queuesOf[T any](units []T, queue func(T) string) [][]int {
	var out [][]int
	place := make(map[string]int, 1)
	for i, u := range units {
		q := queue(u)
		at, ok := place[q]
		if !ok {
			at = len(out)
			place[q] = at
			out = append(out, nil)
		}
		out[at] = append(out[at], i)
	}
	return out
}

// gathered runs one script for each queue, all in one trip, and hands every
// answer to those it is for.
func (s *Service) gathered(ctx context.Context, queues [][]int, build func([]int) *call, answer func([]int, reply, error)) {
	calls := make([]*call, len(queues))
	for i, members := range queues {
		calls[i] = build(members)
	}
	replies, errs := s.runAll(ctx, calls)
	for i, members := range queues {
		answer(members, replies[i], errs[i])
	}
}

// runAll runs scripts in one trip.
func (s *Service) runAll(ctx context.Context, calls []*call) ([]reply, []error) {
	replies, errs := make([]reply, len(calls)), make([]error, len(calls))
	if len(calls) == 1 {
		replies[0], errs[0] = s.run(ctx, calls[0])
		return replies, errs
	}
	if _, isCluster := s.redis.(*redis.ClusterClient); isCluster {
		// The client of a cluster sends a pipeline again whose answer was
		// lost; what is sent alone it does not.
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() { replies[i], errs[i] = s.run(ctx, calls[i]) })
		}
		wg.Wait()
		return replies, errs
	}
	if err := s.reachable(); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return replies, errs
	}
	cmds := make([]*redis.Cmd, len(calls))
	_, _ = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, c := range calls {
			cmds[i] = c.script.EvalSha(ctx, pipe, c.at.keys(), s.arguments(c)...)
		}
		return nil
	})
	for i, cmd := range cmds {
		got, err := cmd.Slice()
		switch {
		case err == nil:
			replies[i] = s.read(got)
		case redis.HasErrorPrefix(err, "NOSCRIPT"):
			// It has not run: run alone, it is loaded first.
			replies[i].word = wordRedeclare
		default:
			errs[i] = s.failed(err)
		}
		if replies[i].word == wordRedeclare {
			s.declared.reread(ctx, calls[i].at.queue)
			calls[i].limits = s.declared.of(ctx, calls[i].at.queue)
			replies[i], errs[i] = s.run(ctx, calls[i])
		}
	}
	return replies, errs
}
