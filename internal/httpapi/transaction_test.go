package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// bundled decodes a bundle as the route does.
func bundled(t *testing.T, body string) mq.Bundle {
	t.Helper()
	var got mq.Bundle
	h := New(&fakeBroker{transact: func(b mq.Bundle) (*mq.BundleResult, error) {
		got = b
		return &mq.BundleResult{ID: mq.UUID{15: 1}, Reason: "internal", Error: "none"}, nil
	}}, Options{})
	call(h, "POST", "/api/v1/transaction", body).want(t, 200, `{"transactionId":"00000000-0000-0000-0000-000000000001","success":false,"reason":"internal","error":"none","results":[]}`)
	return got
}

// described writes the steps of a bundle, one a line.
func described(b mq.Bundle) string {
	var out []string
	for _, op := range b.Ops {
		if p := op.Push; p != nil {
			out = append(out, fmt.Sprintf("push %s/%s %q %s %v", p.Queue, p.Partition, p.TransactionID, p.Payload, !p.TraceID.IsZero()))
		} else {
			out = append(out, fmt.Sprintf("ack %q %q %q %q %d %q", op.Ack.TransactionID, op.Ack.PartitionID, op.Ack.LeaseID, op.Ack.Group, op.Ack.Status, op.Ack.Error))
		}
	}
	return strings.Join(out, "\n")
}

func TestTransaction_Decodes(t *testing.T) {
	const trace = `"01a1c0de-7000-7abc-8def-000000000001"`
	for _, tt := range []struct{ name, ops, want string }{
		{"ack", `{"type":"ack","transactionId":"t","partitionId":"p","leaseId":"l","consumerGroup":"g","status":"failed","error":"bad \ud800"}`, `ack "t" "p" "l" "g" 2 "bad ` + "\uFFFD" + `"`},
		{"defaults of an ack", `{"type":"ack","status":null,"error":null,"consumerGroup":null,"leaseId":null}`, `ack "" "" "" "__QUEUE_MODE__" 0 ""`},
		{"D12", `{"type":"ack","status":"Completed","consumerGroup":""}`, `ack "" "" "" "__QUEUE_MODE__" 2 ""`},
		{"flat", `{"type":"push","queue":"q","partition":"p","transactionId":"t","payload":{"a": 1},"traceId":` + trace + `}`, `push q/p "t" {"a": 1} true`},
		{"type last, names escaped", `{"\u0071ueue":"q","payload":[1],"type":"push"}`, `push q/Default "" [1] false`},
		{"B137 data", `{"type":"push","queue":"q","data":1}`, `push q/Default "" 1 false`},
		{"B137 payload wins", `{"type":"push","queue":"q","payload":2,"data":1}`, `push q/Default "" 2 false`},
		{"B137 payload wins, in front", `{"type":"push","queue":"q","data":1,"payload":null}`, `push q/Default "" null false`},
		{"B137 none", `{"type":"push","queue":"q"}`, `push q/Default "" {} false`},
		{"B138 other traces", `{"type":"push","items":[{"queue":"q","traceId":5},{"queue":"q","traceId":"x"},{"queue":"q","traceId":null}]}`, "push q/Default \"\" {} false\npush q/Default \"\" {} false\npush q/Default \"\" {} false"},
		{"items", `{"type":"push","items":[{"queue":"a"},{"queue":"b","partition":"x","data":"d"}]}`, "push a/Default \"\" {} false\npush b/x \"\" \"d\" false"},
		{"items beside a queue", `{"type":"push","queue":"no","items":[{"queue":"a"}]}`, `push a/Default "" {} false`},
		{"no items", `{"type":"push","items":[]}`, ""},
		{"items null", `{"type":"push","queue":"q","items":null}`, `push q/Default "" {} false`},
		{"unknown members", `{"type":"push","queue":"q","offset":1,"more":{"type":"noop"}}`, `push q/Default "" {} false`},
	} {
		if got := described(bundled(t, `{"operations":[`+tt.ops+`],"more":1}`)); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
	b := bundled(t, `{"requiredLeases":["a",null,"b"],"operations":null,"kv":null,"timers":null,"positions":[]}`)
	if fmt.Sprint(b.RequiredLeases) != "[a b]" || b.Ops != nil || b.KV != nil || b.Timers != nil || b.Tenant != mq.DefaultTenant {
		t.Errorf("%+v", b)
	}
}

func TestTransaction_A1_A2_PayloadBytesAreKept(t *testing.T) {
	for _, payload := range []string{opaquePayload, numbersPayload, nested(512), "[\n 1 ,\t2 ]"} {
		b := bundled(t, `{"operations":[{"type":"push","queue":"q","payload": `+payload+` },{"type":"push","items":[{"queue":"q","data":`+payload+`}]}]}`)
		for i, op := range b.Ops {
			if string(op.Push.Payload) != payload {
				t.Errorf("%d: %.100q", i, op.Push.Payload)
			}
		}
	}
}

// Nothing of this may reach the broker: the fake has no Transact.
func TestTransaction_B16_B135_B136_RefusedAtTheEdge(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	op := func(s string) string { return `{"operations":[{"type":"push","queue":"q"},` + s + `]}` }
	for _, body := range []string{
		"", "[]", "5", `{"operations":"x"}`, `{"operations":{}}`, `{"operations":[`, `{"operations":[]}x`, "{\"operations\":[\xff]}",
		`{"operations":[],"operations":[]}`, `{"kv":{}}`, `{"timers":"x"}`, `{"positions":5}`, `{"positions":[{}]}`, `{"requiredLeases":[5]}`, `{"requiredLeases":{}}`,
		op(`5`), op(`{}`), op(`{"type":"noop"}`), op(`{"type":"Ack"}`), op(`{"type":5}`), op(`{"type":null}`), op(`{"type":"push","type":"ack"}`),
		op(`{"type":"push","queue":"a\u0000"}`), op(`{"type":"push","queue":"\ud800"}`), op(`{"type":"push","items":[{"queue":5}]}`), op(`{"type":"push","items":5}`),
		op(`{"type":"ack","status":true}`), op(`{"type":"ack","transactionId":"\n"}`), op(`{"type":"push","queue":"q","payload":` + nested(513) + `}`),
		op(`{"type":"push","queue":"q","transactionId":"` + strings.Repeat("x", mq.MaxTransactionIDBytes+1) + `"}`),
	} {
		res := call(h, "POST", "/api/v1/transaction", body)
		var a struct {
			TransactionID, Reason, Error string
			Success                      *bool
			Results                      []any
		}
		if err := json.Unmarshal([]byte(res.body), &a); err != nil || res.status != 400 || a.Reason != "bad_request" ||
			a.Error == "" || a.TransactionID == "" || a.Success == nil || *a.Success || a.Results == nil {
			t.Errorf("%.100s: %d %s", body, res.status, res.body)
		}
	}
}

func FuzzDecodeBundle(f *testing.F) {
	for _, s := range []string{
		`{"operations":[{"type":"ack","transactionId":"t","partitionId":"p","consumerGroup":"g","leaseId":"l","status":"dlq","error":"\ud800"},{"type":"push","items":[{"queue":"q","payload":` + opaquePayload + `}]},{"type":"push","queue":"q","data":1}],"requiredLeases":["l"]}`,
		`{"operations":[],"kv":[{"op":"incr","ns":"n","key":"k","delta":1,"forever":true}],"timers":[{"op":"cancel"}],"positions":null}`,
		`{"operations":null,"kv":null}`, `{"operations":[{"type":"noop"}]}`, `{"\u006fperations":[{"type":"push","queue":"\u0071","payload":[[]],"traceId":"01a1c0de-7000-7abc-8def-000000000001"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		in, err := decodeBundle(body)
		if string(body) != before {
			t.Fatal("the body was written to")
		}
		if err != nil {
			if ref := refusalOf(err); ref.status != 400 && ref.status != 413 {
				t.Fatalf("refused with %d %q", ref.status, ref.message)
			}
			return
		}
		checkAccepted(t, body)
		for _, rider := range [][]byte{in.kv, in.timers} {
			if len(rider) > 0 && (!json.Valid(rider) || rider[0] != '[') {
				t.Fatalf("rider %s", rider)
			}
		}
		for _, l := range in.RequiredLeases {
			checkName(t, "lease id", l)
		}
		res := &mq.BundleResult{Ops: make([]mq.BundleOpResult, len(in.Ops))}
		for i, op := range in.Ops {
			if (op.Push == nil) == (op.Ack == nil) {
				t.Fatalf("step %d is both or neither", i)
			}
			if a := op.Ack; a != nil {
				checkName(t, "group", a.Group)
				checkName(t, "transaction id", a.TransactionID)
				checkName(t, "lease id", a.LeaseID)
				if a.Group == "" || a.Status > mq.AckDLQ {
					t.Fatalf("accepted %+v", a)
				}
				res.Ops[i].TransactionID = a.TransactionID
				continue
			}
			p := op.Push
			checkName(t, "queue", p.Queue)
			checkName(t, "partition", p.Partition)
			checkName(t, "transaction id", p.TransactionID)
			if p.Partition == "" || !json.Valid(p.Payload) || tooDeep(p.Payload) {
				t.Fatalf("accepted %+v", p)
			}
			res.Ops[i].TransactionID = p.TransactionID
		}
		if out := appendBundleResult(nil, &in.Bundle, res); !json.Valid(out) {
			t.Fatalf("answer %s", out)
		}
	})
}
