package httpapi

import (
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func letter() mq.DeadLetter {
	return mq.DeadLetter{
		ID: mq.UUID{15: 1}, MessageID: mq.UUID{15: 2}, TransactionID: "inv-7001", PartitionID: mq.PartitionID{Queue: 1, Partition: 2},
		Queue: "invoices", Partition: "cust-9", Group: "mailer", Offset: 5, RetryCount: 3, Error: "smtp 550",
		Payload: []byte(opaquePayload), CreatedAt: early, FailedAt: later,
	}
}

func TestDeadLetters_List(t *testing.T) {
	var got mq.DeadLetterFilter
	h := New(&fakeBroker{letters: func(f mq.DeadLetterFilter) ([]mq.DeadLetter, error) {
		got = f
		return []mq.DeadLetter{letter()}, nil
	}}, Options{})
	call(h, "GET", "/api/v1/dlq?queue=invoices&consumerGroup=mailer&partition=p&from=2026-11-03T07:00:00Z&to=2026-11-03&limit=5000&offset=7", "").want(t, 200,
		`{"messages":[{"id":"00000000-0000-0000-0000-000000000001","messageId":"00000000-0000-0000-0000-000000000002","transactionId":"inv-7001","partitionId":"`+
			mq.PartitionID{Queue: 1, Partition: 2}.String()+`","queue":"invoices","partition":"cust-9","consumerGroup":"mailer","offset":5,"errorMessage":"smtp 550","retryCount":3,"data":`+opaquePayload+
			`,"producerSub":null,"isEncrypted":false,"createdAt":`+earlyText+`,"failedAt":`+laterText+`}],"pagination":{"limit":1000,"offset":7},"total":1}`)
	want := mq.DeadLetterFilter{
		Tenant: mq.DefaultTenant, Queue: "invoices", Partition: "p", Group: "mailer",
		From: early, To: time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC), Limit: 1000, Offset: 7,
	}
	if got != want {
		t.Errorf("got %+v", got)
	}
	call(h, "GET", "/api/v1/dlq", "").want(t, 200, "")
	if got != (mq.DeadLetterFilter{Tenant: mq.DefaultTenant, Limit: 100}) {
		t.Errorf("got %+v", got)
	}
	call(h, "GET", "/api/v1/dlq?from=soon", "").wantError(t, 400, "bad_request", "from")
	call(h, "GET", "/api/v1/dlq?limit=x", "").wantError(t, 400, "bad_request", "limit")
}

func TestDeadLetters_Purge(t *testing.T) {
	h := New(&fakeBroker{purge: func(string, string) (int64, error) { return 17, nil }}, Options{})
	call(h, "DELETE", "/api/v1/dlq?queue=q&consumerGroup=g", "").want(t, 200, `{"success":true,"deleted":17,"queue":"q","consumerGroup":"g"}`)
	call(h, "DELETE", "/api/v1/dlq?queue=q", "").want(t, 200, `{"success":true,"deleted":17,"queue":"q","consumerGroup":null}`)
	call(h, "DELETE", "/api/v1/dlq?consumerGroup=g", "").want(t, 400, `{"error":"queue is required","code":"bad_request","field":"queue"}`)
}

func TestDeadLetters_Replay(t *testing.T) {
	var got mq.Replay
	status := mq.PushQueued
	var fault error
	h := New(&fakeBroker{replay: func(r mq.Replay) (*mq.Replayed, error) {
		got = r
		return &mq.Replayed{Letter: letter(), Queue: "invoices", Partition: "cust-9", Result: mq.PushResult{
			Status: status, MessageID: mq.UUID{15: 6}, TransactionID: "dlq:d1", Offset: 53, Error: "refused",
		}}, fault
	}}, Options{})
	id := mq.UUID{15: 1}.String()
	byID, byAddress := "/api/v1/dlq/"+id+"/replay", "/api/v1/messages/"+mq.PartitionID{Queue: 1, Partition: 2}.String()+"/inv%2F7001/retry"
	done := func(result, status, removed string) string {
		return `{"success":true,"result":"` + result + `","queue":"invoices","partition":"cust-9","consumerGroup":"mailer","dlqId":"` + id +
			`","originalTransactionId":"inv-7001","replayedAs":{"index":0,"message_id":"` + mq.UUID{15: 6}.String() +
			`","transaction_id":"dlq:d1","queueName":"invoices","status":"` + status + `","offset":53},"dlqRowRemoved":` + removed + `}`
	}
	for _, body := range []string{"", " \n", "{}", `{"queue":null}`} {
		call(h, "POST", byID, body).want(t, 200, done("moved", "queued", "true"))
		if got != (mq.Replay{Tenant: mq.DefaultTenant, ID: mq.UUID{15: 1}}) {
			t.Errorf("got %+v", got)
		}
	}
	call(h, "POST", byID, `{"queue":" q ","partition":"p"}`).want(t, 200, "")
	if got.Queue != "q" || got.Partition != "p" {
		t.Errorf("got %+v", got)
	}
	call(h, "POST", byID, `{"queue":" "}`).wantError(t, 400, "bad_request", "queue")
	call(h, "POST", byID, `{"partition":5}`).wantError(t, 400, "bad_body", "partition")
	call(h, "POST", byAddress, "ignored").want(t, 200, done("moved", "queued", "true"))
	if got != (mq.Replay{Tenant: mq.DefaultTenant, PartitionID: mq.PartitionID{Queue: 1, Partition: 2}, TransactionID: "inv/7001"}) {
		t.Errorf("got %+v", got)
	}
	status = mq.PushDuplicate
	call(h, "POST", byID, "").want(t, 200, done("duplicate", "duplicate", "false"))
	status = mq.PushError
	call(h, "POST", byID, "").want(t, 500, `{"success":false,"error":"refused","code":"internal","dlqRowRemoved":false}`)

	fault = mq.Unavailable(nil)
	a := call(h, "POST", byAddress, "")
	a.want(t, 503, `{"success":false,"error":"the database is not reachable","code":"retry","dlqRowRemoved":false}`)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("headers: %v", a.header)
	}
	fault = &mq.Error{Kind: mq.KindUnknown, Message: "lost"}
	call(h, "POST", byID, "").want(t, 503, `{"success":false,"error":"lost","code":"outcome_unknown","dlqRowRemoved":null}`)
}

func TestDeadLetters_ReplayOfNothingIs404(t *testing.T) {
	h := New(&fakeBroker{replay: func(mq.Replay) (*mq.Replayed, error) { return nil, mq.NotFound("no") }}, Options{})
	for _, id := range []string{mq.UUID{15: 1}.String(), mq.UUID{}.String(), "nonsense", "x%22y"} {
		a := call(h, "POST", "/api/v1/dlq/"+id+"/replay", "")
		a.wantError(t, 404, "not_found", "")
	}
	call(h, "POST", "/api/v1/dlq/nonsense/replay", "").want(t, 404,
		`{"success":false,"result":"gone","dlqId":"nonsense","error":"Message not found","code":"not_found","message":"No dead letter has this id: it was replayed, purged or never existed"}`)
	known := call(h, "POST", "/api/v1/messages/"+mq.PartitionID{Queue: 1}.String()+"/t/retry", "")
	foreign := call(h, "POST", "/api/v1/messages/nonsense/t/retry", "")
	known.wantError(t, 404, "not_found", "")
	if known.body != foreign.body {
		t.Errorf("a malformed id is told apart: %s and %s", known.body, foreign.body)
	}
}

func TestMessages_Detail(t *testing.T) {
	o := mq.DefaultOptions()
	m := &mq.MessageDetail{
		MessageID: mq.UUID{15: 2}, TransactionID: "t", Payload: []byte(numbersPayload), PartitionID: mq.PartitionID{Queue: 1, Partition: 2},
		Queue: "billing.render", Partition: "p", Offset: 7, CreatedAt: early, Options: o, ProducerSub: "alice", TraceID: mq.UUID{15: 3},
		Groups: []mq.MessageGroup{{Group: mq.QueueMode, LeaseExpires: later}, {Group: "a", Consumed: true}, {Group: "b"}},
	}
	h := New(&fakeBroker{message: func(p mq.PartitionID, txn string) (*mq.MessageDetail, error) {
		if txn != "t" {
			return nil, mq.NotFound("nothing here")
		}
		return m, nil
	}}, Options{})
	pid := mq.PartitionID{Queue: 1, Partition: 2}.String()
	path := "/api/v1/messages/" + pid + "/t"
	body := func(status, failure, groups, mode string) string {
		return `{"id":"` + mq.UUID{15: 2}.String() + `","transactionId":"t","txnHash":"e3b98a4da31a127d4bde6e43033f66ba","partitionId":"` + pid +
			`","queuePath":"billing.render/p","queue":"billing.render","partition":"p","namespace":"billing","task":"render","status":"` + status +
			`","queueStatus":"` + status + `",` + groups + `,"traceId":"` + mq.UUID{15: 3}.String() + `","producerSub":"alice","payloadAvailable":true,"segment":null,"offset":7,"createdAt":` +
			earlyText + mode + `,"isEncrypted":false,"data":` + numbersPayload + `,"payload":` + numbersPayload + `,` + failure
	}
	tail := `,"queueConfig":{` + defaultEcho + `}}`
	call(h, "GET", path, "").want(t, 200, body("processing", `"errorMessage":null,"retryCount":0,"consumerGroups":[`+
		`{"name":"__QUEUE_MODE__","group":"__QUEUE_MODE__","consumed":false,"leaseExpiresAt":`+laterText+`},`+
		`{"name":"a","group":"a","consumed":true,"leaseExpiresAt":null},{"name":"b","group":"b","consumed":false,"leaseExpiresAt":null}],`+
		`"mode":{"hasQueueMode":true,"busGroupsCount":2,"type":"hybrid"}`, `"busStatus":{"consumedBy":1,"totalGroups":2}`, `,"leaseExpiresAt":`+laterText)+tail)
	l := letter()
	m.DeadLetter, m.Groups = &l, nil
	call(h, "GET", path, "").want(t, 200, body("dead_letter", `"errorMessage":"smtp 550","retryCount":3,"consumerGroups":[],`+
		`"mode":{"hasQueueMode":false,"busGroupsCount":0,"type":"none"}`, `"busStatus":{"consumedBy":0,"totalGroups":0}`, `,"leaseExpiresAt":null`)+tail)
	const missing = `{"error":"Message not found","code":"not_found"}`
	call(h, "GET", "/api/v1/messages/"+pid+"/other", "").want(t, 404, missing)
	call(h, "GET", "/api/v1/messages/12345/t", "").want(t, 404, missing)
}

func TestMessages_Delete(t *testing.T) {
	n := int64(2)
	h := New(&fakeBroker{deleteDL: func(mq.PartitionID, string) (int64, error) { return n, nil }}, Options{})
	pid := mq.PartitionID{Queue: 1, Partition: 2}.String()
	call(h, "DELETE", "/api/v1/messages/"+pid+"/t", "").want(t, 200,
		`{"success":true,"partitionId":"`+pid+`","transactionId":"t","message":"Message deleted successfully"}`)
	n = 0
	const missing = `{"success":false,"error":"Message not found","code":"not_found","message":"No dead letter is filed for this message"}`
	call(h, "DELETE", "/api/v1/messages/"+pid+"/t", "").want(t, 404, missing)
	call(h, "DELETE", "/api/v1/messages/nonsense/t", "").want(t, 404, missing)
}
