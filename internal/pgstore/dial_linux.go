package pgstore

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not name on
// every processor.
const tcpUserTimeout = 18

// limitUnacknowledged ends a connection when data has been under way for this
// long.
func limitUnacknowledged(d *net.Dialer, limit time.Duration) {
	d.Control = func(network, _ string, c syscall.RawConn) error {
		if network == "unix" {
			return nil
		}
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(limit.Milliseconds()))
		})
		return errors.Join(err, failed)
	}
}
