package pgstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// BenchmarkCycle runs the statements of one push, one leased pop and one ack of
// the batch on one connection, one after the other: the cost of a transaction
// of each kind, without concurrency.
func BenchmarkCycle(b *testing.B) {
	for _, size := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) { benchCycle(b, size) })
	}
}

func benchCycle(b *testing.B, size int) {
	f := setup(b, "bench")
	g := f.group("g", mq.StartAll)
	payload := fmt.Sprintf(`{"pad":%q}`, make([]byte, 60))
	var push, pop, ack time.Duration
	seq := 0
	b.ResetTimer()
	for range b.N {
		ms := make([]*mq.Message, size)
		var fp mq.Fingerprint
		for i := range ms {
			seq++
			ms[i] = message(fmt.Sprint("id-", seq), payload)
			fp.Add(ms[i].Hash)
		}
		t := time.Now()
		f.push("p", ms...)
		push += time.Since(t)
		t = time.Now()
		claims := f.claim(g, size, 1)
		pop += time.Since(t)
		if len(claims) != 1 {
			b.Fatalf("claimed %d", len(claims))
		}
		t = time.Now()
		f.ackWhole(g, claims[0], fp)
		ack += time.Since(t)
	}
	n := float64(b.N)
	b.ReportMetric(float64(push.Microseconds())/n, "push-µs")
	b.ReportMetric(float64(pop.Microseconds())/n, "pop-µs")
	b.ReportMetric(float64(ack.Microseconds())/n, "ack-µs")
}
