//go:build pgdownload

package devdb

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPinnedArchive installs the real archive of this platform and starts a
// server from it. It moves 15 to 60 MB, so it has a build tag of its own: run
// it when the pinned version changes, on each platform that has a checksum.
// QUEEN_TEST_PG_ARCHIVE may name a copy that was fetched before.
func TestPinnedArchive(t *testing.T) {
	f := fetcher{base: artifactBase, sums: pinnedSums, client: http.DefaultClient, log: discard()}
	if path := os.Getenv("QUEEN_TEST_PG_ARCHIVE"); path != "" {
		jar, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		local, _ := serve(t, jar)
		f.base, f.client = local.base, local.client
	}
	bin, err := f.install(t.Context(), platform(), filepath.Join(tempDir(t), pinnedVersion))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("QUEEN_PG_BIN", bin)
	s := start(t, Options{})
	if got := ask(t, s.URL(), "SHOW server_version"); !strings.HasPrefix(got, itoa(pinnedMajor)+".") {
		t.Errorf("server version %s, want %d", got, pinnedMajor)
	}
}
