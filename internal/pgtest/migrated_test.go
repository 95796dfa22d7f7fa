package pgtest

import (
	"testing"

	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
)

func TestNewHasTheLatestSchema(t *testing.T) {
	t.Parallel()
	for range 3 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			if _, err := migrate.Check(t.Context(), New(t).Pool(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	New(b) // the template is made once
	for b.Loop() {
		New(b)
	}
}
