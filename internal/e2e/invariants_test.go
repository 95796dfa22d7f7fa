package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestInvariant_B1_B6_OneBatchAmongTwentyWorkers(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.push(10)
		s.mustPop("batch=1&autoAck=true", "m-0") // registers the group
		got := make(chan *PopAnswer, 20)
		for i := range 20 {
			go func() {
				b := s.consumer
				if i%2 == 0 {
					b = s.third
				}
				got <- s.popBy(b, "batch=4")
			}()
		}
		var batches []*PopAnswer
		for range 20 {
			if p := await(t, got, "a pop"); p != nil {
				batches = append(batches, p)
			}
		}
		if len(batches) != 1 || !slices.Equal(batches[0].IDs(), ids("m", 1, 5)) {
			t.Fatalf("%d workers got a batch", len(batches))
		}
	})
}

func TestInvariant_B1_ALeaseDoesNotBlockTheNextPop(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.Pop("q", "") // registers queue mode
	b.PushN("q", "p1", "a", 1)
	b.PushN("q", "p2", "b", 1)
	tx := holdRow(t, f, "SELECT 1 FROM queen.cursors c JOIN queen.partitions p ON p.id = c.partition_id WHERE p.name = 'p1' FOR UPDATE OF c")
	defer tx.Close()
	start := time.Now()
	p := b.Pop("q", "")
	if took := time.Since(start); took > prompt {
		t.Errorf("the pop waited %v for a row that another session holds", took)
	}
	if !slices.Equal(p.IDs(), []string{"b-0"}) {
		t.Errorf("got %q", p.IDs())
	}
	if p := b.Pop("q", ""); p != nil {
		t.Errorf("got %q", p.IDs())
	}
}

func TestInvariant_B3_B4_OneOrderForAll(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for r := range 20 {
				f.Brokers[(w+r)%2].PushN("q", "p", fmt.Sprintf("%d-%d", w, r), 1+r%3)
			}
		})
	}
	seen := make([][]Message, 2) // by two groups, while it is written
	for g := range seen {
		wg.Go(func() {
			for len(seen[g]) < 6*39 {
				p := f.Brokers[g].Pop("q", fmt.Sprintf("wait=true&timeout=5000&batch=7&autoAck=true&subscriptionMode=all&consumerGroup=g%d", g))
				if p == nil {
					t.Errorf("group %d: no more after %d messages", g, len(seen[g]))
					return
				}
				seen[g] = append(seen[g], p.Messages...)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i := range seen[0] {
		a, b := seen[0][i], seen[1][i]
		if a.ID != b.ID || a.Offset != int64(i) || b.Offset != int64(i) || !a.CreatedAt.Equal(b.CreatedAt) {
			t.Fatalf("place %d: %+v and %+v", i, a, b)
		}
		if i > 0 && a.CreatedAt.Before(seen[0][i-1].CreatedAt) {
			t.Fatalf("offset %d was created before offset %d", i, i-1)
		}
	}
}

func TestInvariant_B5_TheCursorOnlyMovesOn(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.push(6)
		first := s.mustPop("batch=4&leaseSeconds=1", ids("m", 0, 4)...)
		s.consumer.Ack(first.ConsumerGroup, first.Messages[2].Ack("completed", ""))
		for _, m := range first.Messages[:3] {
			for _, status := range []string{"completed", "failed", "retry", "dlq"} {
				s.consumer.Ack(first.ConsumerGroup, m.Ack(status, ""))
				s.consumer.Ack(first.ConsumerGroup, AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, Status: status})
			}
		}
		time.Sleep(1050 * time.Millisecond) // the lease
		s.mustPop("", ids("m", 3, 6)...)
		if n := len(s.consumer.DeadLetters(s.queue)); n != 0 {
			t.Errorf("%d dead letters", n)
		}
	})
}

func TestInvariant_B7_ConsumingRemovesNothing(t *testing.T) {
	t.Parallel()
	eachScene(t, nil, func(t testing.TB, s *scene) {
		s.push(3)
		s.consumer.AckAll(s.mustPop("", ids("m", 0, 3)...))
		s.pushOne("x")
		p := s.mustPop("", "x")
		s.consumer.Ack(p.ConsumerGroup, p.Messages[0].Ack("dlq", "no"))
		got := stored(s.consumer, s.queue)
		if len(got) != 4 {
			t.Errorf("%d messages are left", len(got))
		}
	})
}

func TestInvariant_B46_B80_NothingTwiceNothingLost(t *testing.T) {
	t.Parallel()
	const partitions, each, consumers = 50, 20, 200
	f := Start(t, Options{Brokers: 2})
	var wg sync.WaitGroup
	for p := range partitions {
		wg.Go(func() {
			f.Brokers[p%2].PushN("q", fmt.Sprintf("p%d", p), fmt.Sprintf("p%d", p), each/2)
		})
	}
	wg.Wait()
	var mu sync.Mutex
	seen := map[string]int{}
	for c := range consumers {
		wg.Go(func() {
			b := f.Brokers[c%2]
			for {
				p := b.Pop("q", "wait=true&timeout=2500&batch=4&partitions=2")
				if p == nil {
					return
				}
				mu.Lock()
				for _, m := range p.Messages {
					seen[m.TransactionID]++
				}
				mu.Unlock()
				b.AckAll(p)
			}
		})
	}
	for p := range partitions { // the other half comes while they work
		f.Brokers[(p+1)%2].PushN("q", fmt.Sprintf("p%d", p), fmt.Sprintf("p%d-late", p), each/2)
	}
	wg.Wait()
	if len(seen) != partitions*each {
		t.Errorf("%d of %d messages were seen", len(seen), partitions*each)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
}
