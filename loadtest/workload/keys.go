package workload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// perRegister bounds the operations on one register, and so the search for their order.
const perRegister = 200

// registers works on keys that several clients write at once, with and without conditions. The rate stays well below
// what a broker admits by default.
func (w *worker) registers() {
	known := map[string]int64{} // versions this client has seen
	for n := 0; w.produce.Err() == nil; n++ {
		key := fmt.Sprintf("reg:%d:%d", w.rand.IntN(3), n/perRegister)
		k := history.KeyOp{Key: key}
		switch w.rand.IntN(10) {
		case 0, 1, 2, 3:
			k.Op = "get"
		case 4, 5:
			k.Op = "put"
		case 6:
			k.Op = "delete"
		default:
			k.Op = "put"
			version := known[key]
			k.Expect = &version
		}
		op := w.key(&k)
		if op.Outcome == history.OK {
			known[key] = op.Keys[0].Version
		}
		sleep(w.produce, time.Duration(20+w.rand.IntN(60))*time.Millisecond)
	}
}

// key does one operation on one key. Only what was refused is sent again: a write that may have happened is not.
func (w *worker) key(k *history.KeyOp) *history.Op {
	request := w.request()
	pause := w.backoff()
	for try := 1; ; try++ {
		one := *k
		if one.Op == "put" {
			one.Value = fmt.Sprintf(`"%s.%d"`, request, try)
		}
		op := &history.Op{Kind: history.KV, Request: request, Try: try, Keys: []history.KeyOp{one}}
		later := w.do(w.keyCall(op))
		if op.Outcome != history.Fail || !again(op) || !pause.wait(w.produce, later) {
			return op
		}
	}
}

func (w *worker) keyCall(op *history.Op) *call {
	operations := make([]map[string]any, len(op.Keys))
	for i := range op.Keys {
		k := &op.Keys[i]
		one := map[string]any{"op": k.Op, "ns": w.ns, "key": k.Key}
		if k.Op == "put" {
			one["value"], one["ttlSeconds"] = json.RawMessage(k.Value), keyLife
		}
		if k.Expect != nil {
			one["expect"] = *k.Expect
		}
		operations[i] = one
	}
	body, err := json.Marshal(map[string]any{"operations": operations})
	if err != nil {
		panic(err) // strings and numbers
	}
	return &call{op: op, method: http.MethodPost, path: "/api/v1/kv", body: body, read: func(body []byte) error {
		return readKeys(op, body)
	}}
}

func readKeys(op *history.Op, body []byte) error {
	var got struct {
		Results []struct {
			Found   bool            `json:"found"`
			Applied bool            `json:"applied"`
			Value   json.RawMessage `json:"value"`
			Version int64           `json:"version"`
			Reason  string          `json:"reason"`
		} `json:"results"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return err
	}
	if len(got.Results) != len(op.Keys) {
		return fmt.Errorf("%d results on %d operations", len(got.Results), len(op.Keys))
	}
	for i, res := range got.Results {
		k := &op.Keys[i]
		k.Found, k.Applied, k.Version, k.Reason = res.Found, res.Applied, res.Version, res.Reason
		var value bytes.Buffer
		if len(res.Value) > 0 {
			if err := json.Compact(&value, res.Value); err != nil {
				return err
			}
		}
		switch {
		case k.Op == "get" && k.Found:
			k.Value = value.String()
		case k.Op != "get" && !k.Applied && k.Version > 0:
			k.Current = value.String()
		}
	}
	return nil
}

// counters reads the counters that transactions are busy with.
func (w *worker) counters() {
	for w.produce.Err() == nil {
		latest := w.epoch.Load()
		epoch := max(latest-int64(w.rand.IntN(2)), 0)
		l := w.lane()
		op := &history.Op{
			Kind: history.KV, Request: w.request(), Try: 1,
			Keys: []history.KeyOp{{Op: "get", Key: fmt.Sprintf("count:%d:%d", l.index, epoch)}},
		}
		w.do(w.keyCall(op))
		sleep(w.produce, time.Duration(30+rand.IntN(70))*time.Millisecond)
	}
}
