package main

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
)

const popAnswer = `{"success":true,"queue":"q","messages":[
 {"id":"m1","transactionId":"t-1","traceId":null,"data":{"x":"a\"}]b","r":5,"l":2,"s":7,"t":9,"d":[{"s":1}]},
  "partitionId":"p1","partition":"cust \u0041","leaseId":"L","offset":12,"deliveryAttempt":3},
 {"transactionId":"t\\","data":null,"partitionId":"p2","partition":"q","leaseId":""}],"partitionsClaimed":2}`

func TestScanPop(t *testing.T) {
	t.Parallel()
	got, err := scanPop([]byte(popAnswer), nil)
	if err != nil || len(got) != 2 {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	d := got[0]
	if string(d.transactionID) != "t-1" || string(d.partitionID) != "p1" || string(d.leaseID) != "L" ||
		string(d.partition) != `cust \u0041` || d.offset != 12 || d.attempt != 3 {
		t.Errorf("first message %+v", d)
	}
	if want := (stamp{run: 5, lane: 2, seq: 7, at: 9, ok: true}); d.stamp != want {
		t.Errorf("stamp %+v, want %+v", d.stamp, want)
	}
	if d := got[1]; string(d.transactionID) != `t\\` || d.offset != -1 || d.attempt != 1 || d.stamp.ok {
		t.Errorf("second message %+v", d)
	}
}

func TestScanRefusesBrokenAnswers(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"", "null", "[]", `{"messages":`, `{"messages":{}}`, `{"messages":[{"data":"x]}`, popAnswer + "x", `{"a" 1}`,
	} {
		if _, err := scanPop([]byte(body), nil); err == nil {
			t.Errorf("%q accepted", body)
		}
	}
	for cut := range len(popAnswer) {
		if _, err := scanPop([]byte(popAnswer[:cut]), nil); err == nil {
			t.Errorf("answer cut at byte %d accepted", cut)
		}
	}
}

func TestScanPushAndAck(t *testing.T) {
	t.Parallel()
	items, err := scanPush([]byte(`[{"index":0,"status":"queued","offset":4},{"status":"error","error":"no"}]`), nil)
	if err != nil || len(items) != 2 || string(items[0].status) != "queued" || items[0].offset != 4 || items[1].offset != -1 {
		t.Errorf("%+v %v", items, err)
	}
	accepted, refused, reason, err := scanAck([]byte(
		`[{"success":true,"error":null},{"success":false,"error":"invalid or expired lease"},{"error":"x","success":false}]`))
	if err != nil || accepted != 1 || refused != 2 || reason != "invalid or expired lease" {
		t.Errorf("%d %d %q %v", accepted, refused, reason, err)
	}
}

func FuzzScanPop(f *testing.F) {
	f.Add([]byte(popAnswer))
	f.Add([]byte(`{"messages":[]}`))
	f.Add([]byte(`{"messages":[{"offset":1.5,"deliveryAttempt":"3","data":{"s":-1,"l":1e3,"r":[],"t":true}}]}`))
	f.Add([]byte(`{"messages":[{"transactionId":{"a":[1,{"b":"\\\""}]}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := scanPop(body, nil)
		var want struct {
			Messages []map[string]json.RawMessage `json:"messages"`
		}
		if !json.Valid(body) || strings.Count(string(body), "{") > 50 || json.Unmarshal(body, &want) != nil ||
			!plainKeys(body) {
			return // only the answers of a broker are promised to be read right; the rest must just not panic
		}
		if err != nil {
			if want.Messages != nil {
				t.Fatalf("valid answer refused: %v", err)
			}
			return
		}
		if len(got) != len(want.Messages) {
			t.Fatalf("%d messages, want %d", len(got), len(want.Messages))
		}
		for i, m := range want.Messages {
			compareText(t, "transactionId", got[i].transactionID, m["transactionId"])
			compareText(t, "leaseId", got[i].leaseID, m["leaseId"])
			compareNumber(t, "offset", got[i].offset, -1, m["offset"])
			compareNumber(t, "deliveryAttempt", got[i].attempt, 1, m["deliveryAttempt"])
			if got[i].stamp.ok {
				var data map[string]json.RawMessage
				_ = json.Unmarshal(m["data"], &data)
				compareNumber(t, "s", got[i].stamp.seq, 0, data["s"])
				compareNumber(t, "l", got[i].stamp.lane, 0, data["l"])
			}
		}
	})
}

// plainKeys: no escapes in the text before any colon we look at, no key twice and none in another case, which
// encoding/json would match as well.
func plainKeys(body []byte) bool {
	lower := bytes.ToLower(body)
	for _, key := range []string{"messages", "transactionid", "leaseid", "offset", "deliveryattempt", "data", "s", "l", "r", "t"} {
		if bytes.Count(lower, []byte(`"`+key+`"`)) > 1 {
			return false
		}
	}
	return bytes.Equal(body, bytes.ToValidUTF8(body, nil)) && !bytes.Contains(lower, []byte(`\u`)) &&
		(!bytes.Contains(lower, []byte(`"messages"`)) || bytes.Contains(body, []byte(`"messages"`)))
}

func compareText(t *testing.T, key string, got []byte, raw json.RawMessage) {
	t.Helper()
	want := ""
	if len(raw) > 0 && raw[0] == '"' {
		want = string(raw[1 : len(raw)-1])
	}
	if string(got) != want {
		t.Fatalf("%s %q, want %q", key, got, want)
	}
}

func compareNumber(t *testing.T, key string, got, absent int64, raw json.RawMessage) {
	t.Helper()
	want, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || len(strings.TrimPrefix(string(raw), "-")) > 18 {
		want = absent
	}
	if got != want {
		t.Fatalf("%s %d, want %d of %s", key, got, want, raw)
	}
}

func BenchmarkScanPop(b *testing.B) {
	var body bytes.Buffer
	p, err := newPayloads(1, 256, "")
	if err != nil {
		b.Fatal(err)
	}
	body.WriteString(`{"success":true,"messages":[`)
	for i := range 100 {
		if i > 0 {
			body.WriteByte(',')
		}
		body.WriteString(`{"id":"01a1c0de-7000-7abc-8def-000000000001","transactionId":"run-1-1","traceId":null,"data":`)
		body.Write(p.append(nil, 1, int64(i), 1))
		body.WriteString(`,"partitionId":"5f0c2a9e-1d3b-4a77-9c10-6b1f0e2d3c4b","partition":"p1","leaseId":"L","offset":1,"deliveryAttempt":1}`)
	}
	body.WriteString(`]}`)
	b.SetBytes(int64(body.Len()))
	var out []delivery
	for b.Loop() {
		if out, err = scanPop(body.Bytes(), out); err != nil || len(out) != 100 {
			b.Fatal(len(out), err)
		}
	}
}
