package node

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// deafServer speaks enough of Redis to be connected to, as a server or as the one
// node of a cluster. It hears INCR, and hangs up without an answer.
func deafServer(t *testing.T) (address string, heard *atomic.Int64) {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	heard = &atomic.Int64{}
	host, port, _ := net.SplitHostPort(ln.Addr().String())
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				converse(conn, heard, host, port)
			}()
		}
	}()
	return ln.Addr().String(), heard
}

func converse(conn net.Conn, heard *atomic.Int64, host, port string) {
	in := bufio.NewReader(conn)
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		answer := "+OK\r\n"
		switch strings.ToUpper(words[0]) {
		case "INCR":
			heard.Add(1)
			return
		case "HELLO":
			answer = "-ERR unknown command\r\n"
		case "COMMAND":
			answer = "*0\r\n"
		case "CLUSTER":
			answer = fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$%d\r\n%s\r\n:%s\r\n$1\r\nn\r\n", len(host), host, port)
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// readCommand reads an array of strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	var n int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		var size int
		if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		words[i] = string(text[:size])
	}
	return words, nil
}

// TestOpenRedis_SendsOnce: what was heard and not answered is not said again, or
// a push would be stored twice.
func TestOpenRedis_SendsOnce(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{"single": "", "cluster": "?addr="} {
		address, heard := deafServer(t)
		if more != "" {
			more += address
		}
		err := openRedis(t, "redis://"+address+more).Incr(t.Context(), "k").Err()
		if n := heard.Load(); err == nil || n != 1 {
			t.Errorf("%s: %v, heard %d times", name, err, n)
		}
	}
}
