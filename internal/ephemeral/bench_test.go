package ephemeral_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/ephemeral"
	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// BenchmarkCycle pushes, pops and acknowledges, beside a plain stream with a
// consumer group on the same Redis.
func BenchmarkCycle(b *testing.B) {
	o, err := redis.ParseURL(pgtest.Redis(b))
	if err != nil {
		b.Fatal(err)
	}
	client := redis.NewClient(o)
	b.Cleanup(func() { _ = client.Close() })
	payload := []byte(`"` + strings.Repeat("x", 254) + `"`)
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("queue/%d", size), func(b *testing.B) { cycleQueue(b, client, payload, size) })
		b.Run(fmt.Sprintf("stream/%d", size), func(b *testing.B) { cycleStream(b, client, payload, size) })
	}
}

func cycleQueue(b *testing.B, client *redis.Client, payload []byte, size int) {
	s := ephemeral.New(client, &fakeStore{set: mq.EphemeralSettings{Enabled: true}}, &tally{}, ephemeral.Config{
		Prefix: fmt.Sprintf("bench%d:", size), QueueMaxLength: 1 << 20,
	})
	payloads := make([][]byte, size)
	for i := range payloads {
		payloads[i] = payload
	}
	ctx := context.Background()
	var worker atomic.Int64
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		partition := fmt.Sprint("p", worker.Add(1))
		for pb.Next() {
			if err := s.Push(ctx, &mq.EphemeralPush{Tenant: mq.DefaultTenant, Queue: "q", Partition: partition, Payloads: payloads}); err != nil {
				b.Error(err)
				return
			}
			d, err := s.Pop(ctx, &mq.EphemeralPop{Tenant: mq.DefaultTenant, Queue: "q", Partition: partition, Group: "g", Batch: size})
			if err != nil || len(d.Messages) != size {
				b.Errorf("%d messages: %v", len(d.Messages), err)
				return
			}
			a := &mq.EphemeralAck{Tenant: mq.DefaultTenant, Queue: "q", Group: "g"}
			for i := range d.Messages {
				a.Items = append(a.Items, mq.EphemeralAckItem{ID: d.Messages[i].ID})
			}
			if _, err := s.Ack(ctx, a); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "msg/s")
}

func cycleStream(b *testing.B, client *redis.Client, payload []byte, size int) {
	ctx := context.Background()
	var worker atomic.Int64
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		stream := fmt.Sprintf("bench-stream-%d-%d", size, worker.Add(1))
		client.Del(ctx, stream)
		client.XGroupCreateMkStream(ctx, stream, "g", "0")
		for pb.Next() {
			if _, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
				for range size {
					p.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []any{"p", payload}})
				}
				return nil
			}); err != nil {
				b.Error(err)
				return
			}
			got, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{stream, ">"}, Count: int64(size)}).Result()
			if err != nil || len(got[0].Messages) != size {
				b.Errorf("%v", err)
				return
			}
			ids := make([]string, size)
			for i := range ids {
				ids[i] = got[0].Messages[i].ID
			}
			// A queue removes what is settled, so the stream has to as well.
			if _, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.XAck(ctx, stream, "g", ids...)
				p.XDel(ctx, stream, ids...)
				return nil
			}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "msg/s")
}
