package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// popped runs a pop and returns what the broker was asked for.
func popped(t *testing.T, o Options, target string) mq.Pop {
	t.Helper()
	var got mq.Pop
	asked := false
	h := New(&fakeBroker{pop: func(_ context.Context, p mq.Pop) (*mq.Delivery, error) {
		got, asked = p, true
		return &mq.Delivery{}, nil
	}}, o)
	a := call(h, "GET", target, "")
	if !asked || a.status != 204 || a.body != "" {
		t.Fatalf("%s: %d %s", target, a.status, a.body)
	}
	return got
}

func TestPop_ReadsItsParameters(t *testing.T) {
	base := mq.Pop{
		Tenant: mq.DefaultTenant, Queue: "q", Group: mq.QueueMode, Batch: 200, Partitions: 1,
		Start: mq.Start{Mode: mq.StartAll},
	}
	at := time.Date(2026, 11, 3, 8, 15, 30, 0, time.UTC)
	cases := []struct {
		query string
		set   func(*mq.Pop)
	}{
		{"", func(*mq.Pop) {}},
		{"unknown=1&autopilot=true", func(*mq.Pop) {}},
		{"batch=0", func(p *mq.Pop) { p.Batch = 1 }},
		{"batch=-3", func(p *mq.Pop) { p.Batch = 1 }},
		{"batch=2147483647", func(p *mq.Pop) { p.Batch = 2147483647 }},
		{"partitions=4", func(p *mq.Pop) { p.Partitions = 4 }},
		{"partitions=0", func(p *mq.Pop) { p.Partitions = 64 }},
		{"partitions=-1", func(p *mq.Pop) { p.Partitions = 64 }},
		{"partitions=1000", func(p *mq.Pop) { p.Partitions = 64 }},
		{"wait=true", func(p *mq.Pop) { p.Wait = 30 * time.Second }},
		{"wait=1&timeout=2000", func(p *mq.Pop) { p.Wait = 2 * time.Second }},
		{"wait=true&timeout=0", func(*mq.Pop) {}},
		{"wait=true&timeout=18446744073709551615", func(p *mq.Pop) { p.Wait = time.Minute }},
		{"wait=false&timeout=2000", func(*mq.Pop) {}},
		{"autoAck=true", func(p *mq.Pop) { p.AutoCommit = true }},
		{"autoAck=false&commitOnDelivery=1", func(p *mq.Pop) { p.AutoCommit = true }},
		{"leaseSeconds=1", func(p *mq.Pop) { p.Lease = time.Second }},
		{"leaseSeconds=0", func(*mq.Pop) {}},
		{"leaseSeconds=-5", func(*mq.Pop) {}},
		{"consumerGroup=", func(*mq.Pop) {}},
		{"subscriptionMode=new", func(*mq.Pop) {}},
		{"consumerGroup=g", func(p *mq.Pop) { p.Group, p.Start = "g", mq.Start{} }},
		{"consumerGroup=g&subscriptionMode=all", func(p *mq.Pop) { p.Group = "g" }},
		{"consumerGroup=g&subscriptionMode=new-only", func(p *mq.Pop) { p.Group, p.Start = "g", mq.Start{} }},
		{"consumerGroup=g&subscriptionMode=banana", func(p *mq.Pop) { p.Group = "g" }},
		{"consumerGroup=g&subscriptionMode=all&subscriptionFrom=now", func(p *mq.Pop) { p.Group, p.Start = "g", mq.Start{} }},
		{"consumerGroup=g&subscriptionMode=all&subscriptionFrom=soon", func(p *mq.Pop) { p.Group, p.Start = "g", mq.Start{} }},
		{"consumerGroup=g&subscriptionFrom=2026-11-03T08:15:30Z", func(p *mq.Pop) { p.Group, p.Start = "g", mq.Start{Mode: mq.StartTime, Time: at} }},
		{"consumerGroup=g&conflation=true", func(p *mq.Pop) {
			p.Group, p.Start, p.Conflation, p.ConflationSet, p.Partitions = "g", mq.Start{}, true, true, 64
		}},
		{"consumerGroup=g&conflation=true&batch=5", func(p *mq.Pop) {
			p.Group, p.Start, p.Conflation, p.ConflationSet, p.Batch, p.Partitions = "g", mq.Start{}, true, true, 5, 5
		}},
		{"consumerGroup=g&conflation=false&autoAck=true", func(p *mq.Pop) {
			p.Group, p.Start, p.ConflationSet, p.AutoCommit = "g", mq.Start{}, true, true
		}},
	}
	for _, c := range cases {
		want := base
		c.set(&want)
		if got := popped(t, Options{}, "/api/v1/pop/queue/q?"+c.query); got != want {
			t.Errorf("%s\ngot  %+v\nwant %+v", c.query, got, want)
		}
	}
	defaults := popped(t, Options{DefaultTimeout: 90 * time.Second, DefaultStart: mq.StartAll}, "/api/v1/pop/queue/q?wait=true&consumerGroup=g")
	if defaults.Wait != time.Minute || defaults.Start.Mode != mq.StartAll {
		t.Errorf("configured defaults are not used: %+v", defaults)
	}
}

func TestPop_Scopes(t *testing.T) {
	p := popped(t, Options{}, "/api/v1/pop/queue/q/partition/p?partitions=9")
	if p.Queue != "q" || p.Partition != "p" || !p.Pinned || p.Partitions != 1 {
		t.Errorf("pinned: %+v", p) // B44
	}
	p = popped(t, Options{}, "/api/v1/pop?namespace=n&task=t")
	if !p.Discovery || p.Namespace != "n" || p.Task != "t" || p.Queue != "" {
		t.Errorf("discovery: %+v", p)
	}
}

func TestPop_B79_NamesInThePath(t *testing.T) {
	for segment, want := range map[string]string{
		"a%2Fb":               "a/b",
		"%2F%2F":              "//",
		"..":                  "..",
		"%2e%2e":              "..",
		"a%20b+c":             "a b+c",
		"100%25":              "100%",
		"%252F":               "%2F",
		"%C3%A9%F0%9F%98%80?": "é😀",
		"a%3Fb%23c":           "a?b#c",
		"":                    "",
	} {
		segment = strings.TrimSuffix(segment, "?")
		if p := popped(t, Options{}, "/api/v1/pop/queue/"+segment); p.Queue != want {
			t.Errorf("queue %s is read as %q", segment, p.Queue)
		}
		if segment == "" {
			continue
		}
		if p := popped(t, Options{}, "/api/v1/pop/queue/x/partition/"+segment); p.Partition != want {
			t.Errorf("partition %s is read as %q", segment, p.Partition)
		}
	}
	h := New(&fakeBroker{}, Options{})
	call(h, "GET", "/api/v1/pop/queue/a%00b", "").wantError(t, 400, "bad_request", "queue")
	call(h, "GET", "/api/v1/pop/queue/a%FFb", "").wantError(t, 400, "bad_request", "queue")
	call(h, "GET", "/api/v1/pop/queue/"+strings.Repeat("q", 412), "").wantError(t, 413, "name_too_long", "consumerGroup")
}

func TestPop_B39_BadParameters(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	for _, q := range []string{
		"batch=abc", "batch=", "batch=3000000000", "batch=1.5", "wait=maybe", "wait=TRUE", "timeout=-1", "timeout=x",
		"partitions=many", "leaseSeconds=x", "autoAck=yes", "commitOnDelivery=2", "conflation=", "autopilot=x", "consumerGroup=%00", "consumerGroup=%ff",
	} {
		name, _, _ := strings.Cut(q, "=")
		a := call(h, "GET", "/api/v1/pop/queue/q?"+q, "")
		a.wantError(t, 400, "bad_request", name)
		if !strings.HasPrefix(a.body, `{"success":false,"error":"`) || !strings.Contains(a.body, `"messages":[]`) {
			t.Errorf("%s: %s is not a pop's answer", q, a.body)
		}
	}
	call(h, "GET", "/api/v1/pop/queue/q?x=%zz", "").want(t, 400, `{"success":false,"error":"the query string is malformed","messages":[]}`)
}

func TestPop_B57_DiscoveryNeedsALabel(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	for _, q := range []string{"", "?namespace=&task=", "?queue=x&wait=true"} {
		call(h, "GET", "/api/v1/pop"+q, "").want(t, 400, `{"success":false,"error":"namespace or task is required","messages":[]}`)
	}
}

func TestPop_B72_ConflationNeedsAGroupAndALease(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	for _, q := range []string{"", "&consumerGroup=", "&consumerGroup=g&autoAck=true", "&consumerGroup=g&commitOnDelivery=true"} {
		a := call(h, "GET", "/api/v1/pop/queue/q?conflation=true"+q, "")
		a.want(t, 400, "")
		var keys map[string]any
		if err := json.Unmarshal([]byte(a.body), &keys); err != nil || len(keys) != 3 || keys["success"] != false {
			t.Errorf("%s: %s", q, a.body)
		}
	}
}

func delivery() *mq.Delivery {
	at := time.Date(2026, 11, 3, 8, 15, 30, 123456000, time.UTC)
	return &mq.Delivery{
		LeaseID: mq.UUID{15: 9}, Group: "g",
		Claims: []mq.Claim{
			{ID: mq.PartitionID{Queue: 1, Partition: 1}, Queue: "q1", Partition: "a\"", Attempt: 1, Segments: []mq.Segment{
				segmentOf(12, at, stored(1, "t1", opaquePayload), stored(2, "t2", numbersPayload)),
				segmentOf(20, at.Add(time.Microsecond), stored(3, "t3", "null")),
			}},
			{ID: mq.PartitionID{Queue: 1, Partition: 2}, Queue: "q2", Partition: "b", Attempt: 3, Segments: []mq.Segment{
				segmentOf(0, at, stored(4, "t4", `"}"`)),
			}},
		},
	}
}

func TestPop_Answer(t *testing.T) {
	h := New(&fakeBroker{pop: func(context.Context, mq.Pop) (*mq.Delivery, error) { return delivery(), nil }}, Options{})
	p1, p2 := mq.PartitionID{Queue: 1, Partition: 1}.String(), mq.PartitionID{Queue: 1, Partition: 2}.String()
	lease := mq.UUID{15: 9}.String()
	message := func(object, at, pid, partition, queue string, offset, attempt int) string {
		return fmt.Sprintf(`%s,"createdAt":"%s","partitionId":"%s","partition":%s,"leaseId":"%s","consumerGroup":"g","queue":"%s","offset":%d,"deliveryAttempt":%d}`,
			strings.TrimSuffix(object, "}"), at, pid, partition, lease, queue, offset, attempt)
	}
	want := `{"success":true,"queue":"","partition":"a\"","partitionId":"` + p1 + `","leaseId":"` + lease + `","consumerGroup":"g","messages":[` +
		strings.Join([]string{
			message(stored(1, "t1", opaquePayload), "2026-11-03T08:15:30.123456Z", p1, `"a\""`, "q1", 12, 1),
			message(stored(2, "t2", numbersPayload), "2026-11-03T08:15:30.123456Z", p1, `"a\""`, "q1", 13, 1),
			message(stored(3, "t3", "null"), "2026-11-03T08:15:30.123457Z", p1, `"a\""`, "q1", 20, 1),
			message(stored(4, "t4", `"}"`), "2026-11-03T08:15:30.123456Z", p2, `"b"`, "q2", 0, 3),
		}, ",") + `],"partitionsClaimed":2}`
	a := call(h, "GET", "/api/v1/pop?namespace=n&consumerGroup=g", "")
	a.want(t, 200, want)
	if a.header.Get("Content-Length") != fmt.Sprint(len(want)) || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("headers: %v", a.header)
	}
}

func TestPop_B51_CommittedAtDeliveryHasNoLease(t *testing.T) {
	d := delivery()
	d.LeaseID = mq.UUID{}
	h := New(&fakeBroker{pop: func(context.Context, mq.Pop) (*mq.Delivery, error) { return d, nil }}, Options{})
	a := call(h, "GET", "/api/v1/pop/queue/q?autoAck=true", "")
	a.want(t, 200, "")
	if strings.Count(a.body, `"leaseId":""`) != 5 {
		t.Errorf("a lease is named: %s", a.body)
	}
}

func TestPop_B70_B73_ConflationKeys(t *testing.T) {
	empty := func(d mq.Delivery) answer {
		h := New(&fakeBroker{pop: func(context.Context, mq.Pop) (*mq.Delivery, error) { return &d, nil }}, Options{})
		return call(h, "GET", "/api/v1/pop/queue/q?consumerGroup=g&conflation=true", "")
	}
	const head = `{"success":true,"queue":"q","partition":"","partitionId":"","leaseId":"","consumerGroup":"g","messages":[],"partitionsClaimed":0`
	empty(mq.Delivery{Conflation: true}).want(t, 200, head+`,"conflation":true}`)
	empty(mq.Delivery{ConflationConflict: true}).want(t, 200, head+`,"conflationConflict":true}`)
	empty(mq.Delivery{}).want(t, 204, "")
}

func TestPop_HeadWouldConsume(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	if a := call(h, "HEAD", "/api/v1/pop/queue/q", ""); a.status != 405 {
		t.Errorf("HEAD is answered with %d", a.status)
	}
}

// exchange sends a raw request and returns the raw answer.
func exchange(t *testing.T, addr, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPop_B8_B40_NothingIsABare204(t *testing.T) {
	srv := httptest.NewServer(New(&fakeBroker{pop: func(context.Context, mq.Pop) (*mq.Delivery, error) { return nil, nil }}, Options{}))
	defer srv.Close()
	const get = "GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\n"
	// The second request shows that the connection stays in use.
	out := exchange(t, srv.Listener.Addr().String(), get+"\r\n"+get+"Connection: close\r\n\r\n")
	if strings.Count(out, "HTTP/1.1 204 No Content\r\n") != 2 {
		t.Errorf("answer: %q", out)
	}
	for _, h := range []string{"Content-Length", "Content-Type", "Transfer-Encoding"} {
		if strings.Contains(out, h) {
			t.Errorf("a 204 carries %s: %q", h, out)
		}
	}
}

func TestPop_A9_LeasesOfAGoneClientAreGivenBack(t *testing.T) {
	released := make(chan *mq.Delivery, 1)
	d := delivery()
	b := &fakeBroker{
		pop: func(ctx context.Context, _ mq.Pop) (*mq.Delivery, error) {
			<-ctx.Done() // the socket closes between claim and answer
			return d, nil
		},
		release: func(ctx context.Context, d *mq.Delivery) {
			if ctx.Err() != nil {
				t.Error("the release would be cancelled with the request")
			}
			released <- d
		},
	}
	srv := httptest.NewServer(New(b, Options{}))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	conn.Close()
	select {
	case got := <-released:
		if got != d {
			t.Error("another delivery was released")
		}
	case <-time.After(time.Second):
		t.Fatal("not released within a second")
	}
}

// brokenWriter takes n bytes and then fails, as a connection that was reset.
type brokenWriter struct {
	*httptest.ResponseRecorder
	fail, failFlush bool
}

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.fail {
		return 0, io.ErrClosedPipe
	}
	return w.ResponseRecorder.Write(b)
}

func (w *brokenWriter) FlushError() error {
	if w.failFlush {
		return io.ErrClosedPipe
	}
	return nil
}

func TestPop_ReleasesOnlyWhatWasNotWritten(t *testing.T) {
	cases := []struct {
		name            string
		fail, failFlush bool
		lease           mq.UUID
		want            int
	}{
		{"written", false, false, mq.UUID{15: 9}, 0},
		{"write fails", true, false, mq.UUID{15: 9}, 1},
		{"flush fails", false, true, mq.UUID{15: 9}, 1},
		{"committed at delivery", true, true, mq.UUID{}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			releases := 0
			d := delivery()
			d.LeaseID = c.lease
			b := &fakeBroker{
				pop:     func(context.Context, mq.Pop) (*mq.Delivery, error) { return d, nil },
				release: func(context.Context, *mq.Delivery) { releases++ },
			}
			w := &brokenWriter{httptest.NewRecorder(), c.fail, c.failFlush}
			New(b, Options{}).ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/pop/queue/q", nil))
			if releases != c.want {
				t.Errorf("released %d times", releases)
			}
		})
	}
}

func TestPop_LongPollOutlivesTheWriteDeadline(t *testing.T) {
	b := &fakeBroker{pop: func(_ context.Context, p mq.Pop) (*mq.Delivery, error) {
		time.Sleep(p.Wait)
		return delivery(), nil
	}}
	srv := httptest.NewUnstartedServer(New(b, Options{}))
	srv.Config.WriteTimeout = 100 * time.Millisecond
	srv.Start()
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /api/v1/pop/queue/q?wait=true&timeout=300 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || !json.Valid(body) {
		t.Errorf("%d %s %v", resp.StatusCode, body, err)
	}
}

func TestParseTime(t *testing.T) {
	for s, want := range map[string]string{
		"2026-11-03":                        "2026-11-03T00:00:00.000000Z",
		"2026-11-03T08:15":                  "2026-11-03T08:15:00.000000Z",
		"2026-11-03T08:15:30Z":              "2026-11-03T08:15:30.000000Z",
		"2026-11-03t08:15:30z":              "2026-11-03T08:15:30.000000Z",
		"2026-11-03T08:15:30.123456Z":       "2026-11-03T08:15:30.123456Z",
		"2026-11-03 08:15:30.5":             "2026-11-03T08:15:30.500000Z",
		"2026-11-03 08:15:30+02":            "2026-11-03T06:15:30.000000Z",
		"2026-11-03 08:15:30 +0200":         "2026-11-03T06:15:30.000000Z",
		"2026-11-03T08:15:30-05:30":         "2026-11-03T13:45:30.000000Z",
		"2026-11-03T08:15:30 02:00":         "2026-11-03T06:15:30.000000Z", // + lost in a query
		" 1970-01-01T00:00:00Z ":            "1970-01-01T00:00:00.000000Z",
		"2026-11-03T08:15:30.123456789Z":    "2026-11-03T08:15:30.123456Z",
		"now":                               "",
		"":                                  "",
		"2026-13-03":                        "",
		"2026-11-03T25:00:00Z":              "",
		"2026-11-03T08:15:30 ":              "2026-11-03T08:15:30.000000Z",
		"yesterday at noon":                 "",
		"0000-01-01":                        "",
		strings.Repeat("2026-11-03 ", 1000): "",
	} {
		got, ok := parseTime(s)
		if ok != (want != "") || ok && got.Format(timeLayout) != want {
			t.Errorf("%.40q is read as %v %v", s, got, ok)
		}
	}
}
