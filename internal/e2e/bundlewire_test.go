package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
)

const transactionPath = "/api/v1/transaction"

// bundleAnswer is what the transaction route answers.
type bundleAnswer struct {
	TransactionID string          `json:"transactionId"`
	Success       bool            `json:"success"`
	Reason        string          `json:"reason"`
	Error         string          `json:"error"`
	Results       json.RawMessage `json:"results"`
	KVReason      string          `json:"kvReason"` // of a lost required operation
}

// stepResult answers one step of a bundle.
type stepResult struct {
	Index         int     `json:"index"`
	Type          string  `json:"type"`
	Success       bool    `json:"success"`
	TransactionID string  `json:"transactionId"`
	MessageID     string  `json:"messageId"`
	QueueName     string  `json:"queueName"`
	Error         *string `json:"error"`
	DLQ           bool    `json:"dlq"`
	Duplicate     bool    `json:"duplicate"`
}

// bundle is the body of a transaction; what is nil is not sent.
type bundle struct {
	Operations     []any    `json:"operations,omitempty"`
	RequiredLeases []string `json:"requiredLeases,omitempty"`
}

type ackOp struct {
	Type string `json:"type"`
	AckItem
	ConsumerGroup string `json:"consumerGroup,omitempty"`
}

// pushOp is a push of several items; flatOp of one, which is the operation
// itself.
type pushOp struct {
	Type  string `json:"type"`
	Items []Item `json:"items"`
}

type flatOp struct {
	Type string `json:"type"`
	Item
}

// ops puts the steps of a bundle together: Item is a push of the flat form,
// []Item one of many, []AckItem are acks in queue mode, groupAcks in a group.
func ops(steps ...any) bundle {
	var out bundle
	for _, s := range steps {
		switch s := s.(type) {
		case Item:
			out.Operations = append(out.Operations, flatOp{"push", filled(s)[0]})
		case []Item:
			out.Operations = append(out.Operations, pushOp{"push", filled(s...)})
		case []AckItem:
			for _, a := range s {
				out.Operations = append(out.Operations, ackOp{Type: "ack", AckItem: a})
			}
		case groupAcks:
			for _, a := range s.items {
				out.Operations = append(out.Operations, ackOp{Type: "ack", AckItem: a, ConsumerGroup: s.group})
			}
		default:
			panic(fmt.Sprintf("no step: %T", s))
		}
	}
	return out
}

type groupAcks struct {
	group string
	items []AckItem
}

// filled gives items without a payload an empty object.
func filled(items ...Item) []Item {
	out := make([]Item, len(items))
	for i, it := range items {
		if it.Payload == nil {
			it.Payload = json.RawMessage(`{}`)
		}
		out[i] = it
	}
	return out
}

func (b bundle) requires(leases ...string) bundle {
	b.RequiredLeases = leases
	return b
}

// transact sends a bundle that is processed, whatever becomes of it.
func (b *Broker) transact(body any) bundleAnswer {
	b.t.Helper()
	var a bundleAnswer
	b.MustInto(&a, http.StatusOK, "POST", transactionPath, body)
	if a.TransactionID == "" || a.Success != (a.Reason == "") || a.Success != (a.Error == "") {
		b.t.Errorf("transaction: %+v", a)
	}
	if !a.Success && string(a.Results) != "[]" {
		b.t.Errorf("results of a bundle that was rolled back: %s", a.Results)
	}
	return a
}

// commits is a bundle that has to be committed.
func commits(b *Broker, body any) []stepResult {
	b.t.Helper()
	a := b.transact(body)
	if !a.Success {
		b.t.Fatalf("rolled back: %s: %s", a.Reason, a.Error)
	}
	var out []stepResult
	if err := json.Unmarshal(a.Results, &out); err != nil {
		b.t.Fatalf("%v in %s", err, a.Results)
	}
	for i, r := range out {
		step := r.Type == "push" || r.Type == "ack"
		if r.Index != i || r.Success != step || r.Error != nil {
			b.t.Errorf("result %d: %+v", i, r)
		}
	}
	return out
}

// The words the error texts begin with.
var bundleWords = map[string]string{"duplicate": "QDUP ", "rejected_ack": "QTXN ", "bad_request": ""}

// rollsBack is a bundle that is refused for a reason, in exactly the shape of
// such an answer. It returns the error text.
func rollsBack(b *Broker, reason string, body any) string {
	b.t.Helper()
	return refusedAs(b, http.StatusOK, reason, body)
}

func refusedAs(b *Broker, status int, reason string, body any) string {
	b.t.Helper()
	got, header, answer := b.Do("POST", transactionPath, body)
	if got != status {
		b.t.Fatalf("transaction: status %d, want %d: %.500s", got, status, answer)
	}
	if ct := header.Get("Content-Type"); ct != "application/json" {
		b.t.Errorf("content type %q", ct)
	}
	looksLike(b.t, answer, fmt.Sprintf(`{"transactionId":<uuid>,"success":false,"reason":%q,"error":<text>,"results":[]}`, reason))
	var a bundleAnswer
	if err := json.Unmarshal(answer, &a); err != nil {
		b.t.Fatal(err)
	}
	word, known := bundleWords[reason]
	if !known || !strings.HasPrefix(a.Error, word) {
		b.t.Errorf("reason %s, error %q", reason, a.Error)
	}
	return a.Error
}

// state is everything the database holds, a hash a table, but for the leases of
// background loops, which come and go by themselves. Nobody may be at work
// meanwhile.
func (f *Fleet) state() map[string]string {
	f.t.Helper()
	pool := f.DB.Pool(f.t)
	defer pool.Close()
	var names []string
	if err := pool.QueryRow(f.t.Context(), `SELECT array_agg(c.relname::text ORDER BY c.relname) FROM pg_class c
		WHERE c.relnamespace = 'queen'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
			AND c.relname <> 'janitor_leases'`).Scan(&names); err != nil {
		f.t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range names {
		var sum string
		query := fmt.Sprintf(`SELECT count(*) || ' ' || coalesce(md5(string_agg(t::text, E'\n' ORDER BY t::text)), '') FROM queen.%s t`, name)
		if err := pool.QueryRow(f.t.Context(), query).Scan(&sum); err != nil {
			f.t.Fatal(err)
		}
		out[name] = sum
	}
	return out
}

// leavesNothing runs what must not change a single row.
func leavesNothing(t *testing.T, f *Fleet, run func()) {
	t.Helper()
	before := f.state()
	run()
	if after := f.state(); !maps.Equal(before, after) {
		t.Errorf("the database changed\nfrom %v\nto   %v", before, after)
	}
}
