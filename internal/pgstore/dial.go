package pgstore

import (
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A server whose host has lost power says nothing: no connection to it is
// closed, and what is sent gets no acknowledgement of TCP. Its standby may have
// taken over meanwhile, and work on such a connection holds up the work behind
// it. Together the two limits keep that below ten seconds. A server that is slow
// is not concerned: its kernel answers.
const (
	// silence is how long a peer may acknowledge nothing at all.
	silence = 4 * time.Second
	// connecting is the limit for making a connection; with several servers to
	// try, each has less.
	connecting     = 5 * time.Second
	connectingEach = 3 * time.Second
)

// noticeSilence sets how connections are made and watched.
func noticeSilence(c *pgconn.Config) {
	c.ConnectTimeout = connecting
	if slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port }) {
		c.ConnectTimeout = connectingEach
	}
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: int((silence - 2*time.Second) / time.Second),
	}}
	// Probes are sent when nothing else is under way; data that nobody
	// acknowledges has a limit of its own.
	limitUnacknowledged(dialer, silence)
	c.DialFunc = dialer.DialContext
}
