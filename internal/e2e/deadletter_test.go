package e2e

import (
	"encoding/json"
	"net/http"
	"sync"
	"testing"
)

// replayedOnce replays a dead letter through every broker at once, twice each:
// one moves it, for the others it is gone.
func replayedOnce(t *testing.T, f *Fleet, id string) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	results := map[string]int{}
	for i := range 2 * len(f.Brokers) {
		wg.Go(func() {
			status, _, answer, err := f.Brokers[i/2].Try(t.Context(), "POST", "/api/v1/dlq/"+id+"/replay", nil)
			var body struct{ Result string }
			if err == nil {
				err = json.Unmarshal(answer, &body)
			}
			if err != nil || status != map[string]int{"moved": http.StatusOK, "gone": http.StatusNotFound}[body.Result] {
				t.Errorf("replay: %d %s %v", status, answer, err)
			}
			mu.Lock()
			results[body.Result]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if results["moved"] != 1 || results["gone"] != 2*len(f.Brokers)-1 {
		t.Errorf("replayed: %v", results)
	}
}
