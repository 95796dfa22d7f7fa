// Package obs is how the program is observed: its log and its metrics. It
// knows no other package of ours; the others declare the few methods they call,
// and Metrics has them.
package obs

import (
	"io"
	"log/slog"
)

// NewLogger writes one record a line to w, as text for people or as JSON for
// a collector.
func NewLogger(w io.Writer, level slog.Leveler, json bool) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if json {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
