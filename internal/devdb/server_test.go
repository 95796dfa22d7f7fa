package devdb

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tempDir is a folder the server's user can enter: t.TempDir is private to
// root when root runs the tests.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "queen-devdb-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// ask runs one query and returns its only value.
func ask(t *testing.T, url, query string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var answer string
	if err := conn.QueryRow(t.Context(), query).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

func do(t *testing.T, url, stmt string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), stmt); err != nil {
		t.Fatal(err)
	}
}

func TestThrowAwayServer(t *testing.T) {
	t.Parallel()
	s := start(t, Options{ExtraSettings: map[string]string{"work_mem": "7MB"}})
	for setting, want := range map[string]string{
		"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "jit": "off",
		"max_connections": "200", "server_encoding": "UTF8", "work_mem": "7MB", "listen_addresses": "127.0.0.1",
	} {
		if got := ask(t, s.URL(), "SHOW "+setting); got != want {
			t.Errorf("%s = %s, want %s", setting, got, want)
		}
	}
	if got := ask(t, s.URLFor("template1"), "SELECT current_database()"); got != "template1" {
		t.Errorf("URLFor reached %s", got)
	}
	stop(t, s)
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary folder is still there: %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("second stop: %v", err)
	}
}

func TestDataAndPortSurviveARestart(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	s := start(t, Options{Dir: dir, Persist: true})
	if got := ask(t, s.URL(), "SHOW fsync"); got != "on" {
		t.Errorf("fsync = %s on data worth keeping", got)
	}
	do(t, s.URL(), "CREATE TABLE kept (n int)")
	url := s.URL()
	stop(t, s)

	again := start(t, Options{Dir: dir, Persist: true})
	if again.URL() != url {
		t.Errorf("address changed from %s to %s", url, again.URL())
	}
	if got := ask(t, again.URL(), "SELECT count(*)::text FROM pg_tables WHERE tablename = 'kept'"); got != "1" {
		t.Error("table is gone")
	}
	if log := again.readLog(); strings.Contains(log, "not properly shut down") {
		t.Errorf("stop was not clean: %s", log)
	}
}

func TestRememberedPortTaken(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken := ln.Addr().(*net.TCPAddr).Port
	if err := os.WriteFile(filepath.Join(dir, portName), []byte(itoa(taken)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{Dir: dir})
	if s.port == taken {
		t.Errorf("server claims port %d, which is not its own", taken)
	}
	ask(t, s.URL(), "SELECT 'alive'")
}

func TestGivenPortTakenFails(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = Start(t.Context(), Options{Port: ln.Addr().(*net.TCPAddr).Port})
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("error %v, want one that says the address is in use", err)
	}
}

func TestFolderInUse(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	start(t, Options{Dir: dir})
	if _, err := Start(t.Context(), Options{Dir: dir}); !errors.Is(err, ErrInUse) {
		t.Errorf("error %v, want ErrInUse", err)
	}
}

func TestStalePidFile(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	s := start(t, Options{Dir: dir, Persist: true})
	stop(t, s)
	// This test's own id is a live process that is not PostgreSQL, as after a
	// reboot that reused the id.
	pidFile := filepath.Join(dir, dataName, "postmaster.pid")
	if err := os.WriteFile(pidFile, []byte(itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask(t, start(t, Options{Dir: dir, Persist: true}).URL(), "SELECT 'alive'")
}

func TestOrphanIsReplaced(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	orphan := start(t, Options{Dir: dir, Persist: true})
	// What a killed launcher leaves where the kernel does not end its child:
	// a running server on a folder nobody holds.
	if err := orphan.lock.Close(); err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{Dir: dir, Persist: true})
	ask(t, s.URL(), "SELECT 'alive'")
	select {
	case <-orphan.Done():
	case <-time.After(5 * time.Second):
		t.Error("orphan still runs")
	}
}

func TestCrashedServerRecovers(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	s := start(t, Options{Dir: dir, Persist: true})
	do(t, s.URL(), "CREATE TABLE kept (n int)")
	if err := s.proc.signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	stop(t, s) // gives the folder back
	again := start(t, Options{Dir: dir, Persist: true})
	if got := ask(t, again.URL(), "SELECT count(*)::text FROM pg_tables WHERE tablename = 'kept'"); got != "1" {
		t.Error("table is gone")
	}
}

func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Persist: true})
	// A stopped process handles no signal but the last resort.
	if err := s.proc.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := s.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want one that tells of the forced end", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestOtherMajorVersion(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	if err := os.Mkdir(filepath.Join(dir, dataName), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, dataName, "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{Dir: dir})
	var versionErr *VersionError
	if !errors.As(err, &versionErr) || versionErr.Data != 9 {
		t.Errorf("error %v, want a VersionError about version 9", err)
	}
}

func TestLongFolderNameGoesWithoutSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tempDir(t), strings.Repeat("d", 120))
	s := start(t, Options{Dir: dir})
	if got := ask(t, s.URL(), "SHOW unix_socket_directories"); got != "" {
		t.Errorf("socket in %s, which is too long", got)
	}
}

func TestSweepRemovesOnlyAbandonedFolders(t *testing.T) { //nolint:paralleltest // changes TMPDIR
	tmp := tempDir(t)
	t.Setenv("TMPDIR", tmp)
	old := time.Now().Add(-time.Hour)
	for name, age := range map[string]time.Time{"abandoned": old, "held": old, "young": time.Now()} {
		dir := filepath.Join(tmp, tempPrefix+name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "held" {
			lock, err := lockDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = lock.Close() })
		}
		if err := os.Chtimes(dir, age, age); err != nil {
			t.Fatal(err)
		}
	}
	sweepTemp()
	for name, want := range map[string]bool{"abandoned": false, "held": true, "young": true} {
		_, err := os.Stat(filepath.Join(tmp, tempPrefix+name))
		if (err == nil) != want {
			t.Errorf("%s: %v, want kept=%v", name, err, want)
		}
	}
}

// TestServerEndsWithItsLauncher kills a launcher in a process of its own.
func TestServerEndsWithItsLauncher(t *testing.T) {
	if os.Getenv("DEVDB_TEST_LAUNCHER") != "" { // the child
		s, err := Start(t.Context(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		println(s.URL())
		select {} // until killed
	}
	t.Parallel()
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("only Linux ends a child with its parent")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServerEndsWithItsLauncher$")
	cmd.Env = append(os.Environ(), "DEVDB_TEST_LAUNCHER=1", "TMPDIR="+tempDir(t))
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 200)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(string(buf[:n]))
	ask(t, url, "SELECT 'alive'")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed on purpose
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return
		}
		_ = conn.Close(t.Context())
		if time.Now().After(deadline) {
			t.Fatal("server outlived its launcher")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
