package e2e

import (
	"context"
	"net/http/httptrace"
)

// traceReuse counts requests that went out on a connection used before.
func traceReuse(ctx context.Context, n *int) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		if c.Reused {
			*n++
		}
	}})
}
