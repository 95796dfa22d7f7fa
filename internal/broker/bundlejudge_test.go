package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func TestLeaseHints_10_2(t *testing.T) {
	held, second, third := mq.UUID{0: 1}.String(), mq.UUID{0: 2}.String(), mq.UUID{0: 3}.String()
	const junk = "junk"
	for _, tt := range []struct {
		name           string
		own            string
		required       []string
		beside         []string // leases of other acks
		live, expired  bool     // what the cursor makes of it, with held
		withoutAnybody bool     // what it makes of it when nobody holds it
	}{
		{name: "own", own: held, live: true},
		{name: "own, whatever else is named", own: held, required: []string{second, junk}, live: true},
		{name: "own is another", own: second, required: []string{held}},
		{name: "own is junk", own: junk, required: []string{held}},
		{name: "own is zero", own: mq.UUID{}.String()},
		{name: "the only hint", required: []string{held}, live: true},
		{name: "the only hint, twice and empty", required: []string{held, "", held}, live: true},
		{name: "the only hint, beside another ack", beside: []string{held}, live: true},
		{name: "the only hint is another", required: []string{second}},
		{name: "the only hint is junk", required: []string{junk}},
		{name: "several, one of them held", required: []string{second, held}, beside: []string{third}, live: true},
		{name: "several, none of them held", required: []string{second, third}},
		{name: "several with junk, one of them held", required: []string{junk, held}, live: true},
		{name: "none at all", live: true, expired: true, withoutAnybody: true},
		{name: "none but empty ones", required: []string{"", ""}, beside: []string{""}, live: true, expired: true, withoutAnybody: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := &mq.Bundle{RequiredLeases: tt.required, Ops: []mq.BundleOp{{Push: &mq.PushItem{}}, {Ack: &mq.BundleAck{AckItem: mq.AckItem{LeaseID: tt.own}}}}}
			for _, l := range tt.beside {
				in.Ops = append(in.Ops, mq.BundleOp{Ack: &mq.BundleAck{AckItem: mq.AckItem{LeaseID: l}}})
			}
			h := collectHints(in)
			c := &mq.Cursor{LeaseID: mq.UUID{0: 1}, LeaseExpires: judgeNow.Add(time.Second)}
			rules := &mq.AckRules{Now: judgeNow}
			if got := h.holds(tt.own, c, rules); got != tt.live {
				t.Errorf("live: %v", got)
			}
			rules.Now = c.LeaseExpires
			if got := h.holds(tt.own, c, rules); got != tt.expired {
				t.Errorf("expired: %v", got)
			}
			if got := h.holds(tt.own, &mq.Cursor{}, rules); got != tt.withoutAnybody {
				t.Errorf("not held: %v", got)
			}
		})
	}
}

// judged builds a bundle over the partitions of a ledger, all of queue 1: acks
// written "partition id status error", or "push id". Every ack is under lease,
// if that is not empty.
func judged(lease string, steps ...string) *bundle {
	in := &mq.Bundle{}
	bd := &bundle{broker: &Broker{cache: newCache(time.Hour)}, in: in}
	as := bundleAcks{queue: 1, spans: map[mq.CursorKey]*mq.Span{}, cursors: map[mq.CursorKey]bool{}}
	var query mq.AckQuery
	push := mq.BundlePush{Queue: &mq.QueueInfo{Queue: mq.Queue{Name: "q"}}}
	for i, text := range steps {
		part := strings.SplitN(text+"   ", " ", 4)
		if part[0] == "push" {
			in.Ops = append(in.Ops, mq.BundleOp{Push: &mq.PushItem{}})
			push.Partitions = append(push.Partitions, "p")
			push.Messages = append(push.Messages, &mq.Message{TransactionID: part[1]})
			continue
		}
		var partition int64
		if _, err := fmt.Sscan(part[0], &partition); err != nil {
			panic(err)
		}
		a := &mq.BundleAck{Group: "g", AckItem: mq.AckItem{TransactionID: part[1], LeaseID: lease, Error: strings.TrimSpace(part[3])}}
		if part[2] != "" {
			a.Status = mq.ParseAckStatus(part[2])
		}
		in.Ops = append(in.Ops, mq.BundleOp{Ack: a})
		as.add(&query, bundleStep{op: i, key: mq.CursorKey{Partition: partition, Group: judgedGroup}}, mq.HashID(a.TransactionID).Key)
	}
	bd.res = &mq.BundleResult{Ops: make([]mq.BundleOpResult, len(in.Ops))}
	bd.leases = collectHints(in)
	if len(as.steps) > 0 {
		bd.acks, bd.work.Acks = []bundleAcks{as}, []mq.AckQuery{query}
	}
	if len(push.Messages) > 0 {
		bd.work.Pushes = []mq.BundlePush{push}
	}
	return bd
}

// decided runs the judgement as a store does; probes answer the pushes.
func (l *ledger) decided(t *testing.T, bd *bundle, probes ...mq.BundleProbe) *mq.BundleDecision {
	t.Helper()
	locked := &mq.BundleLocked{}
	if len(bd.acks) > 0 {
		locked.Acks = []*mq.LockedAcks{l.locked()}
	}
	if len(probes) > 0 {
		locked.Probes = [][]mq.BundleProbe{probes}
	}
	d, err := bd.decide(locked)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range d.Acks {
		for _, sp := range a.Spans {
			if d.Commit {
				t.Error("decided before the ids were read")
			}
			sp.Read, sp.IDs = true, l.logs[sp.Partition][sp.After+1:sp.Through+1]
		}
	}
	if len(d.Acks) > 0 && len(d.Acks[0].Spans) > 0 {
		if d, err = bd.decide(locked); err != nil {
			t.Fatal(err)
		}
	}
	if d.Commit && bd.res.Reason != "" {
		t.Errorf("committed in spite of %s", bd.res.Reason)
	}
	return d
}

func TestBundleDecide(t *testing.T) {
	free, taken, missing := mq.BundleProbe{Stored: -1}, mq.BundleProbe{Stored: 3}, mq.BundleProbe{Stored: -1, Missing: true}
	const (
		lease = "lease"
		none  = ""
	)
	for _, tt := range []struct {
		name   string
		lease  string
		steps  []string
		probes []mq.BundleProbe
		commit bool
		reason string
		text   string // in the error
		dlq    []int
		at     string // committed offset of partition 1, when it commits
	}{
		{name: "B124", lease: lease, steps: []string{"1 a", "push x"}, probes: []mq.BundleProbe{free}, commit: true, at: "0"},
		{name: "B126", lease: lease, steps: []string{"1 a", "push x", "push y"}, probes: []mq.BundleProbe{free, taken}, reason: mq.BundleDuplicate, text: "QDUP q/p already holds y"},
		{name: "B128", lease: lease, steps: []string{"1 a", "1 nothing", "push x"}, probes: []mq.BundleProbe{free}, reason: mq.BundleRejectedAck, text: "QTXN step 1: unresolvable"},
		{name: "D17", lease: lease, steps: []string{"push x", "1 nothing"}, probes: []mq.BundleProbe{taken}, reason: mq.BundleRejectedAck},
		{name: "D17, a place is missing too", lease: lease, steps: []string{"push x", "push y", "1 nothing"}, probes: []mq.BundleProbe{missing, taken}, reason: mq.BundleRejectedAck},
		{name: "a place is missing", lease: lease, steps: []string{"push x", "1 a"}, probes: []mq.BundleProbe{missing}},
		{name: "a place is missing and an id stored", steps: []string{"push x", "push y"}, probes: []mq.BundleProbe{missing, taken}, reason: mq.BundleDuplicate},
		{name: "B129", lease: mq.UUID{0: 9}.String(), steps: []string{"1 a"}, reason: mq.BundleRejectedAck, text: "step 0: " + mq.AckErrLease},
		{name: "B130", lease: none, steps: []string{"1 b"}, commit: true, at: "1"},
		{name: "B134 dlq", lease: lease, steps: []string{"push x", "1 a", "1 b dlq bad"}, probes: []mq.BundleProbe{free}, commit: true, dlq: []int{2}, at: "1"},
		{name: "B134 failed", lease: lease, steps: []string{"1 a failed"}, commit: true, at: "-1"},
		{name: "B134 retry", lease: lease, steps: []string{"1 b retry", "1 a"}, commit: true, at: "0"},
		{name: "D15 one of several", lease: lease, steps: []string{"1 c dlq", "1 a dlq"}, commit: true, dlq: []int{1}, at: "0"},
		{name: "B145 one call", lease: lease, steps: []string{"1 e", "push x", "1 b failed", "1 a"}, probes: []mq.BundleProbe{free}, commit: true, at: "0"},
		{name: "two partitions", lease: none, steps: []string{"2 z", "1 a", "2 y"}, commit: true, at: "0"},
		{name: "two partitions, one ack is wrong", lease: none, steps: []string{"1 a", "2 a"}, reason: mq.BundleRejectedAck, text: "step 1"},
		{name: "B111 an id twice, all of them", lease: lease, steps: []string{"1 a", "1 b", "1 c", "1 d", "1 e"}, commit: true, at: "5"},
		{name: "pushes alone", steps: []string{"push x"}, probes: []mq.BundleProbe{free}, commit: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger(3, "a", "b", "c", "d", "e", "a")
			l.partition(2, "z", "y")
			held := l.lease(1, 6)
			if tt.lease == lease {
				tt.lease = held
			}
			bd := judged(tt.lease, tt.steps...)
			d := l.decided(t, bd, tt.probes...)
			if d.Commit != tt.commit || bd.res.Reason != tt.reason || !strings.Contains(bd.res.Error, tt.text) {
				t.Fatalf("commit %v, %q: %s", d.Commit, bd.res.Reason, bd.res.Error)
			}
			if !tt.commit {
				return
			}
			if !d.Confirm() {
				t.Errorf("not confirmed: %s", bd.res.Error)
			}
			for i, r := range bd.res.Ops {
				if r.DLQ != slices.Contains(tt.dlq, i) {
					t.Errorf("step %d: dlq %v", i, r.DLQ)
				}
			}
			for _, a := range d.Acks {
				for _, ch := range a.Changes() {
					if ch.Partition == 1 && fmt.Sprint(ch.Committed) != tt.at {
						t.Errorf("cursor at %d, want %s", ch.Committed, tt.at)
					}
				}
			}
		})
	}
}

// A cursor that is not there is looked for once more, under the group there is
// then.
func TestBundleDecide_CursorMissing(t *testing.T) {
	l := newLedger(3, "a")
	bd := judged("", "5 a")
	if d := l.decided(t, bd); d.Commit || bd.res.Reason != "" || !bd.lost {
		t.Errorf("first: %+v %+v", d, bd.res)
	}
	bd = judged("", "5 a")
	bd.anew = true
	if d := l.decided(t, bd); d.Commit || bd.lost || bd.res.Reason != mq.BundleRejectedAck || !strings.Contains(bd.res.Error, mq.AckErrNoConsumer) {
		t.Errorf("second: %+v %+v", d, bd.res)
	}
}

// A message that retention took before it could be filed takes the bundle back.
func TestBundleDecide_DeadLetterGone(t *testing.T) {
	l := newLedger(0, "a", "b")
	bd := judged(l.lease(1, 2), "1 a failed", "push x")
	d := l.decided(t, bd, mq.BundleProbe{Stored: -1})
	if !d.Commit || len(d.Acks[0].Letters) != 1 {
		t.Fatalf("%+v", d)
	}
	d.Acks[0].Reject(0)
	if d.Confirm() || bd.res.Reason != mq.BundleRejectedAck || !strings.Contains(bd.res.Error, mq.AckErrDLQRejected) {
		t.Errorf("%+v", bd.res)
	}
}
