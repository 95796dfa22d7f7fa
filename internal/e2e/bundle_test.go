package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestBundle(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	eachBehaviour(
		t, f,
		behaviour{"B124_ack_and_push_commit_together", func(t *testing.T, b *Broker, q string) {
			other := f.Brokers[1].In(t)
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "", "m-0")
			answered(other, 200, fmt.Sprintf(`{"transactionId":<uuid>,"success":true,"results":[`+
				`{"index":0,"type":"ack","success":true,"transactionId":"m-0","error":null,"dlq":false},`+
				`{"index":1,"type":"push","success":true,"transactionId":"o","messageId":<uuid>,"queueName":"%[1]s.out"},`+
				`{"index":2,"type":"push","success":true,"transactionId":<uuid>,"messageId":<uuid>,"queueName":"%[1]s.out"}]}`, q),
				"POST", transactionPath, ops(pick(p, "0"), []Item{{Queue: q + ".out", Partition: "p", TransactionID: "o"}}, Item{Queue: q + ".out", Partition: "q"}))
			deliversNothing(b, q, "")
			delivers(b, q+".out", "", "o")
			r := commits(b, ops(Item{Queue: q + ".out"}))
			if r[0].TransactionID != r[0].MessageID {
				t.Errorf("minted: %+v", r)
			}
		}},
		behaviour{"B125_nested_and_flat_and_several_queues", func(t *testing.T, b *Broker, q string) {
			body := fmt.Sprintf(`{"operations":[
				{"type":"push","items":[{"queue":"%[1]s.a","partition":"x","transactionId":"1","payload":1},{"queue":"%[1]s.b","transactionId":"2","payload":2}]},
				{"type":"push","queue":"%[1]s.c","partition":"y","transactionId":"3","payload":3},
				{"queue":"%[1]s.a","partition":"x","transactionId":"4","payload":4,"items":null,"type":"push"}]}`, q)
			r := commits(b, body)
			for i, want := range []string{".a", ".b", ".c", ".a"} {
				if r[i].QueueName != q+want || r[i].TransactionID != fmt.Sprint(i+1) {
					t.Errorf("%d: %+v", i, r[i])
				}
			}
			p := b.PopPinned(q+".a", "x", "")
			if !slices.Equal(p.IDs(), []string{"1", "4"}) || string(p.Messages[1].Data) != "4" {
				t.Errorf("a: %s", p.Raw)
			}
			for i, want := range map[string]string{".b": "Default", ".c": "y"} {
				if m := stored(b, q+i); len(m) != 1 || m[0].Partition != want {
					t.Errorf("%s: %+v", i, m)
				}
			}
		}},
		behaviour{"B127_repeat_inside", func(t *testing.T, b *Broker, q string) {
			b.Configure(q+".off", map[string]any{"dedupWindowSeconds": 0})
			for _, queue := range []string{q, q + ".off"} {
				it := Item{Queue: queue, Partition: "p", TransactionID: "same", Payload: json.RawMessage(`1`)}
				again := it
				again.Payload = json.RawMessage(`2`)
				elsewhere := it
				elsewhere.Partition = "p2"
				answered(b, 200, fmt.Sprintf(`{"transactionId":<uuid>,"success":true,"results":[`+
					`{"index":0,"type":"push","success":true,"transactionId":"same","messageId":<uuid>,"queueName":%[1]q},`+
					`{"index":1,"type":"push","success":true,"transactionId":"same","messageId":<uuid>,"queueName":%[1]q},`+
					`{"index":2,"type":"push","success":true,"transactionId":"same","messageId":<uuid>,"queueName":%[1]q,"duplicate":true}]}`, queue),
					"POST", transactionPath, ops([]Item{it, elsewhere}, again))
				got := stored(b, queue)
				if len(got) != 2 || string(got[0].Data) != "1" || string(got[1].Data) != "1" {
					t.Errorf("%s: %+v", queue, got)
				}
			}
			r := commits(b, ops([]Item{{Queue: q + ".id", TransactionID: "i"}, {Queue: q + ".id"}, {Queue: q + ".id", TransactionID: "i"}, {Queue: q + ".id"}}))
			if r[0].MessageID != r[2].MessageID || !r[2].Duplicate || r[1].Duplicate || r[3].Duplicate || r[1].MessageID == r[3].MessageID {
				t.Errorf("%+v", r)
			}
		}},
		behaviour{"B134_retry_dlq_failed", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"retryLimit": 1})
			b.PushN(q, "p", "m", 3)
			for range 5 { // never charged
				p := delivers(b, q, "", ids("m", 0, 3)...)
				if r := commits(b, ops(pick(p, "0 retry"))); r[0].DLQ {
					t.Errorf("%+v", r)
				}
			}
			r := commits(b, ops(pick(delivers(b, q, "", ids("m", 0, 3)...), "0 completed", "1 dlq bad", "2 completed"), Item{Queue: q + ".out", TransactionID: "o"}))
			if r[0].DLQ || !r[1].DLQ || r[2].DLQ {
				t.Errorf("%+v", r)
			}
			// The third comes again, with the budget whole: one failure is charged,
			// the next files it.
			if r := commits(b, ops(pick(delivers(b, q, "", "m-2"), "0 failed"))); r[0].DLQ {
				t.Errorf("charged: %+v", r)
			}
			if r := commits(b, ops(pick(delivers(b, q, "", "m-2"), "0 failed worse"))); !r[0].DLQ {
				t.Errorf("spent: %+v", r)
			}
			letters := b.DeadLetters(q)
			slices.SortFunc(letters, func(a, b DeadLetter) int { return int(a.Offset - b.Offset) })
			if len(letters) != 2 || *letters[0].ErrorMessage != "bad" || letters[0].RetryCount != 0 ||
				*letters[1].ErrorMessage != "worse" || letters[1].RetryCount != 1 {
				t.Errorf("%+v", letters)
			}
			b.Configure(q+".0", map[string]any{"retryLimit": 0})
			b.PushN(q+".0", "p", "m", 1)
			if r := commits(b, ops(pick(b.Pop(q+".0", ""), "0 failed"))); !r[0].DLQ {
				t.Errorf("no budget: %+v", r)
			}
			b.Configure(q+".drop", map[string]any{"retryLimit": 0, "deadLetterQueue": false, "dlqAfterMaxRetries": false})
			b.PushN(q+".drop", "p", "m", 2)
			if r := commits(b, ops(pick(b.Pop(q+".drop", ""), "0 failed"))); r[0].DLQ {
				t.Errorf("dropped: %+v", r)
			}
			delivers(b, q+".drop", "", "m-1")
		}},
		behaviour{"B106_statuses_mean_what_they_do_in_an_ack", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, map[string]any{"retryLimit": 0})
			for i, c := range []struct {
				status string // JSON
				dlq    bool
			}{
				{`"completed"`, false},
				{`"success"`, false},
				{`"acked"`, false},
				{`"ok"`, false},
				{`null`, false},
				{`"retry"`, false},
				{`"failed"`, true},
				{`"dlq"`, true},
				{`"Completed"`, true},
				{`""`, true},
				{`"nack"`, true},
			} {
				id := fmt.Sprint("m", i)
				b.Push(Item{Queue: q, Partition: id, TransactionID: id})
				p := b.PopPinned(q, id, "")
				r := commits(b, fmt.Sprintf(`{"operations":[{"type":"ack","transactionId":%q,"partitionId":%q,"leaseId":%q,"status":%s,"error":null,"consumerGroup":null}]}`,
					id, p.PartitionID, p.LeaseID, c.status))
				if r[0].DLQ != c.dlq {
					t.Errorf("%s: %+v", c.status, r[0])
				}
				if back := b.PopPinned(q, id, ""); (back != nil) != (c.status == `"retry"`) {
					t.Errorf("%s: delivered again: %v", c.status, back.IDs())
				}
			}
		}},
		behaviour{"B135_B136_what_cannot_be_read", func(_ *testing.T, b *Broker, q string) {
			push := fmt.Sprintf(`{"type":"push","queue":%q,"payload":1}`, q)
			for _, body := range []string{
				`{"operations":[` + push + `,{"type":"noop"}]}`,
				`{"operations":[` + push + `,{}]}`,
				`{"operations":[` + push + `,{"type":null}]}`,
				`{"operations":[` + push + `,{"type":"PUSH","queue":"q"}]}`,
				`{"operations":[` + push + `,{"type":"kv","op":"put","namespace":"n","key":"k","value":1}]}`,
				`{"operations":[` + push + `,{"type":"timer","op":"schedule"}]}`,
				`{"operations":[` + push + `,5]}`,
				`{"operations":[` + push + `,{"type":5}]}`,
				`{"operations":[` + push + `,{"type":"push","items":{}}]}`,
				`{"operations":[` + push + `,{"type":"push","items":[5]}]}`,
				`{"operations":[` + push + `,{"type":"push","queue":5}]}`,
				`{"operations":[` + push + `,{"type":"ack","status":true}]}`,
				`{"operations":"all"}`,
				`{"operations":{}}`,
				`{"operations":[` + push + `],"operations":[]}`,
				`{"operations":[` + push + `],"requiredLeases":"l"}`,
				`{"operations":[` + push + `],"requiredLeases":[5]}`,
				`{"operations":[` + push + `]} {}`,
				`{"operations":[` + push,
				`[]`, `null`, `nonsense`, "", "\xff",
			} {
				refusedAs(b, http.StatusBadRequest, "bad_request", body)
			}
			b.Must(http.StatusNotFound, "GET", "/api/v1/resources/queues/"+Seg(q), nil)
		}},
		behaviour{"10_6_nothing_to_do", func(_ *testing.T, b *Broker, q string) {
			for _, body := range []string{
				`{}`, `{"operations":[]}`, `{"operations":null}`,
				`{"operations":[],"kv":[],"timers":null,"positions":[],"requiredLeases":["x"]}`,
			} {
				rollsBack(b, "bad_request", body)
			}
			rollsBack(b, "bad_request", ops(Item{Queue: q}, Item{Queue: ""}))
			rollsBack(b, "bad_request", `{"operations":[{"type":"push","payload":1}]}`)
			rollsBack(b, "bad_request", `{"operations":[{"type":"push","items":[{"queue":null}]}]}`)
			b.Must(http.StatusNotFound, "GET", "/api/v1/resources/queues/"+Seg(q), nil)
		}},
		behaviour{"B144_riders_that_are_not_there", func(_ *testing.T, b *Broker, q string) {
			push := fmt.Sprintf(`{"operations":[{"type":"push","queue":%q,"payload":1}]`, q)
			for _, rest := range []string{`,"kv":null,"timers":null}`, `,"kv":[],"timers":[],"positions":null}`} {
				answered(b, 200, fmt.Sprintf(`{"transactionId":<uuid>,"success":true,"results":[{"index":0,"type":"push","success":true,"transactionId":<uuid>,"messageId":<uuid>,"queueName":%q}]}`, q),
					"POST", transactionPath, push+rest)
			}
			for _, rest := range []string{`,"kv":{}}`, `,"timers":{}}`, `,"kv":"x"}`, `,"timers":5}`, `,"positions":{}}`} {
				refusedAs(b, http.StatusBadRequest, "bad_request", push+rest)
			}
			// Not served: better refused than passed over in silence.
			refusedAs(b, http.StatusBadRequest, "bad_request", push+`,"positions":[{"queue":"q","consumerGroup":"g","offset":1}]}`)
			if got := stored(b, q); len(got) != 2 {
				t.Errorf("stored: %d", len(got))
			}
		}},
		behaviour{"B137_data_and_no_payload", func(t *testing.T, b *Broker, q string) {
			commits(b, fmt.Sprintf(`{"operations":[
				{"type":"push","queue":%[1]q,"data":[1, 2]},
				{"type":"push","queue":%[1]q,"data":1,"payload":2},
				{"type":"push","queue":%[1]q},
				{"type":"push","queue":%[1]q,"payload":null,"data":3},
				{"type":"push","items":[{"queue":%[1]q,"data":"x"},{"queue":%[1]q}]}]}`, q))
			var got []string
			for _, m := range stored(b, q) {
				got = append(got, string(m.Data))
			}
			if want := []string{"[1, 2]", "2", "{}", "null", `"x"`, "{}"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}},
		behaviour{"B138_trace_id", func(t *testing.T, b *Broker, q string) {
			const trace = "01a1c0de-7000-7abc-8def-000000000001"
			commits(b, fmt.Sprintf(`{"operations":[
				{"type":"push","queue":%[1]q,"traceId":%[2]q},
				{"type":"push","items":[{"queue":%[1]q,"traceId":%[2]q},{"queue":%[1]q,"traceId":"none"},{"queue":%[1]q,"traceId":{"a":1}},{"queue":%[1]q,"traceId":null}]}]}`, q, trace))
			for i, m := range stored(b, q) {
				if has := m.TraceID != nil; has != (i < 2) || has && *m.TraceID != trace {
					t.Errorf("%d: %v", i, m.TraceID)
				}
			}
		}},
		behaviour{"B139_results_are_flat", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			p := delivers(b, q, "", "m-0", "m-1")
			r := commits(b, ops(
				Item{Queue: q + ".out", TransactionID: "a"}, pick(p, "0"),
				[]Item{{Queue: q + ".z", TransactionID: "b"}, {Queue: q + ".out", TransactionID: "c"}, {Queue: q + ".a", TransactionID: "d"}},
				pick(p, "1"), Item{Queue: q + ".out", TransactionID: "e"},
			))
			var got []string
			for _, s := range r {
				got = append(got, s.Type+" "+s.TransactionID+strings.TrimPrefix(s.QueueName, q))
			}
			if want := []string{"push a.out", "ack m-0", "push b.z", "push c.out", "push d.a", "ack m-1", "push e.out"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}},
		behaviour{"B145_acks_of_one_cursor_are_one_call", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 5)
			p := delivers(b, q, "", ids("m", 0, 5)...)
			// The signal in the middle counts, wherever it stands in the bundle.
			commits(b, ops(pick(p, "4", "1 failed"), Item{Queue: q + ".out"}, pick(p, "0", "2 failed")))
			p = delivers(b, q, "", ids("m", 1, 5)...)
			commits(b, ops(pick(p, "2 retry"), pick(p, "0"), pick(p, "3")))
			p = delivers(b, q, "", ids("m", 2, 5)...)
			commits(b, ops(pick(p, "2"), pick(p, "0"), pick(p, "0")))
			deliversNothing(b, q, "")
		}},
		behaviour{"A1_A2_payloads_are_opaque", func(t *testing.T, b *Broker, q string) {
			for name, c := range opaque {
				if sum := sha256.Sum256([]byte(c.payload)); hex.EncodeToString(sum[:]) != c.sum {
					t.Fatal("these are not the bytes")
				}
				queue := q + name
				commits(b, fmt.Sprintf(`{"operations":[{"type":"push","queue":%[1]q,"partition":"p","payload":%[2]s},{"type":"push","items":[{"queue":%[1]q,"partition":"p","transactionId":"x","data": %[2]s }]}]}`, queue, c.payload))
				p := b.Pop(queue, "")
				if len(p.IDs()) != 2 {
					t.Fatalf("popped %q", p.IDs())
				}
				for _, m := range p.Messages {
					if string(m.Data) != c.payload {
						t.Errorf("popped %s", m.Data)
					}
				}
				if !strings.Contains(string(p.Raw), `"data":`+c.payload+`,`) {
					t.Errorf("the answer holds other bytes: %s", p.Raw)
				}
				commits(b, ops(pick(p, "0", "1 dlq no")))
				if letter := b.DeadLetters(queue)[0]; string(letter.Data) != c.payload || letter.TransactionID != "x" {
					t.Errorf("dead letter %+v", letter)
				}
			}
		}},
	)
}

func TestBundle_X1_X5_RidersCommitWithTheRest(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	body := `{"operations":[{"type":"push","items":[
			{"queue":"out","payload":1},{"queue":"out","payload":2},{"queue":"out","payload":3}]}],
		"kv":[{"op":"incr","ns":"n","key":"count","delta":1,"forever":true},
			{"op":"putIfAbsent","ns":"n","key":"done","value":{"by":"w"},"forever":true,"required":true}],
		"timers":[{"op":"schedule","queue":"later","timerKey":"k","delayMs":3600000,"txn":"t","payload":"eyJhIjoxfQ=="}]}`
	status, _, raw := b.Do("POST", "/api/v1/transaction", body)
	for _, want := range []string{
		`"success":true`, `{"index":3,"type":"kv","opIndex":0,"op":"incr","applied":true,"key":"count","value":1,`,
		`{"index":4,"type":"kv","opIndex":1,"op":"putIfAbsent","applied":true,"key":"done","value":{"by":"w"},`,
		`{"index":5,"type":"timer","opIndex":0,"ok":true,"status":"scheduled","queue":"later","timerKey":"k","txn":"t",`,
	} {
		if status != 200 || !strings.Contains(string(raw), want) {
			t.Fatalf("bundle: %d, no %s in %s", status, want, raw)
		}
	}
	status, _, raw = b.Do("POST", "/api/v1/transaction", body)
	for _, want := range []string{
		`"success":false,"ok":false,"reason":"kv_precondition"`, `"results":[]`, `"failedIndex":4`, `"kvReason":"exists"`, `"value":{"by":"w"}`,
	} {
		if status != 200 || !strings.Contains(string(raw), want) {
			t.Fatalf("repeated: %d, no %s in %s", status, want, raw)
		}
	}
	if _, _, raw := b.Do("GET", "/api/v1/kv/n/count", nil); !strings.Contains(string(raw), `"value":1,`) {
		t.Fatalf("a rolled back bundle counted: %s", raw)
	}
	if _, _, raw := b.Do("GET", "/api/v1/pop/queue/out?subscriptionMode=all", nil); strings.Count(string(raw), `"offset":`) != 3 {
		t.Fatalf("messages: %s", raw)
	}
}
