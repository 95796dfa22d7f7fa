package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// parked is how many pops a broker says are waiting.
func (b *Broker) parked() (n float64) {
	_, _, text := b.Do("GET", "/metrics/prometheus", nil)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "queen_parked_long_polls") {
			fields := strings.Fields(line)
			v, _ := strconv.ParseFloat(fields[len(fields)-1], 64)
			n += v
		}
	}
	return n
}

// Consumers that wait on many queues must not keep the database busy with
// looking: they share looks, and a look commits nothing.
func TestManyIdleQueuesCostFewTransactions(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	const queues = 300
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range queues {
		wg.Go(func() {
			_, _, _, _ = f.One().Try(ctx, "GET", fmt.Sprintf("/api/v1/pop/queue/q%d?wait=true&timeout=60000", i), nil)
		})
	}
	defer wg.Wait()
	defer cancel()
	for f.One().parked() < queues {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second) // the first looks come soon after each other
	pool := f.DB.Pool(t)
	commits := func() (n int64) {
		var flushed time.Time
		// What a session has counted is shown when it has been quiet for a moment.
		time.Sleep(1100 * time.Millisecond)
		if err := pool.QueryRow(t.Context(), `SELECT xact_commit, clock_timestamp() FROM pg_stat_database
			WHERE datname = current_database()`).Scan(&n, &flushed); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := commits()
	start := time.Now()
	time.Sleep(4 * time.Second)
	n := commits() - before
	perSecond := float64(n) / time.Since(start).Seconds()
	t.Logf("%.0f transactions a second for %d idle queues", perSecond, queues)
	if perSecond > queues/2 {
		t.Errorf("%.0f transactions a second for %d idle queues", perSecond, queues)
	}
}
