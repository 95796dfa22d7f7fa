package main

import (
	"testing"
	"time"
)

func newTestFloor(t *testing.T) *floor {
	t.Helper()
	stmts, err := loadStatements()
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPayloads(1, 256, "")
	if err != nil {
		t.Fatal(err)
	}
	cfg := &config{batch: 7, popBatch: 100, popPartitions: 3, dedup: true}
	return &floor{cfg: cfg, stmts: stmts, payloads: p, names: []string{"p0"}, queue: floorQueue{id: 1, version: 1, group: 2}}
}

// Every statement of the floor is bound by name, so this test fails when a query gains or loses a parameter.
func TestFloorBindsEveryParameter(t *testing.T) {
	t.Parallel()
	f := newTestFloor(t)
	seg := f.segment(0, 0, 7)
	id, queueID := named{"id": 1}, named{"queue_id": 1}
	step := named{"queue_id": 1, "group_id": 2, "step": seedStep}
	args := map[string]named{
		"CreateQueue": createQueueArgs("q", 60, 3600), "FindQueue": {"tenant": 1, "name": "q"},
		"EnsureIDSlices": {"id_class": 0}, "ShareQueue": id, "CreatePartitions": {"queue_id": 1, "names": f.names},
		"LockQueue": id, "RegisterGroup": {"queue_id": 1, "name": "g", "start_mode": 1, "start_at": nil, "conflation": false},
		"FindGroup": {"queue_id": 1, "name": "g"}, "LockPartitionsToSeed": step, "SeedCursors": step,
		"LockPartitions": {"queue_id": 1, "names": f.names}, "AppendSegments": f.appendArgs("p0", 7, &seg),
		"ClaimPartitions": f.claimArgs([16]byte{}, time.Now()), "AckBatches": f.ackArgs(&claim{}),
		"LockAllPartitions": queueID, "DeleteQueueCursors": queueID, "DeleteQueuePartitions": queueID,
		"DeleteQueueGroups": queueID, "DropQueue": queueID, "DeleteQueue": id,
	}
	for _, name := range floorQueries {
		if _, err := f.stmts.byName[name].Args(args[name]); err != nil {
			t.Error(err)
		}
	}
}

// What a claim reads out of a segment must give the fingerprint of what went in, for any part of it.
func TestFloorReadsItsOwnSegments(t *testing.T) {
	t.Parallel()
	f := newTestFloor(t)
	seg := f.segment(0, 100, 7)
	for from := range 7 {
		for to := from; to < 7; to++ {
			var want uint64
			for seq := from; seq <= to; seq++ {
				_, mark := hashID(f.transactionID(0, int64(100+seq)))
				want ^= mark
			}
			var c claim
			if err := c.add(9, seg.ends, seg.body, from, to); err != nil {
				t.Fatal(err)
			}
			if len(c.counts) != 1 || c.counts[0] != int32(to-from+1) || c.marks[0] != int64(want) {
				t.Errorf("%d..%d: %+v, want mark %d", from, to, c, int64(want))
			}
		}
	}
	var c claim
	if err := c.add(9, seg.ends, seg.body[:20], 0, 0); err == nil {
		t.Error("a cut segment accepted")
	}
}

func TestCompareFloor(t *testing.T) {
	t.Parallel()
	before := &floorRun{Rates: rates{Push: 100, Cycle: 80}}
	after := &floorRun{Rates: rates{Push: 300, Cycle: 120}}
	r := compareFloor(&config{}, before, after, rates{Push: 100, Cycle: 60})
	if r.PushRatio != 0.5 || r.CycleRatio != 0.6 || r.Drift != 3 {
		t.Errorf("%+v", r)
	}
	r = compareFloor(&config{}, &floorRun{}, &floorRun{}, rates{Push: 1})
	if r.PushRatio != 0 || r.Drift != 0 {
		t.Errorf("without a floor: %+v", r)
	}
}
