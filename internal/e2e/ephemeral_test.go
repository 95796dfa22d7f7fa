package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// ephemeralCase is a test of the wire. Consecutive calls go to different brokers
// where there are several, so each case proves as well that any broker serves.
type ephemeralCase struct {
	name string
	run  func(t *testing.T, f *EphemeralFleet)
}

func TestEphemeral_Wire(t *testing.T) {
	t.Parallel()
	cases := []ephemeralCase{
		{"shapes", ephemeralShapes}, // first: it lists what there is
		{"E6 at most once", ephemeralAtMostOnce},
		{"E11 reject", ephemeralReject},
		{"E17 times of a wait", ephemeralWaits},
		{"E19 ids of nothing", ephemeralIDsOfNothing},
		{"E22 options", ephemeralOptions},
		{"E23 reset and delete", ephemeralResetAndDelete},
		{"E24 bytes", ephemeralBytes},
		{"E25 names", ephemeralNames},
		{"E26 limits", ephemeralLimits},
		{"E29 all partitions", ephemeralAllPartitions},
		{"two namespaces", ephemeralNamespaces},
	}
	for _, brokers := range []int{1, 3} {
		t.Run(fmt.Sprint(brokers, " brokers"), func(t *testing.T) {
			t.Parallel()
			f := StartEphemeral(t, brokers)
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) { c.run(t, f) })
			}
		})
	}
}

var ephemeralID = regexp.MustCompile(`"e:[0-9a-f]+:zone-4:\d+"`)

// ephemeralShapes compares whole answers. What is random is replaced.
func ephemeralShapes(t *testing.T, f *EphemeralFleet) {
	var id string
	exact := func(want int, method, path, body, answer string) {
		t.Helper()
		status, header, got := f.Next(t).Do(method, path, strings.ReplaceAll(body, `"ID"`, id))
		if m := ephemeralID.Find(got); m != nil {
			id = string(m)
		}
		text := strings.ReplaceAll(string(got), id, `"ID"`)
		if id == "" {
			text = string(got)
		}
		if status != want || text != answer || header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %s:\ngot  %d %s\nwant %d %s", method, path, body, status, text, want, answer)
		}
	}
	at := func(path string) string { return ephemeralAt + path }
	exact(200, "GET", at("queues"), "", `{"queues":[],"count":0,"cellBytes":0}`)
	exact(404, "GET", at("queues/rides/depth"), "", `{"error":"no such ephemeral queue","code":"ephemeral_queue_not_found"}`)
	exact(200, "POST", at("ack"), `{"queue":"rides","acks":[{"id":"x"}]}`, `{"results":[{"id":"x","outcome":"unknown"}]}`)
	exact(200, "POST", at("ack"), `{"queue":"rides","acks":[]}`, `{"results":[]}`)
	exact(200, "POST", at("reset"), `{"queue":"rides"}`, `{"queue":"rides","dropped":0}`)
	exact(200, "DELETE", at("queue/rides"), "", `{"queue":"rides","deleted":false,"declared":false}`)
	exact(201, "POST", at("push"), `{"queue":"rides","messages":[]}`, `{"pushed":0}`)

	exact(201, "POST", at("configure"), `{"queue":"rides","options":{"maxLength":500,"policy":"dropOldest","ttlSeconds":20}}`,
		`{"queue":"rides","options":{"maxLength":500,"policy":"dropOldest","ttlSeconds":20}}`)
	exact(200, "GET", at("pop?queue=rides&group=ui-3"), "", `{"queue":"rides","messages":[]}`)
	exact(201, "POST", at("push"), `{"queue":"rides","partition":"zone-4","messages":[{"payload":{"car":7}},{"payload":null}]}`, `{"pushed":2}`)
	exact(200, "GET", at("pop?queue=rides&group=ui-3&batch=1"), "",
		`{"queue":"rides","messages":[{"id":"ID","partition":"zone-4","attempts":1,"payload":{"car":7}}]}`)
	options := `{"maxBytes":16777216,"maxLength":500,"policy":"dropOldest","ttlSeconds":20,"leaseSeconds":30,"retryLimit":5,"windowBuffer":{"ms":0,"count":0}}`
	exact(200, "GET", at("queues"), "", `{"queues":[{"queue":"rides","tier":"declared","depth":2,"bytes":13,"partitions":1,"groups":1,`+
		`"drops":{"bounds":0,"ttl":0,"retry":0},"options":`+options+`}],"count":1,"cellBytes":13}`)
	for query, group := range map[string]string{"": `null`, "?group=ui-3": `"ui-3"`} {
		exact(200, "GET", at("queues/rides/depth"+query), "", `{"queue":"rides","group":`+group+`,"tier":"declared","pending":2,"partitionsPending":1,"bytes":13,`+
			`"partitions":[{"partition":"zone-4","pending":2,"bytes":13}],"groups":[{"group":"ui-3","pending":2,"skipped":0}]}`)
	}
	exact(200, "POST", at("ack"), `{"queue":"rides","group":"ui-3","acks":[{"id":"ID","status":"retry","error":"no driver"}]}`,
		`{"results":[{"id":"ID","outcome":"redelivered"}]}`)
	exact(200, "GET", at("pop?queue=rides&group=ui-3"), "",
		`{"queue":"rides","messages":[{"id":"ID","partition":"zone-4","attempts":2,"payload":{"car":7}}]}`)
	exact(200, "POST", at("ack"), `{"queue":"rides","group":"ui-3","acks":[{"id":"ID"}]}`, `{"results":[{"id":"ID","outcome":"acked"}]}`)
	exact(200, "POST", at("ack"), `{"queue":"rides","group":"ui-3","acks":[{"id":"ID","status":"completed"}]}`, `{"results":[{"id":"ID","outcome":"unknown"}]}`)
	exact(200, "POST", at("reset"), `{"queue":"rides"}`, `{"queue":"rides","dropped":1}`)
	exact(200, "DELETE", at("queue/rides"), "", `{"queue":"rides","deleted":true,"declared":true}`)
	exact(200, "DELETE", at("queue/rides"), "", `{"queue":"rides","deleted":false,"declared":false}`)

	var st map[string]any
	f.Next(t).MustInto(&st, 200, "GET", "/api/v1/system/ephemeral", nil)
	epoch, _ := st["epoch"].(string)
	delete(st, "epoch")
	if got := fmt.Sprint(st); epoch == "" || got != "map[cellBytes:0 cellMaxBytes:2.68435456e+08 ephemeralEnabled:true grantedTenants:0 queues:0 requireGrant:false]" {
		t.Errorf("status %s, epoch %q", got, epoch)
	}
}

func ephemeralAtMostOnce(t *testing.T, f *EphemeralFleet) {
	for _, query := range []string{"autoAck=true", "commitOnDelivery=true", "autoAck=false&commitOnDelivery=true", "autoAck=true&commitOnDelivery=false"} {
		queue := "once " + query
		f.Next(t).EphemeralConfigure(queue, `{"leaseSeconds":1}`)
		f.Next(t).EphemeralPush(queue, "", "1", "2")
		m := f.Next(t).EphemeralPop(queue, "batch=5&"+query)
		if !slices.Equal(payloadsOf(m), []string{"1", "2"}) {
			t.Fatalf("%s: got %+v", query, m)
		}
		if out := f.Next(t).EphemeralAck(queue, "", "", m...); !slices.Equal(out, []string{"unknown", "unknown"}) {
			t.Errorf("%s: acks answer %v", query, out)
		}
		if d := f.Next(t).EphemeralDepth(queue); d.Pending != 0 || d.Bytes != 0 {
			t.Errorf("%s: %+v", query, d)
		}
		if again := f.Next(t).EphemeralPop(queue, "batch=5"); len(again) != 0 {
			t.Errorf("%s: again %+v", query, again)
		}
	}
	// Neither: leased.
	f.Next(t).EphemeralPush("leased", "", "1")
	m := f.Next(t).EphemeralPop("leased", "autoAck=false&commitOnDelivery=false")
	if out := f.Next(t).EphemeralAck("leased", "", "", m...); !slices.Equal(out, []string{"acked"}) {
		t.Errorf("acks answer %v", out)
	}
}

// ephemeralRefused wants an error of the family and returns its text.
func ephemeralRefused(t testing.TB, b *Broker, want int, code, method, path string, body any) (text string, header http.Header) {
	t.Helper()
	status, header, raw := b.Do(method, path, body)
	var e map[string]any
	if err := json.Unmarshal(raw, &e); err != nil || status != want || e["code"] != code || e["error"] == "" || e["error"] == nil {
		t.Errorf("%s %s: %d %.300s (%v), want %d %s", method, path, status, raw, err, want, code)
	}
	if ct := header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("%s %s: content type %q", method, path, ct)
	}
	text, _ = e["error"].(string)
	return text, header
}

func ephemeralReject(t *testing.T, f *EphemeralFleet) {
	f.Next(t).EphemeralConfigure("two", `{"maxLength":2}`)
	f.Next(t).EphemeralPush("two", "a", "1")
	f.Next(t).EphemeralPush("two", "b", "2")
	_, header := ephemeralRefused(t, f.Next(t), 429, "queue_full", "POST", ephemeralAt+"push", EphemeralPushBody("two", "a", "3"))
	if header.Get("Retry-After") != "" {
		t.Errorf("a full queue names a time: %q", header.Get("Retry-After"))
	}
	f.Next(t).EphemeralConfigure("two", `{"maxLength":2}`)
	if d := f.Next(t).EphemeralDepth("two"); d.Pending != 2 || d.Bytes != 2 {
		t.Errorf("%+v", d)
	}
	if m := f.Next(t).EphemeralPop("two", "batch=10"); !slices.Equal(payloadsOf(m), []string{"1", "2"}) {
		t.Errorf("got %v", payloadsOf(m))
	}
}

func ephemeralWaits(t *testing.T, f *EphemeralFleet) {
	for _, c := range []struct {
		query       string
		least, most time.Duration
	}{
		{"wait=true&timeout=300", 300 * time.Millisecond, 2 * time.Second},
		{"wait=true&timeout=0", 0, time.Second},
		{"timeout=5000", 0, time.Second}, // without wait
		{"wait=true&timeout=-5", 0, time.Second},
	} {
		start := time.Now()
		if m := f.Next(t).EphemeralPop("quiet", c.query); len(m) != 0 {
			t.Errorf("%s: %+v", c.query, m)
		}
		within(t, c.query, time.Since(start), c.least, c.most)
	}
	var took []time.Duration
	for i := range 9 {
		from, to := f.Next(t), f.Next(t)
		answered := make(chan time.Time, 1)
		got := async(func() []EphemeralMessage {
			m := to.EphemeralPop("woken", "wait=true&timeout=20000&autoAck=true")
			answered <- time.Now()
			return m
		})
		ephemeralParked(t, to, 1)
		time.Sleep(10 * time.Millisecond) // its first look is over
		start := time.Now()
		from.EphemeralPush("woken", "", fmt.Sprint(i))
		if m := await(t, got, "a delivery"); !slices.Equal(payloadsOf(m), []string{fmt.Sprint(i)}) {
			t.Fatalf("got %+v", m)
		}
		took = append(took, (<-answered).Sub(start))
	}
	slices.Sort(took)
	t.Logf("from a push to the answer of a pop parked elsewhere: median %v, worst %v", took[len(took)/2], took[len(took)-1])
	// A parked pop looks by itself after a second: the median tells the two apart.
	if took[len(took)/2] > 100*time.Millisecond {
		t.Errorf("woken after %v", took)
	}
}

// ephemeralParked waits until n pops of ephemeral queues stand in line at a broker.
func ephemeralParked(t testing.TB, b *Broker, n int) {
	t.Helper()
	want := fmt.Sprintf("\nqueen_ephemeral_parked_pops %d\n", n)
	eventually(t, func() bool {
		return strings.Contains(string(b.Must(200, "GET", "/metrics/prometheus", nil)), want)
	}, "%d parked pops", n)
}

func ephemeralIDsOfNothing(t *testing.T, f *EphemeralFleet) {
	f.Next(t).EphemeralPush("there", "p", "1")
	m := f.Next(t).EphemeralPop("there", "group=g")
	parts := strings.Split(m[0].ID, ":") // e, incarnation, partition, sequence
	other := strings.Join([]string{"e", "00112233aabbccdd", parts[2], parts[3]}, ":")
	for _, c := range []struct{ id, there, missing string }{
		{"", "unknown", "unknown"},
		{"nonsense", "unknown", "unknown"},
		{"e:zz:p:1", "unknown", "unknown"},
		{"e:" + strings.Repeat("a", 4000) + ":p:1", "unknown", "unknown"},
		{other, "stale", "stale"},
		{strings.TrimSuffix(m[0].ID, parts[3]) + "1", "unknown", "stale"},
	} {
		for _, status := range []string{"", "retry"} {
			if got := f.Next(t).EphemeralAckIDs("there", "g", status, c.id)[0]; got != c.there {
				t.Errorf("%.60q %q: %s, want %s", c.id, status, got, c.there)
			}
			if got := f.Next(t).EphemeralAckIDs("missing", "g", status, c.id)[0]; got != c.missing && got != "unknown" {
				t.Errorf("%.60q %q of a missing queue: %s", c.id, status, got)
			}
		}
	}
	if got := f.Next(t).EphemeralAckIDs("there", "another", "", m[0].ID)[0]; got != "unknown" {
		t.Errorf("of another group: %s", got)
	}
	if got := f.Next(t).EphemeralAckIDs("there", "g", "anything", "x", m[0].ID); !slices.Equal(got, []string{"unknown", "redelivered"}) {
		t.Errorf("%v", got)
	}
	// Collected, or deleted, and made again: what an old id meant is gone.
	f.Next(t).Must(200, "DELETE", ephemeralAt+"queue/there", nil)
	f.Next(t).EphemeralPush("there", "p", `"new"`)
	next := f.Next(t).EphemeralPop("there", "group=g")
	if got := f.Next(t).EphemeralAckIDs("there", "g", "", m[0].ID)[0]; got != "stale" {
		t.Errorf("an id from before: %s", got)
	}
	if got := f.Next(t).EphemeralAck("there", "g", "", next...); !slices.Equal(got, []string{"acked"}) {
		t.Errorf("the new one: %v", got)
	}
}
