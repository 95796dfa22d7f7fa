package httpapi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

const defaultEcho = `"priority":0,"leaseTime":300,"retryLimit":3,"retryDelay":1000,"maxSize":0,"ttl":3600,"deadLetterQueue":true,` +
	`"dlqAfterMaxRetries":true,"delayedProcessing":0,"windowBuffer":0,"retentionSeconds":0,"completedRetentionSeconds":0,` +
	`"retentionEnabled":false,"encryptionEnabled":false,"maxWaitTimeSeconds":0,"minPopWaitTime":0,"dedupWindowSeconds":3600,` +
	`"retentionSinkHold":"","retentionSinkHoldMaxSeconds":604800`

// configured applies a body to a stored configuration, as the broker would.
func configured(t *testing.T, body string, current *mq.Options) mq.Options {
	t.Helper()
	var effective mq.Options
	h := New(&fakeBroker{configure: func(c mq.Configure) (mq.Queue, error) {
		o, err := c.Apply(current)
		effective = o
		return mq.Queue{ID: 1, Name: c.Queue, Options: o}, err
	}}, Options{})
	call(h, "POST", "/api/v1/configure", body).want(t, 200, "")
	return effective
}

func TestConfigure_B149_Echo(t *testing.T) {
	h := New(&fakeBroker{configure: func(c mq.Configure) (mq.Queue, error) {
		o, err := c.Apply(nil)
		return mq.Queue{ID: 1, Name: c.Queue, Options: o}, err
	}}, Options{})
	call(h, "POST", "/api/v1/configure", `{"queue":"shop.orders"}`).want(t, 200,
		`{"configured":true,"queueId":"`+mq.QueueUUID(1).String()+`","partitionId":null,"queue":"shop.orders","namespace":"","task":"","storage":"segments","options":{`+defaultEcho+`}}`)
}

func TestConfigure_ReadsOptions(t *testing.T) {
	stored := mq.ImplicitOptions("a.b")
	stored.RetryLimit, stored.RetentionEnabled = 9, true
	cases := []struct {
		name, body string
		set        func(*mq.Options)
	}{
		{"nothing", `{"queue":"q"}`, func(*mq.Options) {}},
		{"B150 nested", `{"queue":"q","options":{"leaseTime":90}}`, func(o *mq.Options) { o.LeaseTime = 90 }},
		{"B156 flat", `{"queue":"q","leaseTime":90,"retryLimit":1}`, func(o *mq.Options) { o.LeaseTime, o.RetryLimit = 90, 1 }},
		{"flat beside null", `{"queue":"q","leaseTime":90,"options":null}`, func(o *mq.Options) { o.LeaseTime = 90 }},
		{"flat beside a number", `{"queue":"q","leaseTime":90,"options":5}`, func(o *mq.Options) { o.LeaseTime = 90 }},
		{"flat beside options is unknown", `{"queue":"q","leaseTime":"x","options":{"retryLimit":2}}`, func(o *mq.Options) { o.RetryLimit = 2 }},
		{"B151 null resets one", `{"queue":"q","options":{"retryLimit":null}}`, func(o *mq.Options) { o.RetryLimit = 3 }},
		{"B162 null labels at the top", `{"queue":"q","namespace":null,"task":null,"options":{}}`, func(*mq.Options) {}},
		{"empty labels at the top", `{"queue":"q","namespace":"","task":""}`, func(*mq.Options) {}},
		{"labels at the top", `{"queue":"q","namespace":"n","task":"t"}`, func(o *mq.Options) { o.Namespace, o.Task = "n", "t" }},
		{"labels in the options win", `{"queue":"q","namespace":"n","options":{"namespace":"m","task":""}}`, func(o *mq.Options) { o.Namespace, o.Task = "m", "" }},
		{"null label in the options", `{"queue":"q","namespace":"n","options":{"namespace":null}}`, func(o *mq.Options) { o.Namespace = "" }},
		{"B157 clamps", `{"queue":"q","options":{"minPopWaitTime":999999,"dedupWindowSeconds":-5}}`, func(o *mq.Options) { o.MinPopWaitTime, o.DedupWindowSeconds = 60000, 0 }},
		{"numeric string", `{"queue":"q","options":{"leaseTime":" 120 "}}`, func(o *mq.Options) { o.LeaseTime = 120 }},
		{"boolean spellings", `{"queue":"q","options":{"deadLetterQueue":"OFF","dlqAfterMaxRetries":0,"encryptionEnabled":"t"}}`, func(o *mq.Options) {
			o.DeadLetterQueue, o.DLQAfterMaxRetries, o.EncryptionEnabled = false, false, true
		}},
		{"int32 bounds", `{"queue":"q","options":{"priority":-2147483648,"ttl":2147483647}}`, func(o *mq.Options) { o.Priority, o.TTL = -2147483648, 2147483647 }},
		{"B163 unknown", `{"queue":"q","options":{"color":"red","replace":true,"LeaseTime":1}}`, func(*mq.Options) {}},
		{"mode merge", `{"queue":"q","mode":"merge"}`, func(*mq.Options) {}},
		{"mode null", `{"queue":"q","mode":null}`, func(*mq.Options) {}},
		{"B152 replace", `{"queue":"q","mode":"replace","options":{"leaseTime":5}}`, func(o *mq.Options) { *o = mq.DefaultOptions(); o.LeaseTime = 5 }},
		{"sink hold", `{"queue":"q","options":{"retentionSinkHold":"s-3._","retentionSinkHoldMaxSeconds":60}}`, func(o *mq.Options) {
			o.RetentionSinkHold, o.RetentionSinkHoldMaxSeconds = "s-3._", 60
		}},
		{"B159 empty name", `{"queue":"","retentionSeconds":7,"completedRetentionSeconds":8,"maxWaitTimeSeconds":9,"windowBuffer":1,"delayedProcessing":2,"retryDelay":3,"maxSize":4,"retentionEnabled":false}`, func(o *mq.Options) {
			o.RetentionSeconds, o.CompletedRetentionSeconds, o.MaxWaitTimeSeconds, o.WindowBuffer = 7, 8, 9, 1
			o.DelayedProcessing, o.RetryDelay, o.MaxSize, o.RetentionEnabled = 2, 3, 4, false
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			current, want := stored, stored
			c.set(&want)
			if got := configured(t, c.body, &current); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestConfigure_Refusals(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	for _, c := range []struct{ body, code, field string }{
		{`[]`, "bad_body", ""},
		{`{`, "bad_body", ""},
		{`{}`, "bad_request", "queue"},
		{`{"queue":5}`, "bad_request", "queue"},
		{`{"queue":null}`, "bad_request", "queue"},
		{`{"queue":"a\u0000"}`, "bad_request", "queue"},
		{`{"queue":"q","queue":"q"}`, "bad_body", "queue"},
		{`{"queue":"q","options":{},"options":{}}`, "bad_body", "options"},
		{`{"queue":"q","mode":"Replace"}`, "bad_request", "mode"},
		{`{"queue":"q","mode":""}`, "bad_request", "mode"},
		{`{"queue":"q","mode":true}`, "bad_request", "mode"},
		{`{"queue":"q","mode":1}`, "bad_request", "mode"},
		{`{"queue":"q","options":{"leaseTime":"soon"}}`, "bad_request", "options.leaseTime"},
		{`{"queue":"q","options":{"leaseTime":1.5}}`, "bad_request", "options.leaseTime"},
		{`{"queue":"q","options":{"leaseTime":2147483648}}`, "bad_request", "options.leaseTime"},
		{`{"queue":"q","options":{"leaseTime":true}}`, "bad_request", "options.leaseTime"},
		{`{"queue":"q","options":{"leaseTime":{}}}`, "bad_request", "options.leaseTime"},
		{`{"queue":"q","options":{"deadLetterQueue":"o"}}`, "bad_request", "options.deadLetterQueue"},
		{`{"queue":"q","options":{"deadLetterQueue":2}}`, "bad_request", "options.deadLetterQueue"},
		{`{"queue":"q","options":{"namespace":5}}`, "bad_request", "options.namespace"},
		{`{"queue":"q","options":{"task":"\ud800"}}`, "bad_request", "options.task"},
		{`{"queue":"q","leaseTime":"soon"}`, "bad_request", "leaseTime"},
		{`{"queue":"q","options":{"namespace":"\u0000"}}`, "bad_request", "namespace"},
	} {
		t.Run(c.body, func(t *testing.T) { call(h, "POST", "/api/v1/configure", c.body).wantError(t, 400, c.code, c.field) })
	}
	call(h, "POST", "/api/v1/configure", `{"queue":5}`).want(t, 400, `{"error":"queue is required","code":"bad_request","field":"queue"}`)
	call(h, "POST", "/api/v1/configure", `{"queue":"q","mode":"Replace"}`).want(t, 400,
		`{"error":"mode must be \"merge\" or \"replace\", got \"Replace\"","code":"bad_request","field":"mode"}`)
}

func TestConfigure_B158_RefusedSinkHoldIsNamed(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	call(h, "POST", "/api/v1/configure", `{"queue":"q","options":{"retentionSinkHold":"a:b"}}`).want(t, 400,
		`{"error":"retentionSinkHold must match [A-Za-z0-9._-]{0,64}","code":"bad_request","field":"retentionSinkHold","invalid":"retentionSinkHold"}`)
	call(h, "POST", "/api/v1/configure", `{"queue":"q","retentionSinkHoldMaxSeconds":59}`).want(t, 400,
		`{"error":"retentionSinkHoldMaxSeconds must be between 60 and 31536000","code":"bad_request","field":"retentionSinkHoldMaxSeconds","invalid":"retentionSinkHoldMaxSeconds"}`)
}

var (
	early = time.Date(2026, 11, 3, 7, 0, 0, 0, time.UTC)
	later = time.Date(2026, 11, 3, 8, 15, 30, 123456000, time.UTC)
)

const (
	earlyText = `"2026-11-03T07:00:00.000000Z"`
	laterText = `"2026-11-03T08:15:30.123456Z"`
)

func TestQueues_ListDetailDepthDelete(t *testing.T) {
	o := mq.DefaultOptions()
	o.Namespace, o.Task = "shop", "orders"
	q := mq.Queue{ID: 7, Name: "shop.orders", Options: o, CreatedAt: early}
	c := mq.Counts{Total: 13, Pending: 2, Processing: 1}
	id := mq.QueueUUID(7).String()
	pid := mq.PartitionID{Queue: 7, Partition: 3}
	var filter mq.QueueFilter
	b := &fakeBroker{
		queues: func(f mq.QueueFilter) ([]mq.QueueSummary, error) {
			filter = f
			return []mq.QueueSummary{{Queue: q, Partitions: 1, Counts: c, Segments: 4, RetainedBytes: 20480}}, nil
		},
		queue: func(name string) (*mq.QueueDetail, error) {
			if name != "shop.orders" {
				return nil, mq.NotFound("Queue not found")
			}
			return &mq.QueueDetail{Queue: q, Totals: c, Segments: 4, RetainedBytes: 20480, Partitions: []mq.PartitionDetail{
				{ID: pid, Name: "cust-17", CreatedAt: early, Counts: c, Oldest: early, Newest: later},
				{ID: pid, Name: "e", CreatedAt: early},
			}}, nil
		},
		depth: func(queue, group string) (*mq.Depth, error) {
			return &mq.Depth{
				Queue: queue, Group: group, Pending: 31, Processing: 4, PartitionsPending: 3, PartitionsReady: 2, Conflation: group == "last",
				Partitions: []mq.PartitionDepth{{Partition: "cust-17", Pending: 31, Processing: 4}},
			}, nil
		},
		deleteQ: func(name string) (bool, error) { return name == "shop.orders", nil },
	}
	h := New(b, Options{})
	call(h, "GET", "/api/v1/resources/queues?namespace=shop&task=orders&limit=5&offset=10&stats=cached", "").want(t, 200,
		`{"queues":[{"id":"`+id+`","name":"shop.orders","namespace":"shop","task":"orders","createdAt":`+earlyText+`,"partitions":1,"retainedBytes":20480,`+
			`"segments":{"segments":4,"messages":13},"messages":{"total":13,"pending":2,"processing":1}}]}`)
	if filter != (mq.QueueFilter{Namespace: "shop", Task: "orders", Limit: 5, Offset: 10}) {
		t.Errorf("filter is %+v", filter)
	}
	const counts = `{"total":13,"pending":2,"processing":1,"completed":11,"failed":null,"deadLetter":0}`
	call(h, "GET", "/api/v1/resources/queues/shop.orders", "").want(t, 200,
		`{"id":"`+id+`","name":"shop.orders","namespace":"shop","task":"orders","createdAt":`+earlyText+`,"options":{"namespace":"shop","task":"orders",`+defaultEcho+`},`+
			`"partitions":[{"id":"`+pid.String()+`","name":"cust-17","createdAt":`+earlyText+`,"stats":`+counts+`,"oldestMessage":`+earlyText+`,"newestMessage":`+laterText+`},`+
			`{"id":"`+pid.String()+`","name":"e","createdAt":`+earlyText+`,"stats":{"total":0,"pending":0,"processing":0,"completed":0,"failed":null,"deadLetter":0},"oldestMessage":null,"newestMessage":null}],`+
			`"totals":`+counts+`,"retainedBytes":20480,"segments":{"segments":4,"messages":13}}`)
	call(h, "GET", "/api/v1/resources/queues/nope", "").want(t, 404, `{"error":"Queue not found","code":"not_found"}`)
	const depths = `"pending":31,"processing":4,"ready":27,"partitionsPending":3,"partitionsReady":2,`
	const parts = `,"partitions":[{"partition":"cust-17","pending":31,"processing":4,"ready":27}]}`
	call(h, "GET", "/api/v1/resources/queues/q/depth?group=billing", "").want(t, 200,
		`{"queue":"q","group":"billing",`+depths+`"conflation":false,"effectivePending":31,"effectiveReady":27`+parts)
	call(h, "GET", "/api/v1/resources/queues/q/depth?group=last", "").want(t, 200,
		`{"queue":"q","group":"last",`+depths+`"conflation":true,"effectivePending":3,"effectiveReady":2`+parts)
	call(h, "GET", "/api/v1/resources/queues/q/depth", "").want(t, 200,
		`{"queue":"q","group":null,`+depths+`"conflation":false,"effectivePending":31,"effectiveReady":27`+parts)
	call(h, "DELETE", "/api/v1/resources/queues/shop.orders", "").want(t, 200, `{"deleted":true,"queue":"shop.orders","existed":true}`)
	call(h, "DELETE", "/api/v1/resources/queues/nope", "").want(t, 200,
		`{"deleted":false,"queue":"nope","existed":false,"message":"Queue not found, nothing was deleted"}`)
}

func TestConfigure_B169_DetailRoundTrips(t *testing.T) {
	o := mq.ImplicitOptions("a.b")
	o.RetryLimit, o.RetentionSinkHold, o.DeadLetterQueue = 8, "s3", false
	h := New(&fakeBroker{queue: func(string) (*mq.QueueDetail, error) {
		return &mq.QueueDetail{Queue: mq.Queue{Name: "a.b", Options: o}}, nil
	}}, Options{})
	var detail struct{ Options json.RawMessage }
	if err := json.Unmarshal([]byte(call(h, "GET", "/api/v1/resources/queues/a.b", "").body), &detail); err != nil {
		t.Fatal(err)
	}
	body := `{"queue":"a.b","options":` + string(detail.Options) + `}`
	other := mq.DefaultOptions()
	if got := configured(t, body, &other); got != o {
		t.Errorf("%s\ngives %+v", body, got)
	}
}
