package pgstore

import (
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// refusing is a server that answers every connection with an error.
func refusing(t *testing.T, state string) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b := pgproto3.NewBackend(c, c)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: state, Message: "no"})
				_ = b.Flush()
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-ended
	})
	return ln.Addr().String()
}

// A server that takes no connection now may take one later, whatever its reason;
// a wrong password stays wrong.
func TestDialTellsAServerInTroubleFromAWrongAddress(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]mq.Kind{
		"XX000": mq.KindUnavailable, // could not write init file: its disk is full
		"57P03": mq.KindUnavailable, // starting up
		"28P01": mq.KindInternal,    // wrong password
		"3D000": mq.KindInternal,    // no such database
	} {
		s, err := Open(t.Context(), Config{URL: "postgres://x@" + refusing(t, state) + "/x?sslmode=disable", PoolSize: 2, AppName: "test"})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Ping(t.Context()); mq.KindOf(err) != want {
			t.Errorf("%s is %v, want %v: %v", state, mq.KindOf(err), want, err)
		}
		s.Close()
	}
}
