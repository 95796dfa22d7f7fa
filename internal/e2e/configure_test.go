package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// configured is the answer of a configure call.
type configured struct {
	Configured bool           `json:"configured"`
	Namespace  string         `json:"namespace"`
	Task       string         `json:"task"`
	Options    map[string]any `json:"options"`
}

func configure(b *Broker, body any) configured {
	b.t.Helper()
	var c configured
	b.MustInto(&c, http.StatusOK, "POST", "/api/v1/configure", body)
	if !c.Configured || len(c.Options) != 19 {
		b.t.Errorf("configure: %+v", c)
	}
	return c
}

// want checks some of the effective options; labels are among them.
func (c configured) want(t testing.TB, options map[string]any) {
	t.Helper()
	for name, want := range options {
		got := c.Options[name]
		switch name {
		case "namespace":
			got = c.Namespace
		case "task":
			got = c.Task
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// queueDetail is what the detail of a queue says of its settings.
func queueDetail(b *Broker, queue string) configured {
	b.t.Helper()
	var c configured
	b.MustInto(&c, http.StatusOK, "GET", "/api/v1/resources/queues/"+Seg(queue), nil)
	return c
}

const defaultOptions = `{"priority":0,"leaseTime":300,"retryLimit":3,"retryDelay":1000,"maxSize":0,"ttl":3600,` +
	`"deadLetterQueue":true,"dlqAfterMaxRetries":true,"delayedProcessing":0,"windowBuffer":0,` +
	`"retentionSeconds":0,"completedRetentionSeconds":0,"retentionEnabled":false,` +
	`"encryptionEnabled":false,"maxWaitTimeSeconds":0,"minPopWaitTime":0,"dedupWindowSeconds":3600,` +
	`"retentionSinkHold":"","retentionSinkHoldMaxSeconds":604800}`

type bag = map[string]any

func TestConfigure(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	eachBehaviour(
		t, f,
		behaviour{"B149_defaults", func(_ *testing.T, b *Broker, q string) {
			answered(b, 200, fmt.Sprintf(`{"configured":true,"queueId":<uuid>,"partitionId":null,"queue":%q,"namespace":"","task":"","storage":"segments","options":%s}`, q, defaultOptions),
				"POST", "/api/v1/configure", bag{"queue": q})
		}},
		behaviour{"B150_B151_merge_and_null", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "options": bag{"retryLimit": 7, "retentionEnabled": true}})
			configure(b, bag{"queue": q, "mode": "merge", "options": bag{"leaseTime": 9}}).want(t, bag{"retryLimit": 7, "leaseTime": 9, "retentionEnabled": true})
			configure(b, bag{"queue": q, "mode": nil, "options": bag{"retryLimit": nil}}).want(t, bag{"retryLimit": 3, "leaseTime": 9, "retentionEnabled": true})
		}},
		behaviour{"B152_replace", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1) // labels are derived from the name
			if d := queueDetail(b, q); d.Namespace == "" || d.Task == "" {
				t.Fatalf("labels of %s: %+v", q, d)
			}
			configure(b, bag{"queue": q, "options": bag{"retryLimit": 7}})
			got := configure(b, bag{"queue": q, "mode": "replace", "options": bag{"ttl": 5}})
			var want bag
			if err := json.Unmarshal([]byte(defaultOptions), &want); err != nil {
				t.Fatal(err)
			}
			want["ttl"], want["namespace"], want["task"] = 5, "", ""
			got.want(t, want)
			configure(b, bag{"queue": q, "options": bag{"replace": true, "retryLimit": 1}}).want(t, bag{"ttl": 5, "retryLimit": 1})
		}},
		behaviour{"B153_bad_mode", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "options": bag{"retryLimit": 7}})
			for _, mode := range []string{`"Replace"`, `""`, `true`, `1`, `{}`, `[]`} {
				answered(b, 400, `{"error":"mode must be \"merge\" or \"replace\", got <more>","code":"bad_request"<more>}`,
					"POST", "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"mode":%s,"options":{"retryLimit":1}}`, q, mode))
			}
			configure(b, bag{"queue": q}).want(t, bag{"retryLimit": 7})
		}},
		behaviour{"B154_B155_a_queue_made_by_a_push.x", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			before := queueDetail(b, q)
			before.want(t, bag{"leaseTime": 60})
			configure(b, bag{"queue": q, "options": bag{"retryLimit": 8}}).want(t, bag{
				"leaseTime": 60, "retryLimit": 8, "dedupWindowSeconds": 3600, "namespace": before.Namespace, "task": before.Task,
			})
			configure(b, bag{"queue": q, "options": bag{"leaseTime": 10}}).want(t, bag{"leaseTime": 10, "retryLimit": 8, "namespace": before.Namespace})
			// null is the default of configure, not that of the first use.
			configure(b, bag{"queue": q, "options": bag{"leaseTime": nil}}).want(t, bag{"leaseTime": 300, "retryLimit": 8})
		}},
		behaviour{"B156_top_level", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "leaseTime": 11, "deadLetterQueue": false}).want(t, bag{"leaseTime": 11, "deadLetterQueue": false})
			configure(b, bag{"queue": q, "options": nil, "leaseTime": 12}).want(t, bag{"leaseTime": 12})
			// Beside nested options the top level does not count.
			configure(b, bag{"queue": q, "options": bag{"ttl": 1}, "leaseTime": 13}).want(t, bag{"leaseTime": 12, "ttl": 1})
		}},
		behaviour{"B157_clamps", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "options": bag{"minPopWaitTime": 999999, "dedupWindowSeconds": -5}}).want(t, bag{"minPopWaitTime": 60000, "dedupWindowSeconds": 0})
			configure(b, bag{"queue": q, "options": bag{"minPopWaitTime": -1, "priority": -3}}).want(t, bag{"minPopWaitTime": 0, "priority": -3})
		}},
		behaviour{"B158_sink_hold", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "options": bag{"retentionSinkHold": "lake-1.a_B", "retryLimit": 4}})
			for name, values := range map[string][]any{
				"retentionSinkHold":           {"a:b", "x y", strings.Repeat("x", 65), "ü"},
				"retentionSinkHoldMaxSeconds": {59, 31536001, -1},
			} {
				for _, v := range values {
					answered(b, 400, `{"error":<text>,"code":"bad_request"<more>"invalid":"`+name+`"}`,
						"POST", "/api/v1/configure", bag{"queue": q, "options": bag{name: v, "retryLimit": 9}})
				}
			}
			configure(b, bag{"queue": q}).want(t, bag{"retentionSinkHold": "lake-1.a_B", "retentionSinkHoldMaxSeconds": 604800, "retryLimit": 4})
			configure(b, bag{"queue": q, "options": bag{"retentionSinkHold": strings.Repeat("x", 64), "retentionSinkHoldMaxSeconds": 60}})
		}},
		behaviour{"B159_names", func(t *testing.T, b *Broker, _ string) {
			configure(b, bag{"queue": "", "options": bag{"retryLimit": 2}}).want(t, bag{"retryLimit": 2})
			if d := queueDetail(b, ""); fmt.Sprint(d.Options["retryLimit"]) != "2" {
				t.Errorf("detail of the queue without a name: %+v", d)
			}
			for _, body := range []string{`{"queue":5}`, `{"queue":null}`, `{}`, `{"options":{}}`} {
				answered(b, 400, `{"error":"queue is required","code":"bad_request"<more>}`, "POST", "/api/v1/configure", body)
			}
			for _, body := range []string{`[]`, `"q"`, ``, `{`, `{"queue":"q"} x`} {
				answered(b, 400, `{"error":<text>,"code":"bad_body"<more>}`, "POST", "/api/v1/configure", body)
			}
		}},
		behaviour{"B160_no_partition", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q})
			var d struct{ Partitions []any }
			b.MustInto(&d, 200, "GET", "/api/v1/resources/queues/"+Seg(q), nil)
			if d.Partitions == nil || len(d.Partitions) > 0 {
				t.Errorf("partitions: %v", d.Partitions)
			}
		}},
		behaviour{"B162_labels", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "namespace": "billing", "task": "render"}).want(t, bag{"namespace": "billing", "task": "render"})
			for _, empty := range []any{nil, ""} {
				configure(b, bag{"queue": q, "namespace": empty, "task": empty, "options": bag{}}).want(t, bag{"namespace": "billing", "task": "render"})
			}
			configure(b, bag{"queue": q, "namespace": "top", "options": bag{"namespace": "nested", "task": ""}}).want(t, bag{"namespace": "nested", "task": ""})
		}},
		behaviour{"B163_unknown_options", func(_ *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "colour": "red", "options": bag{"colour": "red"}})
		}},
		behaviour{"types", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "options": bag{"leaseTime": "120", "deadLetterQueue": "off"}}).want(t, bag{"leaseTime": 120, "deadLetterQueue": false})
			for name, v := range (bag{"leaseTime": "soon", "retryLimit": 1 << 40, "ttl": 1.5, "deadLetterQueue": "perhaps", "retentionSinkHold": 5, "priority": []int{1}}) {
				answered(b, 400, `{"error":<text>,"code":"bad_request"<more>}`, "POST", "/api/v1/configure", bag{"queue": q, "options": bag{"retryLimit": 1, name: v}})
			}
			configure(b, bag{"queue": q}).want(t, bag{"leaseTime": 120, "retryLimit": 3})
		}},
		behaviour{"B169_detail_goes_back", func(t *testing.T, b *Broker, q string) {
			configure(b, bag{"queue": q, "options": bag{"leaseTime": 77, "namespace": "n", "dedupWindowSeconds": 60, "retentionSinkHold": "s", "deadLetterQueue": false}})
			before := queueDetail(b, q)
			if len(before.Options) != 21 {
				t.Errorf("%d options: %v", len(before.Options), before.Options)
			}
			for _, mode := range []string{"merge", "replace"} {
				configure(b, bag{"queue": q, "mode": mode, "options": before.Options})
				if after := queueDetail(b, q); fmt.Sprint(after) != fmt.Sprint(before) {
					t.Errorf("%s: got %v, had %v", mode, after, before)
				}
			}
		}},
	)
}

func TestConfigure_B161_ConcurrentEditsMerge(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	names := []string{"leaseTime", "retryLimit", "ttl", "maxSize", "priority", "retryDelay", "dedupWindowSeconds", "maxWaitTimeSeconds"}
	for _, queue := range []string{"fresh", "known"} {
		if queue == "known" {
			f.One().Configure(queue, nil)
		}
		var wg sync.WaitGroup
		for i, name := range names {
			wg.Go(func() {
				body := bag{"queue": queue, "options": bag{name: 40 + i}}
				if status, _, answer, err := f.Brokers[i%2].Try(t.Context(), "POST", "/api/v1/configure", body); status != 200 || err != nil {
					t.Errorf("%s: %d %s %v", name, status, answer, err)
				}
			})
		}
		wg.Wait()
		for i, name := range names {
			queueDetail(f.Brokers[0], queue).want(t, bag{name: 40 + i})
		}
	}
}

func TestConfigure_HoldsOnEveryBroker(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	here, there := f.Brokers[0], f.Brokers[1]
	for _, b := range f.Brokers { // both remember the queue as it was
		b.PushN("q", "p", "m", 1)
		b.AckAll(delivers(b, "q", "", "m-0"))
		b.Configure("q", bag{"dedupWindowSeconds": 0})
	}
	here.Configure("q", bag{"leaseTime": 1, "dedupWindowSeconds": 600})
	there.PushN("q", "p", "once", 1)
	if got := there.PushN("q", "p", "once", 1)[0].Status; got != "duplicate" {
		t.Errorf("the window is not known elsewhere: %s", got)
	}
	there.AckAll(delivers(there, "q", "", "once-0"))
	there.PushN("q", "p", "n", 1)
	delivers(there, "q", "", "n-0")
	delivers(there, "q", "wait=true&timeout=5000", "n-0") // the lease of a second is over
}
