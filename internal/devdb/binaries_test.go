package devdb

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// installation makes a folder that looks like PostgreSQL of some version.
func installation(t *testing.T, version string) string {
	t.Helper()
	dir := tempDir(t)
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s'\n", version)
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestInspectReadsTheVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]int{
		"15.14 (Debian 15.14-0+deb12u1)": 15,
		"17.11":                          17,
		"18beta2":                        18,
		"9.6.24":                         9,
	} {
		b, err := inspect(t.Context(), installation(t, version))
		if err != nil || b.major != want {
			t.Errorf("%s: major %d, error %v; want %d", version, b.major, err, want)
		}
	}
	if _, err := inspect(t.Context(), t.TempDir()); err == nil {
		t.Error("an empty folder passed as an installation")
	}
}

func TestExplicitFolderIsTheOnlyOne(t *testing.T) { //nolint:paralleltest // sets the environment
	for name, tc := range map[string]struct {
		version string
		want    int
		text    string // of the error; empty means success
	}{
		"fits":       {"17.1", 0, ""},
		"same":       {"16.2", 16, ""},
		"too old":    {"14.9", 0, "older than 15"},
		"not data's": {"17.1", 16, "made by PostgreSQL 16"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("QUEEN_PG_BIN", installation(t, tc.version))
			_, err := findBinaries(t.Context(), nil, tc.want, discard())
			switch {
			case tc.text == "" && err != nil:
				t.Error(err)
			case tc.text != "" && (err == nil || !strings.Contains(err.Error(), tc.text)):
				t.Errorf("error %v, want one with %q", err, tc.text)
			}
		})
	}
	t.Setenv("QUEEN_PG_BIN", "/nowhere")
	if _, err := findBinaries(t.Context(), nil, 0, discard()); err == nil || !strings.Contains(err.Error(), "QUEEN_PG_BIN") {
		t.Errorf("error %v, want one that names QUEEN_PG_BIN", err)
	}
}

func TestPathComesFirstAndOldVersionsAreSkipped(t *testing.T) { //nolint:paralleltest // sets the environment
	old, good := installation(t, "13.4"), installation(t, "99.1")
	t.Setenv("PATH", strings.Join([]string{old, good, os.Getenv("PATH")}, ":"))
	b, err := findBinaries(t.Context(), nil, 0, discard())
	if err != nil || b.dir != good {
		t.Errorf("found %+v, error %v; want %s", b, err, good)
	}
	b, err = findBinaries(t.Context(), nil, 99, discard())
	if err != nil || b.dir != good {
		t.Errorf("found %+v, error %v; want the data's version in %s", b, err, good)
	}
}

func TestNoPostgresNamesEveryWayOut(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"install PostgreSQL", "QUEEN_PG_BIN", "DATABASE_URL"} {
		if !strings.Contains(ErrNoPostgres.Error(), way) {
			t.Errorf("%q does not mention %q", ErrNoPostgres, way)
		}
	}
}

func TestAccountSeesClosedFolders(t *testing.T) {
	t.Parallel()
	open := tempDir(t)
	closed := filepath.Join(open, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := &account{name: "stranger", uid: 4242424, gid: 4242424}
	if !stranger.canReach(open) || !stranger.canReach(filepath.Join(open, "new", "er")) {
		t.Error("open folders count as closed")
	}
	if stranger.canReach(closed) || stranger.canReach(filepath.Join(closed, "below")) {
		t.Error("closed folders count as open")
	}
	owner := &account{name: "owner", uid: uint32(os.Getuid()), gid: uint32(os.Getgid())}
	if !owner.canReach(closed) {
		t.Error("the owner may not enter its own folder")
	}
	got, err := firstReachable(stranger, "x", "", closed, open)
	if err != nil || got != filepath.Join(open, "x") {
		t.Errorf("first reachable %q, error %v", got, err)
	}
	if _, err := firstReachable(stranger, "x", closed); err == nil {
		t.Error("a closed folder was accepted")
	}
}
