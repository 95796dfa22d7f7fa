package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// replayedOnce replays a dead letter through every broker at once, twice each:
// one moves it, for the others it is gone.
func replayedOnce(t *testing.T, f *Fleet, id string) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	results := map[string]int{}
	for i := range 2 * len(f.Brokers) {
		wg.Go(func() {
			status, _, answer, err := f.Brokers[i/2].Try(t.Context(), "POST", "/api/v1/dlq/"+id+"/replay", nil)
			var body struct{ Result string }
			if err == nil {
				err = json.Unmarshal(answer, &body)
			}
			if err != nil || status != map[string]int{"moved": http.StatusOK, "gone": http.StatusNotFound}[body.Result] {
				t.Errorf("replay: %d %s %v", status, answer, err)
			}
			mu.Lock()
			results[body.Result]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if results["moved"] != 1 || results["gone"] != 2*len(f.Brokers)-1 {
		t.Errorf("replayed: %v", results)
	}
}

// letter dead-letters the next message of a queue for a group.
func letter(b *Broker, queue, group, text string) DeadLetter {
	b.t.Helper()
	p := b.Pop(queue, as(group)+"batch=1")
	acked(b, group, pick(p, "0 dlq "+text), "ok+released+dlq")
	return b.DeadLetters(queue)[0]
}

func messagePath(partitionID, transactionID string) string {
	return "/api/v1/messages/" + partitionID + "/" + url.PathEscape(transactionID)
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	const missing = `"error":"Message not found","code":"not_found","message":<text>`
	eachBehaviour(
		t, f,
		behaviour{"list", func(t *testing.T, b *Broker, q string) {
			b.Push(Item{Queue: q, Partition: "p1", TransactionID: "a/1", Payload: []byte(`{"n":1}`)})
			first := letter(b, q, "g1", `said "no"`)
			b.Push(Item{Queue: q, Partition: "p2", TransactionID: "b", Payload: []byte(`null`)})
			second := letter(b, q, "g1", "")
			letter(b, q, "g2", "third")
			row := func(id, txn, part, group, offset, failure, data string) string {
				return `{"id":"` + id + `","messageId":<uuid>,"transactionId":"` + txn + `","partitionId":<uuid>,"queue":"` + q + `","partition":"` + part +
					`","consumerGroup":"` + group + `","offset":` + offset + `,"errorMessage":` + failure + `,"retryCount":0,"data":` + data +
					`,"producerSub":null,"isEncrypted":false,"createdAt":<time>,"failedAt":<time>}`
			}
			list := func(query string, page string, rows ...string) {
				t.Helper()
				want := `{"messages":[`
				for i, r := range rows {
					if i > 0 {
						want += ","
					}
					want += r
				}
				answered(b, 200, fmt.Sprintf(`%s],"pagination":%s,"total":%d}`, want, page, len(rows)), "GET", "/api/v1/dlq?queue="+Seg(q)+query, nil)
			}
			third := b.DeadLetters(q)[0]
			one := row(first.ID, "a/1", "p1", "g1", "0", `"said \"no\""`, `{"n":1}`)
			two := row(second.ID, "b", "p2", "g1", "0", `"Retries exhausted"`, `null`)
			three := row(third.ID, "a/1", "p1", "g2", "0", `"third"`, `{"n":1}`)
			const page = `{"limit":100,"offset":0}`
			list("", page, three, two, one)
			list("&consumerGroup=g1", page, two, one)
			list("&partition=p1", page, three, one)
			list("&limit=1", `{"limit":1,"offset":0}`, three)
			list("&limit=1&offset=2", `{"limit":1,"offset":2}`, one)
			list("&from=2001-01-01&to="+url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339)), page, three, two, one)
			list("&to=2001-01-01", page)
			list("&from="+url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339)), page)
			answered(b, 200, `{"messages":[],"pagination":`+page+`,"total":0}`, "GET", "/api/v1/dlq?queue=nowhere", nil)
			answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "GET", "/api/v1/dlq?limit=many", nil)

			// createdAt is when it was pushed, failedAt when it was given up on.
			var times struct {
				Messages []struct{ CreatedAt, FailedAt time.Time }
			}
			b.MustInto(&times, 200, "GET", "/api/v1/dlq?queue="+Seg(q), nil)
			pushed := read(b, fetchPath, `{"queue":%q,"partition":"p1","offset":0}`, q).Records[0].TS
			if m := times.Messages[0]; !m.CreatedAt.Equal(pushed) || !m.FailedAt.After(pushed) {
				t.Errorf("times %+v, pushed %v", m, pushed)
			}
		}},
		behaviour{"detail_live", func(_ *testing.T, b *Broker, q string) {
			b.Push(Item{Queue: q, Partition: "p/1", TransactionID: "a/1 ü", Payload: []byte(`{ "n": 1.10 }`)})
			p := delivers(b, q, "", "a/1 ü")
			m := p.Messages[0]
			b.Pop(q, as("g")+"autoAck=true")
			want := func(status, lease, groups, mode string) string {
				return `{"id":"` + m.ID + `","transactionId":"a/1 ü","txnHash":<text>,"partitionId":"` + m.PartitionID + `","queuePath":"` + q + `/p/1","queue":"` + q +
					`","partition":"p/1","namespace":"q1","task":"detail_live","status":"` + status + `","queueStatus":"` + status + `","busStatus":` + mode +
					`,"traceId":null,"producerSub":null,"payloadAvailable":true,"segment":null,"offset":0,"createdAt":<time>,"leaseExpiresAt":` + lease +
					`,"isEncrypted":false,"data":{ "n": 1.10 },"payload":{ "n": 1.10 },"errorMessage":null,"retryCount":0,"consumerGroups":[` + groups +
					`],"mode":{"hasQueueMode":true,"busGroupsCount":1,"type":"hybrid"},"queueConfig":{<more>"leaseTime":60,"retryLimit":3,"retryDelay":1000,<more>}}`
			}
			g := `{"name":"g","group":"g","consumed":true,"leaseExpiresAt":null}`
			path := messagePath(m.PartitionID, "a/1 ü")
			answered(b, 200, want("processing", "<time>", `{"name":"__QUEUE_MODE__","group":"__QUEUE_MODE__","consumed":false,"leaseExpiresAt":<time>},`+g, `{"consumedBy":1,"totalGroups":1}`), "GET", path, nil)
			acked(b, "", pick(p, "0 failed"), "ok+released")
			answered(b, 200, want("pending", "null", `{"name":"__QUEUE_MODE__","group":"__QUEUE_MODE__","consumed":false,"leaseExpiresAt":null},`+g, `{"consumedBy":1,"totalGroups":1}`), "GET", path, nil)
			b.AckAll(b.Pop(q, ""))
			answered(b, 200, want("completed", "null", `{"name":"__QUEUE_MODE__","group":"__QUEUE_MODE__","consumed":true,"leaseExpiresAt":null},`+g, `{"consumedBy":1,"totalGroups":1}`), "GET", path, nil)
			// A live message is not deleted, and not retried.
			answered(b, 404, `{"success":false,`+missing+`}`, "DELETE", path, nil)
			answered(b, 404, `{"success":false,`+missing+`}`, "POST", path+"/retry", nil)
		}},
		behaviour{"detail_of_nothing", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			pid := b.Pop(q, "").PartitionID
			var bodies []string
			for _, path := range []string{
				messagePath(pid, "unknown"), messagePath("nonsense", "m-0"), messagePath(mq.NewID().String(), "m-0"),
				messagePath(mq.PartitionID{Queue: 1 << 40, Partition: 1}.String(), "m-0"), messagePath(mq.QueueUUID(1).String(), "m-0"),
			} {
				status, _, answer := b.Do("GET", path, nil)
				if status != 404 {
					t.Errorf("%s: %d %s", path, status, answer)
				}
				bodies = append(bodies, string(answer))
			}
			if len(slices.Compact(bodies)) != 1 {
				t.Errorf("told apart: %q", bodies)
			}
		}},
		behaviour{"detail_and_delete_of_a_dead_letter", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, bag{"retryLimit": 1})
			b.PushN(q, "p", "m", 1)
			acked(b, "g", pick(delivers(b, q, as("g"), "m-0"), "0 failed once"), "ok+released")
			acked(b, "g", pick(delivers(b, q, as("g"), "m-0"), "0 failed twice"), "ok+released+dlq")
			l := letter(b, q, "other", "too")
			path := messagePath(l.PartitionID, "m-0")
			var d struct {
				Status, ErrorMessage string
				RetryCount           int
			}
			b.MustInto(&d, 200, "GET", path, nil)
			if d.Status != "dead_letter" || d.ErrorMessage != "too" || d.RetryCount != 0 {
				t.Errorf("detail: %+v", d)
			}
			answered(b, 200, `{"success":true,"partitionId":"`+l.PartitionID+`","transactionId":"m-0","message":"Message deleted successfully"}`, "DELETE", path, nil)
			if n := len(b.DeadLetters(q)); n != 0 {
				t.Errorf("%d dead letters", n)
			}
			answered(b, 404, `{"success":false,`+missing+`}`, "DELETE", path, nil)
			answered(b, 404, `{"success":false,`+missing+`}`, "DELETE", messagePath("nonsense", "m-0"), nil)
			b.MustInto(&d, 200, "GET", path, nil) // the message itself is still there
			if d.Status != "pending" {
				t.Errorf("detail: %+v", d)
			}
		}},
		behaviour{"retry_takes_the_newest", func(t *testing.T, b *Broker, q string) {
			b.Push(Item{Queue: q, Partition: "p", TransactionID: "m/0", Payload: []byte(`{"eur": 1.10}`)})
			older := letter(b, q, "mailer", "first")
			newer := letter(b, q, "other", "second")
			b.AckAll(something(b, q, as("late")))
			path := messagePath(newer.PartitionID, "m/0") + "/retry"
			answered(b, 200, `{"success":true,"result":"moved","queue":"`+q+`","partition":"p","consumerGroup":"other","dlqId":"`+newer.ID+
				`","originalTransactionId":"m/0","replayedAs":{"index":0,"message_id":<uuid>,"transaction_id":"dlq:`+newer.ID+`","queueName":"`+q+
				`","status":"queued","offset":1},"dlqRowRemoved":true}`, "POST", path, "ignored")
			if got := b.DeadLetters(q); len(got) != 1 || got[0].ID != older.ID {
				t.Errorf("letters: %+v", got)
			}
			// It is a new message at the tail, for every group.
			for _, group := range []string{"mailer", "other", "late"} {
				p := delivers(b, q, as(group), "dlq:"+newer.ID)
				if m := p.Messages[0]; m.Offset != 1 || string(m.Data) != `{"eur": 1.10}` || m.DeliveryAttempt != 1 || m.PartitionID != older.PartitionID {
					t.Errorf("%s: %+v", group, m)
				}
			}
			b.Must(200, "POST", path, nil)
			answered(b, 404, `{"success":false,`+missing+`}`, "POST", path, nil)
			answered(b, 404, `{"success":false,`+missing+`}`, "POST", messagePath("nonsense", "m")+"/retry", nil)
		}},
		behaviour{"replay_elsewhere", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			for i, tt := range []struct{ body, queue, part string }{
				{`{"queue":" ` + q + `.new ","partition":"x"}`, q + ".new", "x"},
				{`{"partition":"y"}`, q, "y"},
				{`{"queue":"` + q + `.new","partition":null}`, q + ".new", "p"},
			} {
				l := letter(b, q, "g", "bad")
				answered(b, 200, `{"success":true,"result":"moved","queue":"`+tt.queue+`","partition":"`+tt.part+`","consumerGroup":"g","dlqId":"`+l.ID+
					`","originalTransactionId":"`+fmt.Sprintf("m-%d", i)+`","replayedAs":{"index":0,"message_id":<uuid>,"transaction_id":"dlq:`+l.ID+`","queueName":"`+tt.queue+
					`","status":"queued","offset":0},"dlqRowRemoved":true}`, "POST", "/api/v1/dlq/"+l.ID+"/replay", tt.body)
				if p := b.PopPinned(tt.queue, tt.part, ""); !slices.Equal(p.IDs(), []string{"dlq:" + l.ID}) {
					t.Errorf("%s: got %q", tt.body, p.IDs())
				}
			}
		}},
		behaviour{"replay_refused", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			l := letter(b, q, "g", "bad")
			path := "/api/v1/dlq/" + l.ID + "/replay"
			for _, body := range []string{`{"queue":""}`, `{"queue":" "}`, `{"partition":"\t"}`, `{"queue":5}`, `{`, `[]`, `{"queue":"a\u0000"}`} {
				status, _, answer := b.Do("POST", path, body)
				var e struct{ Error, Code string }
				if err := json.Unmarshal(answer, &e); err != nil || status != 400 || e.Error == "" || e.Code == "" {
					t.Errorf("%s: %d %s", body, status, answer)
				}
			}
			for _, id := range []string{mq.NewID().String(), "nonsense", mq.UUID{}.String()} {
				answered(b, 404, `{"success":false,"result":"gone","dlqId":"`+id+`",`+missing+`}`, "POST", "/api/v1/dlq/"+id+"/replay", nil)
			}
			if n := len(b.DeadLetters(q)); n != 1 {
				t.Errorf("%d dead letters", n)
			}
		}},
		behaviour{"replay_of_what_is_there_already", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			l := letter(b, q, "g", "bad")
			b.Push(Item{Queue: q, Partition: "p", TransactionID: "dlq:" + l.ID})
			for range 2 {
				answered(b, 200, `{"success":true,"result":"duplicate","queue":"`+q+`","partition":"p","consumerGroup":"g","dlqId":"`+l.ID+
					`","originalTransactionId":"m-0","replayedAs":{"index":0,"message_id":"00000000-0000-0000-0000-000000000000","transaction_id":"dlq:`+l.ID+
					`","queueName":"`+q+`","status":"duplicate","offset":1},"dlqRowRemoved":false}`, "POST", "/api/v1/dlq/"+l.ID+"/replay", "{}")
			}
			if n := len(b.DeadLetters(q)); n != 1 {
				t.Errorf("%d dead letters", n)
			}
			delivers(b, q, as("g"), "dlq:"+l.ID)
		}},
		behaviour{"purge", func(t *testing.T, b *Broker, q string) {
			for _, queue := range []string{q, q + "2"} {
				b.PushN(queue, "p", "m", 2)
				for _, group := range []string{"g1", "g1", "g2"} {
					letter(b, queue, group, "bad")
				}
			}
			purge := "/api/v1/dlq?queue=" + Seg(q)
			answered(b, 200, `{"success":true,"deleted":2,"queue":"`+q+`","consumerGroup":"g1"}`, "DELETE", purge+"&consumerGroup=g1", nil)
			if got := b.DeadLetters(q); len(got) != 1 || got[0].ConsumerGroup != "g2" {
				t.Errorf("letters: %+v", got)
			}
			answered(b, 200, `{"success":true,"deleted":1,"queue":"`+q+`","consumerGroup":null}`, "DELETE", purge+"&consumerGroup=", nil)
			answered(b, 200, `{"success":true,"deleted":0,"queue":"`+q+`","consumerGroup":null}`, "DELETE", purge, nil)
			answered(b, 200, `{"success":true,"deleted":0,"queue":"nowhere","consumerGroup":null}`, "DELETE", "/api/v1/dlq?queue=nowhere", nil)
			answered(b, 400, `{"error":"queue is required","code":"bad_request"<more>}`, "DELETE", "/api/v1/dlq?consumerGroup=g1", nil)
			if n := len(b.DeadLetters(q + "2")); n != 3 {
				t.Errorf("%d dead letters of the other queue", n)
			}
		}},
	)
}

// something is a pop that delivers something.
func something(b *Broker, queue, query string) *PopAnswer {
	b.t.Helper()
	p := b.Pop(queue, query)
	if p == nil {
		b.t.Fatalf("pop %s?%s: nothing", queue, query)
	}
	return p
}

// A replay and whatever else would take the record meet: the message comes back
// once or not at all.
func TestDeadLetters_ReplayIsAMove(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b := f.One()
	b.Configure("q", bag{"dedupWindowSeconds": 0}) // not what saves us
	b.PushN("q", "p", "m", 1)
	sibling := letter(b, "q", "sibling", "stays")
	replayedOnce(t, f, letter(b, "q", "g", "bad").ID)
	if got := b.DeadLetters("q"); len(got) != 1 || got[0].ID != sibling.ID {
		t.Errorf("letters: %+v", got)
	}
	if _, next := bounds(b, "q", "p"); next != 2 {
		t.Errorf("%d messages, want 2", next)
	}

	const rounds = 10
	moved := 0
	for i := range rounds {
		queue := fmt.Sprint("race", i)
		b.PushN(queue, "p", "m", 1)
		l := letter(b, queue, "g", "bad")
		var wg sync.WaitGroup
		status, deleted := 0, 0
		wg.Go(func() {
			status, _, _, _ = f.Brokers[1].Try(t.Context(), "POST", "/api/v1/dlq/"+l.ID+"/replay", nil)
		})
		wg.Go(func() {
			_, _, answer, err := b.Try(t.Context(), "DELETE", "/api/v1/dlq?queue="+queue, nil)
			var out struct{ Deleted int }
			if err == nil {
				err = json.Unmarshal(answer, &out)
			}
			if err != nil {
				t.Error(err)
			}
			deleted = out.Deleted
		})
		wg.Wait()
		_, next := bounds(b, queue, "p")
		if (status == 200) == (deleted == 1) || (next == 2) != (status == 200) || len(b.DeadLetters(queue)) > 0 {
			t.Errorf("replay %d, deleted %d, %d messages", status, deleted, next)
		}
		moved += int(next) - 1
	}
	t.Logf("%d of %d replays came first", moved, rounds)
}

func TestDeadLetters_ReplayWakesWaiters(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: slowRecheck})
	b := f.One()
	b.PushN("q", "p", "m", 1)
	l := letter(b, "q", "g", "bad")
	answer := make(chan *PopAnswer, 1)
	go func() { answer <- f.Brokers[1].Pop("q", as("g")+"wait=true&timeout=20000") }()
	time.Sleep(200 * time.Millisecond)
	start := time.Now()
	b.Must(200, "POST", "/api/v1/dlq/"+l.ID+"/replay", nil)
	if p := <-answer; !slices.Equal(p.IDs(), []string{"dlq:" + l.ID}) || time.Since(start) > 2*time.Second {
		t.Errorf("%q after %v", p.IDs(), time.Since(start))
	}
}
