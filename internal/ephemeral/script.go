package ephemeral

import (
	"context"
	"embed"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/mq"
)

//go:embed scripts/*.lua
var sources embed.FS

// Scripts of one queue begin with the library; the listing knows no queue.
var (
	pushScript      = queueScript("push", "join")
	popScript       = queueScript("pop")
	ackScript       = queueScript("ack", "join")
	sweepScript     = queueScript("sweep")
	configureScript = queueScript("configure")
	resetScript     = queueScript("reset")
	deleteScript    = queueScript("delete")
	depthScript     = queueScript("depth")
	queuesScript    = redis.NewScript(source("queues"))
)

func queueScript(name string, also ...string) *redis.Script {
	text := ""
	for _, part := range append([]string{"lib", "lease", "rare"}, append(also, name)...) {
		text += source(part) + "\n"
	}
	return redis.NewScript(text)
}

func source(name string) string {
	text, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // embedded: it is there or the program does not build
	}
	return string(text)
}

// call is one run of a queue's script.
type call struct {
	script *redis.Script
	at     address
	limits declaration
	args   []any // after the fourteen every script takes
}

// every is how many arguments every script takes.
const every = 14

func (s *Service) arguments(c *call) []any {
	l := &c.limits.limits
	policy := 0
	if l.Policy == mq.EphemeralDropOldest {
		policy = 1
	}
	args := make([]any, 0, every+len(c.args))
	args = append(args, c.at.queue, c.at.tenant, c.limits.version, l.MaxBytes, l.MaxLength, policy, l.TTLSeconds,
		l.LeaseSeconds, l.RetryLimit, l.WindowMS, l.WindowCount, s.cfg.ImplicitIdle.Milliseconds(), s.channel(), incarnation())
	return append(args, c.args...)
}

// incarnation names a ring. It is random, so one that is made again after the
// contents were lost has another.
func incarnation() string {
	var b [8]byte
	n := rand.Uint64()
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
	return hex.EncodeToString(b[:])
}

// salt makes the tokens of a push differ from all others, see lib.lua.
func salt() string { return fmt.Sprintf("%06d", rand.IntN(1_000_000)) }

// reply is a script's answer after its head.
type reply struct {
	word string
	rest []any
}

// run runs a script, and once more when the caller's declaration turned out to
// be gone.
func (s *Service) run(ctx context.Context, c *call) (reply, error) {
	for again := false; ; again = true {
		if err := s.reachable(); err != nil {
			return reply{}, err
		}
		got, err := c.script.Run(ctx, s.redis, c.at.keys(), s.arguments(c)...).Slice()
		if err != nil {
			return reply{}, s.failed(err)
		}
		r := s.read(got)
		if r.word != wordRedeclare || again {
			return r, nil
		}
		s.declared.reread(ctx, c.at.queue)
		c.limits = s.declared.of(ctx, c.at.queue)
	}
}

// What scripts answer.
const (
	wordRedeclare = "redeclare" // the declaration sent along is older than the deletion of the queue
	wordNone      = "none"      // no such queue
)

// read takes off the head of an answer and counts what was dropped.
func (s *Service) read(got []any) reply {
	if len(got) < 4 {
		return reply{}
	}
	for i, reason := range [...]string{"bounds", "ttl", "retry"} {
		if n := number(got[1+i]); n > 0 {
			s.metrics.EphemeralDropped(reason, int(n))
		}
	}
	return reply{word: text(got[0]), rest: got[4:]}
}

func number(v any) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case string:
		i, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			return 0
		}
		return i
	}
	return 0
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// everywhere runs a script on every bucket, in one trip.
func (s *Service) everywhere(ctx context.Context, script *redis.Script, of func(base string) ([]string, []any)) ([]*redis.Cmd, error) {
	if err := s.reachable(); err != nil {
		return nil, err
	}
	cmds := make([]*redis.Cmd, buckets)
	_, err := s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range cmds {
			keys, args := of(s.bucket(i))
			cmds[i] = script.EvalSha(ctx, pipe, keys, args...)
		}
		return nil
	})
	if err == nil {
		return cmds, nil
	}
	for i := range cmds {
		// A server that does not know the script yet: of a cluster, each one.
		if err := cmds[i].Err(); redis.HasErrorPrefix(err, "NOSCRIPT") {
			keys, args := of(s.bucket(i))
			cmds[i] = script.Run(ctx, s.redis, keys, args...)
		}
		if err := cmds[i].Err(); err != nil {
			return nil, s.failed(err)
		}
	}
	return cmds, nil
}
