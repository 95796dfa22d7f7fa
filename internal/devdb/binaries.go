package devdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MinVersion is the oldest PostgreSQL major version the schema works on.
const MinVersion = 15

// ErrNoPostgres says that no usable PostgreSQL was found and none could be
// fetched. Its text names every way out.
var ErrNoPostgres = errors.New("no PostgreSQL " + strconv.Itoa(MinVersion) + " or newer found: " +
	"install PostgreSQL, or set QUEEN_PG_BIN to the folder that holds initdb and postgres, " +
	"or set DATABASE_URL to a server that is already running")

// binaries is one installation: the folder and what it says it is.
type binaries struct {
	dir   string
	major int
}

func (b binaries) path(name string) string { return filepath.Join(b.dir, name) }

// findBinaries picks an installation. A data folder that exists already can
// only be opened by the major version that made it, so wantMajor (0 = any)
// outranks the order of the search.
func findBinaries(ctx context.Context, acct *account, wantMajor int, log *slog.Logger) (binaries, error) {
	if dir := os.Getenv("QUEEN_PG_BIN"); dir != "" {
		b, err := inspect(ctx, dir)
		switch {
		case err != nil:
			return binaries{}, fmt.Errorf("QUEEN_PG_BIN=%s: %w", dir, err)
		case b.major < MinVersion:
			return binaries{}, fmt.Errorf("QUEEN_PG_BIN=%s: PostgreSQL %d is older than %d", dir, b.major, MinVersion)
		case wantMajor != 0 && b.major != wantMajor:
			return binaries{}, &VersionError{Data: wantMajor, Server: b.major}
		}
		return b, nil
	}
	var other int
	for _, dir := range candidateDirs() {
		b, err := inspect(ctx, dir)
		if err != nil || b.major < MinVersion || !acct.canReach(dir) {
			continue
		}
		if wantMajor == 0 || b.major == wantMajor {
			return b, nil
		}
		other = b.major
	}
	if wantMajor != 0 && wantMajor != pinnedMajor {
		return binaries{}, &VersionError{Data: wantMajor, Server: other}
	}
	dir, err := fetchPinned(ctx, acct, log)
	if err != nil {
		return binaries{}, fmt.Errorf("%w (download: %w)", ErrNoPostgres, err)
	}
	return inspect(ctx, dir)
}

// VersionError says that a data folder belongs to another major version than
// the binaries at hand. PostgreSQL would refuse too, in a log nobody reads.
type VersionError struct {
	Data   int // version that made the folder
	Server int // version found, 0 when none was
}

func (e *VersionError) Error() string {
	found := "none was found"
	if e.Server != 0 {
		found = fmt.Sprintf("only %d was found", e.Server)
	}
	return fmt.Sprintf("data folder was made by PostgreSQL %d and %s: install version %d, "+
		"set QUEEN_PG_BIN, or choose another data folder", e.Data, found, e.Data)
}

// candidateDirs lists folders in order of preference: what the user put on
// PATH first, then the places package managers use, newest version first.
func candidateDirs() []string {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		p := filepath.Join(dir, "postgres")
		// Packagers link single programs into PATH; their siblings live
		// beside the target, not beside the link.
		if real, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(pattern) // the only error is a bad pattern
		slices.SortFunc(found, func(a, b string) int { return versionIn(b) - versionIn(a) })
		dirs = append(dirs, found...)
	}
	return slices.Compact(dirs)
}

var digits = regexp.MustCompile(`\d+`)

func versionIn(path string) int {
	n, _ := strconv.Atoi(digits.FindString(path))
	return n
}

// inspect runs `postgres --version`, which works for root too.
func inspect(ctx context.Context, dir string) (binaries, error) {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return binaries{}, fmt.Errorf("find %s: %w", name, err)
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return binaries{}, fmt.Errorf("ask postgres for its version: %w", err)
	}
	_, version, _ := strings.Cut(string(out), ") ")
	major, err := strconv.Atoi(digits.FindString(version))
	if err != nil {
		return binaries{}, fmt.Errorf("read version from %q: %w", strings.TrimSpace(string(out)), err)
	}
	return binaries{dir: dir, major: major}, nil
}
