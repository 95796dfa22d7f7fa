package httpapi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// timerFake is a broker of which only the timers are called.
type timerFake struct {
	Broker
	got *mq.TimerCall
	err error
}

func (f *timerFake) WriteTimers(_ context.Context, c *mq.TimerCall) error {
	f.got = c
	for i := range c.Ops {
		c.Results[i] = mq.TimerResult{TransactionID: c.Ops[i].TransactionID, MessageID: mq.UUID{1}, DeliverAt: time.Unix(1, 5000)}
		if c.Ops[i].Cancel {
			c.Results[i].Status = mq.TimerAbsent
		}
	}
	return f.err
}

func TestTimersWire(t *testing.T) {
	t.Parallel()
	f := &timerFake{}
	h := New(f, Options{})
	call(h, "POST", "/api/v1/timers", `{"operations":[
		{"op":"schedule","queue":"q","timerKey":"a/b","delayMs":1500.2504,"txn":"t","payload":"eyJhIjoxfQ==","note":"unknown is skipped"},
		{"op":"cancel","queue":"q","timerKey":"c","delayMs":"whatever"}]}`).want(t, 200,
		`{"results":[{"ok":true,"status":"scheduled","queue":"q","timerKey":"a/b","txn":"t","messageId":"01000000-0000-0000-0000-000000000000","deliverAt":"1970-01-01T00:00:01.000005Z"},`+
			`{"ok":false,"status":"absent","queue":"q","timerKey":"c","txn":null}]}`)
	op := f.got.Ops[0]
	if op.Delay != 1500250*time.Microsecond || string(op.Payload) != `{"a":1}` || op.Partition != "Default" || op.MessageID.IsZero() {
		t.Errorf("%+v", op)
	}
	call(h, "DELETE", "/api/v1/timers/q%2Fx/a//b%2F?txn=me", "").want(t, 200, `{"ok":false,"status":"absent","queue":"q/x","timerKey":"a//b/","txn":"me"}`)
	for err, want := range map[error]string{
		mq.Unavailable(errors.New("gone")): `{"error":"timers_unavailable","reason":"connection","detail":"the database is not reachable"}`,
		&mq.TimerRefusal{Code: mq.CodeTimersDisabled, Reason: mq.CodeTimersDisabled, Detail: "off"}: `{"error":"timers_disabled","reason":"timers_disabled","detail":"off"}`,
		&mq.Error{Kind: mq.KindTimeout, Code: mq.CodeTimeout, Message: "late"}:                      `{"error":"timers_unavailable","reason":"timers_timeout","detail":"late"}`,
	} {
		f.err = err
		call(h, "POST", "/api/v1/timers", `[{"op":"cancel","queue":"q","timerKey":"c"}]`).want(t, 503, want)
	}
	f.err = errors.New("secret")
	a := call(h, "POST", "/api/v1/timers", `[{"op":"cancel","queue":"q","timerKey":"c"}]`)
	if a.status != 500 || strings.Contains(a.body, "secret") || !strings.Contains(a.body, `"error":"timers_error"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestDecodeTimerOps_Rider(t *testing.T) {
	t.Parallel()
	for _, none := range []string{"", " ", "null", "[]"} {
		if ops, err := decodeTimerOps([]byte(none), mq.TimerLimits{}); err != nil || len(ops) != 0 {
			t.Errorf("%q: %v %v", none, ops, err)
		}
	}
	_, err := decodeTimerOps([]byte(`[{"op":"schedule","queue":"q","timerKey":"k","delayMs":1,"txn":"t","payload":"","attempts":1}]`), mq.TimerLimits{})
	var ref *mq.TimerRefusal
	if !errors.As(err, &ref) || ref.Reason != mq.ReasonTimersServerOwned {
		t.Errorf("%v", err)
	}
}

func FuzzDecodeTimers(f *testing.F) {
	for _, s := range []string{
		`[]`, `{"operations":[{"op":"cancel","queue":"q","timerKey":"k","txn":null}]}`,
		`[{"op":"schedule","queue":"q","timerKey":"a/b","partition":"p","delayMs":-1.5e3,"txn":"t","payload":"e30=","encrypted":true}]`,
		`[{"op":"reschedule","queue":"q","timerKey":"k","delayMs":1e999,"txn":"t","payload":"e3\u0030="}]`,
		`[{"op":"schedule","queue":"q","timerKey":"k","delayMs":0,"txn":"t","payload":"KLUv/SACEQAAe30=","payloadZstd":true}]`,
		`[{"op":"schedule","op":"cancel"}]`, `{"operations":null}`, `[{"_x":1}]`, `[{"\u005fx":1}]`, `[1]`, `[{"op":"cancel","queue":"\ud800","timerKey":"k"}]`,
	} {
		f.Add([]byte(s))
	}
	limits := mq.TimerLimits{Payload: 1024, Horizon: time.Hour}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		ops, err := decodeTimerBody(body, limits)
		if string(body) != before {
			t.Fatal("the body was written to")
		}
		if err != nil {
			var own *mq.TimerRefusal
			if errors.As(err, &own) {
				if timerStatuses[own.Code] == 0 || own.Reason == "" || !utf8.ValidString(own.Detail) {
					t.Fatalf("refused with %+v", own)
				}
			} else if ref := refusalOf(err); ref.status != 400 || !utf8.ValidString(ref.message) {
				t.Fatalf("refused with %d %v", ref.status, err)
			}
			return
		}
		checkAccepted(t, body)
		seen := map[string]bool{}
		for i, op := range ops {
			id := fmt.Sprintf("%q %q", op.Queue, op.Key)
			checkName(t, "queue", op.Queue)
			checkName(t, "txn", op.TransactionID)
			switch {
			case op.Queue == "", op.Key == "", len(op.Key) > 512, strings.ContainsRune(op.Key, 0), !utf8.ValidString(op.Key), seen[id]:
				t.Fatalf("op %d: %+v", i, op)
			case op.Cancel:
			case op.Partition == "", op.TransactionID == "", op.Delay > time.Hour, len(op.Payload) > 1024, op.Delay%time.Microsecond != 0:
				t.Fatalf("op %d: %+v", i, op)
			case !strings.Contains(before, "Zstd") && !strings.Contains(before, `\`) && !strings.Contains(before, base64.StdEncoding.EncodeToString(op.Payload)):
				// Spare bits of the last digit may differ.
				if n := len(op.Payload) / 3 * 4; !strings.Contains(before, base64.StdEncoding.EncodeToString(op.Payload)[:n]) {
					t.Fatalf("op %d: payload %q is not in %s", i, op.Payload, before)
				}
			}
			seen[id] = true
		}
	})
}
