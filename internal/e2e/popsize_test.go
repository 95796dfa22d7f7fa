package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A pop takes what fits into an answer. The partitions it had no room for can be
// popped at once.
func TestPop_LeavesTheRestReady(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	const parts = 30
	large := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	for i := range parts {
		b.Push(Item{Queue: "q", Partition: fmt.Sprint("p", i), Payload: large})
	}
	for _, commit := range []string{"autoAck=true&", ""} {
		n, pops := 0, 0
		for ; n < parts; pops++ {
			p := b.Pop("q", commit+as("g"+commit[:min(len(commit), 1)])+"batch=1000&partitions=64")
			if p == nil {
				t.Fatalf("204 after %d pops and %d messages of %d", pops, n, parts)
			}
			n += len(p.Messages)
			if commit == "" {
				b.AckAll(p)
			}
		}
		if pops < 2 {
			t.Error("everything fitted into one answer")
		}
	}
}
