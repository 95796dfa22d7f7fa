package migrations

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

// Steps run beneath brokers at work. One that waits for the lock of a table
// holds up everybody who comes after it, so it gives way after a moment
// (`queen migrate` tries it again); an index is built beside the work.
func TestStepsDoNotHoldUpBrokers(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		raw, err := fs.ReadFile(FS, name)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(raw), "-- +goose Down")
		if fault := heldUp(up); fault != "" {
			t.Errorf("%s: %s", name, fault)
		}
	}
	for step, bad := range map[string]bool{
		"ALTER TABLE queen.cursors ADD COLUMN note text;":                                     true,
		"SET LOCAL lock_timeout = '50ms';\nALTER TABLE queen.cursors ADD COLUMN note text;":   false,
		"CREATE INDEX a_idx ON queen.cursors (note);":                                         true,
		"-- +goose NO TRANSACTION\nCREATE INDEX CONCURRENTLY a_idx ON queen.cursors (note);":  false,
		"CREATE INDEX CONCURRENTLY a_idx ON queen.cursors (note);":                            true,
		"CREATE TABLE queen.new (id int);\nCREATE INDEX a_idx ON queen.new (id);":             false,
		"CREATE TABLE queen.new (id int);\nALTER TABLE queen.new ADD PRIMARY KEY (id);":       false,
		"SET LOCAL lock_timeout = '50ms';\nALTER TABLE queen.kv ALTER value SET NOT NULL;":    false,
		"-- +goose NO TRANSACTION\nSET LOCAL lock_timeout = '50ms';\nALTER TABLE queen.kv a;": true,
	} {
		if fault := heldUp(step); (fault != "") != bad {
			t.Errorf("%s\nfault %q, want one: %v", step, fault, bad)
		}
	}
}

var (
	created  = regexp.MustCompile(`(?i)CREATE TABLE queen\.(\w+)`)
	altered  = regexp.MustCompile(`(?im)^\s*ALTER TABLE (?:ONLY )?queen\.(\w+)`)
	indexed  = regexp.MustCompile(`(?im)^\s*CREATE (?:UNIQUE )?INDEX (CONCURRENTLY )?(?:IF NOT EXISTS )?\w+\s+ON (?:ONLY )?queen\.(\w+)`)
	outside  = regexp.MustCompile(`(?im)^-- \+goose NO TRANSACTION`)
	givesWay = regexp.MustCompile(`(?im)^\s*SET LOCAL lock_timeout = '\d+ms'`)
)

// heldUp says what is wrong with the statements of a step, if anything.
func heldUp(up string) string {
	own := map[string]bool{}
	for _, m := range created.FindAllStringSubmatch(up, -1) {
		own[m[1]] = true
	}
	alone := outside.MatchString(up)
	for _, m := range altered.FindAllStringSubmatch(up, -1) {
		if !own[m[1]] && (alone || !givesWay.MatchString(up)) {
			return "alters " + m[1] + " in a transaction without SET LOCAL lock_timeout, or in none"
		}
	}
	for _, m := range indexed.FindAllStringSubmatch(up, -1) {
		if concurrently := m[1] != ""; !own[m[2]] && (!concurrently || !alone) {
			return "builds an index on " + m[2] + " other than CONCURRENTLY in a step of its own"
		}
	}
	return ""
}
