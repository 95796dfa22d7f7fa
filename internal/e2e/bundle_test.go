package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// bundleAnswer is what the transaction route answers.
type bundleAnswer struct {
	TransactionID string          `json:"transactionId"`
	Success       bool            `json:"success"`
	Reason        string          `json:"reason"`
	Error         string          `json:"error"`
	Results       json.RawMessage `json:"results"`
}

// transact sends a bundle that is processed.
func (b *Broker) transact(body string) bundleAnswer {
	b.t.Helper()
	status, _, raw := b.Do("POST", "/api/v1/transaction", body)
	if status != 200 {
		b.t.Fatalf("transaction: %d %s", status, raw)
	}
	var a bundleAnswer
	if err := json.Unmarshal(raw, &a); err != nil {
		b.t.Fatalf("transaction: %v in %s", err, raw)
	}
	return a
}

func TestBundle_B124_AckAndPushCommitTogether(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.Do("POST", "/api/v1/push", `{"items":[{"queue":"in","transactionId":"m","payload":1}]}`)
	_, _, raw := b.Do("GET", "/api/v1/pop/queue/in", nil)
	var pop struct {
		PartitionID string `json:"partitionId"`
		LeaseID     string `json:"leaseId"`
	}
	if err := json.Unmarshal(raw, &pop); err != nil {
		t.Fatal(err)
	}
	a := b.transact(`{"operations":[
		{"type":"ack","transactionId":"m","partitionId":"` + pop.PartitionID + `","leaseId":"` + pop.LeaseID + `","status":"completed"},
		{"type":"push","items":[{"queue":"out","transactionId":"o","payload":{"x":1.10}}]}]}`)
	if !a.Success || !strings.Contains(string(a.Results), `"queueName":"out"`) {
		t.Fatalf("bundle: %+v", a)
	}
	if status, _, raw := b.Do("GET", "/api/v1/pop/queue/out", nil); status != 200 || !strings.Contains(string(raw), `"data":{"x":1.10}`) {
		t.Fatalf("target: %d %s", status, raw)
	}
	if a := b.transact(`{"operations":[
		{"type":"push","queue":"new","payload":{}},
		{"type":"push","queue":"out","transactionId":"o","payload":{}}]}`); a.Success || a.Reason != "duplicate" || string(a.Results) != "[]" {
		t.Fatalf("duplicate: %+v", a)
	}
	if status, _, raw := b.Do("GET", "/api/v1/resources/queues/new", nil); status != 404 {
		t.Fatalf("a rolled back bundle left its queue: %d %s", status, raw)
	}
}
