package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"
)

func groupPath(group string) string { return "/api/v1/consumer-groups/" + Seg(group) }

func seekPath(group, queue string) string {
	return groupPath(group) + "/queues/" + Seg(queue) + "/seek"
}

func seekPartitionPath(group, queue, part string) string {
	return groupPath(group) + "/queues/" + Seg(queue) + "/partitions/" + Seg(part) + "/seek"
}

const toBeginning = `{"timestamp":"1970-01-01T00:00:00Z"}`

func TestGroup_17_2_Subscription(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b, other := f.Brokers[0], f.Brokers[1]
	at := func(p *PopAnswer) []string {
		var out []string
		for i := 0; p != nil && i < len(p.Messages); i++ {
			out = append(out, fmt.Sprintf("%s/%d", p.Messages[i].Partition, p.Messages[i].Offset))
		}
		slices.Sort(out)
		return out
	}
	everything := []string{"b/0"}
	for i := range 11 {
		everything = append(everything, fmt.Sprintf("a/%d", i))
	}
	slices.Sort(everything)
	b.PushN("q", "a", "m", 10)
	deliversNothing(b, "q", "consumerGroup=g1")
	other.PushN("q", "a", "n", 1)
	other.PushN("q", "b", "n", 1)
	p := other.Pop("q", "consumerGroup=g1&partitions=2")
	if got := at(p); !slices.Equal(got, []string{"a/10", "b/0"}) {
		t.Fatalf("g1 got %q", got)
	}
	if got := at(b.Pop("q", "consumerGroup=g2&subscriptionMode=all&partitions=2")); !slices.Equal(got, everything) {
		t.Errorf("g2 got %q", got)
	}
	b.AckAll(p)
	for _, broker := range f.Brokers {
		deliversNothing(broker, "q", "consumerGroup=g1&subscriptionMode=all&partitions=2")
	}
	if got := at(b.Pop("q", "subscriptionMode=new&partitions=2")); !slices.Equal(got, everything) {
		t.Errorf("queue mode got %q", got)
	}
}

func TestGroup_List(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	answered(b, 200, `[]`, "GET", "/api/v1/consumer-groups", nil)
	answered(b, 200, `[]`, "GET", "/api/v1/consumer-groups/lagging", nil)
	answered(b, 200, `{}`, "GET", groupPath("nobody"), nil)
	b.PushN("q", "a", "m", 4)
	b.PushN("q", "b", "m", 1)
	p := b.PopPinned("q", "a", as("mailer"))
	acked(b, "mailer", pick(p, "0"), "ok")
	deliversNothing(b, "q", "consumerGroup=new")
	b.Pop("q", "subscriptionFrom=2001-02-03T04:05:06Z&consumerGroup=since&autoAck=true&partitions=2")
	b.Pop("q", as("last")+"conflation=true")
	b.Pop("q", "")
	b.PushN("p2", "a", "m", 1)
	b.Pop("p2", as("mailer"))

	row := func(name, queue, counts, mode, timestamp, conflation string) string {
		return `{"name":"` + name + `","topics":["` + queue + `"],"queueName":"` + queue + `",` + counts + `,"storage":"segments","subscriptionMode":"` + mode +
			`","subscriptionTimestamp":` + timestamp + `,"subscriptionCreatedAt":<time>,"conflation":` + conflation + `}`
	}
	behind := func(members, lagging, lag int, state string) string {
		return fmt.Sprintf(`"members":%d,"partitionCursors":%d,"partitionsWithLag":%d,"totalLag":%d,"maxTimeLag":<int>,"state":"%s"`, members, members, lagging, lag, state)
	}
	answered(b, 200, "["+
		row("__QUEUE_MODE__", "q", behind(2, 2, 5, "Dead"), "all", "null", "false")+","+
		row("last", "q", behind(2, 2, 5, "Dead"), "all", "null", "true")+","+
		row("mailer", "p2", behind(1, 1, 1, "Dead"), "all", "null", "false")+","+
		row("mailer", "q", behind(2, 2, 4, "Stable"), "all", "null", "false")+","+
		row("new", "q", behind(2, 0, 0, "Dead"), "new", "null", "false")+","+
		row("since", "q", behind(2, 0, 0, "Stable"), "timestamp", `"2001-02-03T04:05:06.000000Z"`, "false")+"]",
		"GET", "/api/v1/consumer-groups", nil)

	one := func(name string, consumed, lag int, leased bool) string {
		return fmt.Sprintf(`{"partition":"%s","workerId":null,"lastConsumedAt":null,"totalConsumed":%d,"offsetLag":%d,"timeLagSeconds":<int>,"leaseActive":%t}`, name, consumed, lag, leased)
	}
	answered(b, 200, `{"p2":{"conflation":false,"partitions":[`+one("a", 0, 1, true)+`]},"q":{"conflation":false,"partitions":[`+
		one("a", 1, 3, true)+`,`+one("b", 0, 1, false)+`]}}`, "GET", groupPath("mailer"), nil)

	// Lag by age: whatever was pushed five minutes ago.
	if _, err := f.DB.Pool(t).Exec(t.Context(), "UPDATE queen.segments SET created_at = created_at - interval '90 minutes'"); err != nil {
		t.Fatal(err)
	}
	lagging := func(name, queue, part, lag string) string {
		return `{"consumer_group":"` + name + `","queue_name":"` + queue + `","partition_name":"` + part + `","partition_id":<uuid>,"worker_id":null,"offset_lag":` + lag +
			`,"time_lag_seconds":54<int>,"lag_hours":1.50,"oldest_unconsumed_at":<time>,"last_consumed_at":null}`
	}
	answered(b, 200, "["+lagging("mailer", "p2", "a", "1")+","+
		lagging("__QUEUE_MODE__", "q", "a", "4")+","+lagging("last", "q", "a", "4")+","+lagging("mailer", "q", "a", "3")+","+
		lagging("__QUEUE_MODE__", "q", "b", "1")+","+lagging("last", "q", "b", "1")+","+lagging("mailer", "q", "b", "1")+"]",
		"GET", "/api/v1/consumer-groups/lagging", nil)
	answered(b, 200, `[]`, "GET", "/api/v1/consumer-groups/lagging?minLagSeconds=7200", nil)
	answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "GET", "/api/v1/consumer-groups/lagging?minLagSeconds=x", nil)
	var groups []struct{ Name, QueueName, State string }
	b.MustInto(&groups, 200, "GET", "/api/v1/consumer-groups", nil)
	for _, g := range groups {
		want := "Lagging"
		switch g.Name {
		case "new":
			want = "Dead"
		case "since":
			want = "Stable"
		}
		if g.State != want {
			t.Errorf("%s on %s is %s", g.Name, g.QueueName, g.State)
		}
	}
}

func TestGroup_Subscription(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	path := groupPath("mailer") + "/subscription"
	body := `{"subscriptionTimestamp":"2026-03-01T00:00:00Z"}`
	answered(b, 200, `{"success":true,"consumerGroup":"mailer","newTimestamp":"2026-03-01T00:00:00.000000Z","rowsUpdated":0}`, "POST", path, body)
	for _, queue := range []string{"q1", "q2"} {
		b.PushN(queue, "p", "m", 2)
		deliversNothing(b, queue, "consumerGroup=mailer")
	}
	answered(b, 200, `{"success":true,"consumerGroup":"mailer","newTimestamp":"2026-03-01T00:00:00.000000Z","rowsUpdated":2}`, "POST", path, body)
	deliversNothing(b, "q1", "consumerGroup=mailer") // no cursor moved
	for _, body := range []string{`{}`, `{"subscriptionTimestamp":null}`, `{"subscriptionTimestamp":""}`, `{"subscriptionTimestamp":"soon"}`} {
		answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "POST", path, body)
	}
	// It is where a group without cursors begins.
	b.Must(200, "DELETE", groupPath("mailer")+"/queues/q1?deleteMetadata=false", nil)
	delivers(b, "q1", "consumerGroup=mailer", "m-0", "m-1")
}

func TestGroup_Seek(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: slowRecheck})
	eachBehaviour(
		t, f,
		behaviour{"answers", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p1", "m", 2)
			b.PushN(q, "p2", "m", 2)
			answered(b, 200, fmt.Sprintf(`{"success":true,"consumerGroup":"g","queueName":%q,"seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":2}`, q),
				"POST", seekPath("g", q), `{"toEnd":true}`)
			answered(b, 200, fmt.Sprintf(`{"success":true,"consumerGroup":"g","queueName":%q,"seekToEnd":false,"targetTimestamp":"1970-01-01T00:00:00.000000Z","partitionsUpdated":2}`, q),
				"POST", seekPath("g", q), toBeginning)
			for _, body := range []string{"", "{}", `{"toEnd":true}`} {
				answered(b, 200, fmt.Sprintf(`{"success":true,"consumerGroup":"g","queueName":%q,"partitionName":"p1","seekToEnd":true,"targetTimestamp":null,"updated":true}`, q),
					"POST", seekPartitionPath("g", q, "p1"), body)
			}
			answered(b, 404, `{"success":false,"error":"Queue not found or has no partitions","code":"not_found","consumerGroup":"g","queueName":"nowhere","partitionsUpdated":0}`,
				"POST", seekPath("g", "nowhere"), `{"toEnd":true}`)
			b.Configure(q+"-empty", nil)
			answered(b, 404, fmt.Sprintf(`{"success":false,"error":"Queue not found or has no partitions","code":"not_found","consumerGroup":"g","queueName":%q,"partitionsUpdated":0}`, q+"-empty"),
				"POST", seekPath("g", q+"-empty"), `{"toEnd":true}`)
			answered(b, 404, `{"success":false,"error":"Partition not found","code":"not_found"}`, "POST", seekPartitionPath("g", q, "p9"), "")
			for _, body := range []string{`{}`, `{"toEnd":false}`, `{"toEnd":null}`} {
				answered(b, 400, `{"error":"Must specify toEnd=true or a timestamp","code":"bad_request"<more>}`, "POST", seekPath("g", q), body)
			}
			answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "POST", seekPath("g", q), `{"timestamp":"soon"}`)
			answered(b, 400, `{"error":<text>,"code":"bad_body"<more>}`, "POST", seekPath("g", q), `{"toEnd":"yes"}`)
			answered(b, 400, `{"error":<text>,"code":"bad_body"<more>}`, "POST", seekPath("g", q), ``)
		}},
		behaviour{"to_the_beginning_in_order", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			b.PushN(q, "p", "n", 2)
			b.AckAll(delivers(b, q, as("g"), "m-0", "m-1", "m-2", "n-0", "n-1"))
			deliversNothing(b, q, as("g"))
			b.Must(200, "POST", seekPath("g", q), toBeginning)
			p := delivers(b, q, as("g"), "m-0", "m-1", "m-2", "n-0", "n-1")
			if got := p.Messages[0].DeliveryAttempt; got != 1 {
				b.t.Errorf("attempt %d", got)
			}
		}},
		behaviour{"a_batch_leased_before_moves_nothing", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			old := delivers(b, q, as("g"), "m-0", "m-1", "m-2")
			acked(b, "g", pick(old, "0"), "ok")
			b.Must(200, "POST", seekPath("g", q), toBeginning)
			acked(b, "g", pick(old, "1", "2"), noLease, noLease)
			acked(b, "g", pick(old, "2 failed"), noLease)
			if e := extend(b, old.LeaseID, "{}"); e.Renewed != 0 {
				t.Errorf("extended: %+v", e)
			}
			delivers(b, q, as("g"), "m-0", "m-1", "m-2")
			b.Must(200, "POST", seekPath("g", q), `{"toEnd":true}`)
			deliversNothing(b, q, as("g"))
			// At the end an old ack repeats what is done: harmless.
			acked(b, "g", pick(old, "0", "1", "2"), "ok+noop", "ok+noop", "ok+noop")
			b.PushN(q, "p", "n", 1)
			delivers(b, q, as("g"), "n-0")
		}},
		behaviour{"to_a_time", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			b.PushN(q, "p", "n", 1)
			second := read(b, fetchPath, `{"queue":%q,"partition":"p","offset":0}`, q).Records[2].TS
			for at, want := range map[time.Time][]string{
				second: {"n-0"}, second.Add(time.Hour): nil, second.Add(-time.Hour): {"m-0", "m-1", "n-0"},
			} {
				b.Must(200, "POST", seekPath("g", q), fmt.Sprintf(`{"timestamp":%q}`, at.Format(time.RFC3339Nano)))
				if p := b.Pop(q, as("g")); !slices.Equal(p.IDs(), want) {
					b.t.Errorf("from %v: %q, want %q", at, p.IDs(), want)
				}
			}
		}},
		behaviour{"resets_the_budget", func(_ *testing.T, b *Broker, q string) {
			b.Configure(q, bag{"retryLimit": 1})
			b.PushN(q, "p", "m", 1)
			acked(b, "g", pick(delivers(b, q, as("g"), "m-0"), "0 failed"), "ok+released")
			b.Must(200, "POST", seekPath("g", q), toBeginning)
			acked(b, "g", pick(delivers(b, q, as("g"), "m-0"), "0 failed"), "ok+released")
			acked(b, "g", pick(delivers(b, q, as("g"), "m-0"), "0 failed"), "ok+released+dlq")
		}},
		behaviour{"one_partition_leaves_its_siblings", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p1", "a", 2)
			b.PushN(q, "p2", "b", 2)
			b.AckAll(b.Pop(q, as("g")+"partitions=2"))
			b.AckAll(b.Pop(q, as("other")+"partitions=2"))
			b.Must(200, "POST", seekPartitionPath("g", q, "p2"), toBeginning)
			delivers(b, q, as("g")+"partitions=2", "b-0", "b-1")
			deliversNothing(b, q, as("other")+"partitions=2")
		}},
		behaviour{"a_group_nobody_has_used", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			b.Must(200, "POST", seekPath("fresh", q), toBeginning)
			delivers(b, q, "consumerGroup=fresh", "m-0", "m-1")
			var groups []struct{ Name, QueueName, SubscriptionMode string }
			b.MustInto(&groups, 200, "GET", "/api/v1/consumer-groups", nil)
			if !slices.ContainsFunc(groups, func(g struct{ Name, QueueName, SubscriptionMode string }) bool {
				return g.Name == "fresh" && g.QueueName == q && g.SubscriptionMode != ""
			}) {
				t.Errorf("not registered: %+v", groups)
			}
		}},
		behaviour{"wakes_waiters_everywhere", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			b.AckAll(delivers(b, q, as("g"), "m-0"))
			for _, path := range []string{seekPath("g", q), seekPartitionPath("g", q, "p")} {
				for _, waiting := range f.Brokers {
					answer := make(chan *PopAnswer, 1)
					go func() { answer <- waiting.In(t).Pop(q, as("g")+"wait=true&timeout=20000") }()
					time.Sleep(200 * time.Millisecond)
					start := time.Now()
					b.Must(200, "POST", path, toBeginning)
					p := <-answer
					if took := time.Since(start); took > 2*time.Second || len(p.IDs()) != 1 {
						t.Fatalf("%q after %v", p.IDs(), took)
					}
					b.AckAll(p)
				}
			}
		}},
	)
}

func TestGroup_Delete(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	eachBehaviour(
		t, f,
		behaviour{"with_its_registration", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p1", "m", 1)
			b.PushN(q, "p2", "m", 1)
			p := b.Pop(q, as("removed")+"partitions=2")
			answered(b, 200, fmt.Sprintf(`{"success":true,"consumerGroup":"removed","queueName":%q,"deletedPartitions":2,"metadataDeleted":true}`, q),
				"DELETE", groupPath("removed")+"/queues/"+Seg(q), nil)
			answered(b, 200, `{}`, "GET", groupPath("removed"), nil)
			for _, r := range b.Ack("removed", pick(p, "0", "1")...) {
				if r.Success {
					b.t.Errorf("acked: %+v", r)
				}
			}
			answered(b, 200, fmt.Sprintf(`{"success":true,"consumerGroup":"removed","queueName":%q,"deletedPartitions":0,"metadataDeleted":true}`, q),
				"DELETE", groupPath("removed")+"/queues/"+Seg(q), nil)
			// A brand-new group: it starts where its next pop says.
			deliversNothing(b, q, "consumerGroup=removed&partitions=2")
			b.PushN(q, "p1", "n", 1)
			delivers(b, q, "consumerGroup=removed&partitions=2", "n-0")
		}},
		behaviour{"keeping_its_registration", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			b.AckAll(delivers(b, q, as("kept"), "m-0", "m-1"))
			other := f.Brokers[1].In(t)
			deliversNothing(other, q, as("kept")) // knows the group
			answered(b, 200, `{"success":true,"consumerGroup":"kept","deletedPartitions":1,"metadataDeleted":false}`, "DELETE", groupPath("kept")+"?deleteMetadata=false", nil)
			// Its record says "all", whatever this pop says.
			delivers(other, q, "subscriptionMode=new&consumerGroup=kept", "m-0", "m-1")
		}},
		behaviour{"on_every_queue", func(_ *testing.T, b *Broker, q string) {
			group := "all-of-" + Seg(q)
			for i := range 3 {
				b.PushN(fmt.Sprint(q, i), "p", "m", 1)
				delivers(b, fmt.Sprint(q, i), as(group), "m-0")
			}
			delivers(b, q+"0", as("sibling"), "m-0")
			answered(b, 200, fmt.Sprintf(`{"success":true,"consumerGroup":%q,"deletedPartitions":3,"metadataDeleted":true}`, group), "DELETE", groupPath(group), nil)
			deliversNothing(b, q+"0", as("sibling")) // still leased
			for i := range 3 {
				delivers(b, fmt.Sprint(q, i), as(group), "m-0")
			}
			answered(b, 200, `{"success":true,"consumerGroup":"nobody","deletedPartitions":0,"metadataDeleted":true}`, "DELETE", groupPath("nobody"), nil)
			answered(b, 200, `{"success":true,"consumerGroup":"nobody","queueName":"nowhere","deletedPartitions":0,"metadataDeleted":true}`, "DELETE", groupPath("nobody")+"/queues/nowhere", nil)
		}},
		behaviour{"known_to_another_broker", func(t *testing.T, b *Broker, q string) {
			other := f.Brokers[1].In(t)
			b.PushN(q, "p", "m", 1)
			p := delivers(other, q, as("gone"), "m-0")
			b.Must(http.StatusOK, "DELETE", groupPath("gone")+"/queues/"+Seg(q), nil)
			if r := other.Ack("gone", pick(p, "0")...); r[0].Success {
				t.Errorf("acked: %+v", r)
			}
			delivers(other, q, as("gone"), "m-0")
		}},
	)
}
