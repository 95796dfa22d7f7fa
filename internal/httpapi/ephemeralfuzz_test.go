package httpapi

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// checkRefused holds for every body that a decoder of the family refuses.
func checkRefused(t *testing.T, err error) {
	t.Helper()
	ref := refuseEphemeral("", err)
	if ref.status != 400 || ref.code != mq.CodeEphemeralBadRequest || !utf8.ValidString(ref.message+ref.field) {
		t.Fatalf("refused with %d %q %q", ref.status, ref.message, ref.field)
	}
}

func checkEphemeral(t *testing.T, what, s string, required bool) {
	t.Helper()
	if checkEphemeralName(what, s) != nil || required && s == "" {
		t.Fatalf("accepted %s %q", what, s)
	}
}

func FuzzDecodeEphemeralPush(f *testing.F) {
	for _, s := range []string{
		`{"queue":"q","messages":[]}`, `{"queue":"q","partition":"p","messages":[{"payload":{"b":1,"a":2.50}},{"payload":null,"x":[1]}]}`,
		`{"queue":"\ud800","messages":[{"payload":1}]}`, `{"queue":"q","messages":[{}]}`, `{"queue":"q","partition":null,"messages":[{"payload":[[[]]]}]} 1`,
		`{"queue":"\u007f","messages":{}}`, `{"messages":[{"payload":"\ud800"}],"qu\u0065ue":"q"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		p, err := decodeEphemeralPush(body)
		if string(body) != before {
			t.Fatal("the body was written to")
		}
		if err != nil {
			checkRefused(t, err)
			return
		}
		checkAccepted(t, body)
		checkEphemeral(t, "queue", p.Queue, true)
		checkEphemeral(t, "partition", p.Partition, true)
		if len(p.Payloads) > mq.MaxEphemeralItems {
			t.Fatalf("%d payloads", len(p.Payloads))
		}
		for i, b := range p.Payloads {
			if !json.Valid(b) || tooDeep(b) {
				t.Fatalf("payload %d: %s", i, b)
			}
		}
	})
}

func FuzzDecodeEphemeralAck(f *testing.F) {
	for _, s := range []string{
		`{"queue":"q","group":"g","acks":[{"id":"e:7c1f:eu:west:1:41","status":"retry","error":{}}]}`, `{"queue":"q","acks":[]}`,
		`{"queue":"q","acks":[{"id":"\ud800"},{"status":null,"id":""}]}`, `{"queue":"q","acks":[{"status":"ok"}]}`, `{"queue":"q","group":7}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var a mq.EphemeralAck
		if err := decode(body, func(d *decoder) error { return decodeEphemeralAck(d, &a) }); err != nil {
			checkRefused(t, err)
			return
		}
		checkAccepted(t, body)
		checkEphemeral(t, "queue", a.Queue, true)
		checkEphemeral(t, "group", a.Group, false)
		for _, it := range a.Items {
			if !utf8.ValidString(it.ID) || it.Verdict > mq.EphemeralRetry {
				t.Fatalf("accepted %+v", it)
			}
		}
		if out := appendEphemeralOutcomes(nil, a.Items, make([]mq.EphemeralOutcome, len(a.Items))); !json.Valid(out) {
			t.Fatalf("answer %s", out)
		}
	})
}

func FuzzDecodeEphemeralConfigure(f *testing.F) {
	for _, s := range []string{
		`{"queue":"q","options":{"maxLength":500,"policy":"dropOldest","ttlSeconds":20,"windowBuffer":{"ms":1,"count":null}}}`,
		`{"queue":"q"}`, `{"queue":"q","options":null}`, `{"queue":"q","options":{"maxBytes":1.5}}`, `{"queue":"q","options":{"\ud800":1}}`,
		`{"queue":"q","options":{"windowBuffer":{"x":1}}}`, `{"queue":"q","options":{"retryLimit":9007199254740992,"leaseSeconds":-0}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var c ephemeralDeclaration
		if err := decode(body, func(d *decoder) error { return decodeEphemeralConfigure(d, &c) }); err != nil {
			checkRefused(t, err)
			return
		}
		checkAccepted(t, body)
		checkEphemeral(t, "queue", c.queue, true)
		o := &c.options
		numbers := []*int64{o.MaxBytes, o.MaxLength, o.TTLSeconds, o.LeaseSeconds, o.RetryLimit}
		if o.Window != nil {
			numbers = append(numbers, o.Window.MS, o.Window.Count)
		}
		for _, n := range numbers {
			if n != nil && (*n < 0 || *n > maxEphemeralNumber) {
				t.Fatalf("accepted %d", *n)
			}
		}
		// What is echoed is a declaration that says the same.
		echo := appendEphemeralOptions(nil, o)
		var again ephemeralDeclaration
		err := decode([]byte(`{"queue":"q","options":`+string(echo)+`}`), func(d *decoder) error { return decodeEphemeralConfigure(d, &again) })
		if err != nil || string(appendEphemeralOptions(nil, &again.options)) != string(echo) {
			t.Fatalf("%s: %v", echo, err)
		}
	})
}
