package pgstore

import (
	"slices"
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/pgstore/db"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

const (
	timerKey       = "timers_pkey"
	timerDue       = "timers_due_at_idx"
	timerTenantDue = "timers_tenant_due_at_idx"
)

// TestTimerPlans: no statement reads more timers than it is about, on a table
// that is new and on one that grew under the same sessions.
func TestTimerPlans(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{URL: pgtest.New(t).URL, PoolSize: 8, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	check := func(t *testing.T) {
		for _, p := range []struct{ name, sql, index, bound string }{
			{"LockTimers", db.LockTimers, timerKey, "timer_key ="},
			{"ScheduleTimers", db.ScheduleTimers, timerKey, "timer_key ="},
			{"CancelTimers", db.CancelTimers, timerKey, "timer_key ="},
			{"ClaimTimers", db.ClaimTimers, timerKey, "timer_key ="},
			{"DeleteTimers", db.DeleteTimers, timerKey, "timer_key ="},
			{"ListDueTimers", db.ListDueTimers, timerDue, "due_at <="},
			{"ListDueTimersOfOthers", db.ListDueTimersOfOthers, timerTenantDue, "due_at <="},
		} {
			root, text := planOf(t, s.hot, p.name, p.sql)
			var used []planNode
			root.walk(func(n *planNode) {
				if n.Relation != "timers" || n.Type == "ModifyTable" || n.Type == "Tid Scan" {
					return
				}
				if n.Index == "" {
					t.Errorf("%s reads timers without an index:\n%s", p.name, text)
				}
				if n.Index != p.index && n.Index != timerTenantDue {
					t.Errorf("%s uses %s:\n%s", p.name, n.Index, text)
				}
				used = append(used, *n)
			})
			if !slices.ContainsFunc(used, func(n planNode) bool {
				return n.Index == p.index && strings.Contains(n.IndexCond, p.bound)
			}) {
				t.Errorf("%s does not use %s bound by %q:\n%s", p.name, p.index, p.bound, text)
			}
			if p.index != timerTenantDue && slices.ContainsFunc(used, func(n planNode) bool { return n.Index == timerTenantDue }) {
				t.Errorf("%s goes by tenant alone:\n%s", p.name, text)
			}
		}
	}
	t.Run("new", check)
	for _, stmt := range []string{
		`INSERT INTO queen.timers (tenant, queue, timer_key, partition, deliver_at, due_at, txn, message_id, payload, encrypted, created_at, updated_at)
			SELECT '00000000-0000-0000-0000-000000000001', 'q' || n % 7, 'k' || n, 'p', now() + n * interval '1 second', now() + n * interval '1 second',
			'txn', gen_random_uuid(), '1', false, now(), now() FROM generate_series(1, 50000) n`,
		`ANALYZE queen.timers`,
	} {
		if _, err := s.cold.Exec(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("grown", check)
}
