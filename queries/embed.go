// Package queries holds the SQL of the broker's use cases. The broker itself runs the code sqlc generates from these
// files; this package offers the same statements as text, for programs that run them without the broker, such as
// the floor of the load test.
package queries

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed *.sql
var files embed.FS

// Statement is one named query, its parameters rewritten to $1, $2, …
type Statement struct {
	Name string
	SQL  string
	// Params names the parameters in the order of their numbers, which is the order of their first use in the
	// text. sqlc numbers them in the order its parser visits them, so the two can differ: bind by name.
	Params []string
}

// ErrUnknown is returned for a query that is in no file.
var ErrUnknown = errors.New("unknown query")

// ErrArguments is returned when the arguments are not exactly the parameters.
var ErrArguments = errors.New("arguments do not match parameters")

var load = sync.OnceValues(func() (map[string]Statement, error) { return parseAll(files) })

// Text returns the named query.
func Text(name string) (Statement, error) {
	all, err := load()
	if err != nil {
		return Statement{}, err
	}
	s, ok := all[name]
	if !ok {
		return Statement{}, fmt.Errorf("%w: %s", ErrUnknown, name)
	}
	return s, nil
}

// Args puts arguments into the order of the parameters. Every parameter must be there and nothing else, so that a
// caller notices when a query changes.
func (s Statement) Args(byName map[string]any) ([]any, error) {
	out := make([]any, len(s.Params))
	for i, name := range s.Params {
		v, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("%s: %w: %s is missing", s.Name, ErrArguments, name)
		}
		out[i] = v
	}
	if len(byName) != len(s.Params) {
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			if !slices.Contains(s.Params, name) {
				return nil, fmt.Errorf("%s: %w: %s is not one", s.Name, ErrArguments, name)
			}
		}
	}
	return out, nil
}

func parseAll(from fs.FS) (map[string]Statement, error) {
	names, err := fs.Glob(from, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list queries: %w", err)
	}
	all := make(map[string]Statement)
	for _, file := range names {
		text, err := fs.ReadFile(from, file)
		if err != nil {
			return nil, fmt.Errorf("read queries: %w", err)
		}
		for part := range strings.SplitSeq("\n"+string(text), "\n-- name: ") {
			head, body, found := strings.Cut(part, "\n")
			name, kind, _ := strings.Cut(strings.TrimSpace(head), " ")
			if !found || !strings.HasPrefix(kind, ":") {
				continue // what stands above the first query of a file
			}
			if _, twice := all[name]; twice {
				return nil, fmt.Errorf("%s: query %s is defined twice", file, name)
			}
			s, err := parse(name, body)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			all[name] = s
		}
	}
	return all, nil
}

// parse reads up to the closing semicolon, drops comments and numbers the parameters. Quoted text is left alone.
func parse(name, text string) (Statement, error) {
	s := Statement{Name: name}
	var out strings.Builder
	for i := 0; i < len(text); {
		rest := text[i:]
		switch c := text[i]; {
		case c == ';':
			s.SQL = strings.TrimSpace(out.String())
			return s, nil
		case strings.HasPrefix(rest, "--"):
			i += lineLength(rest)
		case c == '\'' || c == '"':
			n := quotedLength(rest)
			out.WriteString(rest[:n])
			i += n
		case c == '$' && dollarLength(rest) > 0:
			n := dollarLength(rest)
			out.WriteString(rest[:n])
			i += n
		default:
			if param, n := parameter(rest); n > 0 && (i == 0 || !isOperator(text[i-1])) {
				out.WriteByte('$')
				out.WriteString(strconv.Itoa(s.number(param)))
				i += n
				continue
			}
			out.WriteByte(c)
			i++
		}
	}
	return s, fmt.Errorf("query %s has no end", name)
}

func (s *Statement) number(param string) int {
	if i := slices.Index(s.Params, param); i >= 0 {
		return i + 1
	}
	s.Params = append(s.Params, param)
	return len(s.Params)
}

// parameter recognises @name, sqlc.arg(name) and sqlc.narg(name) at the start of the text.
func parameter(text string) (name string, length int) {
	if text[0] == '@' {
		n := nameLength(text[1:])
		if n == 0 {
			return "", 0
		}
		return text[1 : 1+n], 1 + n
	}
	for _, call := range []string{"sqlc.arg(", "sqlc.narg("} {
		if !strings.HasPrefix(text, call) {
			continue
		}
		inside, _, closed := strings.Cut(text[len(call):], ")")
		if closed {
			return strings.Trim(inside, `'" `), len(call) + len(inside) + 1
		}
	}
	return "", 0
}

func nameLength(text string) int {
	n := 0
	for n < len(text) && (text[n] == '_' || text[n] >= 'a' && text[n] <= 'z' || text[n] >= 'A' && text[n] <= 'Z' ||
		n > 0 && text[n] >= '0' && text[n] <= '9') {
		n++
	}
	return n
}

// isOperator: an @ behind one of these is part of an operator such as <@ or @@.
func isOperator(c byte) bool { return strings.IndexByte("@<>=!~#%^&|?*/+-", c) >= 0 }

func lineLength(text string) int {
	if n := strings.IndexByte(text, '\n'); n >= 0 {
		return n
	}
	return len(text)
}

// dollarLength is the length of the dollar-quoted text ($$…$$ or $tag$…$tag$) at the start, 0 when there is none.
func dollarLength(text string) int {
	open := 2 + nameLength(text[1:])
	if open > len(text) || text[open-1] != '$' {
		return 0
	}
	n := strings.Index(text[open:], text[:open])
	if n < 0 {
		return 0
	}
	return open + n + open
}

// quotedLength counts a doubled quote as two quoted texts, which comes to the same length.
func quotedLength(text string) int {
	if n := strings.IndexByte(text[1:], text[0]); n >= 0 {
		return n + 2
	}
	return len(text)
}
