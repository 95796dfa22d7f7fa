//go:build !linux

package pgstore

import (
	"net"
	"time"
)

// limitUnacknowledged: there is no portable way, the limit of a statement has to
// do.
func limitUnacknowledged(*net.Dialer, time.Duration) {}
