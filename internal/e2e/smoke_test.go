package e2e

import (
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

func TestSmoke_B18_PushCreatesPopDelivers(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	status, _, answer := f.Brokers[0].Do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":{"a":1.10}}]}`)
	if status != 201 {
		t.Fatalf("push: %d %s", status, answer)
	}
	status, _, answer = f.Brokers[1].Do("GET", "/api/v1/pop/queue/q", nil)
	if status != 200 || !strings.Contains(string(answer), `"data":{"a":1.10}`) {
		t.Fatalf("pop: %d %s", status, answer)
	}
}
