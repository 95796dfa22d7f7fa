package httpapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func TestFetch_RequestAndAnswer(t *testing.T) {
	var got mq.Fetch
	h := New(&fakeBroker{fetch: func(f mq.Fetch) ([]mq.FetchResult, error) {
		got = f
		return []mq.FetchResult{
			{HighWatermark: 13, Records: []mq.Record{
				{Offset: 10, TransactionID: "order-499", Payload: []byte(numbersPayload), CreatedAt: early},
				{Offset: 11, TransactionID: "o\"", Payload: []byte("1"), CreatedAt: later},
			}},
			{},
			{HighWatermark: 5, LogStart: 3, Err: mq.ReadErrOutOfRange},
		}, nil
	}}, Options{})
	call(h, "POST", "/api/v1/fetch", `{"entries":[{"queue":"shop.orders","partition":"cust-17","offset":10,"maxBytes":65536},
		{"queue":"q","partition":17,"offset":0,"maxBytes":0},{"queue":"q","offset":9,"maxBytes":99999999}],"maxWaitMs":60000,"minBytes":0}`).want(t, 200,
		`{"entries":[{"queue":"shop.orders","partition":"cust-17","records":[{"offset":10,"transactionId":"order-499","payload":`+numbersPayload+`,"ts":`+earlyText+`},`+
			`{"offset":11,"transactionId":"o\"","payload":1,"ts":`+laterText+`}],"highWatermark":13,"logStartOffset":0},`+
			`{"queue":"q","partition":"17","records":[],"highWatermark":0,"logStartOffset":0},`+
			`{"queue":"q","partition":"Default","records":[],"highWatermark":5,"logStartOffset":3,"error":"OFFSET_OUT_OF_RANGE"}]}`)
	want := mq.Fetch{Tenant: mq.DefaultTenant, Wait: 30 * time.Second, Entries: []mq.FetchEntry{
		{Queue: "shop.orders", Partition: "cust-17", Offset: 10, MaxBytes: 65536},
		{Queue: "q", Partition: "17", MaxBytes: 1},
		{Queue: "q", Partition: "Default", Offset: 9, MaxBytes: 8 << 20},
	}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestFetch_Defaults(t *testing.T) {
	var got mq.Fetch
	h := New(&fakeBroker{fetch: func(f mq.Fetch) ([]mq.FetchResult, error) { got = f; return make([]mq.FetchResult, 1), nil }}, Options{})
	call(h, "POST", "/api/v1/fetch", `{"entries":[{"queue":"q","offset":0}]}`).want(t, 200, "")
	if got.MinBytes != 1 || got.Wait != 0 || got.Entries[0].MaxBytes != 1<<20 {
		t.Errorf("got %+v", got)
	}
	call(h, "POST", "/api/v1/fetch", `{"entries":[]}`).want(t, 200, `{"entries":[]}`)
}

func TestReads_B182_Refusals(t *testing.T) {
	h := New(&fakeBroker{}, Options{})
	many := func(entry string) string { return `{"entries":[` + strings.Repeat(entry+",", 1024) + entry + `]}` }
	for _, c := range []struct{ path, body, code, field string }{
		{"fetch", `{}`, "bad_request", "entries"},
		{"fetch", many(`{"queue":"q","offset":0}`), "bad_request", "entries"},
		{"fetch", `{"entries":[{"queue":"q","offset":-1}]}`, "bad_request", "entries[0].offset"},
		{"fetch", `{"entries":[{"queue":"q"}]}`, "bad_request", "entries[0].offset"},
		{"fetch", `{"entries":[{"queue":"q","offset":1.5}]}`, "bad_body", "entries[0].offset"},
		{"fetch", `{"entries":[{"offset":1}]}`, "bad_request", "entries[0].queue"},
		{"fetch", `{"entries":[{"queue":"q","partition":true,"offset":1}]}`, "bad_body", "entries[0].partition"},
		{"fetch/offsets", many(`{"queue":"q","timestamp":0}`), "bad_request", "entries"},
		{"fetch/offsets", `{"entries":[{"queue":"q"}]}`, "bad_request", "entries[0].timestamp"},
		{"fetch/offsets", `{"entries":[{"queue":"q","timestamp":"soon"}]}`, "bad_request", "entries[0].timestamp"},
		{"fetch/offsets", `{"entries":[{"queue":"q","timestamp":1e400}]}`, "bad_request", "entries[0].timestamp"},
		{"fetch/offsets", `{"entries":[{"queue":"q","timestamp":999999999999999999}]}`, "bad_request", "entries[0].timestamp"},
		{"partitions/changed", many(`{"queue":"q"}`), "bad_request", "entries"},
		{"partitions/changed", `{"entries":[{"queue":""}]}`, "bad_request", "entries[0].queue"},
		{"partitions/changed", `{"entries":[{"queue":"q","since":"soon"}]}`, "bad_request", "entries[0].since"},
		{"partitions/changed", `{"entries":[{"queue":"q","limit":"x"}]}`, "bad_body", "entries[0].limit"},
	} {
		call(h, "POST", "/api/v1/"+c.path, c.body).wantError(t, 400, c.code, c.field)
	}
}

func TestFetchOffsets(t *testing.T) {
	var got []mq.OffsetEntry
	h := New(&fakeBroker{offsets: func(e []mq.OffsetEntry) ([]mq.OffsetResult, error) {
		got = e
		return []mq.OffsetResult{{Found: true, Offset: 9, CreatedAt: later, HighWatermark: 13}, {HighWatermark: 13, LogStart: 2}, {Err: mq.ReadErrUnknown}}, nil
	}}, Options{})
	call(h, "POST", "/api/v1/fetch/offsets", `{"entries":[{"queue":"q","partition":"p","timestamp":"2026-11-03T07:00:00Z"},
		{"queue":"q","timestamp":1793689200000},{"queue":"x","timestamp":-1}]}`).want(t, 200,
		`{"entries":[{"queue":"q","partition":"p","offset":9,"ts":`+laterText+`,"highWatermark":13,"logStartOffset":0},`+
			`{"queue":"q","partition":"Default","offset":null,"ts":null,"highWatermark":13,"logStartOffset":2},`+
			`{"queue":"x","partition":"Default","offset":null,"ts":null,"highWatermark":0,"logStartOffset":0,"error":"UNKNOWN_TOPIC_OR_PARTITION"}]}`)
	if !got[0].Time.Equal(early) || !got[1].Time.Equal(early) || got[2].Time.Year() != 1969 {
		t.Errorf("got %+v", got)
	}
}

func TestPartitionsChanged_B183_CursorsPageThroughOneSweep(t *testing.T) {
	var got []mq.ChangedEntry
	id := mq.PartitionID{Queue: 1, Partition: 2}
	more := true
	h := New(&fakeBroker{changed: func(e []mq.ChangedEntry) (mq.SafeTime, []mq.ChangedResult, error) {
		got = e
		res := make([]mq.ChangedResult, len(e))
		for i := range res {
			res[i] = mq.ChangedResult{More: more, Partitions: []mq.ChangedPartition{{ID: id, Name: "é/\"", LastOffset: 12, LastWrite: later}}}
		}
		return mq.SafeTime{Time: early, Degraded: true}, res, nil
	}}, Options{})
	const path = "/api/v1/partitions/changed"
	line := `[{"name":"é/\"","id":"` + id.String() + `","lastOffset":12,"logStart":0,"lastWriteAt":` + laterText + `}]`
	answer := func(next string) string {
		return `{"safeTime":` + earlyText + `,"safeTimeDegraded":true,"entries":[{"queue":"q","partitions":` + line + `,"next":` + next + `}]}`
	}
	call(h, "POST", path, `{"entries":[{"queue":"q","since":null,"after":null,"limit":5000}]}`).want(t, 200, answer(`"aw6kvIg"`))
	if fmt.Sprint(got) != fmt.Sprint([]mq.ChangedEntry{{Queue: "q", Limit: 1000}}) {
		t.Errorf("got %+v", got)
	}
	more = false
	call(h, "POST", path, `{"entries":[{"queue":"q","after":"aw6kvIg","limit":0}]}`).want(t, 200, answer("null"))
	if fmt.Sprint(got) != fmt.Sprint([]mq.ChangedEntry{{Queue: "q", After: "é/\"", AfterSet: true, Limit: 1}}) {
		t.Errorf("got %+v", got)
	}
	// A cursor of the other sweep and one of nobody's fail alone.
	call(h, "POST", path, `{"entries":[{"queue":"q","after":"aw6kvIg","since":"2026-11-03"},{"queue":"q"},{"queue":"q","after":"!"},{"queue":"q","after":""}]}`).want(t, 200,
		`{"safeTime":`+earlyText+`,"safeTimeDegraded":true,"entries":[{"queue":"q","partitions":[],"next":null,"error":"BAD_CURSOR"},{"queue":"q","partitions":`+line+`,"next":null},`+
			`{"queue":"q","partitions":[],"next":null,"error":"BAD_CURSOR"},{"queue":"q","partitions":[],"next":null,"error":"BAD_CURSOR"}]}`)
	call(h, "POST", path, `{"entries":[]}`).want(t, 200, `{"safeTime":`+earlyText+`,"safeTimeDegraded":true,"entries":[]}`)
}
