package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// ephemeralCalls is one good call of each route of the family.
var ephemeralCalls = [][3]string{
	{"POST", ephemeralAt + "/push", `{"queue":"q","messages":[{"payload":1}]}`},
	{"GET", ephemeralAt + "/pop?queue=q", ""},
	{"POST", ephemeralAt + "/ack", `{"queue":"q","acks":[{"id":"x"}]}`},
	{"POST", ephemeralAt + "/configure", `{"queue":"q"}`},
	{"POST", ephemeralAt + "/reset", `{"queue":"q"}`},
	{"DELETE", ephemeralAt + "/queue/q", ""},
	{"GET", ephemeralAt + "/queues", ""},
	{"GET", ephemeralAt + "/queues/q/depth", ""},
	{"GET", "/api/v1/system/ephemeral", ""},
	{"POST", "/api/v1/system/ephemeral", `{"enabled":true}`},
}

// failingEphemeral fails all calls alike.
func failingEphemeral(err error) http.Handler {
	return ephemeralHandler(&fakeEphemeral{
		push:      func(*mq.EphemeralPush) error { return err },
		pop:       func(context.Context, *mq.EphemeralPop) (*mq.EphemeralDelivery, error) { return nil, err },
		ack:       func(*mq.EphemeralAck) ([]mq.EphemeralOutcome, error) { return nil, err },
		configure: func(string, mq.EphemeralOptions) error { return err },
		reset:     func(string) (int64, error) { return 0, err },
		remove:    func(string) (bool, bool, error) { return false, false, err },
		queues:    func() ([]mq.EphemeralQueue, int64, error) { return nil, 0, err },
		depth:     func(string, string) (*mq.EphemeralDepth, error) { return nil, err },
		status:    func() (mq.EphemeralStatus, error) { return mq.EphemeralStatus{}, err },
		enable:    func(bool) error { return err },
	})
}

// TestEphemeral_E28: each refusal has its status and code, and Retry-After
// comes with rate_limited and 503 only.
func TestEphemeral_E28(t *testing.T) {
	t.Parallel()
	of := func(kind mq.Kind, code string) error { return &mq.Error{Kind: kind, Code: code, Message: "m"} }
	for _, c := range []struct {
		err    error
		status int
		code   string
		again  bool
	}{
		{of(mq.KindInvalid, ""), 400, "ephemeral_bad_request", false},
		{of(mq.KindForbidden, mq.CodeEphemeralQuota), 403, "ephemeral_quota_exceeded", false},
		{of(mq.KindForbidden, mq.CodeEphemeralGated), 403, "feature_gated", false},
		{of(mq.KindOverloaded, mq.CodeEphemeralFull), 429, "queue_full", false},
		{of(mq.KindOverloaded, "rate_limited"), 429, "rate_limited", true},
		{of(mq.KindUnavailable, mq.CodeEphemeralUnavailable), 503, "ephemeral_unavailable", true},
		{of(mq.KindUnavailable, mq.CodeEphemeralDisabled), 503, "ephemeral_disabled", true},
		{mq.Unavailable(errors.New("refused")), 503, "ephemeral_unavailable", true},
		{of(mq.KindBusy, mq.CodeRetry), 503, "ephemeral_unavailable", true},
		{of(mq.KindTimeout, mq.CodeTimeout), 503, "ephemeral_unavailable", true},
		{of(mq.KindUnknown, mq.CodeOutcomeUnknown), 503, "ephemeral_unavailable", true},
		{context.DeadlineExceeded, 503, "ephemeral_unavailable", true},
	} {
		for _, call3 := range ephemeralCalls {
			a := call(failingEphemeral(c.err), call3[0], call3[1], call3[2])
			a.wantError(t, c.status, c.code, "")
			if got := a.header.Get("Retry-After") != ""; got != c.again {
				t.Errorf("%s %s: Retry-After %q with %s", call3[0], call3[1], a.header.Get("Retry-After"), a.body)
			}
		}
	}
}

// faultOf is the code of a fault of ours on a route.
func faultOf(method, target string) string {
	switch {
	case strings.HasSuffix(target, "/configure"):
		return "ephemeral_configure_failed"
	case method == http.MethodDelete:
		return "ephemeral_delete_failed"
	}
	return "internal"
}

func TestEphemeral_Faults(t *testing.T) {
	t.Parallel()
	for _, c := range ephemeralCalls {
		a := call(failingEphemeral(errors.New("secret detail")), c[0], c[1], c[2])
		a.wantError(t, 500, faultOf(c[0], c[1]), "")
		if strings.Contains(a.body, "secret") {
			t.Errorf("%s tells too much", a.body)
		}
	}
}

// TestEphemeral_E33: clients take a 404 without the code of depth for a broker
// that is too old, so there is none, come what may.
func TestEphemeral_E33(t *testing.T) {
	t.Parallel()
	without := New(&fakeBroker{}, Options{})
	for _, c := range ephemeralCalls {
		call(failingEphemeral(mq.NotFound("a row")), c[0], c[1], c[2]).wantError(t, 500, faultOf(c[0], c[1]), "")
		a := call(without, c[0], c[1], c[2])
		a.wantError(t, 503, "ephemeral_unavailable", "")
		if a.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", c[1])
		}
	}
	call(failingEphemeral(&mq.Error{Kind: mq.KindNotFound, Code: mq.CodeEphemeralNotFound, Message: "no such queue"}), "GET",
		ephemeralAt+"/queues/q/depth", "").wantError(t, 404, "ephemeral_queue_not_found", "")
	// Both names of the same parameter are understood.
	for _, name := range []string{"autoAck", "commitOnDelivery"} {
		committed := false
		h := ephemeralHandler(&fakeEphemeral{pop: func(_ context.Context, p *mq.EphemeralPop) (*mq.EphemeralDelivery, error) {
			committed = p.AutoCommit
			return &mq.EphemeralDelivery{}, nil
		}})
		if call(h, "GET", ephemeralAt+"/pop?queue=q&"+name+"=true", ""); !committed {
			t.Errorf("%s does nothing", name)
		}
	}
}

func TestEphemeral_TooLarge(t *testing.T) {
	t.Parallel()
	h := New(&fakeBroker{}, Options{Ephemeral: &fakeEphemeral{}, MaxBodyBytes: 64})
	call(h, "POST", ephemeralAt+"/push", `{"queue":"`+strings.Repeat("q", 64)+`"}`).wantError(t, 413, "payload_too_large", "")
}

func TestEphemeral_Views(t *testing.T) {
	t.Parallel()
	h := ephemeralHandler(&fakeEphemeral{
		reset: func(string) (int64, error) { return 12, nil },
		queues: func() ([]mq.EphemeralQueue, int64, error) {
			return []mq.EphemeralQueue{{
				Queue: "rides", Declared: true, Depth: 12, Bytes: 400, Partitions: 2, Groups: 1,
				Drops:  mq.EphemeralDrops{Bounds: 3, Retry: 1},
				Limits: mq.EphemeralLimits{MaxBytes: 16777216, MaxLength: 500, Policy: mq.EphemeralDropOldest, TTLSeconds: 20, LeaseSeconds: 30, RetryLimit: 5},
			}, {Queue: "i", Limits: mq.EphemeralLimits{Policy: mq.EphemeralReject, WindowMS: 1, WindowCount: 2}}}, 401, nil
		},
		depth: func(_, group string) (*mq.EphemeralDepth, error) {
			d := &mq.EphemeralDepth{Declared: true, Pending: 12, Bytes: 400, PartitionsPending: 2}
			if group != "" {
				d.Partitions = []mq.EphemeralPartitionDepth{{Partition: "zone-4", Pending: 9, Bytes: 300}}
				d.Groups = []mq.EphemeralGroupDepth{{Group: group, Pending: 9, Skipped: 4}}
			}
			return d, nil
		},
	})
	call(h, "POST", ephemeralAt+"/reset", `{"queue":"rides"}`).want(t, 200, `{"queue":"rides","dropped":12}`)
	call(h, "POST", ephemeralAt+"/reset", `{}`).wantError(t, 400, "ephemeral_bad_request", "queue")
	call(h, "GET", ephemeralAt+"/queues", "").want(t, 200, `{"queues":[{"queue":"rides","tier":"declared","depth":12,"bytes":400,"partitions":2,"groups":1,`+
		`"drops":{"bounds":3,"ttl":0,"retry":1},"options":{"maxBytes":16777216,"maxLength":500,"policy":"dropOldest","ttlSeconds":20,"leaseSeconds":30,`+
		`"retryLimit":5,"windowBuffer":{"ms":0,"count":0}}},{"queue":"i","tier":"implicit","depth":0,"bytes":0,"partitions":0,"groups":0,`+
		`"drops":{"bounds":0,"ttl":0,"retry":0},"options":{"maxBytes":0,"maxLength":0,"policy":"reject","ttlSeconds":0,"leaseSeconds":0,`+
		`"retryLimit":0,"windowBuffer":{"ms":1,"count":2}}}],"count":2,"cellBytes":401}`)
	call(h, "GET", ephemeralAt+"/queues/rides/depth?group=ui-3", "").want(t, 200, `{"queue":"rides","group":"ui-3","tier":"declared","pending":12,`+
		`"partitionsPending":2,"bytes":400,"partitions":[{"partition":"zone-4","pending":9,"bytes":300}],"groups":[{"group":"ui-3","pending":9,"skipped":4}]}`)
	call(h, "GET", ephemeralAt+"/queues/rides/depth", "").want(t, 200, `{"queue":"rides","group":null,"tier":"declared","pending":12,`+
		`"partitionsPending":2,"bytes":400,"partitions":[],"groups":[]}`)
}

func TestEphemeral_Switch(t *testing.T) {
	t.Parallel()
	on, away := true, false
	h := ephemeralHandler(&fakeEphemeral{
		enable: func(v bool) error { on = v; return nil },
		status: func() (mq.EphemeralStatus, error) {
			if away {
				return mq.EphemeralStatus{}, mq.Unavailable(errors.New("refused"))
			}
			return mq.EphemeralStatus{Enabled: on, Bytes: 400, MaxBytes: 268435456, Queues: 1, Epoch: "7c1f"}, nil
		},
	})
	const at, rest = "/api/v1/system/ephemeral", `,"cellBytes":400,"cellMaxBytes":268435456,"queues":1,"grantedTenants":0,"requireGrant":false,"epoch":"7c1f"}`
	call(h, "GET", at, "").want(t, 200, `{"ephemeralEnabled":true`+rest)
	call(h, "POST", at, `{"enabled":false}`).want(t, 200, `{"ephemeralEnabled":false`+rest)
	call(h, "GET", at, "").want(t, 200, `{"ephemeralEnabled":false`+rest)
	// The switch is no less thrown when the store cannot be looked into.
	away = true
	call(h, "POST", at, `{"enabled":true}`).want(t, 200, `{"ephemeralEnabled":true}`)
	if !on {
		t.Error("still off")
	}
	for _, body := range []string{``, `{}`, `{"enabled":null}`, `{"enabled":1}`, `{"enabled":"false"}`} {
		field := "enabled"
		if body == "" {
			field = ""
		}
		call(h, "POST", at, body).wantError(t, 400, "ephemeral_bad_request", field)
	}
}
