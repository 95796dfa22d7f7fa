package httpapi

import (
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func TestGroups_List(t *testing.T) {
	h := New(&fakeBroker{groups: func() ([]mq.GroupSummary, error) {
		return []mq.GroupSummary{
			{Group: "mailer", Queue: "invoices", Cursors: 4, PartitionsWithLag: 2, TotalLag: 31, MaxTimeLag: 18900 * time.Millisecond, EverConsumed: true, Start: mq.Start{Mode: mq.StartAll}, RegisteredAt: early},
			{Group: "slow", Queue: "q", MaxTimeLag: 301 * time.Second, Start: mq.Start{Mode: mq.StartTime, Time: early}, RegisteredAt: later, Conflation: true},
			{Group: "x", Queue: "q"},
		}, nil
	}}, Options{})
	call(h, "GET", "/api/v1/consumer-groups", "").want(t, 200,
		`[{"name":"mailer","topics":["invoices"],"queueName":"invoices","members":4,"partitionCursors":4,"partitionsWithLag":2,"totalLag":31,"maxTimeLag":18,"state":"Stable","storage":"segments","subscriptionMode":"all","subscriptionTimestamp":null,"subscriptionCreatedAt":`+earlyText+`,"conflation":false},`+
			`{"name":"slow","topics":["q"],"queueName":"q","members":0,"partitionCursors":0,"partitionsWithLag":0,"totalLag":0,"maxTimeLag":301,"state":"Lagging","storage":"segments","subscriptionMode":"timestamp","subscriptionTimestamp":`+earlyText+`,"subscriptionCreatedAt":`+laterText+`,"conflation":true},`+
			`{"name":"x","topics":["q"],"queueName":"q","members":0,"partitionCursors":0,"partitionsWithLag":0,"totalLag":0,"maxTimeLag":0,"state":"Dead","storage":"segments","subscriptionMode":null,"subscriptionTimestamp":null,"subscriptionCreatedAt":null,"conflation":false}]`)
}

func TestGroups_Lagging(t *testing.T) {
	var minimum time.Duration
	id := mq.PartitionID{Queue: 1, Partition: 2}
	h := New(&fakeBroker{lagging: func(d time.Duration) ([]mq.GroupPartition, error) {
		minimum = d
		return []mq.GroupPartition{{Group: "g", Queue: "q", Partition: "p", ID: id, OffsetLag: 5, TimeLag: 5000 * time.Second, OldestPending: early}}, nil
	}}, Options{})
	call(h, "GET", "/api/v1/consumer-groups/lagging", "").want(t, 200,
		`[{"consumer_group":"g","queue_name":"q","partition_name":"p","partition_id":"`+id.String()+`","worker_id":null,"offset_lag":5,"time_lag_seconds":5000,"lag_hours":1.39,"oldest_unconsumed_at":`+earlyText+`,"last_consumed_at":null}]`)
	if minimum != time.Hour {
		t.Errorf("the default is %v", minimum)
	}
	call(h, "GET", "/api/v1/consumer-groups/lagging?minLagSeconds=60", "").want(t, 200, "")
	if minimum != time.Minute {
		t.Errorf("asked for %v", minimum)
	}
	call(h, "GET", "/api/v1/consumer-groups/lagging?minLagSeconds=x", "").wantError(t, 400, "bad_request", "minLagSeconds")
}

func TestGroups_DetailIsKeyedByQueue(t *testing.T) {
	var list []mq.GroupPartition
	h := New(&fakeBroker{group: func(string) ([]mq.GroupPartition, error) { return list, nil }}, Options{})
	call(h, "GET", "/api/v1/consumer-groups/g", "").want(t, 200, `{}`)
	list = []mq.GroupPartition{
		{Queue: "b\"", Partition: "1", Committed: -1, OffsetLag: 3, TimeLag: 2 * time.Second, LeaseActive: true},
		{Queue: "a", Partition: "1", Committed: 899, Conflation: true},
		{Queue: "b\"", Partition: "2"},
	}
	part := func(name, consumed, lag, seconds, lease string) string {
		return `{"partition":"` + name + `","workerId":null,"lastConsumedAt":null,"totalConsumed":` + consumed + `,"offsetLag":` + lag + `,"timeLagSeconds":` + seconds + `,"leaseActive":` + lease + `}`
	}
	call(h, "GET", "/api/v1/consumer-groups/g", "").want(t, 200,
		`{"a":{"conflation":true,"partitions":[`+part("1", "900", "0", "0", "false")+`]},`+
			`"b\"":{"conflation":false,"partitions":[`+part("1", "0", "3", "2", "true")+`,`+part("2", "1", "0", "0", "false")+`]}}`)
}

func TestGroups_Subscription(t *testing.T) {
	var at time.Time
	h := New(&fakeBroker{subscribe: func(_ string, t time.Time) (int64, error) { at = t; return 2, nil }}, Options{})
	const path = "/api/v1/consumer-groups/a%2Fb/subscription"
	call(h, "POST", path, `{"subscriptionTimestamp":"2026-11-03T07:00:00Z"}`).want(t, 200,
		`{"success":true,"consumerGroup":"a/b","newTimestamp":`+earlyText+`,"rowsUpdated":2}`)
	if !at.Equal(early) {
		t.Errorf("set to %v", at)
	}
	for _, body := range []string{`{}`, `{"subscriptionTimestamp":""}`, `{"subscriptionTimestamp":null}`, `{"subscriptionTimestamp":"soon"}`} {
		call(h, "POST", path, body).wantError(t, 400, "bad_request", "subscriptionTimestamp")
	}
}

func TestGroups_Seek(t *testing.T) {
	var got mq.Seek
	moved := int64(4)
	var fault error
	h := New(&fakeBroker{seek: func(s mq.Seek) (int64, error) { got = s; return moved, fault }}, Options{})
	const queue, part = "/api/v1/consumer-groups/g/queues/q/seek", "/api/v1/consumer-groups/g/queues/q/partitions/p%2F1/seek"
	call(h, "POST", queue, `{"timestamp":"2026-11-03T07:00:00Z"}`).want(t, 200,
		`{"success":true,"consumerGroup":"g","queueName":"q","seekToEnd":false,"targetTimestamp":`+earlyText+`,"partitionsUpdated":4}`)
	if got != (mq.Seek{Tenant: mq.DefaultTenant, Group: "g", Queue: "q", Time: early}) {
		t.Errorf("got %+v", got)
	}
	call(h, "POST", queue, `{"toEnd":true}`).want(t, 200,
		`{"success":true,"consumerGroup":"g","queueName":"q","seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":4}`)
	for _, body := range []string{"", " ", "{}", `{"toEnd":true}`} {
		call(h, "POST", part, body).want(t, 200,
			`{"success":true,"consumerGroup":"g","queueName":"q","partitionName":"p/1","seekToEnd":true,"targetTimestamp":null,"updated":true}`)
		if got != (mq.Seek{Tenant: mq.DefaultTenant, Group: "g", Queue: "q", Partition: "p/1", PartitionSet: true, ToEnd: true}) {
			t.Errorf("got %+v", got)
		}
	}
	call(h, "POST", part, `{"timestamp":"0001-01-01T00:00:00Z"}`).want(t, 200, "")
	if got.ToEnd || got.Time.IsZero() {
		t.Errorf("the oldest time is taken for none: %+v", got)
	}
	call(h, "POST", queue, "").wantError(t, 400, "bad_body", "")
	call(h, "POST", queue, "{}").want(t, 400, `{"error":"Must specify toEnd=true or a timestamp","code":"bad_request"}`)
	call(h, "POST", queue, `{"timestamp":"soon"}`).wantError(t, 400, "bad_request", "timestamp")
	call(h, "POST", part, `{"toEnd":false}`).wantError(t, 400, "bad_request", "")
	for _, f := range []error{nil, mq.NotFound("no")} {
		moved, fault = 0, f
		call(h, "POST", queue, `{"toEnd":true}`).want(t, 404,
			`{"success":false,"error":"Queue not found or has no partitions","code":"not_found","consumerGroup":"g","queueName":"q","partitionsUpdated":0}`)
		call(h, "POST", part, "").want(t, 404, `{"success":false,"error":"Partition not found","code":"not_found"}`)
	}
}

func TestGroups_Delete(t *testing.T) {
	type args struct {
		group, queue       string
		queueSet, metadata bool
	}
	var got args
	h := New(&fakeBroker{deleteG: func(g, q string, queueSet, metadata bool) (int64, error) {
		got = args{g, q, queueSet, metadata}
		return 4, nil
	}}, Options{})
	call(h, "DELETE", "/api/v1/consumer-groups/g", "").want(t, 200, `{"success":true,"consumerGroup":"g","deletedPartitions":4,"metadataDeleted":true}`)
	if got != (args{"g", "", false, true}) {
		t.Errorf("got %+v", got)
	}
	call(h, "DELETE", "/api/v1/consumer-groups/g/queues/q?deleteMetadata=No", "").want(t, 200,
		`{"success":true,"consumerGroup":"g","queueName":"q","deletedPartitions":4,"metadataDeleted":false}`)
	if got != (args{"g", "q", true, false}) {
		t.Errorf("got %+v", got)
	}
	call(h, "DELETE", "/api/v1/consumer-groups/g?deleteMetadata=perhaps", "").wantError(t, 400, "bad_request", "deleteMetadata")
}
