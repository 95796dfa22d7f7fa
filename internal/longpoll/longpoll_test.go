package longpoll

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a server whose handler detaches each request to /wait, and answers it
// when the test says so.
type site struct {
	t       *testing.T
	l       *Listener
	srv     *http.Server
	waiting chan *Answer
	gone    chan struct{}
}

func serve(t *testing.T, idle time.Duration) *site {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, l: Listen(ln, idle), waiting: make(chan *Answer, 1), gone: make(chan struct{}, 1)}
	s.srv = &http.Server{BaseContext: s.l.BaseContext, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/wait" {
			fmt.Fprintf(w, "at once: %s", r.RemoteAddr)
			return
		}
		w.Header().Set("X-Before", "detached")
		a, ok := Detach(w, r, func() { s.gone <- struct{}{} })
		if !ok {
			http.Error(w, "not detached", http.StatusTeapot)
			return
		}
		s.waiting <- a
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.srv.Serve(s.l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(s.srv.Shutdown(ctx), s.l.Wait(ctx)); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return s
}

// client is one connection.
type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func (s *site) dial() *client {
	c, err := net.Dial("tcp", s.l.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return &client{t: s.t, Conn: c, r: bufio.NewReader(c)}
}

func (c *client) send(path string, headers ...string) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, strings.Join(append(headers, ""), "\r\n")); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) answer() (status int, header http.Header, body string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.Close {
		resp.Header.Set("Connection", "close") // which reading it took out
	}
	return resp.StatusCode, resp.Header, string(b)
}

func (c *client) ends() {
	c.t.Helper()
	if b, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
		c.t.Errorf("the connection goes on: %q, %v", b, err)
	}
}

func say(a *Answer, body string) {
	a.Header().Set("Content-Length", fmt.Sprint(len(body)))
	_, _ = io.WriteString(a, body)
	a.Finish()
}

func TestAnswersOverOneConnection(t *testing.T) {
	t.Parallel()
	s := serve(t, time.Minute)
	c := s.dial()
	for i := range 3 {
		c.send("/wait")
		a := <-s.waiting
		want := strings.Repeat("x", i*100_000)
		if i == 1 {
			a.WriteHeader(http.StatusAccepted)
		}
		say(a, want)
		status, header, body := c.answer()
		if body != want || status != []int{200, 202, 200}[i] || header.Get("X-Before") != "detached" || header.Get("Date") == "" {
			t.Errorf("%d: %d %v, %d bytes", i, status, header, len(body))
		}
		// And the server serves it as before.
		c.send("/now")
		if _, _, body := c.answer(); body != "at once: "+c.LocalAddr().String() {
			t.Errorf("%d: %s", i, body)
		}
	}
	c.send("/wait")
	a := <-s.waiting
	a.Header().Set("Content-Length", "5") // not of an answer without a body
	a.WriteHeader(http.StatusNoContent)
	a.Finish()
	if status, header, _ := c.answer(); status != http.StatusNoContent || header.Get("Content-Length") != "" {
		t.Errorf("%d %v", status, header)
	}
	c.send("/now")
	c.answer()
}

func TestRequestsThatComeBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, time.Minute)
	c := s.dial()
	fmt.Fprint(c, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\nGET /now HTTP/1.1\r\nHost: x\r\n\r\n")
	say(<-s.waiting, "first")
	if _, _, body := c.answer(); body != "first" {
		t.Errorf("got %q", body)
	}
	if _, _, body := c.answer(); !strings.HasPrefix(body, "at once") {
		t.Errorf("got %q", body)
	}
	c.send("/wait")
	a := <-s.waiting
	c.send("/now") // while the other one waits
	time.Sleep(20 * time.Millisecond)
	say(a, "third")
	if _, _, body := c.answer(); body != "third" {
		t.Errorf("got %q", body)
	}
	if _, _, body := c.answer(); !strings.HasPrefix(body, "at once") {
		t.Errorf("got %q", body)
	}
	select {
	case <-s.gone:
		t.Error("a request that came early counts as a client that left")
	default:
	}
}

func TestAClientThatLeaves(t *testing.T) {
	t.Parallel()
	s := serve(t, time.Minute)
	c := s.dial()
	c.send("/wait")
	a := <-s.waiting
	select {
	case <-s.gone:
		t.Fatal("gone before it left")
	case <-time.After(20 * time.Millisecond):
	}
	_ = c.Close()
	select {
	case <-s.gone:
	case <-time.After(5 * time.Second):
		t.Fatal("nobody noticed")
	}
	say(a, "nobody")
}

func TestConnectionsThatEnd(t *testing.T) {
	t.Parallel()
	s := serve(t, 50*time.Millisecond)
	for name, finish := range map[string]func(a *Answer){
		"by the answer": func(a *Answer) { a.Header().Set("Connection", "close"); say(a, "last") },
		"idle":          func(a *Answer) { say(a, "last") },
		"incomplete": func(a *Answer) {
			a.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(a, "last")
			a.Finish()
		},
		"aborted": func(a *Answer) { a.Abort(); a.Finish() },
	} {
		c := s.dial()
		c.send("/wait")
		finish(<-s.waiting)
		all, err := io.ReadAll(c.r)
		whole := strings.HasSuffix(string(all), "\r\n\r\nlast")
		if want := name != "aborted"; err != nil || whole != want || strings.Contains(string(all), "Connection: close") != (name == "by the answer") {
			t.Errorf("%s: %v\n%s", name, err, all)
		}
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	s := serve(t, time.Minute)
	idle, waits := s.dial(), s.dial()
	idle.send("/wait")
	say(<-s.waiting, "one")
	idle.answer()
	waits.send("/wait")
	a := <-s.waiting
	done := make(chan error)
	go func() { done <- errors.Join(s.srv.Shutdown(t.Context()), s.l.Wait(t.Context())) }()
	idle.ends()
	select {
	case err := <-done:
		t.Fatalf("shut down over a request: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	start := time.Now()
	say(a, "two")
	if _, header, body := waits.answer(); body != "two" || header.Get("Connection") != "close" {
		t.Errorf("%q %v", body, header)
	}
	waits.ends()
	_ = waits.Close()
	_ = idle.Close()
	if err := <-done; err != nil || time.Since(start) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func TestShutdownThatIsOverdue(t *testing.T) {
	t.Parallel()
	s := serve(t, time.Minute)
	c := s.dial()
	c.send("/wait")
	a := <-s.waiting
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := errors.Join(s.srv.Shutdown(ctx), s.l.Wait(ctx)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	c.ends()
	say(a, "late")
}

func TestRequestsThatStay(t *testing.T) {
	t.Parallel()
	s := serve(t, time.Minute)
	for _, request := range []string{
		"GET /wait HTTP/1.0\r\n\r\n",
		"GET /wait HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
		"GET /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1",
	} {
		c := s.dial()
		fmt.Fprint(c, request)
		if status, _, body := c.answer(); status != http.StatusTeapot {
			t.Errorf("%q: %d %s", request, status, body)
		}
	}
}
