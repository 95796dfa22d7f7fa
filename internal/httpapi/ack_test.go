package httpapi

import (
	"fmt"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func acked(t *testing.T, target, body string) mq.Ack {
	t.Helper()
	var got mq.Ack
	h := New(&fakeBroker{ack: func(a mq.Ack) ([]mq.AckResult, error) {
		got = a
		return make([]mq.AckResult, len(a.Items)), nil
	}}, Options{})
	call(h, "POST", target, body).want(t, 200, "")
	return got
}

func TestAck_Single(t *testing.T) {
	got := acked(t, "/api/v1/ack", `{"transactionId":"t\u00e9","partitionId":"p","consumerGroup":"g","leaseId":"l","status":"failed","error":"bad\u0000 \ud800"}`)
	want := mq.Ack{Tenant: mq.DefaultTenant, Group: "g", Items: []mq.AckItem{
		{TransactionID: "té", PartitionID: "p", LeaseID: "l", Status: mq.AckFailed, Error: "bad\x00 \uFFFD"},
	}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestAck_B113_NullsAndAbsentFields(t *testing.T) {
	for _, body := range []string{`{"consumerGroup":null,"error":null,"leaseId":null,"status":null,"partitionId":null,"transactionId":null}`, `{}`, `{"consumerGroup":""}`} {
		got := acked(t, "/api/v1/ack", body)
		if got.Group != mq.QueueMode || len(got.Items) != 1 || got.Items[0] != (mq.AckItem{}) {
			t.Errorf("%s is read as %+v", body, got)
		}
	}
}

func TestAck_B106_StatusWords(t *testing.T) {
	for word, want := range map[string]mq.AckStatus{
		"completed": mq.AckCompleted, "success": mq.AckCompleted, "acked": mq.AckCompleted, "ok": mq.AckCompleted,
		"failed": mq.AckFailed, "retry": mq.AckRetry, "dlq": mq.AckDLQ,
		"": mq.AckFailed, "Completed": mq.AckFailed, "COMPLETED": mq.AckFailed, "nack": mq.AckFailed,
	} {
		if got := acked(t, "/api/v1/ack", `{"status":"`+word+`"}`); got.Items[0].Status != want {
			t.Errorf("%q is read as %d", word, got.Items[0].Status)
		}
	}
}

func TestAck_B108_GroupInsideABatchItemIsIgnored(t *testing.T) {
	got := acked(t, "/api/v1/ack/batch", `{"acknowledgments":[
		{"transactionId":"a","partitionId":"p","leaseId":"l","consumerGroup":"no"},
		{"transactionId":"b","partitionId":"p","leaseId":"l","status":"retry"}],"consumerGroup":"yes"}`)
	if got.Group != "yes" || len(got.Items) != 2 || got.Items[1] != (mq.AckItem{TransactionID: "b", PartitionID: "p", LeaseID: "l", Status: mq.AckRetry}) {
		t.Errorf("got %+v", got)
	}
}

func TestAck_Results(t *testing.T) {
	h := New(&fakeBroker{ack: func(mq.Ack) ([]mq.AckResult, error) {
		return []mq.AckResult{
			{Success: true, LeaseReleased: true, Conflated: 99},
			{Error: mq.AckErrLease},
			{Success: true, Noop: true},
			{Success: true, DLQ: true, LeaseReleased: true},
		}, nil
	}}, Options{})
	call(h, "POST", "/api/v1/ack/batch", `{"acknowledgments":[{"transactionId":"a"},{"transactionId":"b"},{},{"transactionId":"d"}]}`).want(t, 200,
		`[{"index":0,"transactionId":"a","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false,"conflated":99},`+
			`{"index":1,"transactionId":"b","success":false,"error":"invalid or expired lease","leaseReleased":false,"dlq":false,"noop":false},`+
			`{"index":2,"transactionId":"","success":true,"error":null,"leaseReleased":false,"dlq":false,"noop":true},`+
			`{"index":3,"transactionId":"d","success":true,"error":null,"leaseReleased":true,"dlq":true,"noop":false}]`)
	call(h, "POST", "/api/v1/ack/batch", `{"acknowledgments":[]}`).want(t, 200, `[]`)
}

func TestAck_B16_BadBodies(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	for _, c := range []struct{ path, body, code, field string }{
		{"/api/v1/ack", `{`, "bad_body", ""},
		{"/api/v1/ack", `[]`, "bad_body", ""},
		{"/api/v1/ack", `{"status":true}`, "bad_body", "status"},
		{"/api/v1/ack", `{"transactionId":"a","transactionId":"b"}`, "bad_body", "transactionId"},
		{"/api/v1/ack", `{"consumerGroup":"a\u0000"}`, "bad_request", "consumerGroup"},
		{"/api/v1/ack/batch", `{}`, "bad_request", "acknowledgments"},
		{"/api/v1/ack/batch", `{"acknowledgments":{}}`, "bad_body", "acknowledgments"},
		{"/api/v1/ack/batch", `{"acknowledgments":[{},{"error":5}]}`, "bad_body", "acknowledgments[1].error"},
		{"/api/v1/ack/batch", `{"acknowledgments":[{},{"transactionId":"\ud800"}]}`, "bad_body", "acknowledgments[1].transactionId"},
	} {
		call(h, "POST", c.path, c.body).wantError(t, 400, c.code, c.field)
	}
}

func TestLease_B122_Seconds(t *testing.T) {
	var got time.Duration
	h := New(&fakeBroker{extend: func(_ string, d time.Duration) (mq.Extension, error) {
		got = d
		return mq.Extension{}, nil
	}}, Options{})
	for body, want := range map[string]int{
		"": 60, "{}": 60, `{"seconds":null}`: 60, "rubbish": 60, `{"seconds":"5"}`: 60, "[1]": 60,
		`{"seconds":120}`: 120, `{"seconds":-5}`: 1, `{"seconds":0}`: 1, `{"seconds":99999999999}`: 2147483647,
	} {
		call(h, "POST", "/api/v1/lease/l1/extend", body).want(t, 200, "")
		if got != time.Duration(want)*time.Second {
			t.Errorf("%q extends by %v", body, got)
		}
	}
}

func TestLease_B118_B119_Answers(t *testing.T) {
	ext := mq.Extension{}
	h := New(&fakeBroker{extend: func(string, time.Duration) (mq.Extension, error) { return ext, nil }}, Options{})
	call(h, "POST", "/api/v1/lease/no%20such/extend", "").want(t, 200,
		`{"leaseId":"no such","success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}`)
	ext = mq.Extension{Renewed: 2, ExpiresAt: time.Date(2026, 11, 3, 8, 20, 30, 123456000, time.UTC)}
	const at = `"2026-11-03T08:20:30.123456Z"`
	call(h, "POST", "/api/v1/lease/l/extend", "").want(t, 200,
		`{"leaseId":"l","success":true,"renewed":2,"newExpiresAt":`+at+`,"expiresAt":`+at+`,"lease_expires_at":`+at+`}`)
}
