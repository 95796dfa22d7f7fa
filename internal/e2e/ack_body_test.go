package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// ackBody is a single ack of a message with members as given, in JSON.
func ackBody(m Message, members string) string {
	return fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q%s}`, m.TransactionID, m.PartitionID, m.LeaseID, members)
}

func TestAck_Bodies(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	const done = `[{"index":0,"transactionId":"m-0","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false}]`
	eachBehaviour(
		t, f,
		behaviour{"single", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "", "m-0")
			answered(b, 200, done, "POST", "/api/v1/ack", ackBody(p.Messages[0], `,"status":"completed"`))
			answered(b, 200, `[{"index":0,"transactionId":"m-0","success":true,"error":null,"leaseReleased":false,"dlq":false,"noop":true}]`,
				"POST", "/api/v1/ack", ackBody(p.Messages[0], ""))
			answered(b, 200, `[{"index":0,"transactionId":"m-0","success":false,"error":"invalid or expired lease","leaseReleased":false,"dlq":false,"noop":false}]`,
				"POST", "/api/v1/ack", ackBody(p.Messages[0], `,"status":"failed"`))
		}},
		behaviour{"B113_nulls", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "", "m-0")
			answered(b, 200, done, "POST", "/api/v1/ack", ackBody(p.Messages[0], `,"consumerGroup":null,"error":null,"status":null`))
			b.PushN(q, "p", "n", 1)
			p = delivers(b, q, "", "n-0")
			answered(b, 200, strings.Replace(done, "m-0", "n-0", 1), "POST", "/api/v1/ack/batch",
				`{"consumerGroup":null,"acknowledgments":[`+ackBody(p.Messages[0], `,"error":null`)+`]}`)
		}},
		behaviour{"B108_group_of_an_item_is_ignored", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, as("g"), "m-0")
			answered(b, 200, done, "POST", "/api/v1/ack/batch",
				`{"consumerGroup":"g","acknowledgments":[`+ackBody(p.Messages[0], `,"consumerGroup":"other"`)+`]}`)
			p = delivers(b, q, "", "m-0") // "" and absent and the reserved name are one
			answered(b, 200, done, "POST", "/api/v1/ack", ackBody(p.Messages[0], `,"consumerGroup":""`))
			b.PushN(q, "p", "n", 1)
			p = delivers(b, q, "consumerGroup=__QUEUE_MODE__", "n-0")
			answered(b, 200, strings.Replace(done, "m-0", "n-0", 1), "POST", "/api/v1/ack", ackBody(p.Messages[0], `,"consumerGroup":"__QUEUE_MODE__"`))
		}},
		behaviour{"empty_batch", func(_ *testing.T, b *Broker, _ string) {
			answered(b, 200, `[]`, "POST", "/api/v1/ack/batch", `{"acknowledgments":[]}`)
		}},
		behaviour{"nothing_named", func(_ *testing.T, b *Broker, _ string) {
			answered(b, 200, `[{"index":0,"transactionId":"","success":false,"error":<text>,"leaseReleased":false,"dlq":false,"noop":false}]`, "POST", "/api/v1/ack", `{}`)
		}},
		behaviour{"B16_refused_bodies_change_nothing", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			m := delivers(b, q, "leaseSeconds=1", "m-0").Messages[0]
			for _, body := range []string{
				"", "{", "[]", "null", ackBody(m, `,"status":true`), ackBody(m, `,"error":5`), ackBody(m, `,"consumerGroup":5`), ackBody(m, "") + "x",
			} {
				answered(b, 400, `{"error":<text>,"code":"bad_body"<more>}`, "POST", "/api/v1/ack", body)
			}
			for body, code := range map[string]string{
				"{": "bad_body", `{"acknowledgments":{}}`: "bad_body", `{"acknowledgments":[5]}`: "bad_body",
				`{"acknowledgments":[` + ackBody(m, "") + `,` + ackBody(m, `,"status":true`) + `]}`: "bad_body",
				`{}`: "bad_request", `{"acknowledgments":null}`: "bad_body",
			} {
				answered(b, 400, `{"error":<text>,"code":"`+code+`"<more>}`, "POST", "/api/v1/ack/batch", body)
			}
			delivers(b, q, "wait=true&timeout=5000", "m-0")
		}},
		behaviour{"B106_status", func(t *testing.T, b *Broker, q string) {
			for _, tt := range []struct{ status, want string }{
				{`"completed"`, "done"},
				{`"success"`, "done"},
				{`"acked"`, "done"},
				{`"ok"`, "done"},
				{`null`, "done"},
				{`"failed"`, "charged"},
				{`"retry"`, "again"},
				{`"dlq"`, "filed"},
				{`""`, "charged"},
				{`"Completed"`, "charged"},
				{`"COMPLETED"`, "charged"},
				{`"nack"`, "charged"},
				{`"completed "`, "charged"},
			} {
				queue := q + tt.status
				b.Configure(queue, map[string]any{"retryLimit": 1})
				b.PushN(queue, "p", "m", 1)
				p := delivers(b, queue, "", "m-0")
				b.Must(http.StatusOK, "POST", "/api/v1/ack", ackBody(p.Messages[0], `,"status":`+tt.status))
				got := "done"
				if p := b.Pop(queue, ""); p != nil {
					// One failed more shows whether the budget was charged.
					got = "again"
					if b.Ack("", pick(p, "0 failed")...)[0].DLQ {
						got = "charged"
					}
				} else if len(b.DeadLetters(queue)) > 0 {
					got = "filed"
				}
				if got != tt.want {
					t.Errorf("status %s: %s, want %s", tt.status, got, tt.want)
				}
			}
		}},
	)
}
