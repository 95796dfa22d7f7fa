package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// KVRow is a row of the key/value store as a read prints it.
type KVRow struct {
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value"`
	Version   int64           `json:"version"`
	ExpiresAt *string         `json:"expiresAt"`
	UpdatedAt string          `json:"updatedAt"`
	Expired   bool            `json:"expired"`
}

// KVResult is the result of one operation on the store.
type KVResult struct {
	Index     int    `json:"index"`
	Op        string `json:"op"`
	Found     *bool  `json:"found"`
	Applied   *bool  `json:"applied"`
	Reason    string `json:"reason"`
	Rows      []KVRow
	Missing   []string
	Truncated bool   `json:"truncated"`
	NextAfter string `json:"nextAfter"`
	KVRow
}

// OK reports whether a write applied or a read found something.
func (r KVResult) OK() bool { return r.Applied != nil && *r.Applied || r.Found != nil && *r.Found }

// String is what a test compares: value, and why not.
func (r KVResult) String() string {
	switch {
	case r.OK():
		return string(r.Value)
	case r.Reason != "":
		return r.Reason + " " + string(r.Value)
	}
	return "absent"
}

// KV sends operations, written as JSON objects, in one batch that has to run.
func (b *Broker) KV(ops ...string) []KVResult {
	b.t.Helper()
	var answer struct{ Results []KVResult }
	raw := b.Must(http.StatusOK, "POST", "/api/v1/kv", "["+strings.Join(ops, ",")+"]")
	if err := json.Unmarshal(raw, &answer); err != nil || len(answer.Results) != len(ops) {
		b.t.Fatalf("kv: %v, %d results for %d operations: %.500s", err, len(answer.Results), len(ops), raw)
	}
	return answer.Results
}

// KV1 is KV of one operation.
func (b *Broker) KV1(format string, args ...any) KVResult {
	b.t.Helper()
	return b.KV(fmt.Sprintf(format, args...))[0]
}

// StateError is the error body of the routes for state.
type StateError struct{ Error, Reason, Detail string }

// KVRefused sends a body that has to be refused.
func (b *Broker) KVRefused(want int, method, path, body string) StateError {
	b.t.Helper()
	var e StateError
	b.MustInto(&e, want, method, path, body)
	return e
}
