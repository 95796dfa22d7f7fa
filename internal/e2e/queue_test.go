package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore"
)

func queuePath(queue string) string { return "/api/v1/resources/queues/" + Seg(queue) }

func TestQueue(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	eachBehaviour(
		t, f,
		behaviour{"B164_B166_deleted_and_made_again", func(t *testing.T, b *Broker, q string) {
			first := b.PushN(q, "p", "m", 3)
			old := delivers(b, q, as("g"), "m-0", "m-1", "m-2")
			acked(b, "g", pick(old, "1"), "ok")
			acked(b, "", pick(delivers(b, q, "", "m-0", "m-1", "m-2"), "0 dlq"), "ok+released+dlq")
			answered(b, 200, fmt.Sprintf(`{"deleted":true,"queue":%q,"existed":true}`, q), "DELETE", queuePath(q), nil)
			answered(b, 200, fmt.Sprintf(`{"deleted":false,"queue":%q,"existed":false,"message":"Queue not found, nothing was deleted"}`, q), "DELETE", queuePath(q), nil)
			answered(b, 404, `{"error":"Queue not found"<more>}`, "GET", queuePath(q), nil)
			answered(b, 404, `{"error":"Queue not found"<more>}`, "GET", queuePath(q)+"/depth", nil)
			if n := len(b.DeadLetters(q)); n != 0 {
				t.Errorf("%d dead letters", n)
			}

			again := b.PushN(q, "p", "m", 3)
			for i, r := range again {
				if r.Status != "queued" || *r.Offset != int64(i) || r.MessageID == first[i].MessageID {
					t.Errorf("%d: %+v", i, r)
				}
			}
			p := delivers(b, q, as("g"), "m-0", "m-1", "m-2")
			if p.PartitionID == old.PartitionID || p.Messages[0].DeliveryAttempt != 1 {
				t.Errorf("not fresh: %s", p.Raw)
			}
			// B165
			acked(b, "g", pick(old, "2"), notOwned)
			acked(b, "g", pick(p, "2"), "ok+released")
		}},
		behaviour{"B167_a_waiting_consumer_gets_204", func(t *testing.T, b *Broker, q string) {
			b.Configure(q, nil)
			deliversNothing(b, q, as("g"))
			type outcome struct {
				status int
				body   string
				took   time.Duration
			}
			answers := make(chan outcome, 2)
			for _, path := range []string{"/api/v1/pop/queue/" + Seg(q), "/api/v1/pop/queue/" + Seg(q) + "/partition/p"} {
				go func() {
					start := time.Now()
					status, _, body, err := b.Try(t.Context(), "GET", path+"?"+as("g")+"wait=true&timeout=1500", nil)
					answers <- outcome{status, fmt.Sprint(string(body), err), time.Since(start)}
				}()
			}
			time.Sleep(300 * time.Millisecond)
			b.Must(200, "DELETE", queuePath(q), nil)
			for range 2 {
				if o := <-answers; o.status != 204 || o.took < 1300*time.Millisecond || o.took > 4*time.Second {
					t.Errorf("%+v", o)
				}
			}
		}},
		behaviour{"detail_and_list", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "a", "m", 5)
			b.PushN(q, "b", "m", 1)
			p := b.PopPinned(q, "a", "batch=3")
			acked(b, "", pick(p, "0"), "ok")
			head := `"id":<uuid>,"name":"` + q + `","namespace":"q2","task":"detail_and_list","createdAt":<time>`
			one := func(name, counts string) string {
				return `{"id":<uuid>,"name":"` + name + `","createdAt":<time>,"stats":` + counts + `,"oldestMessage":<time>,"newestMessage":<time>}`
			}
			answered(b, 200, `{`+head+`,"options":{"namespace":"q2","task":"detail_and_list","priority":0,"leaseTime":60,<more>},"partitions":[`+
				one("a", `{"total":5,"pending":4,"processing":2,"completed":1,"failed":null,"deadLetter":0}`)+`,`+
				one("b", `{"total":1,"pending":1,"processing":0,"completed":0,"failed":null,"deadLetter":0}`)+
				`],"totals":{"total":6,"pending":5,"processing":2,"completed":1,"failed":null,"deadLetter":0},"retainedBytes":<int>,"segments":{"segments":2,"messages":6}}`,
				"GET", queuePath(q), nil)
			row := `{` + head + `,"partitions":2,"retainedBytes":<int>,"segments":{"segments":2,"messages":6},"messages":{"total":6,"pending":5,"processing":2}}`
			answered(b, 200, `{"queues":[`+row+`]}`, "GET", "/api/v1/resources/queues?namespace=q2&task=detail_and_list", nil)
			answered(b, 200, `{"queues":[`+row+`]}`, "GET", "/api/v1/resources/queues?stats=cached&namespace=q2", nil)
			answered(b, 200, `{"queues":[]}`, "GET", "/api/v1/resources/queues?namespace=q2&offset=1", nil)
			answered(b, 200, `{"queues":[]}`, "GET", "/api/v1/resources/queues?namespace=nobody", nil)

			// A named group counts, and of several the slowest.
			b.Pop(q, as("fast")+"partitions=2&autoAck=true")
			var d struct {
				Totals struct{ Pending, Processing, Completed int }
			}
			b.MustInto(&d, 200, "GET", queuePath(q), nil)
			if d.Totals.Pending != 0 || d.Totals.Completed != 6 {
				t.Errorf("totals: %+v", d.Totals)
			}
			b.Pop(q, as("slow")+"partitions=2")
			b.MustInto(&d, 200, "GET", queuePath(q), nil)
			if d.Totals.Pending != 6 || d.Totals.Processing != 6 {
				t.Errorf("totals: %+v", d.Totals)
			}
		}},
		behaviour{"dead_letters_in_detail", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "a", "m", 2)
			acked(b, "", pick(delivers(b, q, "", "m-0", "m-1"), "0 dlq"), "ok+released+dlq")
			var d struct {
				Partitions []struct{ Stats map[string]any }
				Totals     map[string]any
			}
			b.MustInto(&d, 200, "GET", queuePath(q), nil)
			if d.Totals["deadLetter"] != 1.0 || d.Partitions[0].Stats["deadLetter"] != 1.0 {
				t.Errorf("%+v", d)
			}
		}},
		behaviour{"B168_depth", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "a", "m", 4)
			b.PushN(q, "b", "m", 2)
			depth := func(group, groupJSON, sums, parts string) {
				b.t.Helper()
				answered(b, 200, fmt.Sprintf(`{"queue":%q,"group":%s,%s,"partitions":[%s]}`, q, groupJSON, sums, parts), "GET", queuePath(q)+"/depth"+group, nil)
			}
			const g = "?group=g"
			// Nobody has read anything: all of it is owed, to whomever.
			for group, name := range map[string]string{"": "null", g: `"g"`} {
				depth(group, name, `"pending":6,"processing":0,"ready":6,"partitionsPending":2,"partitionsReady":2,"conflation":false,"effectivePending":6,"effectiveReady":6`,
					`{"partition":"a","pending":4,"processing":0,"ready":4},{"partition":"b","pending":2,"processing":0,"ready":2}`)
			}
			p := b.PopPinned(q, "a", as("g")+"batch=3")
			depth(g, `"g"`, `"pending":6,"processing":3,"ready":3,"partitionsPending":2,"partitionsReady":2,"conflation":false,"effectivePending":6,"effectiveReady":3`,
				`{"partition":"a","pending":4,"processing":3,"ready":1},{"partition":"b","pending":2,"processing":0,"ready":2}`)
			acked(b, "g", pick(p, "0"), "ok")
			depth(g, `"g"`, `"pending":5,"processing":2,"ready":3,"partitionsPending":2,"partitionsReady":2,"conflation":false,"effectivePending":5,"effectiveReady":3`,
				`{"partition":"a","pending":3,"processing":2,"ready":1},{"partition":"b","pending":2,"processing":0,"ready":2}`)
			acked(b, "g", pick(p, "2"), "ok+released")
			p = b.PopPinned(q, "a", as("g"))
			depth(g, `"g"`, `"pending":3,"processing":1,"ready":2,"partitionsPending":2,"partitionsReady":1,"conflation":false,"effectivePending":3,"effectiveReady":2`,
				`{"partition":"a","pending":1,"processing":1,"ready":0},{"partition":"b","pending":2,"processing":0,"ready":2}`)
			b.AckAll(p)
			b.AckAll(b.Pop(q, as("g")))
			depth(g, `"g"`, `"pending":0,"processing":0,"ready":0,"partitionsPending":0,"partitionsReady":0,"conflation":false,"effectivePending":0,"effectiveReady":0`,
				`{"partition":"a","pending":0,"processing":0,"ready":0},{"partition":"b","pending":0,"processing":0,"ready":0}`)
		}},
		behaviour{"depth_of_a_conflating_group", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "a", "m", 4)
			b.PushN(q, "b", "m", 2)
			b.Pop(q, as("g")+"conflation=true&batch=1")
			answered(b, 200, fmt.Sprintf(`{"queue":%q,"group":"g","pending":6,"processing":<int>,"ready":<int>,"partitionsPending":2,"partitionsReady":1,"conflation":true,"effectivePending":2,"effectiveReady":1,"partitions":[<more>]}`, q),
				"GET", queuePath(q)+"/depth?group=g", nil)
		}},
	)
}

// The list is sorted and pages.
func TestQueue_ListPages(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	names := []string{"a", "b.x", "b.y", "ü"}
	for _, name := range []string{"b.y", "ü", "a", "b.x"} {
		b.PushN(name, "p", "m", 1)
	}
	list := func(query string) (got []string) {
		t.Helper()
		var l struct {
			Queues []struct{ Name string }
		}
		b.MustInto(&l, 200, "GET", "/api/v1/resources/queues"+query, nil)
		for _, q := range l.Queues {
			got = append(got, q.Name)
		}
		return got
	}
	for query, want := range map[string][]string{
		"": names, "?limit=2": names[:2], "?limit=2&offset=1": names[1:3], "?offset=3": names[3:],
		"?namespace=b": names[1:3], "?namespace=b&task=y": names[2:3], "?task=y": names[2:3],
	} {
		if got := list(query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

// A broker that has not heard of the deletion yet still answers item by item.
func TestQueue_B165_DeletedBehindTheBrokersBack(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	store, err := pgstore.Open(t.Context(), pgstore.Config{URL: f.DB.URL, PoolSize: 2, AppName: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b.PushN("q", "p", "m", 4)
	p := delivers(b, "q", as("g"), "m-0", "m-1", "m-2", "m-3")
	acked(b, "g", pick(p, "0"), "ok")
	if existed, err := store.DeleteQueue(t.Context(), mq.DefaultTenant, "q"); !existed || err != nil {
		t.Fatal(existed, err)
	}
	for _, specs := range [][]string{{"1"}, {"1", "2", "3"}, {"2 failed"}, {"1", "2 dlq"}} {
		for _, r := range b.Ack("g", pick(p, specs...)...) {
			if r.Success || r.Error == nil {
				t.Errorf("%v: %+v", specs, r)
			}
		}
	}
	for _, r := range b.Ack("g", without(pick(p, "1"))...) {
		if r.Success {
			t.Errorf("%+v", r)
		}
	}
	if e := extend(b, p.LeaseID, `{}`); e.Renewed != 0 {
		t.Errorf("extended: %+v", e)
	}
	deliversNothing(b, "q", as("g"))
	status, _, answer := b.Do("GET", "/api/v1/messages/"+p.PartitionID+"/m-0", nil)
	if status != http.StatusNotFound {
		t.Errorf("detail: %d %s", status, answer)
	}
	answered(b, 200, `{"entries":[{"queue":"q","partition":"p","records":[],"highWatermark":0,"logStartOffset":0<more>}]}`, "POST", "/api/v1/fetch",
		json.RawMessage(`{"entries":[{"queue":"q","partition":"p","offset":0}]}`))
	if got := b.PushN("q", "p", "m", 1)[0]; got.Status != "queued" || *got.Offset != 0 {
		t.Errorf("push: %+v", got)
	}
}
