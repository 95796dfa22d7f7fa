package httpapi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBroker answers with what a test sets. A use case the test did not set is
// one the handler must not call: the nil interface inside panics.
type fakeBroker struct {
	Broker
	push       func(context.Context, mq.Push) ([]mq.PushResult, error)
	pop        func(context.Context, mq.Pop) (*mq.Delivery, error)
	release    func(context.Context, *mq.Delivery)
	ack        func(mq.Ack) ([]mq.AckResult, error)
	transact   func(mq.Bundle) (*mq.BundleResult, error)
	extend     func(string, time.Duration) (mq.Extension, error)
	configure  func(mq.Configure) (mq.Queue, error)
	deleteQ    func(string) (bool, error)
	queues     func(mq.QueueFilter) ([]mq.QueueSummary, error)
	queue      func(string) (*mq.QueueDetail, error)
	depth      func(queue, group string) (*mq.Depth, error)
	groups     func() ([]mq.GroupSummary, error)
	lagging    func(time.Duration) ([]mq.GroupPartition, error)
	group      func(string) ([]mq.GroupPartition, error)
	seek       func(mq.Seek) (int64, error)
	subscribe  func(string, time.Time) (int64, error)
	deleteG    func(group, queue string, queueSet, metadata bool) (int64, error)
	letters    func(mq.DeadLetterFilter) ([]mq.DeadLetter, error)
	replay     func(mq.Replay) (*mq.Replayed, error)
	purge      func(queue, group string) (int64, error)
	deleteDL   func(mq.PartitionID, string) (int64, error)
	message    func(mq.PartitionID, string) (*mq.MessageDetail, error)
	fetch      func(mq.Fetch) ([]mq.FetchResult, error)
	offsets    func([]mq.OffsetEntry) ([]mq.OffsetResult, error)
	changed    func([]mq.ChangedEntry) (mq.SafeTime, []mq.ChangedResult, error)
	ping       func(context.Context) error
	lastTenant mq.UUID
}

func (f *fakeBroker) Push(ctx context.Context, p mq.Push) ([]mq.PushResult, error) {
	f.lastTenant = p.Tenant
	return f.push(ctx, p)
}

func (f *fakeBroker) Pop(ctx context.Context, p mq.Pop) (*mq.Delivery, error) { return f.pop(ctx, p) }

func (f *fakeBroker) Release(ctx context.Context, d *mq.Delivery) { f.release(ctx, d) }

func (f *fakeBroker) Ack(_ context.Context, a mq.Ack) ([]mq.AckResult, error) { return f.ack(a) }

func (f *fakeBroker) Transact(_ context.Context, b mq.Bundle) (*mq.BundleResult, error) {
	return f.transact(b)
}

func (f *fakeBroker) ExtendLease(_ context.Context, _ mq.UUID, id string, d time.Duration) (mq.Extension, error) {
	return f.extend(id, d)
}

func (f *fakeBroker) Configure(_ context.Context, c mq.Configure) (mq.Queue, error) {
	return f.configure(c)
}

func (f *fakeBroker) DeleteQueue(_ context.Context, _ mq.UUID, q string) (bool, error) {
	return f.deleteQ(q)
}

func (f *fakeBroker) Queues(_ context.Context, _ mq.UUID, q mq.QueueFilter) ([]mq.QueueSummary, error) {
	return f.queues(q)
}

func (f *fakeBroker) Queue(_ context.Context, _ mq.UUID, q string) (*mq.QueueDetail, error) {
	return f.queue(q)
}

func (f *fakeBroker) Depth(_ context.Context, _ mq.UUID, q, g string) (*mq.Depth, error) {
	return f.depth(q, g)
}

func (f *fakeBroker) Groups(context.Context, mq.UUID) ([]mq.GroupSummary, error) { return f.groups() }

func (f *fakeBroker) Lagging(_ context.Context, _ mq.UUID, d time.Duration) ([]mq.GroupPartition, error) {
	return f.lagging(d)
}

func (f *fakeBroker) Group(_ context.Context, _ mq.UUID, g string) ([]mq.GroupPartition, error) {
	return f.group(g)
}

func (f *fakeBroker) Seek(_ context.Context, s mq.Seek) (int64, error) { return f.seek(s) }

func (f *fakeBroker) SetSubscription(_ context.Context, _ mq.UUID, g string, at time.Time) (int64, error) {
	return f.subscribe(g, at)
}

func (f *fakeBroker) DeleteGroup(_ context.Context, _ mq.UUID, g, q string, queueSet, metadata bool) (int64, error) {
	return f.deleteG(g, q, queueSet, metadata)
}

func (f *fakeBroker) DeadLetters(_ context.Context, d mq.DeadLetterFilter) ([]mq.DeadLetter, error) {
	return f.letters(d)
}

func (f *fakeBroker) Replay(_ context.Context, r mq.Replay) (*mq.Replayed, error) { return f.replay(r) }

func (f *fakeBroker) PurgeDeadLetters(_ context.Context, _ mq.UUID, q, g string) (int64, error) {
	return f.purge(q, g)
}

func (f *fakeBroker) DeleteDeadLetters(_ context.Context, _ mq.UUID, p mq.PartitionID, txn string) (int64, error) {
	return f.deleteDL(p, txn)
}

func (f *fakeBroker) Message(_ context.Context, _ mq.UUID, p mq.PartitionID, txn string) (*mq.MessageDetail, error) {
	return f.message(p, txn)
}

func (f *fakeBroker) Fetch(_ context.Context, q mq.Fetch) ([]mq.FetchResult, error) {
	return f.fetch(q)
}

func (f *fakeBroker) FetchOffsets(_ context.Context, _ mq.UUID, e []mq.OffsetEntry) ([]mq.OffsetResult, error) {
	return f.offsets(e)
}

func (f *fakeBroker) PartitionsChanged(_ context.Context, _ mq.UUID, e []mq.ChangedEntry) (mq.SafeTime, []mq.ChangedResult, error) {
	return f.changed(e)
}

func (f *fakeBroker) Ping(ctx context.Context) error { return f.ping(ctx) }

// answer is a response with its body read.
type answer struct {
	status int
	header http.Header
	body   string
}

// call sends one request straight to a handler.
func call(h http.Handler, method, target, body string) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return answer{w.Code, w.Header(), w.Body.String()}
}

// want checks the status and, when given, the exact body.
func (a answer) want(t *testing.T, status int, body string) {
	t.Helper()
	if a.status != status || body != "" && a.body != body {
		t.Errorf("got  %d %s\nwant %d %s", a.status, a.body, status, body)
	}
	if a.body != "" && !json.Valid([]byte(a.body)) {
		t.Errorf("answer is not JSON: %s", a.body)
	}
}

// wantError checks the status, the code and the field of an error body.
func (a answer) wantError(t *testing.T, status int, code, field string) {
	t.Helper()
	var e struct{ Error, Code, Field string }
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Fatalf("%d %q: %v", a.status, a.body, err)
	}
	if a.status != status || e.Code != code || e.Field != field || e.Error == "" {
		t.Errorf("got  %d %s\nwant %d code %q field %q", a.status, a.body, status, code, field)
	}
}

// queued is a broker that stores everything and remembers it.
func queued(into *mq.Push) *fakeBroker {
	return &fakeBroker{push: func(_ context.Context, p mq.Push) ([]mq.PushResult, error) {
		p.Items = append([]mq.PushItem(nil), p.Items...)
		for i := range p.Items {
			// The buffer is used again after the call.
			p.Items[i].Payload = append([]byte(nil), p.Items[i].Payload...)
		}
		*into = p
		res := make([]mq.PushResult, len(p.Items))
		for i := range res {
			res[i] = mq.PushResult{MessageID: mq.UUID{15: byte(i + 1)}, TransactionID: p.Items[i].TransactionID, Offset: int64(i)}
		}
		return res, nil
	}}
}

// segmentOf stores messages the way the store does: one array, with the end of
// each element.
func segmentOf(first int64, at time.Time, objects ...string) mq.Segment {
	array := []byte{'['}
	var ends []byte
	for i, o := range objects {
		if i > 0 {
			array = append(array, ',')
		}
		array = append(array, o...)
		ends = binary.BigEndian.AppendUint32(ends, uint32(len(array)))
	}
	array = append(array, ']')
	return mq.NewSegment(first, at, array[1:], ends, 1)
}

func stored(id byte, txn, payload string) string {
	return `{"id":"` + mq.UUID{15: id}.String() + `","transactionId":"` + txn + `","traceId":null,"producerSub":null,"data":` + payload + `}`
}
