package broker

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// Every row leases the batch 0..4 of ids a to e, after "seen" was acknowledged
// under the same lease.
func TestJudge_OneCall(t *testing.T) {
	const end = "at 4"
	for _, tt := range []struct {
		name         string
		retryLimit   int32
		seen         []string
		items        []string
		verdict, now string
		letters      string
	}{
		{name: "B81 all", items: []string{"a", "b", "c", "d", "e"}, verdict: "ok+released, ok+released, ok+released, ok+released, ok+released", now: end},
		{name: "B82 the last completes those before", items: []string{"e"}, verdict: "ok+released", now: end},
		{name: "B83 the middle", items: []string{"c"}, verdict: "ok", now: "at 2 leased to 4 attempt 1 of 3"},
		{name: "order in the call does not matter", items: []string{"d", "a"}, verdict: "ok, ok", now: "at 3 leased to 4 attempt 1 of 4"},
		{name: "B85 B89 below is harmless", seen: []string{"c"}, items: []string{"b"}, verdict: "ok+noop", now: "at 2 leased to 4 attempt 1 of 3"},
		{name: "below beside in span", seen: []string{"c"}, items: []string{"b", "e"}, verdict: "ok+noop, ok+released", now: end},
		{name: "B84 the rest", seen: []string{"c"}, items: []string{"d", "e"}, verdict: "ok+released, ok+released", now: end},
		{name: "B88 failed below", seen: []string{"c"}, items: []string{"a failed"}, verdict: "already committed", now: "at 2 leased to 4 attempt 1 of 3"},
		{name: "retry and dlq below", seen: []string{"c"}, items: []string{"a retry", "b dlq", "d"}, verdict: "already committed, already committed, ok", now: "at 3 leased to 4 attempt 1 of 4"},
		{name: "B86 failed on the second", items: []string{"a", "b failed", "c", "d", "e"}, retryLimit: 3, verdict: "ok+released, ok+released, ok+released, ok+released, ok+released", now: "at 0 retries 1 attempt 1 of 1"},
		{name: "failed alone leaves the gap", items: []string{"c failed"}, retryLimit: 3, verdict: "ok+released", now: "at -1 retries 1 attempt 1 of 0"},
		{name: "several failed are charged once", items: []string{"d failed", "b failed", "c failed"}, retryLimit: 3, verdict: "ok+released, ok+released, ok+released", now: "at -1 retries 1 attempt 1 of 0"},
		{name: "B87 retry charges nothing", items: []string{"a", "b retry", "c"}, verdict: "ok+released, ok+released, ok+released", now: "at 0 attempt 1 of 1"},
		{name: "retry below failed wins", items: []string{"b retry", "c failed"}, verdict: "ok+released, ok+released", now: "at -1 attempt 1 of 0"},
		{name: "B95 no budget", items: []string{"a", "b failed boom", "c"}, verdict: "ok+released, ok+released+dlq, ok+released", now: "at 1", letters: "b@1:1 after 0: boom"},
		{name: "B93 dlq with a prefix", items: []string{"a", "b dlq bad"}, retryLimit: 9, verdict: "ok+released, ok+released+dlq", now: "at 1", letters: "b@1:1 after 0: bad"},
		{name: "B93 dlq passes the gap over", items: []string{"c dlq bad"}, retryLimit: 9, verdict: "ok+released+dlq", now: "at 2", letters: "c@1:2 after 0: bad"},
		{name: "several dlq: one is filed", items: []string{"d dlq", "b dlq"}, verdict: "ok+released, ok+released+dlq", now: "at 1", letters: "b@1:1 after 0: Retries exhausted"},
		{name: "the error of another nack", items: []string{"b dlq", "a", "d failed later"}, verdict: "ok+released+dlq, ok+released, ok+released", now: "at 1", letters: "b@1:1 after 0: later"},
		{name: "on one message dlq beats failed beats retry", items: []string{"b retry r", "b failed f", "b dlq d"}, retryLimit: 9, verdict: "ok+released, ok+released, ok+released+dlq", now: "at 1", letters: "b@1:1 after 0: d"},
		{name: "a signal beats completed on one message", items: []string{"b", "b failed"}, retryLimit: 9, verdict: "ok+released, ok+released", now: "at -1 retries 1 attempt 1 of 0"},
		{name: "B103 never pushed", items: []string{"z"}, verdict: "unresolvable", now: "at -1 leased to 4 attempt 1 of 0"},
		{name: "no id", items: []string{""}, verdict: "unresolvable", now: "at -1 leased to 4 attempt 1 of 0"},
		{name: "a signal on nothing does not act", items: []string{"z failed", "b"}, verdict: "unresolvable, ok", now: "at 1 leased to 4 attempt 1 of 2"},
		{name: "B104 beyond the batch", items: []string{"f", "e"}, verdict: "unresolvable, ok+released", now: end},
		{name: "one id twice in a call", items: []string{"b", "b"}, verdict: "ok, ok", now: "at 1 leased to 4 attempt 1 of 2"},
		{name: "B106 unknown status", items: []string{"a Completed"}, retryLimit: 3, verdict: "ok+released", now: "at -1 retries 1 attempt 1 of 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger(tt.retryLimit, "a", "b", "c", "d", "e", "f")
			lease := l.lease(1, 5)
			if tt.seen != nil {
				l.flush(call(1, lease, tt.seen...))
			}
			u := call(1, lease, tt.items...)
			l.flush(u)
			l.want(t, u, tt.verdict, tt.now)
			if got := l.filed(); got != tt.letters {
				t.Errorf("filed: %s\nwant:  %s", got, tt.letters)
			}
		})
	}
}

func TestJudge_17_1_WorkedExample(t *testing.T) {
	l := newLedger(1, "0", "1", "2", "3", "4")
	attempt := func(want int32) {
		t.Helper()
		if got := l.at(1).AttemptCount; got != want {
			t.Errorf("handed out for the %d. time, want %d", got, want)
		}
	}
	step := func(lease, verdict, state string, items ...string) {
		t.Helper()
		u := call(1, lease, items...)
		l.flush(u)
		l.want(t, u, verdict, state)
	}
	l1 := l.lease(1, 5)
	attempt(1)
	step(l1, "ok", "at 1 leased to 4 attempt 1 of 2", "1")
	step(l1, "ok+noop", "at 1 leased to 4 attempt 1 of 2", "0")
	step(l1, "ok+released, ok+released, ok+released", "at 2 retries 1 attempt 1 of 3", "2", "3 failed", "4")
	l.lease(1, 5)
	attempt(2)
	l.expire()
	l3 := l.lease(1, 5)
	attempt(3)
	step(l3, "ok+released+dlq", "at 3", "3 failed boom")
	if got := l.filed(); got != "3@1:3 after 1: boom" {
		t.Errorf("filed: %s", got)
	}
	l4 := l.lease(1, 5)
	attempt(1)
	step(l3, "invalid or expired lease", "at 3 leased to 4 attempt 1 of 4", "4")
	step("", "ok+released", "at 4", "4")
	step(l4, "ok+noop", "at 4", "4")
	step("", "already committed", "at 4", "3 failed")
}

func TestJudge_LeaseIsChecked(t *testing.T) {
	other := mq.UUID{0: 99}.String()
	for _, tt := range []struct {
		name           string
		lease          string // "" none, "L" the one held
		expired        bool
		items          []string
		verdict, state string
	}{
		{"B98 wrong", other, false, []string{"a", "b"}, "invalid or expired lease, invalid or expired lease", "at 0 leased to 2 attempt 1 of 1"},
		{"malformed", "x", false, []string{"c"}, "invalid or expired lease", "at 0 leased to 2 attempt 1 of 1"},
		{"B99 expired", "L", true, []string{"c"}, "invalid or expired lease", "at 0 leased to 2 attempt 1 of 1"},
		{"B101 repeat of what is done", other, false, []string{"a"}, "ok+noop", "at 0 leased to 2 attempt 1 of 1"},
		{"repeat with a nack in it", other, false, []string{"a", "a failed"}, "invalid or expired lease, invalid or expired lease", "at 0 leased to 2 attempt 1 of 1"},
		{"repeat with an unknown id", other, false, []string{"a", "z"}, "invalid or expired lease, invalid or expired lease", "at 0 leased to 2 attempt 1 of 1"},
		{"B100 none, expired but unclaimed", "", true, []string{"b"}, "ok", "at 1 leased to 2 attempt 1 of 2"},
		{"none, expired, to the end", "", true, []string{"c"}, "ok+released", "at 2"},
		{"none, expired, beyond the end", "", true, []string{"d"}, "unresolvable", "at 0 leased to 2 attempt 1 of 1"},
		{"none, expired, failed", "", true, []string{"b failed"}, "ok+released", "at 0 retries 1 attempt 1 of 1"},
		{"none, somebody's batch", "", false, []string{"c"}, "ok+released", "at 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger(3, "a", "b", "c", "d")
			held := l.lease(1, 3)
			l.flush(call(1, held, "a"))
			if tt.expired {
				l.expire()
			}
			lease := tt.lease
			if lease == "L" {
				lease = held
			}
			u := call(1, lease, tt.items...)
			l.flush(u)
			l.want(t, u, tt.verdict, tt.state)
		})
	}
}

func TestJudge_NoBatchLeased(t *testing.T) {
	for _, tt := range []struct {
		name           string
		items          []string
		verdict, state string
	}{
		{"completed moves the cursor anywhere", []string{"d"}, "ok", "at 3"},
		{"U8 failed is refused", []string{"c failed"}, "invalid or expired lease", "at 0"},
		{"retry and dlq are refused", []string{"c retry", "d dlq"}, "invalid or expired lease, invalid or expired lease", "at 0"},
		{"a refused signal does not hold back others", []string{"b failed", "c"}, "invalid or expired lease, ok", "at 2"},
		{"failed below", []string{"a failed"}, "already committed", "at 0"},
		{"completed below", []string{"a"}, "ok+noop", "at 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger(0, "a", "b", "c", "d")
			l.flush(call(1, l.lease(1, 1), "a"))
			u := call(1, "", tt.items...)
			l.flush(u)
			l.want(t, u, tt.verdict, tt.state)
			if len(l.letters) > 0 {
				t.Errorf("filed: %s", l.filed())
			}
		})
	}
}

func TestJudge_DropsWhenDeadLettersAreOff_B94(t *testing.T) {
	l := newLedger(0, "a", "b", "c")
	l.rules.DeadLetters = false
	u := call(1, l.lease(1, 3), "a", "b failed")
	l.flush(u)
	l.want(t, u, "ok+released, ok+released", "at 1")
	// The word dlq files whatever the switches say.
	u = call(1, l.lease(1, 3), "c dlq")
	l.flush(u)
	l.want(t, u, "ok+released+dlq", "at 2")
	if got := l.filed(); got != "c@1:2 after 0: Retries exhausted" {
		t.Errorf("filed: %s", got)
	}
}

func TestJudge_BudgetIsPerCursor(t *testing.T) {
	l := newLedger(2, "a", "b", "c")
	for i := range 2 { // B90: the third failed is one too many
		u := call(1, l.lease(1, 3), "a failed")
		l.flush(u)
		l.want(t, u, "ok+released", fmt.Sprintf("at -1 retries %d attempt %d of 0", i+1, i+1))
	}
	u := call(1, l.lease(1, 3), "b failed") // whoever it is
	l.flush(u)
	l.want(t, u, "ok+released+dlq", "at 1")

	// B97: a completed batch gives the budget back.
	u = call(1, l.lease(1, 3), "c failed")
	l.flush(u)
	l.want(t, u, "ok+released", "at 1 retries 1 attempt 1 of 2")
	u = call(1, l.lease(1, 3), "c")
	l.flush(u)
	l.want(t, u, "ok+released", "at 2")

	// B96: a limit lowered under the counter.
	l.partition(2, "x")
	l.at(2).RetryCount = 2
	l.rules.RetryLimit = 1
	u = call(2, l.lease(2, 1), "x failed")
	l.flush(u)
	l.want(t, u, "ok+released+dlq", "at 0")
}

func TestJudge_IDsTwiceInASpan_B111(t *testing.T) {
	for _, tt := range []struct {
		name           string
		items          []string
		verdict, state string
	}{
		{"once completes through the lower one", []string{"x"}, "ok", "at 1 leased to 4 attempt 1 of 2"},
		{"all ids complete the batch", []string{"a", "x", "b", "c"}, "ok+released, ok+released, ok+released, ok+released", "at 4"},
		{"all ids, the twin named twice", []string{"a", "x", "x", "b", "c"}, "ok+released, ok+released, ok+released, ok+released, ok+released", "at 4"},
		{"one id missing", []string{"a", "x", "b"}, "ok, ok, ok", "at 2 leased to 4 attempt 1 of 3"},
		{"a signal on it acts on the lower one", []string{"a", "x failed", "b"}, "ok+released, ok+released, ok+released", "at 0 retries 1 attempt 1 of 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// The twin is last, so that the highest lowest match falls short.
			l := newLedger(3, "a", "x", "b", "c", "x", "later")
			u := call(1, l.lease(1, 5), tt.items...)
			l.flush(u)
			l.want(t, u, tt.verdict, tt.state)
		})
	}
}

func TestJudge_Conflated(t *testing.T) {
	for _, tt := range []struct {
		name           string
		ids            []string
		item           string
		verdict, state string
		letters        string
	}{
		{"B70 the span is retired", []string{"a", "b", "c"}, "c", "ok+released+conflated2", "at 2", ""},
		{"a span of one", []string{"a"}, "a", "ok+released", "at 0", ""},
		{"B74 an id twice does not loop", []string{"x", "b", "x"}, "x", "ok+released+conflated2", "at 2", ""},
		{"failed", []string{"a", "b", "c"}, "c failed", "ok+released", "at -1 retries 1 attempt 1 of 0", ""},
		{"retry", []string{"a", "b", "c"}, "c retry", "ok+released", "at -1 attempt 1 of 0", ""},
		{"dlq files the one delivered", []string{"a", "b", "c"}, "c dlq old", "ok+released+dlq", "at 2", "c@1:2 after 0: old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger(3, tt.ids...)
			u := call(1, l.leaseNewest(1), tt.item)
			l.flush(u)
			l.want(t, u, tt.verdict, tt.state)
			if got := l.filed(); got != tt.letters {
				t.Errorf("filed: %s", got)
			}
		})
	}
}

func TestJudge_DeadLetterThatCannotBeRead(t *testing.T) {
	l := newLedger(0, "a", "b", "c")
	l.gone[1] = true
	u := call(1, l.lease(1, 3), "a", "b failed boom")
	l.flush(u)
	l.want(t, u, "ok+released, dlq rejected", "at 0 attempt 1 of 1")
	if len(l.letters) > 0 {
		t.Errorf("filed: %s", l.filed())
	}

	// Who completed what follows, in the same flush, was told so.
	u, next := call(1, l.lease(1, 1), "b failed"), call(1, "", "c")
	l.flush(u, next)
	l.want(t, u, "dlq rejected", "at 2")
	l.want(t, next, "ok", "at 2")
}

// Units of one flush that meet on a cursor see what the earlier ones did.
func TestJudge_SeveralUnitsOnOneCursor(t *testing.T) {
	l := newLedger(1, "a", "b", "c", "d", "e")
	lease := l.lease(1, 3)
	first, second, third := call(1, lease, "a"), call(1, lease, "a", "b"), call(1, lease, "c")
	repeat, late, ahead := call(1, lease, "b"), call(1, lease, "c failed"), call(1, "", "d")
	l.flush(first, second, third, repeat, late, ahead)
	for _, want := range []struct {
		u       *ackUnit
		verdict string
	}{
		{first, "ok"},
		{second, "ok+noop, ok"},
		{third, "ok+released"},
		{repeat, "ok+noop"},
		{late, "invalid or expired lease"},
		{ahead, "ok"},
	} {
		l.want(t, want.u, want.verdict, "at 3")
	}

	// Two nacks of one lease: the second finds it released and charges nothing.
	lease = l.lease(1, 3)
	first, second = call(1, lease, "e failed"), call(1, lease, "e failed")
	l.flush(first, second)
	l.want(t, first, "ok+released", "at 3 retries 1 attempt 1 of 4")
	l.want(t, second, "invalid or expired lease", "at 3 retries 1 attempt 1 of 4")
}

func TestJudge_UnitsOfOtherPartitionsStayApart(t *testing.T) {
	l := newLedger(1, "a", "b")
	l.partition(2, "a", "b")
	l.partition(3, "a", "b")
	dead, failed, fine := call(1, l.lease(1, 2), "a dlq bad"), call(2, l.lease(2, 2), "a failed"), call(3, l.lease(3, 2), "b")
	l.flush(dead, failed, fine)
	l.want(t, dead, "ok+released+dlq", "at 0")
	l.want(t, failed, "ok+released", "at -1 retries 1 attempt 1 of 0")
	l.want(t, fine, "ok+released", "at 1")
	if got := l.filed(); got != "a@1:0 after 0: bad" {
		t.Errorf("filed: %s", got)
	}
}

func TestJudge_NoCursor_B102(t *testing.T) {
	l := newLedger(1, "a")
	u := call(5, "", "a", "b failed")
	j := judge([]*ackUnit{u}, &mq.LockedAcks{Rules: l.rules}, map[mq.CursorKey]*mq.Span{})
	if got := verdicts(u); got != "consumer not found, consumer not found" || !j.missing[u.key] || len(j.decision().Changes()) > 0 {
		t.Errorf("verdicts: %s, %+v", got, j)
	}
}

// The store may run a transaction again; judging twice must not differ.
func TestJudge_MayRunAgain(t *testing.T) {
	l := newLedger(0, "a", "x", "x", "d")
	units := []*ackUnit{call(1, l.lease(1, 3), "a", "x"), call(1, "", "d dlq")}
	locked := &mq.LockedAcks{Cursors: l.cursors, Rules: l.rules, Offsets: map[mq.AckID][]int64{
		{Partition: 1, Key: mq.HashID("a").Key}: {0}, {Partition: 1, Key: mq.HashID("x").Key}: {2, 1},
		{Partition: 1, Key: mq.HashID("d").Key}: {3},
	}}
	before := *l.at(1)
	spans := map[mq.CursorKey]*mq.Span{{Partition: 1, Group: judgedGroup}: {Partition: 1, After: -1, Through: 2, Read: true, IDs: []string{"a", "x", "x"}}}
	once := judge(units, locked, spans).decision().Changes()
	verdict := verdicts(units[0]) + "; " + verdicts(units[1])
	again := judge(units, locked, spans).decision().Changes()
	if !reflect.DeepEqual(once, again) || verdict != verdicts(units[0])+"; "+verdicts(units[1]) {
		t.Errorf("first %+v %s, then %+v", once, verdict, again)
	}
	if *l.at(1) != before {
		t.Errorf("a locked cursor was changed: %+v", *l.at(1))
	}
}
