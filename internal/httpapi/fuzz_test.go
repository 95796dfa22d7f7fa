package httpapi

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// checkAccepted holds for every body that any decoder takes: it is one JSON
// value by another parser's judgement too.
func checkAccepted(t *testing.T, body []byte) {
	t.Helper()
	if !json.Valid(body) || !utf8.Valid(body) {
		t.Fatalf("accepted, but it is not JSON: %q", body)
	}
}

func checkName(t *testing.T, what, s string) {
	t.Helper()
	if mq.CheckName(what, s) != nil {
		t.Fatalf("accepted %s %q", what, s)
	}
}

func FuzzDecodePush(f *testing.F) {
	for _, s := range []string{
		`{"items":[]}`, `{"items":[{"queue":"q","payload":` + opaquePayload + `}]}`,
		`{"items":[{"queue":"q","partition":"p","transactionId":"t","traceId":"01a1c0de-7000-7abc-8def-000000000001","payload":` + numbersPayload + `},{"queue":"q","payload":null}]}`,
		`{"ITEMS":[]}`, `{"items":[],"items":[]}`, `{"items":[]} {}`, `{"items":[{"queue":"\ud800","payload":1}]}`, `{"\u0069tems":[{"queue":"q","payload":[[[]]]}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		items, err := decodePush(body)
		if string(body) != before {
			t.Fatal("the body was written to")
		}
		if err != nil {
			if ref := refusalOf(err); ref.status != 400 && ref.status != 413 || !utf8.ValidString(ref.message+ref.field) {
				t.Fatalf("refused with %d %q %q", ref.status, ref.message, ref.field)
			}
			return
		}
		checkAccepted(t, body)
		var again struct {
			Items []struct{ Payload json.RawMessage }
		}
		// encoding/json folds the case of names and lets the last of two win,
		// so the payloads are compared only where it reads the same items.
		same := json.Unmarshal(body, &again) == nil && len(again.Items) == len(items) && countKey(body) == len(items)
		for i, it := range items {
			checkName(t, "queue", it.Queue)
			checkName(t, "partition", it.Partition)
			checkName(t, "transaction id", it.TransactionID)
			if it.Partition == "" || !json.Valid(it.Payload) || tooDeep(it.Payload) {
				t.Fatalf("item %d: %+v", i, it)
			}
			if same && string(again.Items[i].Payload) != string(it.Payload) {
				t.Fatalf("payload %d is %s, not %s", i, it.Payload, again.Items[i].Payload)
			}
		}
	})
}

// countKey counts the letters of "payload" in any case, written plainly. When
// it equals the number of items, each has the one key and no look-alike.
func countKey(body []byte) int {
	n := 0
	for i := 0; i+7 <= len(body); i++ {
		if equalFold(body[i:i+7], "payload") {
			n++
		}
	}
	for _, c := range body {
		if c == '\\' || c >= utf8.RuneSelf {
			return -1 // a look-alike may hide in an escape or a folded letter
		}
	}
	return n
}

func equalFold(b []byte, s string) bool {
	for i := range b {
		if b[i]|0x20 != s[i] {
			return false
		}
	}
	return true
}

func FuzzDecodeAck(f *testing.F) {
	for _, s := range []string{
		`{"transactionId":"t","partitionId":"p","consumerGroup":"g","leaseId":"l","status":"failed","error":"\ud800"}`, `{}`,
		`{"acknowledgments":[{"transactionId":"t"},{"status":null}],"consumerGroup":null}`, `{"acknowledgments":[1]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, read := range []func(*decoder, *mq.Ack) error{decodeAck, decodeAckBatch} {
			var a mq.Ack
			if decode(body, func(d *decoder) error { return read(d, &a) }) != nil {
				continue
			}
			checkAccepted(t, body)
			checkName(t, "group", a.Group)
			for _, it := range a.Items {
				checkName(t, "transaction id", it.TransactionID)
				checkName(t, "partition id", it.PartitionID)
				checkName(t, "lease id", it.LeaseID)
				if !utf8.ValidString(it.Error) || it.Status > mq.AckDLQ {
					t.Fatalf("accepted %+v", it)
				}
			}
			out := appendAckResults(nil, a.Items, make([]mq.AckResult, len(a.Items)))
			if !json.Valid(out) {
				t.Fatalf("answer %s", out)
			}
		}
	})
}

func FuzzDecodeConfigure(f *testing.F) {
	for _, s := range []string{
		`{"queue":"q","namespace":"n","task":null,"mode":"merge","options":{"leaseTime":"120","retryLimit":null,"deadLetterQueue":"off"}}`,
		`{"queue":"","ttl":5,"mode":"replace"}`, `{"queue":"q","options":{"retentionSinkHold":"a:b"}}`, `{"queue":"q","options":5,"priority":-1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var c mq.Configure
		if decode(body, func(d *decoder) error { return decodeConfigure(d, &c) }) != nil {
			return
		}
		checkAccepted(t, body)
		checkName(t, "queue", c.Queue)
		o, err := c.Apply(nil)
		if err != nil {
			t.Fatalf("accepted, but the rules refuse it: %v", err)
		}
		out := append(appendOptions([]byte("{"), &o), '}')
		if !json.Valid(out) {
			t.Fatalf("answer %s", out)
		}
	})
}
