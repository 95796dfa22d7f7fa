package queries

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text   string
		want   string
		params []string
	}{
		{"SELECT 1;", "SELECT 1", nil},
		{"SELECT @b::int, @a, @b;", "SELECT $1::int, $2, $1", []string{"b", "a"}},
		{"SELECT sqlc.arg(x), sqlc.narg('y')::text, @x;", "SELECT $1, $2::text, $1", []string{"x", "y"}},
		{
			"-- @no; not this\nSELECT '@no;' || \"@no\" || 'it''s @no', @yes -- @no\n;",
			`SELECT '@no;' || "@no" || 'it''s @no', $1`,
			[]string{"yes"},
		},
		{`SELECT $re$it's @no;$re$, $$@no; "$$, @yes, '$';`, `SELECT $re$it's @no;$re$, $$@no; "$$, $1, '$'`, []string{"yes"}},
		{"SELECT a @> b, a <@ b, c @@ d, - @n;", "SELECT a @> b, a <@ b, c @@ d, - $1", []string{"n"}},
	} {
		s, err := parse("Q", c.text)
		if err != nil || s.SQL != c.want || !slices.Equal(s.Params, c.params) {
			t.Errorf("%q\n got %q %v %v\nwant %q %v", c.text, s.SQL, s.Params, err, c.want, c.params)
		}
	}
	if _, err := parse("Q", "SELECT 1"); err == nil {
		t.Error("query without an end accepted")
	}
}

func TestParseAllRefusesAName(t *testing.T) {
	t.Parallel()
	twice := fstest.MapFS{
		"a.sql": {Data: []byte("-- a file\n\n-- name: One :exec\nSELECT 1;\n\n-- name: Two :many\nSELECT 2;\n")},
		"b.sql": {Data: []byte("-- name: Two :one\nSELECT 3;\n")},
	}
	if _, err := parseAll(twice); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a name defined twice: %v", err)
	}
	delete(twice, "b.sql")
	all, err := parseAll(twice)
	if err != nil || len(all) != 2 || all["One"].SQL != "SELECT 1" {
		t.Errorf("%v %v", all, err)
	}
}

func TestEveryQueryIsReadable(t *testing.T) {
	t.Parallel()
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no query found")
	}
	for name, s := range all {
		if s.SQL == "" || strings.ContainsAny(s.SQL, "@;") {
			t.Errorf("%s: %q", name, s.SQL)
		}
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	s := Statement{Name: "Q", Params: []string{"b", "a"}}
	got, err := s.Args(map[string]any{"a": 1, "b": 2})
	if err != nil || !slices.Equal(got, []any{2, 1}) {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []map[string]any{{"a": 1}, {"a": 1, "b": 2, "c": 3}} {
		if _, err := s.Args(bad); !errors.Is(err, ErrArguments) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := Text("NoSuchQuery"); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown query: %v", err)
	}
}
