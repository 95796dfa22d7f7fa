package inspect

import (
	"context"
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

func find(t *testing.T, findings []Finding, subject string) Finding {
	t.Helper()
	for _, f := range findings {
		if f.Subject == subject {
			return f
		}
	}
	t.Fatalf("no finding about %s in %+v", subject, findings)
	return Finding{}
}

func TestRealServer(t *testing.T) {
	t.Parallel()
	findings := Run(t.Context(), pgtest.New(t).Pool(t), 24)
	for subject, want := range map[string]Level{
		"version": OK, "autovacuum": OK, "transactions": OK, "connections": OK, "role": OK,
		"old snapshots": OK, "idle transactions": OK, "schema": OK,
	} {
		if f := find(t, findings, subject); f.Level != want {
			t.Errorf("%+v, want %s", f, want)
		}
	}
	if f := find(t, Run(t.Context(), pgtest.New(t).Pool(t), 100000), "connections"); f.Level != Fail {
		t.Errorf("%+v for a pool no server can hold", f)
	}
}

func TestEmptyDatabase(t *testing.T) {
	t.Parallel()
	f := find(t, Run(t.Context(), pgtest.NewEmpty(t).Pool(t), 24), "schema")
	if f.Level != Fail || !strings.Contains(f.Detail, "queen migrate up") {
		t.Errorf("%+v, want a failure that says what to do", f)
	}
}

func TestReadOnlyDefault(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := db.Pool(t)
	if _, err := pool.Exec(t.Context(), "ALTER DATABASE "+db.Name+" SET default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	if f := find(t, Run(t.Context(), pool, 24), "transactions"); f.Level != Fail {
		t.Errorf("%+v, want a failure", f)
	}
}

func TestSettingsThatHurt(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"server_version_num": "150000", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		"autovacuum": "on", "track_counts": "on", "default_transaction_isolation": "read committed",
	}
	for _, tc := range []struct {
		name, value string
		check       func(map[string]string) Finding
		want        Level
	}{
		{"server_version_num", "149999", version, Fail},
		{"fsync", "off", durability, Warn},
		{"synchronous_commit", "off", durability, Warn},
		{"synchronous_commit", "local", durability, OK},
		{"full_page_writes", "off", durability, Warn},
		{"autovacuum", "off", autovacuum, Warn},
		{"track_counts", "off", autovacuum, Warn},
		{"default_transaction_isolation", "serializable", isolation, Warn},
		{"default_transaction_read_only", "on", isolation, Fail},
	} {
		if f := tc.check(good); f.Level != OK {
			t.Errorf("good settings: %+v", f)
		}
		bad := map[string]string{}
		for k, v := range good {
			bad[k] = v
		}
		bad[tc.name] = tc.value
		if f := tc.check(bad); f.Level != tc.want {
			t.Errorf("%s=%s: %+v, want %s", tc.name, tc.value, f, tc.want)
		}
	}
}

func TestServerAway(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t).Pool(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	findings := Run(ctx, pool, 24)
	if len(findings) != 1 || findings[0].Level != Fail {
		t.Errorf("%+v, want one failure", findings)
	}
}
