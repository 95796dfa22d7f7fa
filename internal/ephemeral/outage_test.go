package ephemeral_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/devdb"
	"github.com/queenmq-go/queenmq/internal/ephemeral"
	"github.com/queenmq-go/queenmq/internal/mq"
)

// own starts a redis-server for one test.
func own(t *testing.T, o devdb.RedisOptions) *devdb.Redis {
	t.Helper()
	r, err := devdb.StartRedisWith(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(context.Background()) })
	return r
}

func portOf(t *testing.T, r *devdb.Redis) int {
	t.Helper()
	u, err := url.Parse(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestEphemeral_R3_Flush(t *testing.T) {
	t.Parallel()
	r := own(t, devdb.RedisOptions{})
	c := newScene(t, dial(t, r.URL()), ephemeral.Config{})
	c.configure("q", mq.EphemeralOptions{MaxLength: ptr[int64](3), LeaseSeconds: ptr[int64](60)})
	c.configure("unused", mq.EphemeralOptions{TTLSeconds: ptr[int64](9)})
	c.push("q", "p", "1", "2")
	m := c.wantPop("1", "q", 1, how{group: "g"})
	parked := make(chan string, 1)
	go func() { parked <- show(c.pop("other", 1, how{group: "g", wait: 10 * time.Second})) }()
	c.eventually("a parked pop", func() bool { return c.s.Waiting() == 1 })
	time.Sleep(1100 * time.Millisecond) // the epoch has been seen

	if err := c.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	c.wantAck("stale", "q", "g", completed, m...)
	c.push("q", "p", "3")
	c.wantAck("stale", "q", "g", completed, m...)
	c.wantCode(mq.CodeEphemeralFull, c.tryPush("q", "p", "4", "5", "6"))
	c.wantPop("3", "q", 5, how{group: "g"})
	if q := c.queue("q"); q == nil || !q.Declared || q.Limits.MaxLength != 3 {
		t.Errorf("%+v", q)
	}
	if q := c.queue("unused"); q == nil || !q.Declared || q.Limits.TTLSeconds != 9 {
		t.Errorf("%+v", q)
	}
	if d := c.depth("unused", ""); !d.Declared {
		t.Errorf("%+v", d)
	}
	// The parked pop registers again when it looks by itself.
	c.eventually("the group again", func() bool { q := c.queue("other"); return q != nil && q.Groups == 1 })
	c.push("other", "p", "7")
	if got := <-parked; got != "7" {
		t.Errorf("parked pop got %q", got)
	}
	c.eventually("a wipe", func() bool { c.n.mu.Lock(); defer c.n.mu.Unlock(); return c.n.wiped == 1 })
}

func TestEphemeral_R4_FailoverToALaggingReplica(t *testing.T) {
	t.Parallel()
	primary := own(t, devdb.RedisOptions{})
	replica := own(t, devdb.RedisOptions{Args: []string{"--replicaof", "127.0.0.1", strconv.Itoa(portOf(t, primary))}})
	old := newScene(t, dial(t, primary.URL()), ephemeral.Config{})
	next := newScene(t, dial(t, replica.URL()), ephemeral.Config{})
	next.store = old.store

	old.push("q", "p", "1", "2")
	before := old.wantPop("1", "q", 1, how{group: "g"})
	old.eventually("replication", func() bool {
		n, err := next.client.Exists(t.Context(), old.cfg.Prefix+"ephemeral:epoch").Result()
		return err == nil && n == 1 && next.depthOr("q") == 2
	})
	// From here on nothing of what the primary does arrives.
	if err := next.client.SlaveOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	old.push("q", "p", "lost3", "lost4")
	lost := old.wantPop("2 lost3 lost4", "q", 5, how{group: "g"})
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	next.push("q", "p", "new3", "new4", "new5")
	got := next.wantPop("2 new3 new4 new5", "q", 5, how{group: "g"})
	for _, l := range lost[1:] {
		for _, n := range got[1:] {
			if l.ID == n.ID {
				t.Errorf("%s is the id of %s and of %s", l.ID, l.Payload, n.Payload)
			}
		}
	}
	next.wantAck("unknown unknown", "q", "g", completed, lost[1:]...)
	next.wantAck("acked", "q", "g", completed, before...)
	next.wantAck("acked acked acked acked", "q", "g", completed, got...)
}

func (c *scene) depthOr(queue string) int64 {
	d, err := c.s.Depth(c.t.Context(), mq.DefaultTenant, queue, "")
	if err != nil {
		return -1
	}
	return d.Pending
}

func TestEphemeral_R5_RedisAway(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*devdb.Redis) error{
		"killed": func(r *devdb.Redis) error { return r.Kill() },
		"paused": func(r *devdb.Redis) error { return r.Pause() },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := own(t, devdb.RedisOptions{})
			c := newScene(t, dial(t, r.URL()), ephemeral.Config{})
			c.push("q", "p", "1")
			c.awayAndBack(r, end)
		})
	}
}

func (c *scene) awayAndBack(r *devdb.Redis, end func(*devdb.Redis) error) {
	t := c.t
	parked := make(chan error, 2)
	long := make(chan string, 1)
	pop := func(queue string, wait time.Duration) (*mq.EphemeralDelivery, error) {
		return c.s.Pop(t.Context(), &mq.EphemeralPop{Tenant: mq.DefaultTenant, Queue: queue, Batch: 1, Wait: wait})
	}
	go func() {
		_, err := pop("w", 4500*time.Millisecond)
		parked <- err
	}()
	go func() {
		d, err := pop("w", 40*time.Second)
		if err != nil {
			long <- err.Error()
			return
		}
		long <- show(d.Messages)
	}()
	c.eventually("parked pops", func() bool { return c.s.Waiting() == 2 })
	if err := end(r); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	c.wantCode(mq.CodeEphemeralUnavailable, c.tryPush("q", "p", "2"))
	_, err := pop("q", 0)
	c.wantCode(mq.CodeEphemeralUnavailable, err)
	_, _, err = c.s.Queues(t.Context(), mq.DefaultTenant)
	c.wantCode(mq.CodeEphemeralUnavailable, err)
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("three refusals took %v", took)
	}
	// One that was parked when it began is answered at the end of its time.
	c.wantCode(mq.CodeEphemeralUnavailable, <-parked)
	if end := r.Resume(); end != nil {
		t.Fatal(end)
	}
	if _, err := net.DialTimeout("tcp", strings.TrimSuffix(strings.TrimPrefix(r.URL(), "redis://"), "/0"), time.Second); err != nil {
		own(t, devdb.RedisOptions{Port: portOf(t, r)})
	}
	c.eventually("its return", func() bool { return c.tryPush("w", "p", "9") == nil })
	select {
	case got := <-long:
		if got != "9" {
			t.Errorf("the long pop got %q", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("the long pop did not wake")
	}
}

func TestEphemeral_R6_OutOfMemory(t *testing.T) {
	t.Parallel()
	r := own(t, devdb.RedisOptions{Args: []string{"--maxmemory", "6mb", "--maxmemory-policy", "noeviction"}})
	c := newScene(t, dial(t, r.URL()), ephemeral.Config{QueueMaxLength: 1 << 20})
	c.pop("q", 1, how{group: "g"})
	stored, refused := 0, 0
	for i := 0; refused < 10 && i < 20_000; i++ {
		batch := []string{fmt.Sprintf(`"%d %s"`, i, strings.Repeat("x", 300)), fmt.Sprintf(`"%d %s"`, i, strings.Repeat("y", 300))}
		err := c.tryPush("q", fmt.Sprint("p", i%10), batch...)
		if err == nil {
			stored += 2
			continue
		}
		c.wantCode(mq.CodeEphemeralUnavailable, err)
		refused++
	}
	if refused < 10 {
		t.Fatal("it never ran out of memory")
	}
	d := c.depth("q", "")
	if d.Pending != int64(stored) || d.Groups[0].Pending != int64(stored) {
		t.Errorf("%d stored, %+v", stored, d.Groups)
	}
	// Consumers go on, and there is room again.
	got := 0
	for {
		m := c.pop("q", 500, how{group: "g"})
		if len(m) == 0 {
			break
		}
		got += len(m)
		if s := c.ack("q", "g", completed, m...); strings.Contains(s, "unknown") {
			t.Fatal(s)
		}
	}
	if d := c.depth("q", ""); got != stored || d.Pending != 0 || d.Bytes != 0 || c.usage() != 0 {
		t.Errorf("%d of %d, %+v", got, stored, d)
	}
	c.push("q", "p", "1")
}

// cluster starts three masters that share the slots.
func cluster(t *testing.T) redis.UniversalClient {
	t.Helper()
	var addrs []string
	var nodes []redis.UniversalClient
	for range 3 {
		bus, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := strconv.Itoa(bus.Addr().(*net.TCPAddr).Port)
		_ = bus.Close()
		r := own(t, devdb.RedisOptions{Args: []string{"--cluster-enabled", "yes", "--cluster-port", port, "--cluster-node-timeout", "2000"}})
		addrs = append(addrs, strings.TrimSuffix(strings.TrimPrefix(r.URL(), "redis://"), "/0"))
		node := dial(t, r.URL())
		from, to := len(nodes)*16384/3, (len(nodes)+1)*16384/3-1
		if err := node.(*redis.Client).ClusterAddSlotsRange(t.Context(), from, to).Err(); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
		if len(nodes) > 1 {
			err := nodes[0].Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(portOf(t, r)), port).Err()
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range nodes {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			info, err := n.(*redis.Client).ClusterInfo(t.Context()).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("no cluster: %s %v", info, err)
			}
		}
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestEphemeral_Cluster(t *testing.T) {
	t.Parallel()
	c := newScene(t, cluster(t), ephemeral.Config{})
	other := c.on(c.broker(&tally{}))
	c.configure("declared", mq.EphemeralOptions{LeaseSeconds: ptr[int64](1), MaxLength: ptr[int64](5)})
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			queue := fmt.Sprint("q", i)
			go func() {
				time.Sleep(time.Duration(i) * 5 * time.Millisecond)
				c.push(queue, "p", "1", "2")
			}()
			start := time.Now()
			m := other.pop(queue, 5, how{group: "g", wait: 10 * time.Second})
			if show(m) != "1 2" || time.Since(start) > 5*time.Second {
				t.Errorf("%q after %v", show(m), time.Since(start))
			}
			if got := other.ack(queue, "g", completed, m...); got != "acked acked" {
				t.Errorf("%s", got)
			}
		})
	}
	wg.Wait()
	list, bytes, err := c.s.Queues(t.Context(), mq.DefaultTenant)
	if err != nil || len(list) != 61 || bytes != 0 {
		t.Errorf("%d queues, %d bytes: %v", len(list), bytes, err)
	}
	c.push("declared", "a:b", numbers(1, 6)...)
	c.wantCode(mq.CodeEphemeralFull, c.tryPush("declared", "x", "6"))
	c.wantPop("1 2 3 4 5", "declared", 9, how{})
	c.wantPop("1*2 2*2 3*2 4*2 5*2", "declared", 9, how{wait: 5 * time.Second})
}
