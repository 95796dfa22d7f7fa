package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// The functions below make one kind of setting each: where it goes, its
// limits, its default, its help, and its names.

func text(to *string, byDefault, help string, names ...string) setting {
	return setting{
		names: names, byDefault: byDefault, help: help,
		parse: func(s string) error { *to = s; return nil },
		show:  func() string { return *to },
	}
}

func secret(to *string, byDefault, help string, names ...string) setting {
	s := text(to, byDefault, help, names...)
	s.show = func() string { return maskSecret(*to) }
	return s
}

// maskSecret tells that a secret is set, and its length, which is enough to
// find the wrong one.
func maskSecret(s string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf("<set:%d chars>", len(s))
}

func integer[T int | int64](to *T, lowest, highest int64, byDefault, help string, names ...string) setting {
	return setting{
		names: names, byDefault: byDefault, help: help,
		parse: func(s string) error {
			n, err := parseInteger(s, lowest, highest)
			*to = T(n)
			return err
		},
		show: func() string { return strconv.FormatInt(int64(*to), 10) },
	}
}

func parseInteger(s string, lowest, highest int64) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, fmt.Errorf("%q is not a whole number", s)
	case err != nil || n < lowest || n > highest:
		return 0, fmt.Errorf("%s is not within %d and %d", s, lowest, highest)
	}
	return n, nil
}

// longestMillis is a year: longer is a mistake in the unit.
const longestMillis = 365 * 24 * 60 * 60 * 1000

func millis(to *time.Duration, lowest int64, byDefault, help string, names ...string) setting {
	return setting{
		names: names, byDefault: byDefault, help: help,
		parse: func(s string) error {
			n, err := parseInteger(s, lowest, longestMillis)
			*to = time.Duration(n) * time.Millisecond
			return err
		},
		show: func() string { return strconv.FormatInt(to.Milliseconds(), 10) },
	}
}

// longestSeconds is ten years.
const longestSeconds = 10 * 365 * 24 * 60 * 60

func seconds(to *time.Duration, lowest int64, byDefault, help string, names ...string) setting {
	return setting{
		names: names, byDefault: byDefault, help: help,
		parse: func(s string) error {
			n, err := parseInteger(s, lowest, longestSeconds)
			*to = time.Duration(n) * time.Second
			return err
		},
		show: func() string { return strconv.FormatInt(int64(*to/time.Second), 10) },
	}
}

// atMost adds a limit with a reason of its own.
func atMost(s setting, limit string, ok func() bool) setting {
	parse := s.parse
	s.parse = func(text string) error {
		if err := parse(text); err != nil {
			return err
		}
		if !ok() {
			return fmt.Errorf("%s is more than %s", text, limit)
		}
		return nil
	}
	return s
}

func factor(to *float64, lowest, highest float64, byDefault, help string, names ...string) setting {
	return setting{
		names: names, byDefault: byDefault, help: help,
		parse: func(s string) error {
			f, err := strconv.ParseFloat(s, 64)
			if err != nil {
				return fmt.Errorf("%q is not a number", s)
			}
			if !(f >= lowest && f <= highest) { // false for NaN too
				return fmt.Errorf("%s is not within %g and %g", s, lowest, highest)
			}
			*to = f
			return nil
		},
		show: func() string { return strconv.FormatFloat(*to, 'g', -1, 64) },
	}
}

func boolean(to *bool, byDefault, help string, names ...string) setting {
	return setting{
		names: names, byDefault: byDefault, help: help,
		parse: func(s string) (err error) {
			*to, err = parseBool(s)
			return err
		},
		show: func() string { return strconv.FormatBool(*to) },
	}
}

func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	default:
		return false, fmt.Errorf("%q is none of true, false, 1, 0, yes, no, on, off", s)
	}
}

func bindAddr(to *string, byDefault, help string, names ...string) setting {
	s := text(to, byDefault, help, names...)
	s.parse = func(addr string) error {
		if net.ParseIP(addr) == nil && strings.ContainsAny(addr, ":/ []") {
			return fmt.Errorf("%q is not a plain address or host name; the port goes into PORT", addr)
		}
		*to = addr
		return nil
	}
	return s
}

func subscriptionMode(to *SubscriptionMode, byDefault, help string, names ...string) setting {
	return setting{
		names: names, byDefault: byDefault, help: help, emptySets: true,
		parse: func(s string) error {
			switch strings.ToLower(s) {
			case "new", "new-only":
				*to = SubscribeNew
			case "all", "":
				*to = SubscribeAll
			default:
				return fmt.Errorf("%q is neither new nor all", s)
			}
			return nil
		},
		show: func() string { return string(*to) },
	}
}

func logLevel(to *slog.Level, byDefault, help string, names ...string) setting {
	return setting{
		names: names, byDefault: byDefault, help: help,
		parse: func(s string) error {
			switch strings.ToLower(s) {
			case "trace", "debug":
				*to = slog.LevelDebug
			case "info":
				*to = slog.LevelInfo
			case "warn", "warning":
				*to = slog.LevelWarn
			case "error":
				*to = slog.LevelError
			default:
				return fmt.Errorf("%q is none of debug, info, warn, error", s)
			}
			return nil
		},
		show: func() string { return strings.ToLower(to.String()) },
	}
}

func piece(s setting) setting {
	s.part = true
	return s
}
