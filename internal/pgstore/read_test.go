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
		tx, err := f.cold.BeginTx(t.Context(), pgx.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }() // with the role
		if masked {
			for _, sql := range []string{
				"SELECT set_config('test.role', 'peep_' || pg_backend_pid(), true)",
				"DO $$ BEGIN EXECUTE format('CREATE ROLE %I', current_setting('test.role')); " +
					"EXECUTE format('GRANT USAGE ON SCHEMA queen TO %I', current_setting('test.role')); " +
					"EXECUTE format('SET LOCAL ROLE %I', current_setting('test.role')); END $$",
			} {
				if _, err := tx.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
		}
		if r, err := db.New(tx).ReadSafeTime(t.Context()); err != nil || r.Masked != masked {
			t.Errorf("%+v, %v, want masked %v", r, err, masked)
		}
	}
}
