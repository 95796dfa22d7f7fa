package httpapi

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// query reads parameters one by one and keeps the first error, so a handler
// reads them all and checks once. Parameters nobody asks for are ignored.
type query struct {
	values url.Values
	err    error
}

func parseQuery(r *http.Request) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.err = badRequest("", "the query string is malformed")
	}
	return q
}

func (q *query) fail(name, want string) {
	if q.err == nil {
		q.err = badRequest(name, "%s must be %s", name, want)
	}
}

func (q *query) has(name string) bool { return q.values.Has(name) }

// name reads a name or a label; empty means absent.
func (q *query) name(name string) string {
	s := q.values.Get(name)
	if err := mq.CheckName(name, s); err != nil && q.err == nil {
		q.err = err
	}
	return s
}

func (q *query) int32(name string, fallback int) int {
	if !q.has(name) {
		return fallback
	}
	n, err := strconv.ParseInt(q.values.Get(name), 10, 32)
	if err != nil {
		q.fail(name, "an integer")
	}
	return int(n)
}

func (q *query) uint64(name string, fallback uint64) uint64 {
	if !q.has(name) {
		return fallback
	}
	n, err := strconv.ParseUint(q.values.Get(name), 10, 64)
	if err != nil {
		q.fail(name, "an integer that is not negative")
	}
	return n
}

// boolean reads true, false, 1 or 0.
func (q *query) boolean(name string) bool {
	if !q.has(name) {
		return false
	}
	switch q.values.Get(name) {
	case "true", "1":
		return true
	case "false", "0":
	default:
		q.fail(name, "true or false")
	}
	return false
}

// yes reads the wider spellings of the management routes.
func (q *query) yes(name string, fallback bool) bool {
	if !q.has(name) {
		return fallback
	}
	switch strings.ToLower(q.values.Get(name)) {
	case "true", "1", "yes":
		return true
	case "false", "0", "no":
	default:
		q.fail(name, "true or false")
	}
	return false
}

// time reads an instant; empty means absent.
func (q *query) time(name string) time.Time {
	s := q.values.Get(name)
	if s == "" {
		return time.Time{}
	}
	t, ok := parseTime(s)
	if !ok {
		q.fail(name, "a time")
	}
	return t
}

var timeLayouts = func() (all []string) {
	for _, clock := range []string{"T15:04:05", "T15:04", "T15", ""} {
		for _, zone := range []string{"Z07:00", "Z0700", "Z07", ""} {
			all = append(all, "2006-01-02"+clock+zone)
		}
	}
	return all
}()

// parseTime reads the ISO-8601 forms: a date, or a date and a time parted by T
// or a space, with or without a zone. Without one it is UTC.
func parseTime(s string) (time.Time, bool) {
	s = strings.ToUpper(strings.TrimSpace(s))
	if len(s) < len("2006-01-02") || len(s) > 64 {
		return time.Time{}, false
	}
	if len(s) > 10 && s[10] == ' ' {
		s = s[:10] + "T" + s[11:]
	}
	if i := strings.LastIndexByte(s, ' '); i > 10 {
		// A zone set off by a space, or one whose + an unescaped query lost.
		sign := ""
		if c := s[i+1]; c >= '0' && c <= '9' {
			sign = "+"
		}
		s = strings.TrimRight(s[:i], " ") + sign + s[i+1:]
	}
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), inRange(t)
		}
	}
	return time.Time{}, false
}

// inRange bounds instants to what can be written with four digits of a year.
func inRange(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 1 && y <= 9999
}
