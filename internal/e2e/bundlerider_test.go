package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// riders is a bundle with keys and timers, which are JSON texts.
func riders(b bundle, kv, timers string) string {
	raw, err := json.Marshal(b)
	if err != nil {
		panic(err)
	}
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &members); err != nil {
		panic(err)
	}
	for name, list := range map[string]string{"kv": kv, "timers": timers} {
		if list != "" {
			members[name] = json.RawMessage("[" + list + "]")
		}
	}
	raw, err = json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func onceOn(key string) string {
	return fmt.Sprintf(`{"op":"putIfAbsent","ns":"n","key":%q,"value":{"by":"w"},"forever":true,"required":true}`, key)
}

func setTimer(queue, key string, delay int) string {
	return fmt.Sprintf(`{"op":"schedule","queue":%q,"timerKey":%q,"delayMs":%d,"txn":%q,"payload":"e30="}`, queue, key, delay, key)
}

func dropTimer(queue, key string) string {
	return fmt.Sprintf(`{"op":"cancel","queue":%q,"timerKey":%q}`, queue, key)
}

// lostKey is the answer to a bundle whose required operation was lost.
const lostKey = `{"transactionId":<uuid>,"success":false,"ok":false,"reason":"kv_precondition","error":<text>,"results":[],"failedIndex":%d,"kvReason":%q,"version":%s,"value":%s}`

func TestBundle_Riders(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	eachBehaviour(
		t, f,
		behaviour{"X2_not_required", func(t *testing.T, b *Broker, q string) {
			op := strings.ReplaceAll(onceOn(q), `,"required":true`, "")
			for _, want := range []string{
				`"op":"putIfAbsent","applied":true,"key":%[2]q,"value":{"by":"w"},"version":<int>}`,
				`"op":"putIfAbsent","applied":false,"reason":"exists","key":%[2]q,"value":{"by":"w"},"version":<int>}`,
			} {
				answered(b, 200, fmt.Sprintf(`{"transactionId":<uuid>,"success":true,"results":[{"index":0,"type":"push","success":true,"transactionId":<uuid>,"messageId":<uuid>,"queueName":%[1]q},{"index":1,"type":"kv","opIndex":0,`+want+`]}`, q, q),
					"POST", transactionPath, riders(ops(Item{Queue: q}), op, ""))
			}
			if n := len(stored(b, q)); n != 2 {
				t.Errorf("%d messages", n)
			}
		}},
		behaviour{"X4_riders_alone", func(_ *testing.T, b *Broker, q string) {
			for i, operations := range []string{``, `"operations":[],`, `"operations":null,`} {
				commits(b, fmt.Sprintf(`{%s"kv":[%s]}`, operations, onceOn(fmt.Sprint(q, i))))
				commits(b, fmt.Sprintf(`{%s"timers":[%s],"kv":null}`, operations, setTimer(q, fmt.Sprint(i), 3600000)))
			}
			answered(b, 200, fmt.Sprintf(`{"transactionId":<uuid>,"success":true,"results":[{"index":0,"type":"timer","opIndex":0,"ok":true,"status":"cancelled","queue":%[1]q,"timerKey":"0","txn":"0"},{"index":1,"type":"timer","opIndex":1,"ok":false,"status":"absent","queue":%[1]q,"timerKey":"none","txn":null}]}`, q),
				"POST", transactionPath, riders(bundle{}, "", dropTimer(q, "0")+","+dropTimer(q, "none")))
		}},
		behaviour{"X5_failed_index_is_flat", func(_ *testing.T, b *Broker, q string) {
			commits(b, riders(bundle{}, onceOn(q), ""))
			answered(b, 200, fmt.Sprintf(lostKey, 4, "exists", "<int>", `{"by":"w"}`), "POST", transactionPath,
				riders(ops([]Item{{Queue: q}, {Queue: q}, {Queue: q}}), onceOn(q+".other")+","+onceOn(q), ""))
			answered(b, 200, fmt.Sprintf(lostKey, 0, "absent", "0", "null"), "POST", transactionPath,
				riders(bundle{}, fmt.Sprintf(`{"op":"check","ns":"n","key":%q,"expect":5,"required":true}`, q+".none"), ""))
			b.Must(http.StatusNotFound, "GET", "/api/v1/resources/queues/"+Seg(q), nil)
		}},
		behaviour{"X6_limits", func(t *testing.T, b *Broker, q string) {
			many := make([]string, 65)
			for i := range many {
				many[i] = onceOn(fmt.Sprint(q, i))
			}
			keys := make([]string, 257)
			for i := range keys {
				keys[i] = fmt.Sprintf("%q", fmt.Sprint(i))
			}
			getMany := func(n int) string {
				return `{"op":"getMany","ns":"n","keys":[` + strings.Join(keys[:n], ",") + `]}`
			}
			for kv, reason := range map[string]string{
				`{"op":"getPrefix","ns":"n","prefix":"a"}`: "kv_get_prefix_not_allowed_in_transaction",
				strings.Join(many, ","):                    "kv_too_many_ops",
				getMany(257):                               "kv_too_many_keys",
				onceOn("twice") + "," + onceOn("twice"):    "kv_duplicate_key_in_call",
			} {
				status, _, raw := b.Do("POST", transactionPath, riders(ops(Item{Queue: q}), kv, ""))
				if status != 400 {
					t.Errorf("%.60s: %d %s", kv, status, raw)
				}
				looksLike(t, raw, fmt.Sprintf(`{"transactionId":<uuid>,"success":false,"reason":%q,"error":<text>,"results":[]}`, reason))
			}
			for _, kv := range []string{`{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":0}`, `{"op":"nothing","ns":"n","key":"k"}`, `5`} {
				b.Must(400, "POST", transactionPath, riders(ops(Item{Queue: q}), kv, ""))
			}
			for _, timer := range []string{`{"op":"nothing"}`, `5`, strings.Replace(setTimer(q, "k", 1), "{", `{"deliverAt":"x",`, 1)} {
				b.Must(400, "POST", transactionPath, riders(ops(Item{Queue: q}), "", timer))
			}
			b.Must(http.StatusNotFound, "GET", "/api/v1/resources/queues/"+Seg(q), nil)
			commits(b, riders(bundle{}, strings.Join(many[:64], ","), ""))
			commits(b, riders(bundle{}, getMany(256), ""))
		}},
		behaviour{"X8_cancel_and_ack_or_fire", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 40)
			cancelled := map[string]bool{}
			for i := range 40 {
				key := fmt.Sprint(i)
				commits(b, riders(bundle{}, "", setTimer(q+".fired", key, 20)))
				time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
				p := b.Pop(q, "batch=1")
				var a struct {
					Success bool
					Results []struct{ Status string }
				}
				b.MustInto(&a, 200, "POST", transactionPath, riders(ops(pick(p, "0")), "", dropTimer(q+".fired", key)))
				if !a.Success || len(a.Results) != 2 {
					t.Fatalf("%+v", a)
				}
				cancelled[key] = a.Results[1].Status == "cancelled"
			}
			eventually(t, func() bool {
				return strings.Contains(string(b.Must(200, "GET", "/api/v1/timers/"+Seg(q+".fired"), nil)), `"rows":[]`)
			}, "timers to fire")
			fired := map[string]bool{}
			for _, m := range stored(b, q+".fired") {
				if fired[m.TransactionID] || cancelled[m.TransactionID] {
					t.Errorf("timer %s fired twice or was cancelled", m.TransactionID)
				}
				fired[m.TransactionID] = true
			}
			n := 0
			for key, gone := range cancelled {
				if !gone && !fired[key] {
					t.Errorf("timer %s is neither cancelled nor fired", key)
				}
				if gone {
					n++
				}
			}
			t.Logf("%d of 40 cancelled in time", n)
		}},
		behaviour{"X9_guard_of_a_lock", func(t *testing.T, b *Broker, q string) {
			put := func(expect string) int64 {
				var a struct {
					Results []struct {
						Applied bool
						Version int64
					}
				}
				b.MustInto(&a, 200, "POST", "/api/v1/kv", fmt.Sprintf(`{"operations":[{"op":"put","ns":"n","key":%q,"value":1,"ttlSeconds":60%s}]}`, q, expect))
				return a.Results[0].Version
			}
			guard := func(v int64) string {
				return fmt.Sprintf(`{"op":"check","ns":"n","key":%q,"expect":%d,"required":true}`, q, v)
			}
			mine := put("")
			commits(b, riders(ops(Item{Queue: q, TransactionID: "1"}), guard(mine), ""))
			theirs := put("")
			answered(b, 200, fmt.Sprintf(lostKey, 1, "version", fmt.Sprint(theirs), "1"), "POST", transactionPath, riders(ops(Item{Queue: q, TransactionID: "2"}), guard(mine), ""))
			b.Must(200, "DELETE", "/api/v1/kv/n/"+Seg(q), nil)
			answered(b, 200, fmt.Sprintf(lostKey, 1, "absent", "0", "null"), "POST", transactionPath, riders(ops(Item{Queue: q, TransactionID: "2"}), guard(theirs), ""))
			if got := stored(b, q); len(got) != 1 {
				t.Errorf("stored %d", len(got))
			}
		}},
	)
}

// X3, X7 and the order in which causes are told, with nothing left behind.
func TestBundle_X3_X7_RollbackOfRiders(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	b := f.One()
	b.PushN("in", "p", "m", 1)
	p := delivers(b, "in", "", "m-0")
	b.Push(Item{Queue: "out", TransactionID: "stored"})
	commits(b, riders(bundle{}, onceOn("taken"), setTimer("later", "pending", 3600000)))
	unknown := []AckItem{{TransactionID: "never", PartitionID: p.PartitionID}}
	dup, fresh := Item{Queue: "out", TransactionID: "stored"}, Item{Queue: "new"}
	timers := setTimer("later", "new", 0) + "," + dropTimer("later", "pending")
	for _, tt := range []struct{ name, reason, body string }{
		{"X3 a lost lease", "rejected_ack", riders(ops([]AckItem{{TransactionID: "m-0", PartitionID: p.PartitionID, LeaseID: "gone"}}, fresh), onceOn("key"), timers)},
		{"X7 a duplicate", "duplicate", riders(ops(pick(p, "0"), fresh, dup), onceOn("key"), timers)},
		{"D17 ack before kv", "rejected_ack", riders(ops(unknown, fresh), onceOn("taken"), timers)},
		{"D17 push before kv", "duplicate", riders(ops(fresh, dup), onceOn("taken"), timers)},
		{"D17 all of them", "rejected_ack", riders(ops(unknown, dup), onceOn("taken"), timers)},
	} {
		leavesNothing(t, f, func() {
			for _, b := range f.Brokers {
				t.Logf("%s: %s", tt.name, rollsBack(b, tt.reason, tt.body))
			}
		})
	}
	leavesNothing(t, f, func() {
		for _, b := range f.Brokers {
			answered(b, 200, fmt.Sprintf(lostKey, 3, "exists", "<int>", `{"by":"w"}`), "POST", transactionPath,
				riders(ops(pick(p, "0 failed"), fresh), onceOn("key")+","+onceOn("taken"), timers))
		}
	})
	time.Sleep(300 * time.Millisecond) // a timer that was due at once would have fired
	deliversNothing(b, "later", "")
	commits(b, riders(ops(pick(p, "0"), fresh), onceOn("key"), timers))
	eventually(t, func() bool { return b.Pop("later", "") != nil }, "the timer to fire")
}

func TestBundle_X11_Switches(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.Must(200, "POST", "/api/v1/system/kv-timers", `{"kv":false,"timersSchedule":false}`)
	eventually(t, func() bool {
		status, _, _ := b.Do("POST", transactionPath, riders(bundle{}, onceOn("k"), ""))
		return status == http.StatusForbidden
	}, "the switch")
	before := f.state()
	for body, reason := range map[string]string{
		riders(ops(Item{Queue: "q"}), onceOn("x"), ""):               "kv_disabled",
		riders(ops(Item{Queue: "q"}), "", setTimer("later", "x", 0)): "timers_disabled",
	} {
		status, header, raw := b.Do("POST", transactionPath, body)
		if status != http.StatusForbidden || header.Get("Retry-After") != "" {
			t.Errorf("%d %v %s", status, header, raw)
		}
		looksLike(t, raw, fmt.Sprintf(`{"transactionId":<uuid>,"success":false,"reason":%q,"error":<text>,"results":[]}`, reason))
	}
	if after := f.state(); !maps.Equal(before, after) {
		t.Errorf("from %v\nto   %v", before, after)
	}
	commits(b, ops(Item{Queue: "q"}))
	commits(b, riders(ops(Item{Queue: "q"}), "", dropTimer("later", "x")))
}

// Bundles over the same keys, timers and partitions in any order: nobody sees a
// deadlock, and the counters are exact.
func TestBundle_X12_OverlappingRidersAtOnce(t *testing.T) {
	t.Parallel()
	seed := modelSeed(t)
	f := Start(t, Options{Brokers: 2})
	const workers, each, places = 40, 8, 5
	var wg sync.WaitGroup
	for w := range workers {
		r, b := rand.New(rand.NewPCG(seed, uint64(w))), f.Brokers[w%2]
		wg.Go(func() {
			for range each {
				var items []Item
				var kv, timers []string
				for _, i := range r.Perm(places) {
					items = append(items, Item{Queue: fmt.Sprint("q", i%2), Partition: fmt.Sprint("p", i)})
					kv = append(kv, fmt.Sprintf(`{"op":"incr","ns":"n","key":"k%d","delta":1,"forever":true}`, i))
					timers = append(timers, setTimer(fmt.Sprint("t", i%2), fmt.Sprint("k", i), 3600000))
				}
				status, _, raw, err := b.Try(context.Background(), "POST", transactionPath, riders(ops(items), strings.Join(kv, ","), strings.Join(timers, ",")))
				if err != nil || status != 200 || !strings.Contains(string(raw), `"success":true`) {
					t.Errorf("%d %s %v", status, raw, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d bundles: %d deadlocks in the database", workers*each, f.deadlocks())
	for i := range places {
		if raw := f.One().Must(200, "GET", fmt.Sprint("/api/v1/kv/n/k", i), nil); !strings.Contains(string(raw), fmt.Sprintf(`"value":%d,`, workers*each)) {
			t.Errorf("counter %d: %s", i, raw)
		}
	}
}

func TestBundle_X10_VersionsAreExact(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	const last = int64(1<<53) + 1 // no float64
	if _, err := f.DB.Pool(t).Exec(t.Context(), `SELECT setval('queen.kv_version', $1, false)`, last); err != nil {
		t.Fatal(err)
	}
	body := riders(bundle{}, onceOn("k"), "")
	answered(f.One(), 200, fmt.Sprintf(`{"transactionId":<uuid>,"success":true,"results":[{"index":0,"type":"kv","opIndex":0,"op":"putIfAbsent","applied":true,"key":"k","value":{"by":"w"},"version":%d}]}`, last), "POST", transactionPath, body)
	answered(f.One(), 200, fmt.Sprintf(lostKey, 0, "exists", fmt.Sprint(last), `{"by":"w"}`), "POST", transactionPath, body)
}
