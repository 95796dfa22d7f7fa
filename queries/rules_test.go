package queries

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rules that let the schema be spread by queue over a distributed engine,
// and that keep an index usable, hold for every statement.

// tables are those spread by queue.
var tables = []string{"partitions", "segments", "message_ids", "cursors", "consumer_groups", "dead_letters"}

// spread are the statements that do not name one queue_id, and why they may.
// Everything else does, for each table it touches.
var spread = map[string]string{
	"FindQueue":             "finds a queue by its name",
	"FindQueueByID":         "the queue's own row, by id",
	"CreateQueue":           "the queue's own row",
	"UpdateQueue":           "the queue's own row",
	"DeleteQueue":           "the queue's own row",
	"ShareQueue":            "the queue's own row, by id",
	"LockQueue":             "the queue's own row, by id",
	"ListQueues":            "the queues' own rows",
	"ListQueueIDs":          "the queues' own rows",
	"ListRetainingQueues":   "the queues' own rows",
	"SettleIDClasses":       "the queues' own rows",
	"ListDeadLetters":       "browses the dead letters of all queues of a tenant; never part of a hot path",
	"ListDroppedQueues":     "work left by queues that are gone; a small table that is not spread",
	"EnsureIDSlices":        "makes slices for all queues",
	"ListSpentIDSlices":     "slices of all queues",
	"TakeJanitorLease":      "one row a loop, not spread",
	"DropJanitorLease":      "one row a loop, not spread",
	"PrepareStep":           "settings of a transaction",
	"LockTimerKeys":         "locks names, looks at no data",
	"LockTimers":            "a tenant's timers",
	"ScheduleTimers":        "a tenant's timers",
	"CancelTimers":          "a tenant's timers",
	"ReadTimer":             "a tenant's timers",
	"ListTimers":            "a tenant's timers",
	"CountTimers":           "a tenant's timers",
	"ListDueTimers":         "timers of all tenants",
	"ListDueTimersOfOthers": "timers of all tenants",
	"LimitIdleTransaction":  "settings of a transaction",
	"ClaimTimers":           "timers of all tenants",
	"DeleteTimers":          "timers of all tenants",
	"PostponeTimer":         "one timer",
	"TakeTimer":             "one timer",
	"ReadSafeTime":          "looks at sessions, not at data",
	"ReadClock":             "looks at no data",
	"LockKV":                "locks of keys, which are spread by tenant if at all",
	"ReadKV":                "a tenant's keys",
	"DrawKVVersions":        "looks at no data",
	"PutKV":                 "a tenant's keys",
	"DeleteKV":              "a tenant's keys",
	"ListKVNamespaces":      "a tenant's keys",
	"PruneKV":               "expired keys of all tenants",
	"ReadSettings":          "a few rows for the whole fleet",
	"SaveSettings":          "a few rows for the whole fleet",
	"ListEphemeralQueues":   "declarations of all tenants, not spread",
	"FindEphemeralQueue":    "a declaration, not spread",
	"ListEphemeralGrants":   "a few rows for the whole fleet",
	"LockEphemeralQueue":    "locks a name, looks at no data",
	"PutEphemeralQueue":     "a declaration, not spread",
	"DeleteEphemeralQueue":  "a declaration, not spread",
}

func everyStatement(t *testing.T) []Statement {
	t.Helper()
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var out []Statement
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[name])
	}
	return out
}

// tableUse finds a table in FROM, JOIN, UPDATE, DELETE or INSERT, and the name it goes by.
var tableUse = regexp.MustCompile(`(?i)(INSERT\s+INTO\s+)?queen\.(` + strings.Join(tables, "|") + `)\b(?:\s+AS)?\s+([a-z_]+|\()`)

func TestEveryStatementNamesOneQueue(t *testing.T) {
	t.Parallel()
	for _, s := range everyStatement(t) {
		n := slices.Index(s.Params, "queue_id") + 1
		if n == 0 {
			if spread[s.Name] == "" {
				t.Errorf("%s has no parameter queue_id", s.Name)
			}
			continue
		}
		for _, use := range tableUse.FindAllStringSubmatch(s.SQL, -1) {
			insert, table, alias := use[1] != "", use[2], use[3]
			bound := fmt.Sprintf(`\b%s\.queue_id = \$%d\b`, alias, n)
			if insert {
				// By the parameter itself, or by the row of the queue it names.
				bound = fmt.Sprintf(`(?s)queen\.%s\b.*((SELECT|VALUES \(|,)\s*\$%d\b|SELECT q\.id\b.*\bq\.id = \$%d\b)`, table, n, n)
			}
			if !regexp.MustCompile(bound).MatchString(s.SQL) {
				t.Errorf("%s: %s %s is not bound to the queue (%s)", s.Name, table, alias, bound)
			}
		}
	}
}

func TestOnlyOneClock(t *testing.T) {
	t.Parallel()
	other := regexp.MustCompile(`(?i)\b(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\s*\(|\b(current_timestamp|current_time|current_date|localtimestamp|localtime)\b`)
	for _, s := range everyStatement(t) {
		if at := other.FindString(s.SQL); at != "" {
			t.Errorf("%s reads a clock by %s", s.Name, at)
		}
	}
}

func TestNoChoiceAroundTheClockInUpdates(t *testing.T) {
	t.Parallel()
	for _, s := range everyStatement(t) {
		if regexp.MustCompile(`(?i)\bUPDATE\s+queen\.|\bDO\s+UPDATE\b`).MatchString(s.SQL) && choosesClock(s.SQL) {
			t.Errorf("%s updates, and has queen.clock() inside CASE or COALESCE", s.Name)
		}
	}
	for sql, want := range map[string]bool{
		"SELECT CASE WHEN a THEN queen.clock() END":                      true,
		"SELECT coalesce(a, (SELECT queen.clock()))":                     true,
		"SELECT coalesce(a, b), queen.clock()":                           false,
		"SELECT CASE WHEN a THEN b END, queen.clock()":                   false,
		"SELECT CASE WHEN CASE WHEN a THEN b END THEN queen.clock() END": true,
	} {
		if choosesClock(sql) != want {
			t.Errorf("%s: want %v", sql, want)
		}
	}
}

var choice = regexp.MustCompile(`(?i)\bCASE\b|\bEND\b|\bcoalesce\s*\(|\(|\)|queen\.clock\(\)`)

// choosesClock reports queen.clock() inside a CASE or a COALESCE.
func choosesClock(sql string) bool {
	cases := 0
	var parens []bool // whether each open one is a COALESCE's
	for _, token := range choice.FindAllString(sql, -1) {
		switch token = strings.ToLower(token); {
		case token == "case":
			cases++
		case token == "end":
			cases--
		case token == ")":
			parens = parens[:max(len(parens)-1, 0)]
		case strings.HasPrefix(token, "queen"):
			if cases > 0 || slices.Contains(parens, true) {
				return true
			}
		default:
			parens = append(parens, token != "(")
		}
	}
	return false
}

func TestNothingRandom(t *testing.T) {
	t.Parallel()
	dice := regexp.MustCompile(`(?i)\b(gen_random_uuid|uuid_generate_v\d\w*|uuidv[47]|random)\s*\(`)
	for _, s := range everyStatement(t) {
		if at := dice.FindString(s.SQL); at != "" {
			t.Errorf("%s makes up values by %s: they come as parameters", s.Name, at)
		}
	}
}

func TestArraysAreTakenApartInTheSelectList(t *testing.T) {
	t.Parallel()
	from := regexp.MustCompile(`(?is)(\bFROM|\bJOIN|\bLATERAL)\s+(ROWS\s+FROM\s*\(\s*)?unnest\s*\(`)
	for _, s := range everyStatement(t) {
		if from.MatchString(s.SQL) {
			t.Errorf("%s has unnest in FROM", s.Name)
		}
	}
}

// TestSpreadIsUpToDate keeps the list of exceptions short.
func TestSpreadIsUpToDate(t *testing.T) {
	t.Parallel()
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for name := range spread {
		if s, ok := all[name]; !ok || slices.Contains(s.Params, "queue_id") {
			t.Errorf("%s is no exception", name)
		}
	}
}
