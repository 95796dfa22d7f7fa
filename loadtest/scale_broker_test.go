package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// startDev builds the broker and runs it with a PostgreSQL of its own, as anybody would.
func startDev(t *testing.T) (url, databaseURL string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "loadtest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// PostgreSQL runs as another user where we are root, and has to pass.
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "queen")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../cmd/queen").CombinedOutput(); err != nil {
		t.Fatalf("build the broker: %v\n%s", err, out)
	}
	url = "http://127.0.0.1:" + freePort(t)
	log := &lockedBuffer{}
	cmd := exec.Command(bin, "dev", "--data-dir", filepath.Join(dir, "data"))
	cmd.Env = append(os.Environ(), "PORT="+url[strings.LastIndexByte(url, ':')+1:], "QUEEN_BIND_ADDR=127.0.0.1")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("broker: %v\n%s", err, log)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	for !ready(ctx, url) {
		if ctx.Err() != nil {
			t.Fatalf("the broker is not ready\n%s", log)
		}
		time.Sleep(100 * time.Millisecond)
	}
	databaseURL = regexp.MustCompile(`postgres(ql)?://[^" ]+`).FindString(log.String())
	if databaseURL == "" {
		t.Fatalf("the broker named no database\n%s", log)
	}
	return url, databaseURL
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

func ready(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The scenarios that look into the database, at a size that takes seconds.
func TestScaleOverABroker(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a broker and a database")
	}
	url, database := startDev(t)
	flags := []string{"--url", url, "--database-url", database, "--duration", "3s", "--baseline-duration", "1s", "--producers", "4", "--consumers", "4"}

	t.Run("partitions", func(t *testing.T) {
		rep, _, out := scaleAgainst(t, exitOK, append([]string{"partitions", "--size", "1500"}, flags...)...)
		before, after := rep.table("partitions", rep.Before), rep.table("partitions", rep.After)
		if after.Heap+after.Index <= before.Heap+before.Index {
			t.Errorf("partitions did not grow: %+v, %+v\n%s", before, after, out)
		}
		// A native partition counts for its parent.
		if s := rep.table("segments", rep.After); s.Heap < 1<<20 || rep.table("segments_0", rep.After).Heap > 0 {
			t.Errorf("segments %+v\n%s", s, out)
		}
		if rep.Database == nil || rep.Database.Settings["synchronous_commit"] == "" {
			t.Errorf("database %+v", rep.Database)
		}
		if m := rep.Phases[3].Memory; m == nil || m.Median < 1<<20 || m.Peak < m.Median {
			t.Errorf("broker memory %+v", m)
		}
	})
	t.Run("snapshot", func(t *testing.T) {
		rep, svg, _ := scaleAgainst(t, exitOK, append([]string{"snapshot"}, flags...)...)
		if o := rep.outcome(t, "acknowledged"); o.Ratio <= 0 || o.Met == nil {
			t.Errorf("outcome %+v", o)
		}
		for _, panel := range []string{panelMemory, panelHeap, panelIndex, panelDead} {
			if !strings.Contains(svg, panel) {
				t.Errorf("no panel %q", panel)
			}
		}
	})
	t.Run("backlog on a full disk", func(t *testing.T) {
		args := append([]string{"backlog", "--size", "2000000", "--disk-reserve", "1000000000000000000"}, flags...)
		rep, _, out := scaleAgainst(t, exitOK, args...)
		pushed := rep.Phases[2].Checks.Pushed
		if pushed == 0 || pushed >= 2000000 || rep.Phases[3].Checks.Groups[0].Delivered != pushed || !strings.Contains(out, "of the disk are free") {
			t.Errorf("%d pushed\n%s", pushed, out)
		}
	})
	t.Run("snapshot gone", func(t *testing.T) { snapshotThatIsGone(t, database) })
	t.Run("retention", func(t *testing.T) {
		args := append([]string{"retention", "--rate", "1000", "--window", "1s"}, flags...)
		args = append(args, "--duration", "15s")
		rep, _, out := scaleAgainst(t, exitOK, args...)
		if o := rep.outcome(t, "removed by retention"); o.Measured <= 0 {
			t.Errorf("nothing was removed: %+v\n%s", o, out)
		}
	})
}

// table returns the sizes of one table, or none.
func (r *scaleReport) table(name string, all []tableSize) tableSize {
	for _, s := range all {
		if s.Table == name {
			return s
		}
	}
	return tableSize{}
}

// A snapshot the server has ended is an error, not a measurement without one.
func snapshotThatIsGone(t *testing.T, database string) {
	for _, gone := range []bool{false, true} {
		s, err := openSnapshot(t.Context(), database)
		if err != nil {
			t.Fatal(err)
		}
		if gone {
			other, err := openSizes(t.Context(), database)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.conn.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, s.conn.PgConn().PID()); err != nil {
				t.Fatal(err)
			}
			other.close()
		}
		if err := s.release(t.Context()); (err != nil) != gone {
			t.Errorf("gone %v: %v", gone, err)
		}
	}
}
