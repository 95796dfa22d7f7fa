package pgstore

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// TestSafeTimeIsMaskedForARoleThatSeesNoOthers reads the safe time as a role that
// may not look into the sessions of others, whose transactions may be open for
// any time.
func TestSafeTimeIsMaskedForARoleThatSeesNoOthers(t *testing.T) {
	t.Parallel()
	f := setup(t, "masked")
	other, err := f.hot.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	for _, masked := range []bool{false, true} {
		if got := f.safeTimeMasked(masked); got != masked {
			t.Errorf("masked %v, want %v", got, masked)
		}
	}
}

// safeTimeMasked reads the safe time in a transaction, as a role of its own when
// restricted, which goes with the transaction.
func (f *fixture) safeTimeMasked(restricted bool) bool {
	f.t.Helper()
	tx, err := f.cold.BeginTx(f.t.Context(), pgx.TxOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if restricted {
		for _, sql := range []string{
			"SELECT set_config('test.role', 'peep_' || pg_backend_pid(), true)",
			"DO $$ BEGIN EXECUTE format('CREATE ROLE %I', current_setting('test.role')); " +
				"EXECUTE format('GRANT USAGE ON SCHEMA queen TO %I', current_setting('test.role')); " +
				"EXECUTE format('SET LOCAL ROLE %I', current_setting('test.role')); END $$",
		} {
			if _, err := tx.Exec(f.t.Context(), sql); err != nil {
				f.t.Fatal(err)
			}
		}
	}
	r, err := db.New(tx).ReadSafeTime(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return r.Masked
}
