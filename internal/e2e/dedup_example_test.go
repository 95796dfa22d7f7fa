package e2e

import "testing"

func TestPush_17_3_WorkedExample(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	item := func(id string) Item { return Item{Queue: "q", Partition: "p", TransactionID: id} }
	original := b.Push(item("t1"))[0]
	got := b.Push(item("t1"), item("t2"), item("t2"), item("t1"), item(""))
	x, y := got[1].MessageID, got[4].MessageID
	for i, want := range []struct {
		id, status, message string
		offset              int64
	}{
		{"t1", "duplicate", original.MessageID, 0},
		{"t2", "queued", x, 1},
		{"t2", "duplicate", x, 1},
		{"t1", "duplicate", original.MessageID, 0},
		{y, "queued", y, 2},
	} {
		r := got[i]
		if r.Index != i || r.TransactionID != want.id || r.Status != want.status || r.MessageID != want.message || r.Offset == nil || *r.Offset != want.offset {
			t.Errorf("%d: %+v, want %+v", i, r, want)
		}
	}
	if x == y || x == original.MessageID {
		t.Errorf("message ids %s, %s, %s", original.MessageID, x, y)
	}
	delivers(b, "q", "", "t1", "t2", y)
}
