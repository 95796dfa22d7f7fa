package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// One batch acknowledged many times at once, through both brokers of a fleet:
// what it does, it does once.
func TestAck_SameBatchAtOnce(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	for name, tt := range map[string]struct {
		specs   []string
		refused bool // those who come later
	}{
		"whole":   {[]string{"0", "1", "2"}, false},
		"by_id":   {[]string{"2"}, false},
		"failed":  {[]string{"0", "1 failed"}, true},
		"dlq":     {[]string{"0", "1 dlq"}, true},
		"partial": {[]string{"0", "1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := f.One().In(t)
			b.Configure(name, bag{"retryLimit": 1})
			b.PushN(name, "p", "m", 3)
			p := delivers(b, name, as("g"), "m-0", "m-1", "m-2")
			body := map[string]any{"consumerGroup": "g", "acknowledgments": pick(p, tt.specs...)}
			var wg sync.WaitGroup
			var mu sync.Mutex
			said := map[string]int{}
			for i := range 12 {
				wg.Go(func() {
					status, _, answer, err := f.Brokers[i%2].Try(t.Context(), "POST", "/api/v1/ack/batch", body)
					var results []AckResult
					if err == nil {
						err = json.Unmarshal(answer, &results)
					}
					if err != nil || status != http.StatusOK {
						t.Errorf("ack: %d %s %v", status, answer, err)
						return
					}
					last := results[len(results)-1]
					mu.Lock()
					said[fmt.Sprintf("success %t, released %t, noop %t, dlq %t", last.Success, last.LeaseReleased, last.Noop, last.DLQ)]++
					mu.Unlock()
				})
			}
			wg.Wait()
			first := fmt.Sprintf("success true, released %t, noop false, dlq %t", name != "partial", name == "dlq")
			later := fmt.Sprintf("success %t, released false, noop %t, dlq false", !tt.refused, !tt.refused)
			if said[first] != 1 || said[later] != 11 {
				t.Errorf("verdicts: %v", said)
			}
			if name == "failed" { // charged once: one more is left
				acked(b, "g", pick(delivers(b, name, as("g"), "m-1", "m-2"), "0 failed"), "ok+released+dlq")
			}
			if want := map[string]int{"failed": 1, "dlq": 1}[name]; len(b.DeadLetters(name)) != want {
				t.Errorf("dead letters: %+v", b.DeadLetters(name))
			}
		})
	}
}
