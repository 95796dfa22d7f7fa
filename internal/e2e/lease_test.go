package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// extension is the answer of a lease extension.
type extension struct {
	LeaseID   string     `json:"leaseId"`
	Success   bool       `json:"success"`
	Renewed   int        `json:"renewed"`
	New       *time.Time `json:"newExpiresAt"`
	Expires   *time.Time `json:"expiresAt"`
	LeaseEnds *time.Time `json:"lease_expires_at"`
}

func extend(b *Broker, lease, body string) extension {
	b.t.Helper()
	var e extension
	b.MustInto(&e, http.StatusOK, "POST", "/api/v1/lease/"+Seg(lease)+"/extend", body)
	if e.LeaseID != lease || e.Success != (e.Renewed > 0) {
		b.t.Errorf("extend %s: %+v", lease, e)
	}
	for _, at := range []*time.Time{e.New, e.Expires, e.LeaseEnds} {
		if (at == nil) != (e.Renewed == 0) || at != nil && !at.Equal(*e.New) {
			b.t.Errorf("extend %s: times %v %v %v", lease, e.New, e.Expires, e.LeaseEnds)
			break
		}
	}
	return e
}

// lasts wants a renewed lease to end about so long from now.
func lasts(b *Broker, e extension, want time.Duration) {
	b.t.Helper()
	if e.Renewed == 0 {
		b.t.Fatalf("not renewed: %+v", e)
	}
	if left := time.Until(*e.New); left < want-10*time.Second || left > want+time.Second {
		b.t.Errorf("%v left, want %v", left, want)
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	const nothing = `{"leaseId":%q,"success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}`
	eachBehaviour(
		t, f,
		behaviour{"B116_extended_batch_stays_invisible", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "leaseSeconds=1", "m-0")
			answered(b, 200, fmt.Sprintf(`{"leaseId":%q,"success":true,"renewed":1,"newExpiresAt":<time>,"expiresAt":<time>,"lease_expires_at":<time>}`, p.LeaseID),
				"POST", "/api/v1/lease/"+p.LeaseID+"/extend", `{"seconds":30}`)
			deliversNothing(b, q, "wait=true&timeout=1500")
			deliversNothing(f.Brokers[1].In(t), q, "")
			acked(b, "", pick(p, "0"), "ok+released")
		}},
		behaviour{"B117_never_shorter", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "leaseSeconds=300", "m-0")
			lasts(b, extend(b, p.LeaseID, `{"seconds":5}`), 300*time.Second)
		}},
		behaviour{"B118_B123_every_partition_still_leased", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p1", "a", 1)
			b.PushN(q, "p2", "b", 1)
			p := b.Pop(q, "partitions=2")
			if e := extend(b, p.LeaseID, `{"seconds":120}`); e.Renewed != 2 {
				t.Errorf("renewed: %+v", e)
			}
			acked(b, "", pick(p, "0"), "ok+released")
			e := extend(b, p.LeaseID, `{"seconds":240}`)
			if lasts(b, e, 240*time.Second); e.Renewed != 1 {
				t.Errorf("renewed: %+v", e)
			}
			// B121
			acked(b, "", pick(p, "1"), "ok+released")
			answered(b, 200, fmt.Sprintf(nothing, p.LeaseID), "POST", "/api/v1/lease/"+p.LeaseID+"/extend", `{}`)
		}},
		behaviour{"a_lease_over_several_queues", func(t *testing.T, b *Broker, q string) {
			ns := "?namespace=" + Seg(q)
			for i := range 2 {
				name := fmt.Sprintf("%s-%d", q, i)
				b.Must(http.StatusOK, "POST", "/api/v1/configure", map[string]any{"queue": name, "namespace": q, "options": map[string]any{"leaseTime": 60}})
				b.PushN(name, "p", "m", 1)
			}
			p := b.Discover(ns[1:] + "&partitions=2")
			if p.PartitionsClaimed != 2 {
				t.Fatalf("claimed: %s", p.Raw)
			}
			e := extend(f.Brokers[1].In(t), p.LeaseID, `{"seconds":500}`)
			if lasts(b, e, 500*time.Second); e.Renewed != 2 {
				t.Errorf("renewed: %+v", e)
			}
			acked(b, "", pick(p, "0", "1"), "ok+released", "ok+released")
		}},
		behaviour{"B119_unknown", func(_ *testing.T, b *Broker, _ string) {
			for _, lease := range []string{mq.NewID().String(), "nonsense", mq.UUID{}.String(), "a/b"} {
				answered(b, 200, fmt.Sprintf(nothing, lease), "POST", "/api/v1/lease/"+Seg(lease)+"/extend", `{"seconds":60}`)
			}
		}},
		behaviour{"B120_expired", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "leaseSeconds=1", "m-0")
			lapse()
			answered(b, 200, fmt.Sprintf(nothing, p.LeaseID), "POST", "/api/v1/lease/"+p.LeaseID+"/extend", `{"seconds":60}`)
			delivers(b, q, "", "m-0")
		}},
		behaviour{"B122_bodies", func(t *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 1)
			p := delivers(b, q, "leaseSeconds=2", "m-0")
			// Least first: what is extended is never shortened.
			if e := extend(b, p.LeaseID, `{"seconds":-5}`); e.Renewed != 1 || time.Until(*e.New) > 2*time.Second {
				t.Errorf("negative: %+v", e)
			}
			for _, body := range []string{"", "{}", `{"seconds":null}`, "nonsense", `{"seconds":"many"}`, "[]"} {
				lasts(b, extend(b, p.LeaseID, body), 60*time.Second)
			}
			lasts(b, extend(b, p.LeaseID, `{"seconds":600}`), 600*time.Second)
		}},
		behaviour{"extending_keeps_a_partial_batch", func(_ *testing.T, b *Broker, q string) {
			b.PushN(q, "p", "m", 3)
			p := delivers(b, q, "leaseSeconds=1", "m-0", "m-1", "m-2")
			acked(b, "", pick(p, "0"), "ok")
			lasts(b, extend(b, p.LeaseID, `{"seconds":60}`), 60*time.Second)
			lapse()
			acked(b, "", pick(p, "1", "2"), "ok+released", "ok+released")
		}},
	)
}
