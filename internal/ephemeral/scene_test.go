package ephemeral_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/devdb"
	"github.com/queenmq-go/queenmq/internal/ephemeral"
	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

// fakeStore keeps declarations in memory.
type fakeStore struct {
	mu      sync.Mutex
	set     mq.EphemeralSettings
	version int64
	err     error
}

func (f *fakeStore) EphemeralSettings(context.Context) (mq.EphemeralSettings, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.set
	out.Declarations = append([]mq.EphemeralDeclaration(nil), f.set.Declarations...)
	return out, f.err
}

func (f *fakeStore) find(tenant mq.UUID, queue string) int {
	for i, d := range f.set.Declarations {
		if d.Tenant == tenant && d.Queue == queue {
			return i
		}
	}
	return -1
}

func (f *fakeStore) EphemeralDeclaration(_ context.Context, tenant mq.UUID, queue string) (*mq.EphemeralDeclaration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := f.find(tenant, queue); i >= 0 && f.err == nil {
		d := f.set.Declarations[i]
		return &d, nil
	}
	return nil, f.err
}

func (f *fakeStore) PutEphemeral(_ context.Context, tenant mq.UUID, queue string, o mq.EphemeralOptions) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return 0, f.err
	}
	f.version++
	d := mq.EphemeralDeclaration{Tenant: tenant, Queue: queue, Version: f.version, Options: o}
	if i := f.find(tenant, queue); i >= 0 {
		f.set.Declarations[i] = d
	} else {
		f.set.Declarations = append(f.set.Declarations, d)
	}
	return f.version, nil
}

func (f *fakeStore) DeleteEphemeral(_ context.Context, tenant mq.UUID, queue string) (int64, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return 0, false, f.err
	}
	f.version++
	i := f.find(tenant, queue)
	if i >= 0 {
		f.set.Declarations = append(f.set.Declarations[:i], f.set.Declarations[i+1:]...)
	}
	return f.version, i >= 0, nil
}

func (f *fakeStore) SetEphemeralEnabled(_ context.Context, on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set.Enabled = on
	return f.err
}

// tally counts what the service reports.
type tally struct {
	mu                     sync.Mutex
	pushed, popped, acked  int
	dropped                map[string]int
	wiped, forgotten, held int
}

func (c *tally) EphemeralPushed(n int) { c.mu.Lock(); c.pushed += n; c.mu.Unlock() }
func (c *tally) EphemeralPopped(n int) { c.mu.Lock(); c.popped += n; c.mu.Unlock() }
func (c *tally) EphemeralAcked(n int)  { c.mu.Lock(); c.acked += n; c.mu.Unlock() }
func (c *tally) EphemeralDropped(reason string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped == nil {
		c.dropped = map[string]int{}
	}
	c.dropped[reason] += n
}
func (c *tally) EphemeralWiped()                { c.mu.Lock(); c.wiped++; c.mu.Unlock() }
func (c *tally) EphemeralGroupsForgotten(n int) { c.mu.Lock(); c.forgotten += n; c.mu.Unlock() }
func (c *tally) EphemeralHeld(bytes, _ int64)   { c.mu.Lock(); c.held = int(bytes); c.mu.Unlock() }
func (c *tally) EphemeralUp(bool)               {}

func (c *tally) of(reason string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped[reason]
}

// scene is an installation: one Redis, one store, some brokers' services.
type scene struct {
	t         *testing.T
	store     *fakeStore
	client    redis.UniversalClient
	cfg       ephemeral.Config
	n         *tally
	s         *ephemeral.Service // of the first broker
	inProcess bool               // the small Redis, which is slow
}

// both runs a test on a real Redis and on the in-process one.
func both(t *testing.T, cfg ephemeral.Config, test func(c *scene)) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(newScene(t, dial(t, pgtest.Redis(t)), cfg))
	})
	t.Run("in-process", func(t *testing.T) {
		t.Parallel()
		r, err := devdb.StartMiniRedis()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Stop(context.Background()) })
		c := newScene(t, dial(t, r.URL()), cfg)
		c.inProcess = true
		test(c)
	})
}

func dial(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	o.DialTimeout, o.ReadTimeout, o.MaxRetries, o.ContextTimeoutEnabled = time.Second, 3*time.Second, -1, true
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newScene(t *testing.T, client redis.UniversalClient, cfg ephemeral.Config) *scene {
	t.Helper()
	cfg.Prefix = strings.ReplaceAll(t.Name(), "/", "-") + ":"
	c := &scene{t: t, client: client, cfg: cfg, store: &fakeStore{set: mq.EphemeralSettings{Enabled: true}}, n: &tally{}}
	c.s = c.broker(c.n)
	return c
}

// broker runs one more service on the same contents.
func (c *scene) broker(n ephemeral.Metrics) *ephemeral.Service {
	c.t.Helper()
	cfg := c.cfg
	cfg.Logger = slog.New(slog.NewTextHandler(logWriter{c.t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s := ephemeral.New(c.client, c.store, n, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(done)
	}()
	c.t.Cleanup(func() {
		s.Drain()
		cancel()
		<-done
	})
	return s
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// on is the scene seen from another broker.
func (c *scene) on(s *ephemeral.Service) *scene {
	other := *c
	other.s = s
	return &other
}

func (c *scene) tryPush(queue, partition string, payloads ...string) error {
	p := &mq.EphemeralPush{Tenant: mq.DefaultTenant, Queue: queue, Partition: partition}
	for _, text := range payloads {
		p.Payloads = append(p.Payloads, []byte(text))
	}
	return c.s.Push(c.t.Context(), p)
}

func (c *scene) push(queue, partition string, payloads ...string) {
	c.t.Helper()
	if err := c.tryPush(queue, partition, payloads...); err != nil {
		c.t.Fatalf("push: %v", err)
	}
}

// numbers are payloads from .. to-1.
func numbers(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// how is a pop's parameters; queue and batch come first because all pops have them.
type how struct {
	partition, group string
	wait             time.Duration
	auto             bool
}

func (c *scene) pop(queue string, batch int, h how) []mq.EphemeralMessage {
	c.t.Helper()
	d, err := c.s.Pop(c.t.Context(), &mq.EphemeralPop{
		Tenant: mq.DefaultTenant, Queue: queue, Partition: h.partition, Group: h.group, Batch: batch, Wait: h.wait, AutoCommit: h.auto,
	})
	if err != nil {
		c.t.Fatalf("pop: %v", err)
	}
	return d.Messages
}

// show puts messages into a line: payload, and how often delivered when that is not once.
func show(list []mq.EphemeralMessage) string {
	var b strings.Builder
	for i, m := range list {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.Write(m.Payload)
		if m.Attempts != 1 {
			fmt.Fprintf(&b, "*%d", m.Attempts)
		}
	}
	return b.String()
}

func (c *scene) wantPop(want, queue string, batch int, h how) []mq.EphemeralMessage {
	c.t.Helper()
	got := c.pop(queue, batch, h)
	if show(got) != want {
		c.t.Fatalf("popped %q, want %q", show(got), want)
	}
	return got
}

const (
	completed = mq.EphemeralCompleted
	retry     = mq.EphemeralRetry
)

func (c *scene) ack(queue, group string, v mq.EphemeralVerdict, list ...mq.EphemeralMessage) string {
	c.t.Helper()
	a := &mq.EphemeralAck{Tenant: mq.DefaultTenant, Queue: queue, Group: group}
	for _, m := range list {
		a.Items = append(a.Items, mq.EphemeralAckItem{ID: m.ID, Verdict: v})
	}
	got, err := c.s.Ack(c.t.Context(), a)
	if err != nil {
		c.t.Fatalf("ack: %v", err)
	}
	var out []string
	for _, o := range got {
		out = append(out, string(o))
	}
	return strings.Join(out, " ")
}

func (c *scene) wantAck(want, queue, group string, v mq.EphemeralVerdict, list ...mq.EphemeralMessage) {
	c.t.Helper()
	if got := c.ack(queue, group, v, list...); got != want {
		c.t.Fatalf("acked %q, want %q", got, want)
	}
}

func (c *scene) configure(queue string, o mq.EphemeralOptions) {
	c.t.Helper()
	if err := c.s.Configure(c.t.Context(), mq.DefaultTenant, queue, o); err != nil {
		c.t.Fatalf("configure: %v", err)
	}
}

func (c *scene) depth(queue, group string) *mq.EphemeralDepth {
	c.t.Helper()
	d, err := c.s.Depth(c.t.Context(), mq.DefaultTenant, queue, group)
	if err != nil {
		c.t.Fatalf("depth: %v", err)
	}
	return d
}

func (c *scene) queue(name string) *mq.EphemeralQueue {
	c.t.Helper()
	list, _, err := c.s.Queues(c.t.Context(), mq.DefaultTenant)
	if err != nil {
		c.t.Fatalf("queues: %v", err)
	}
	for i := range list {
		if list[i].Queue == name {
			return &list[i]
		}
	}
	return nil
}

// eventually waits for something that happens by itself.
func (c *scene) eventually(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("waited in vain: %s", what)
		}
	}
}

func codeOf(err error) string {
	var e *mq.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

func (c *scene) wantCode(want string, err error) {
	c.t.Helper()
	if err == nil || codeOf(err) != want {
		c.t.Fatalf("error %v, want %s", err, want)
	}
}

// ptr makes an option.
func ptr[T any](v T) *T { return &v }
