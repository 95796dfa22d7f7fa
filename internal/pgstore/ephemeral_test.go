package pgstore

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func wantDeclaration(t *testing.T, s *Store, tenant mq.UUID, queue string, want *mq.EphemeralDeclaration) {
	t.Helper()
	got, err := s.EphemeralDeclaration(t.Context(), tenant, queue)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, %v, want %+v", queue, got, err, want)
	}
}

// TestEphemeral_E22_PutReplaces: what is not sent again is not there again.
func TestEphemeral_E22_PutReplaces(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	tenant, other := mq.DefaultTenant, mq.UUID{15: 7}
	wantDeclaration(t, s, tenant, "rides", nil)
	drop := mq.EphemeralDropOldest
	full := mq.EphemeralOptions{
		MaxBytes: new(int64(1)), MaxLength: new(int64(1 << 40)), Policy: &drop, TTLSeconds: new(int64(0)), LeaseSeconds: new(int64(4)),
		RetryLimit: new(int64(0)), Window: &mq.EphemeralWindow{MS: new(int64(6)), Count: new(int64(7))},
	}
	versions := []int64{}
	for _, o := range []mq.EphemeralOptions{
		full, {}, {Window: &mq.EphemeralWindow{}}, {Window: &mq.EphemeralWindow{Count: new(int64(2))}}, {MaxLength: new(int64(3))},
	} {
		v, err := s.PutEphemeral(t.Context(), tenant, "rides", o)
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, v)
		wantDeclaration(t, s, tenant, "rides", &mq.EphemeralDeclaration{Tenant: tenant, Queue: "rides", Version: v, Options: o})
	}
	if !slices.IsSorted(versions) || versions[0] == versions[1] {
		t.Errorf("versions %v do not rise", versions)
	}
	wantDeclaration(t, s, other, "rides", nil)
}

func TestEphemeral_DeleteDrawsAVersion(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	ctx, tenant := t.Context(), mq.DefaultTenant
	put, err := s.PutEphemeral(ctx, tenant, "a/b", mq.EphemeralOptions{})
	if err != nil {
		t.Fatal(err)
	}
	last := put
	for _, want := range []bool{true, false} {
		v, existed, err := s.DeleteEphemeral(ctx, tenant, "a/b")
		if err != nil || existed != want || v <= last {
			t.Errorf("deleted %v, %v at version %d after %d, want %v", existed, err, v, last, want)
		}
		last = v
	}
	wantDeclaration(t, s, tenant, "a/b", nil)
}

func TestEphemeral_Settings(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	ctx := t.Context()
	empty, err := s.EphemeralSettings(ctx)
	if err != nil || !reflect.DeepEqual(empty, mq.EphemeralSettings{Enabled: true}) {
		t.Fatalf("nothing stored: %+v, %v", empty, err)
	}
	one, two := mq.UUID{15: 1}, mq.UUID{15: 2}
	var want mq.EphemeralSettings
	for _, at := range []struct {
		tenant mq.UUID
		queue  string
	}{{one, "q"}, {two, "q"}, {two, "r"}} {
		o := mq.EphemeralOptions{TTLSeconds: new(int64(20))}
		v, err := s.PutEphemeral(ctx, at.tenant, at.queue, o)
		if err != nil {
			t.Fatal(err)
		}
		want.Declarations = append(want.Declarations, mq.EphemeralDeclaration{Tenant: at.tenant, Queue: at.queue, Version: v, Options: o})
	}
	if _, err := s.cold.Exec(ctx, `INSERT INTO queen.ephemeral_grants (tenant, enabled, max_bytes, max_queues, messages_per_second)
		VALUES ($1, false, NULL, NULL, NULL), ($2, true, 1, 2, 2.5)`, [16]byte(one), [16]byte(two)); err != nil {
		t.Fatal(err)
	}
	want.Grants = []mq.EphemeralGrant{
		{Tenant: one},
		{Tenant: two, Enabled: true, MaxBytes: new(int64(1)), MaxQueues: new(int64(2)), MessagesPerSecond: new(2.5)},
	}
	for _, on := range []bool{false, true} {
		if err := s.SetEphemeralEnabled(ctx, on); err != nil {
			t.Fatal(err)
		}
		want.Enabled = on
		got, err := s.EphemeralSettings(ctx)
		slices.SortFunc(got.Declarations, func(a, b mq.EphemeralDeclaration) int {
			return strings.Compare(a.Tenant.String()+a.Queue, b.Tenant.String()+b.Queue)
		})
		slices.SortFunc(got.Grants, func(a, b mq.EphemeralGrant) int { return strings.Compare(a.Tenant.String(), b.Tenant.String()) })
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	}
	// The other switches live in the same table, and are left alone.
	if sw, err := s.ReadSwitches(ctx); err != nil || sw != mq.AllOn {
		t.Errorf("switches %+v, %v", sw, err)
	}
}

// TestEphemeral_VersionsRiseWithCommits: whoever comes last has the highest
// version, however many come at once. A number drawn before the lock would not.
func TestEphemeral_VersionsRiseWithCommits(t *testing.T) {
	t.Parallel()
	s := openKV(t)
	ctx := t.Context()
	var mu sync.Mutex
	highest, highestLength := int64(0), int64(0)
	var wg sync.WaitGroup
	for n := range int64(8) {
		wg.Go(func() {
			for i := range int64(25) {
				length := n*100 + i
				v, err := s.PutEphemeral(ctx, mq.DefaultTenant, "busy", mq.EphemeralOptions{MaxLength: &length})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if v > highest {
					highest, highestLength = v, length
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	wantDeclaration(t, s, mq.DefaultTenant, "busy", &mq.EphemeralDeclaration{
		Tenant: mq.DefaultTenant, Queue: "busy", Version: highest, Options: mq.EphemeralOptions{MaxLength: &highestLength},
	})
}
