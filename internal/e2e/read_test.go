package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// fetched is one entry of a fetch, of fetch/offsets or of partitions/changed.
type fetched struct {
	Queue, Partition string
	Records          []struct {
		Offset        int64
		TransactionID string
		Payload       json.RawMessage
		TS            time.Time
	}
	Offset        *int64
	TS            *time.Time
	HighWatermark int64
	LogStart      int64 `json:"logStartOffset"`
	Error         string

	Partitions []struct {
		Name                 string
		LastOffset, LogStart int64
		LastWriteAt          *time.Time
	}
	Next *string
}

// read posts entries and returns the only answer.
func read(b *Broker, path, format string, args ...any) fetched {
	b.t.Helper()
	var out struct{ Entries []fetched }
	b.MustInto(&out, http.StatusOK, "POST", path, `{"entries":[`+fmt.Sprintf(format, args...)+`]}`)
	if len(out.Entries) != 1 {
		b.t.Fatalf("%d entries", len(out.Entries))
	}
	return out.Entries[0]
}

const (
	fetchPath   = "/api/v1/fetch"
	offsetsPath = "/api/v1/fetch/offsets"
	changedPath = "/api/v1/partitions/changed"
)

func TestRead_Fetch(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: []string{"POP_WAIT_INITIAL_INTERVAL_MS=60000", "POP_WAIT_MAX_INTERVAL_MS=60000"}})
	eachBehaviour(
		t, f,
		behaviour{"B180_moves_nothing", func(t *testing.T, b *Broker, q string) {
			b.Push(
				Item{Queue: q, Partition: "p", TransactionID: "a", Payload: []byte(`{ "n":1.10 }`)},
				Item{Queue: q, Partition: "p", TransactionID: "b", Payload: []byte(`null`)},
			)
			b.Push(Item{Queue: q, Partition: "p", TransactionID: "c", Payload: []byte(`"x"`)})
			entry := fmt.Sprintf(`{"queue":%q,"partition":"p","offset":1}`, q)
			for range 2 {
				answered(b, 200, fmt.Sprintf(`{"entries":[{"queue":%q,"partition":"p","records":[`+
					`{"offset":1,"transactionId":"b","payload":null,"ts":<time>},{"offset":2,"transactionId":"c","payload":"x","ts":<time>}],"highWatermark":3,"logStartOffset":0}]}`, q),
					"POST", fetchPath, `{"entries":[`+entry+`]}`)
			}
			if r := read(b, fetchPath, `{"queue":%q,"partition":"p","offset":0}`, q).Records; string(r[0].Payload) != `{ "n":1.10 }` {
				t.Errorf("payload %s", r[0].Payload)
			}
			p := delivers(b, q, as("g"), "a", "b", "c") // no lease of the fetches is in the way
			acked(b, "g", pick(p, "0"), "ok")
			if e := read(b, fetchPath, `{"queue":%q,"partition":"p","offset":0,"maxBytes":1}`, q); len(e.Records) != 1 {
				t.Errorf("%d records in one byte", len(e.Records))
			}
		}},
		behaviour{"names", func(t *testing.T, b *Broker, q string) {
			b.Push(Item{Queue: q, TransactionID: "d"}, Item{Queue: q, Partition: "17", TransactionID: "n"})
			if e := read(b, fetchPath, `{"queue":%q,"offset":0}`, q); e.Partition != "Default" || e.Records[0].TransactionID != "d" {
				t.Errorf("%+v", e)
			}
			if e := read(b, fetchPath, `{"queue":%q,"partition":17,"offset":0}`, q); e.Partition != "17" || e.Records[0].TransactionID != "n" {
				t.Errorf("%+v", e)
			}
		}},
		behaviour{"B181_released_by_a_push", func(t *testing.T, b *Broker, q string) {
			other := f.Brokers[1].In(t)
			b.PushN(q, "p", "m", 1)
			for i, pusher := range []*Broker{b, other} {
				answer := make(chan fetched, 1)
				body := fmt.Sprintf(`{"entries":[{"queue":%q,"partition":"p","offset":%d}],"maxWaitMs":20000}`, q, i+1)
				go func() {
					var out struct{ Entries []fetched }
					b.MustInto(&out, 200, "POST", fetchPath, body)
					answer <- out.Entries[0]
				}()
				time.Sleep(200 * time.Millisecond)
				start := time.Now()
				pusher.PushN(q, "p", fmt.Sprint("n", i), 1)
				if e := <-answer; len(e.Records) != 1 || e.Records[0].Offset != int64(i+1) {
					t.Errorf("%+v", e)
				}
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("released after %v", took)
				}
			}
		}},
		behaviour{"waits_and_gives_up", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			for members, want := range map[string]time.Duration{
				`"maxWaitMs":600`: 600 * time.Millisecond, `"maxWaitMs":600,"minBytes":0`: 0, `"maxWaitMs":0`: 0, `"maxWaitMs":-5`: 0,
			} {
				start := time.Now()
				answered(b, 200, fmt.Sprintf(`{"entries":[{"queue":%q,"partition":"p","records":[],"highWatermark":1,"logStartOffset":0}]}`, q),
					"POST", fetchPath, fmt.Sprintf(`{"entries":[{"queue":%q,"partition":"p","offset":1}],%s}`, q, members))
				if took := time.Since(start); took < want || took > want+2*time.Second {
					t.Errorf("%s took %v", members, took)
				}
			}
			// One entry that cannot be served ends the wait.
			start := time.Now()
			answered(b, 200, fmt.Sprintf(`{"entries":[{"queue":%q,"partition":"p","records":[],"highWatermark":1,"logStartOffset":0},`+
				`{"queue":"nowhere","partition":"p","records":[],"highWatermark":0,"logStartOffset":0,"error":"UNKNOWN_TOPIC_OR_PARTITION"}]}`, q),
				"POST", fetchPath, fmt.Sprintf(`{"entries":[{"queue":%q,"partition":"p","offset":1},{"queue":"nowhere","partition":"p","offset":0}],"maxWaitMs":20000}`, q))
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
		}},
		behaviour{"B182_errors", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			for _, tt := range []struct{ entry, problem string }{
				{`"queue":"nowhere","offset":0`, "UNKNOWN_TOPIC_OR_PARTITION"},
				{`"queue":"` + q + `","partition":"p","offset":3`, "OFFSET_OUT_OF_RANGE"},
				{`"queue":"` + q + `","partition":"p","offset":2`, ""},
				{`"queue":"` + q + `","partition":"unwritten","offset":0`, ""},
			} {
				if e := read(b, fetchPath, "{%s}", tt.entry); e.Error != tt.problem || len(e.Records) > 0 || e.Records == nil {
					t.Errorf("%s: %+v", tt.entry, e)
				}
			}
			answered(b, 200, `{"entries":[]}`, "POST", fetchPath, `{"entries":[]}`)
			for _, path := range []string{fetchPath, offsetsPath, changedPath} {
				many := func(n int) string {
					entry := `{"queue":"nowhere","offset":0,"timestamp":0},`
					return `{"entries":[` + strings.TrimSuffix(strings.Repeat(entry, n), ",") + `]}`
				}
				b.Must(200, "POST", path, many(1024))
				answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "POST", path, many(1025))
				answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "POST", path, `{}`)
			}
			for _, entry := range []string{`{"queue":"q","offset":-1}`, `{"queue":"q"}`, `{"offset":0}`} {
				answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "POST", fetchPath, `{"entries":[`+entry+`]}`)
			}
		}},
	)
}

func TestRead_Offsets(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	b.PushN("q", "p", "a", 2)
	b.PushN("q", "p", "b", 1)
	records := read(b, fetchPath, `{"queue":"q","partition":"p","offset":0}`).Records
	second := records[2].TS
	at := func(timestamp string) fetched {
		t.Helper()
		return read(b, offsetsPath, `{"queue":"q","partition":"p","timestamp":%s}`, timestamp)
	}
	text := func(at time.Time) string { return fmt.Sprintf("%q", at.Format(time.RFC3339Nano)) }
	for timestamp, want := range map[string]int64{
		text(second): 2, text(second.Add(-time.Microsecond)): 2, text(records[0].TS): 0, text(records[0].TS.Add(time.Microsecond)): 2,
		`"1970-01-01T00:00:00Z"`: 0, `0`: 0, fmt.Sprint(records[0].TS.UnixMilli()): 0,
	} {
		e := at(timestamp)
		if e.Offset == nil || *e.Offset != want || !e.TS.Equal(records[want].TS) || e.HighWatermark != 3 || e.LogStart != 0 || e.Error != "" {
			t.Errorf("at %s: %+v", timestamp, e)
		}
	}
	late := fmt.Sprint(second.Add(time.Hour).UnixMilli())
	answered(b, 200, `{"entries":[{"queue":"q","partition":"p","offset":null,"ts":null,"highWatermark":3,"logStartOffset":0},`+
		`{"queue":"q","partition":"none","offset":null,"ts":null,"highWatermark":0,"logStartOffset":0},`+
		`{"queue":"nowhere","partition":"Default","offset":null,"ts":null,"highWatermark":0,"logStartOffset":0,"error":"UNKNOWN_TOPIC_OR_PARTITION"},`+
		`{"queue":"q","partition":"p","offset":0,"ts":<time>,"highWatermark":3,"logStartOffset":0}]}`, "POST", offsetsPath,
		`{"entries":[{"queue":"q","partition":"p","timestamp":`+late+`},{"queue":"q","partition":"none","timestamp":0},{"queue":"nowhere","timestamp":0},{"queue":"q","partition":"p","timestamp":"1999-12-31"}]}`)
	for _, timestamp := range []string{`"yesterday"`, `""`, `1.5`, `1e99`, `null`} {
		answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "POST", offsetsPath, `{"entries":[{"queue":"q","timestamp":`+timestamp+`}]}`)
	}
}

func TestRead_Changed(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	eachBehaviour(
		t, f,
		behaviour{"shape", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 2)
			answered(b, 200, `{"safeTime":<time>,"safeTimeDegraded":false,"entries":[]}`, "POST", changedPath, `{"entries":[]}`)
			answered(b, 200, fmt.Sprintf(`{"safeTime":<time>,"safeTimeDegraded":false,"entries":[`+
				`{"queue":%q,"partitions":[{"name":"p","id":<uuid>,"lastOffset":1,"logStart":0,"lastWriteAt":<time>}],"next":null},`+
				`{"queue":"nowhere","partitions":[],"next":null,"error":"UNKNOWN_TOPIC_OR_PARTITION"}]}`, q),
				"POST", changedPath, fmt.Sprintf(`{"entries":[{"queue":%q,"after":null},{"queue":"nowhere"}]}`, q))
			for _, entry := range []string{`{"queue":""}`, `{}`, `{"queue":"q","since":"soon"}`} {
				answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "POST", changedPath, `{"entries":[`+entry+`]}`)
			}
		}},
		behaviour{"B183_pages", func(t *testing.T, b *Broker, q string) {
			var want []string
			for i := range 7 {
				name := fmt.Sprintf("p%d", i)
				want = append(want, name)
				b.PushN(q, name, "m", 1)
			}
			since := read(b, changedPath, `{"queue":%q,"limit":1000}`, q).Partitions[0].LastWriteAt.Add(-time.Second)
			for _, kind := range []string{"", `"since":"` + since.Format(time.RFC3339Nano) + `",`} {
				var got []string
				after, bad := "null", ""
				for page := 0; ; page++ {
					e := read(b, changedPath, `{"queue":%q,%s"limit":1,"after":%s}`, q, kind, after)
					for _, p := range e.Partitions {
						got = append(got, p.Name)
					}
					if page == 3 {
						b.PushN(q, "p5", fmt.Sprint("again", len(kind)), 1) // written during the sweep
					}
					if e.Next == nil {
						break
					}
					after = fmt.Sprintf("%q", *e.Next)
					bad = after
				}
				if !slices.Equal(got, want) {
					t.Errorf("%q: swept %q", kind, got)
				}
				other := `"since":"2020-01-01",`
				if kind != "" {
					other = ""
				}
				for _, cursor := range []string{bad, `"x"`, `""`} {
					if e := read(b, changedPath, `{"queue":%q,%s"after":%s}`, q, other, cursor); e.Error != "BAD_CURSOR" || len(e.Partitions) > 0 {
						t.Errorf("cursor %s of another sweep: %+v", cursor, e)
					}
				}
			}
			late := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
			if e := read(b, changedPath, `{"queue":%q,"since":%q}`, q, late); len(e.Partitions) > 0 {
				t.Errorf("changed in an hour: %+v", e)
			}
		}},
	)
}

func TestRead_B184_SafeTime(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	safe := func() time.Time {
		t.Helper()
		var out struct{ SafeTime time.Time }
		b.MustInto(&out, 200, "POST", changedPath, `{"entries":[]}`)
		return out.SafeTime
	}
	b.PushN("q", "p", "m", 1)
	// A producer inside the database that has stamped a message and not yet
	// committed it.
	tx, err := f.DB.Pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT queen.push('q', 'p2', '{}', 'late')`); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	before := safe()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	records := read(b, fetchPath, `{"queue":"q","partition":"p2","offset":0}`).Records
	if len(records) != 1 || !before.Before(records[0].TS) {
		t.Errorf("safe time was %v, then came %+v", before, records)
	}
	if after := safe(); time.Since(after) > 30*time.Second || time.Since(after) < 4*time.Second {
		t.Errorf("safe time %v at %v", after, time.Now())
	}
}

// What was pushed is what every way of reading shows, byte for byte.
func TestRead_A1_A2_ExactBytes(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for name, payload := range map[string]string{
		"opaque":    `{"nul":"\u0000","lone":"\ud800","ok":"\ud83d\ude00","nfd":"e\u0301","esc":"\/"}`,
		"combining": `"e` + "\u0301" + `"`,
		"numbers":   `{ "b":1, "n":9007199254740993, "d":1.10, "e":1E2, "z":-0, "h":"<&>", "b":2 }`,
	} {
		b.Push(Item{Queue: name, Partition: "p", TransactionID: name, Payload: []byte(payload)})
		p := delivers(b, name, "", name)
		path := "/api/v1/messages/" + p.PartitionID + "/" + url.PathEscape(name)
		holds := func(what string, answer []byte) {
			t.Helper()
			if !strings.Contains(string(answer), `"data":`+payload) {
				t.Errorf("%s of %s: %s", what, name, answer)
			}
		}
		holds("pop", p.Raw)
		live := b.Must(200, "GET", path, nil)
		holds("detail", live)
		if !strings.Contains(string(live), `"payload":`+payload) {
			t.Errorf("detail of %s: %s", name, live)
		}
		acked(b, "", pick(p, "0 dlq"), "ok+released+dlq")
		holds("dead letter", b.Must(200, "GET", "/api/v1/dlq?queue="+name, nil))
		holds("detail of the dead letter", b.Must(200, "GET", path, nil))
		b.Must(200, "POST", path+"/retry", nil)
		p = b.Pop(name, "")
		holds("replayed", p.Raw)
		fetch := b.Must(200, "POST", fetchPath, `{"entries":[{"queue":"`+name+`","partition":"p","offset":0}]}`)
		if strings.Count(string(fetch), `"payload":`+payload) != 2 {
			t.Errorf("fetch of %s: %s", name, fetch)
		}
	}
}
