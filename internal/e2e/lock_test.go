package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// lockResult is the result of one operation on a lock.
type lockResult struct {
	Acquired, Renewed, Released, Held, Already *bool
	Name, Reason                               string
	Slot                                       *int
	Token                                      int64
	Owner                                      *string
	Guard                                      json.RawMessage
	Holders                                    []struct {
		Slot                        int
		Owner                       *string
		Token                       int64
		Since, RenewedAt, ExpiresAt string
	}
}

func yes(v *bool) bool { return v != nil && *v }

// lock runs one operation on a lock.
func lock(b *Broker, format string, args ...any) lockResult {
	b.t.Helper()
	var answer struct{ Results []lockResult }
	raw := b.Must(http.StatusOK, "POST", "/api/v1/locks", "["+fmt.Sprintf(format, args...)+"]")
	if err := json.Unmarshal(raw, &answer); err != nil || len(answer.Results) != 1 {
		b.t.Fatalf("locks: %v: %s", err, raw)
	}
	return answer.Results[0]
}

func holder(r lockResult) string {
	if len(r.Holders) != 1 || r.Holders[0].Owner == nil {
		return ""
	}
	return *r.Holders[0].Owner
}

func TestLock_L1L2L3_OneHolder(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	a, b := f.Brokers[0], f.Brokers[1]
	raw := a.Must(200, "POST", "/api/v1/locks", `{"operations":[{"op":"acquire","name":"nightly","ttlSeconds":30,"owner":"<a>"}]}`)
	var answer struct{ Results []lockResult }
	if err := json.Unmarshal(raw, &answer); err != nil {
		t.Fatal(err)
	}
	token := answer.Results[0].Token
	if want := fmt.Sprintf(`{"results":[{"index":0,"op":"acquire","name":"nightly","acquired":true,"slot":0,"token":%d,"owner":"<a>","guard":{"op":"check","ns":"queen-locks","key":"nightly#0","expect":%d,"required":true}}]}`, token, token); string(raw) != want {
		t.Errorf("%s\nwant %s", raw, want)
	}
	row := b.KV1(`{"op":"get","ns":"queen-locks","key":"nightly#0"}`)
	if wantKV(t, row, `{"owner":"<a>"}`); row.Version != token {
		t.Errorf("version %d, token %d", row.Version, token)
	}
	if r := lock(b, `{"op":"acquire","name":"nightly","ttlSeconds":30,"owner":"b"}`); yes(r.Acquired) || r.Reason != "held" || holder(r) != "<a>" {
		t.Errorf("%+v", r)
	}
	if r := lock(b, `{"op":"acquire","name":"nightly","ttlSeconds":30,"owner":"<a>"}`); !yes(r.Acquired) || !yes(r.Already) || r.Token != token {
		t.Errorf("%+v", r)
	}
	if r := lock(b, `{"op":"release","name":"nightly","token":%d}`, token+1); yes(r.Released) || r.Reason != "lost" || holder(r) != "<a>" || *r.Slot != 0 {
		t.Errorf("%+v", r)
	}
	if r := lock(b, `{"op":"release","name":"nightly","token":%d}`, token); !yes(r.Released) {
		t.Errorf("%+v", r)
	}
	if r := lock(b, `{"op":"release","name":"nightly","token":%d}`, token); yes(r.Released) || r.Reason != "lost" || len(r.Holders) != 0 || r.Holders == nil {
		t.Errorf("%+v", r)
	}
	if r := lock(b, `{"op":"acquire","name":"nightly","ttlSeconds":30}`); !yes(r.Acquired) || r.Token <= token || r.Owner != nil {
		t.Errorf("%+v", r)
	}
	// Without an owner nobody is the same one.
	if r := lock(b, `{"op":"acquire","name":"nightly","ttlSeconds":30}`); yes(r.Acquired) || len(r.Holders) != 1 || r.Holders[0].Owner != nil {
		t.Errorf("%+v", r)
	}
}

func TestLock_L4L8_Renew(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: fast}).One()
	first := lock(b, `{"op":"acquire","name":"l","ttlSeconds":2,"owner":"a"}`)
	got := lock(b, `{"op":"get","name":"l"}`)
	time.Sleep(50 * time.Millisecond)
	second := lock(b, `{"op":"renew","name":"l","token":%d,"ttlSeconds":30}`, first.Token)
	if !yes(second.Renewed) || second.Token <= first.Token || !strings.Contains(string(second.Guard), fmt.Sprintf(`"expect":%d`, second.Token)) {
		t.Fatalf("%+v", second)
	}
	third := lock(b, `{"op":"renew","name":"l","token":%d,"ttlSeconds":30,"owner":"a"}`, first.Token)
	if !yes(third.Renewed) || third.Token <= second.Token {
		t.Errorf("the owner's own renewal: %+v", third)
	}
	for _, owner := range []string{`,"owner":"b"`, ""} {
		if r := lock(b, `{"op":"renew","name":"l","token":%d,"ttlSeconds":30%s}`, first.Token, owner); yes(r.Renewed) || r.Reason != "lost" || holder(r) != "a" {
			t.Errorf("%s: %+v", owner, r)
		}
	}
	now := lock(b, `{"op":"get","name":"l"}`)
	before, after := got.Holders[0], now.Holders[0]
	if !yes(now.Held) || before.Since != after.Since || before.RenewedAt >= after.RenewedAt || before.ExpiresAt >= after.ExpiresAt || after.Token != third.Token || holder(now) != "a" {
		t.Errorf("%+v, then %+v", before, after)
	}
	short := lock(b, `{"op":"acquire","name":"s","ttlSeconds":1,"owner":"a"}`)
	time.Sleep(1100 * time.Millisecond)
	if r := lock(b, `{"op":"renew","name":"s","token":%d,"ttlSeconds":30,"owner":"a"}`, short.Token); yes(r.Renewed) || r.Reason != "lost" || len(r.Holders) != 0 {
		t.Errorf("renewed what had expired: %+v", r)
	}
}

// A guard holds as long as the permit, through every renewal, and not longer.
func TestLock_L5L6_Guards(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	a, b := f.Brokers[0], f.Brokers[1]
	guarded := func(on *Broker, guard json.RawMessage, n int) kvLoss {
		var loss kvLoss
		on.MustInto(&loss, 200, "POST", "/api/v1/kv", fmt.Sprintf(`[%s,{"op":"put","ns":"n","key":"k","value":%d,"forever":true}]`, guard, n))
		return loss
	}
	old := lock(a, `{"op":"acquire","name":"l","ttlSeconds":1,"owner":"a"}`)
	if loss := guarded(b, old.Guard, 1); loss.Reason != "" {
		t.Fatalf("%+v", loss)
	}
	time.Sleep(1100 * time.Millisecond)
	if loss := guarded(b, old.Guard, 2); loss.KVReason != "absent" {
		t.Errorf("after the end: %+v", loss)
	}
	taken := lock(b, `{"op":"acquire","name":"l","ttlSeconds":30,"owner":"b"}`)
	if !yes(taken.Acquired) || taken.Token <= old.Token {
		t.Fatalf("%+v", taken)
	}
	if loss := guarded(a, old.Guard, 3); loss.KVReason != "version" || string(loss.Value) != `{"owner":"b"}` || loss.Version != taken.Token {
		t.Errorf("after the takeover: %+v", loss)
	}
	wantKV(t, a.KV1(`{"op":"get","ns":"n","key":"k"}`), "1")

	// One handle renews and commits; the token is read at the commit.
	var mu sync.Mutex
	current, stop := taken, make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			mu.Lock()
			current = lock(a, `{"op":"renew","name":"l","token":%d,"ttlSeconds":30,"owner":"b"}`, current.Token)
			if !yes(current.Renewed) {
				t.Errorf("%+v", current)
			}
			mu.Unlock()
		}
	})
	for i := range 100 {
		mu.Lock()
		guard := current.Guard
		mu.Unlock()
		loss := guarded(b, guard, i)
		if loss.Reason != "" { // renewed in between: the holder is told its own name
			if string(loss.Value) == "" || !strings.Contains(string(loss.Value), `"owner":"b"`) {
				t.Fatalf("commit %d: %+v", i, loss)
			}
			mu.Lock()
			loss = guarded(b, current.Guard, i)
			mu.Unlock()
		}
		if loss.Reason != "" {
			t.Fatalf("commit %d: %+v", i, loss)
		}
	}
	close(stop)
	renewing.Wait()
}

func TestLock_L7_Semaphore(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	var holding [3]atomic.Int32
	var most, now, got atomic.Int32
	rush(f, 12, func(b *Broker, i int) {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			r := lock(b, `{"op":"acquire","name":"pool","ttlSeconds":60,"limit":3,"owner":"w%d"}`, i)
			if !yes(r.Acquired) {
				if r.Reason != "held" && r.Reason != "contended" {
					t.Errorf("%+v", r)
				}
				continue
			}
			if n := holding[*r.Slot].Add(1); n != 1 {
				t.Errorf("slot %d has %d holders", *r.Slot, n)
			}
			most.Store(max(most.Load(), now.Add(1)))
			if again := lock(b, `{"op":"acquire","name":"pool","ttlSeconds":60,"limit":3,"owner":"w%d"}`, i); !yes(again.Already) || again.Token != r.Token {
				t.Errorf("%+v", again)
			}
			time.Sleep(30 * time.Millisecond)
			holding[*r.Slot].Add(-1)
			now.Add(-1)
			if rel := lock(b, `{"op":"release","name":"pool","token":%d,"slot":%d}`, r.Token, *r.Slot); !yes(rel.Released) {
				t.Errorf("%+v", rel)
			}
			got.Add(1)
			return
		}
	})
	if got.Load() != 12 || most.Load() > 3 {
		t.Errorf("%d of 12 got a permit, up to %d at once", got.Load(), most.Load())
	}
	t.Logf("up to %d at once", most.Load())
}

func TestLock_L9_ListsHolders(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: append([]string{"QUEEN_KV_MAX_OPS_PER_CALL=1024"}, fast...)}).One()
	if raw := b.Must(200, "POST", "/api/v1/locks", `[{"op":"get","name":"none"}]`); string(raw) != `{"results":[{"index":0,"op":"get","name":"none","held":false,"holders":[]}]}` {
		t.Errorf("%s", raw)
	}
	ops := make([]string, 0, 1030)
	for slot := range 1024 {
		ops = append(ops, fmt.Sprintf(`{"op":"put","ns":"queen-locks","key":"n#%d","value":{"owner":"o%d"},"ttlSeconds":60}`, slot, slot))
	}
	for _, odd := range []string{"n#07", "n#x", "n#1024", "n#-1", "n#", "nn#1"} {
		ops = append(ops, fmt.Sprintf(`{"op":"put","ns":"queen-locks","key":%q,"value":1,"ttlSeconds":60}`, odd))
	}
	b.KV(ops[:1000]...)
	b.KV(ops[1000:]...)
	r := lock(b, `{"op":"get","name":"n"}`)
	if len(r.Holders) != 1024 {
		t.Fatalf("%d holders", len(r.Holders))
	}
	for i, h := range r.Holders {
		if h.Slot != i || h.Owner == nil || *h.Owner != fmt.Sprintf("o%d", i) {
			t.Fatalf("holder %d: %+v", i, h)
		}
	}
	// By hand, and not as a lock would write it.
	b.KV1(`{"op":"put","ns":"queen-locks","key":"hand#0","value":[1],"forever":true}`)
	if r := lock(b, `{"op":"acquire","name":"hand","ttlSeconds":5,"owner":"x"}`); yes(r.Acquired) || len(r.Holders) != 1 || r.Holders[0].Owner != nil {
		t.Errorf("%+v", r)
	}
}

func TestLock_L10_Refusals(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: fast}).One()
	many := make([]string, 65)
	gets := make([]string, 5)
	for i := range many {
		many[i] = fmt.Sprintf(`{"op":"release","name":"l%d","token":1}`, i)
	}
	for i := range gets {
		gets[i] = fmt.Sprintf(`{"op":"get","name":"l%d"}`, i)
	}
	for body, want := range map[string]string{
		`7`: "locks_bad_body", `{}`: "locks_bad_body", `[7]`: "locks_bad_request",
		`[{"op":"steal","name":"l"}]`:                                     "locks_unknown_op",
		`[{"op":"get","name":"l","tenantId":"x"}]`:                        "locks_tenant_not_an_input",
		`[{"op":"get"}]`:                                                  "locks_bad_name",
		`[{"op":"get","name":"a#b"}]`:                                     "locks_bad_name",
		`[{"op":"get","name":"a\nb"}]`:                                    "locks_bad_name",
		`[{"op":"get","name":"` + strings.Repeat("n", 257) + `"}]`:        "locks_bad_name",
		`[{"op":"acquire","name":"l"}]`:                                   "locks_ttl_required",
		`[{"op":"acquire","ttlSeconds":30,"forever":true}]`:               "locks_ttl_required",
		`[{"op":"acquire","name":"l","ttlSeconds":0}]`:                    "locks_bad_ttl",
		`[{"op":"acquire","name":"l","ttlSeconds":1.5}]`:                  "locks_bad_ttl",
		`[{"op":"acquire","name":"l","ttlSeconds":1,"owner":""}]`:         "locks_bad_owner",
		`[{"op":"acquire","name":"l","ttlSeconds":1,"owner":"\u0007"}]`:   "locks_bad_owner",
		`[{"op":"acquire","name":"l","ttlSeconds":1,"limit":0}]`:          "locks_bad_limit",
		`[{"op":"acquire","name":"l","ttlSeconds":1,"limit":1025}]`:       "locks_bad_limit",
		`[{"op":"release","name":"l"}]`:                                   "locks_token_required",
		`[{"op":"renew","name":"l","ttlSeconds":1}]`:                      "locks_token_required",
		`[{"op":"release","name":"l","token":0}]`:                         "locks_bad_token",
		`[{"op":"release","name":"l","token":"1"}]`:                       "locks_bad_token",
		`[{"op":"release","name":"l","token":1,"slot":1024}]`:             "locks_bad_slot",
		`[{"op":"release","name":"l","token":1,"slot":-1}]`:               "locks_bad_slot",
		`[{"op":"get","name":"l"},{"op":"release","name":"l","token":1}]`: "locks_duplicate_in_call",
		"[" + strings.Join(many, ",") + "]":                               "locks_too_many_ops",
		"[" + strings.Join(gets, ",") + "]":                               "locks_too_many_keys",
	} {
		if e := b.KVRefused(400, "POST", "/api/v1/locks", body); e.Error != "locks_bad_request" || e.Reason != want {
			t.Errorf("%.80s: %+v, want %s", body, e, want)
		}
	}
	b.Must(200, "POST", "/api/v1/locks", "["+strings.Join(many[:64], ",")+"]")
	b.Must(200, "POST", "/api/v1/locks", `[]`)
	b.Must(200, "POST", "/api/v1/locks", "["+strings.Join(gets[:4], ",")+"]")
}

func TestLock_L11_DeletedByHand(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	held := lock(b, `{"op":"acquire","name":"l","ttlSeconds":60,"owner":"a"}`)
	b.Must(200, "DELETE", "/api/v1/kv/queen-locks/l%230", nil)
	if r := lock(b, `{"op":"renew","name":"l","token":%d,"ttlSeconds":60,"owner":"a"}`, held.Token); yes(r.Renewed) || r.Reason != "lost" || len(r.Holders) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestLock_L12_TokensRise(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2, Env: fast})
	first := lock(f.One(), `{"op":"acquire","name":"l","ttlSeconds":1,"owner":"x"}`)
	time.Sleep(1100 * time.Millisecond)
	// last is written by whoever holds the lock, so it is in the lock's order.
	last := first.Token
	var holders, inside atomic.Int32
	rush(f, 20, func(b *Broker, i int) {
		for range 3 {
			for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Error("never got the lock")
					return
				}
				r := lock(b, `{"op":"acquire","name":"l","ttlSeconds":60,"owner":"w%d"}`, i)
				if !yes(r.Acquired) {
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				if r.Token <= last {
					t.Errorf("token %d after %d", r.Token, last)
				}
				last = r.Token
				holders.Add(1)
				inside.Add(-1)
				lock(b, `{"op":"release","name":"l","token":%d}`, r.Token)
				break
			}
		}
	})
	if holders.Load() != 60 {
		t.Errorf("%d times held, want 60", holders.Load())
	}
}
