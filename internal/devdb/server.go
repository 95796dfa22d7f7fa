package devdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 15 * time.Second
	// Linux allows 107 bytes for a socket path and macOS 103.
	maxSocketPath = 103
)

// Options says what to start.
type Options struct {
	// Dir holds the data. Empty means a temporary folder, removed at Stop.
	Dir string
	// Port on 127.0.0.1; 0 means the port used last time in Dir when that is
	// still free, else any free one.
	Port int
	// Persist keeps Dir and writes durably. Without it the data is for this
	// run only and fsync, synchronous_commit and full_page_writes are off.
	Persist bool
	// ExtraSettings go into the server's configuration and win over ours.
	ExtraSettings map[string]string
	Logger        *slog.Logger
}

// Server is a running PostgreSQL.
type Server struct {
	opts     Options
	dir      string
	port     int
	proc     *process
	lock     *os.File
	stopOnce sync.Once
	stopErr  error
}

// Start brings a server up and returns once it accepts connections. The
// server outlives ctx, which bounds the start only; Stop ends it.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	acct, err := runAs()
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts}
	if err := s.prepareDir(acct); err != nil {
		return nil, err
	}
	if err := s.open(ctx, acct); err != nil {
		s.release()
		return nil, fmt.Errorf("start postgres in %s: %w", s.dir, err)
	}
	return s, nil
}

func (s *Server) prepareDir(acct *account) error {
	dir := s.opts.Dir
	if dir == "" {
		sweepTemp()
		made, err := os.MkdirTemp("", tempPrefix)
		if err != nil {
			return fmt.Errorf("make data folder: %w", err)
		}
		dir = made
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("resolve data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	if acct != nil {
		if err := acct.own(dir); err != nil {
			return err
		}
		if closed := acct.firstClosed(dir); closed != "" {
			return fmt.Errorf("data folder %s: running as root, PostgreSQL steps down to user %s, "+
				"which may not enter %s: choose another data folder", dir, acct.name, closed)
		}
	}
	s.dir = dir
	s.lock, err = lockDir(dir)
	return err
}

func (s *Server) open(ctx context.Context, acct *account) error {
	major, err := clusterVersion(s.dir)
	if err != nil {
		return err
	}
	bin, err := findBinaries(ctx, acct, major, s.opts.Logger)
	if err != nil {
		return err
	}
	// The limit starts here: a first download may take minutes.
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if major == 0 {
		s.opts.Logger.Info("creating database", "dir", s.dir, "postgres", bin.major)
		if err := createCluster(ctx, bin, acct, s.dir, s.opts.Persist); err != nil {
			return err
		}
	}
	if err := clearStale(ctx, s.dir); err != nil {
		return err
	}
	return s.boot(ctx, bin, acct)
}

// boot tries a few ports: between choosing a free one and the server binding
// it, somebody else can take it.
func (s *Server) boot(ctx context.Context, bin binaries, acct *account) error {
	var err error
	for range 5 {
		s.port, err = s.choosePort()
		if err != nil {
			return err
		}
		if err = s.bootOnce(ctx, bin, acct); err == nil {
			return s.rememberPort()
		}
		if ctx.Err() != nil || s.opts.Port != 0 || !strings.Contains(s.readLog(), "Address already in use") {
			break
		}
	}
	return err
}

func (s *Server) bootOnce(ctx context.Context, bin binaries, acct *account) error {
	logFile, err := os.Create(filepath.Join(s.dir, logName))
	if err != nil {
		return fmt.Errorf("make server log: %w", err)
	}
	defer logFile.Close()
	args := []string{"-D", filepath.Join(s.dir, dataName)}
	settings := s.settings()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	cmd := exec.Command(bin.path("postgres"), args...)
	cmd.Dir, cmd.Env = s.dir, childEnv(s.dir)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	// Data worth keeping deserves a checkpoint, the rest only a quick end.
	onParentDeath := syscall.SIGQUIT
	if s.opts.Persist {
		onParentDeath = syscall.SIGINT
	}
	s.proc, err = launch(cmd, acct, onParentDeath)
	if err != nil {
		return fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	if err := s.awaitReady(ctx); err != nil {
		s.kill()
		return err
	}
	return nil
}

func (s *Server) settings() map[string]string {
	data := filepath.Join(s.dir, dataName)
	sockets := data
	if len(filepath.Join(data, ".s.PGSQL.65535")) > maxSocketPath {
		sockets = "" // TCP alone will do
	}
	set := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    itoa(s.port),
		"unix_socket_directories": sockets,
		"max_connections":         "200",
		"shared_buffers":          "128MB",
		"jit":                     "off",
		"log_min_messages":        "warning",
	}
	if !s.opts.Persist {
		set["fsync"] = "off"
		set["synchronous_commit"] = "off"
		set["full_page_writes"] = "off"
	}
	maps.Copy(set, s.opts.ExtraSettings)
	return set
}

// awaitReady reads the status line the server keeps in its pid file. It needs
// no client library and no guessing about what a refused connection means.
func (s *Server) awaitReady(ctx context.Context) error {
	pidFile := filepath.Join(s.dir, dataName, "postmaster.pid")
	for {
		if s.proc.exited() {
			return fmt.Errorf("postgres ended at once (%w): %s", endOf(s.proc), lastLines(s.readLog(), 5))
		}
		raw, _ := os.ReadFile(pidFile) // not there yet, or being rewritten
		lines := strings.Split(string(raw), "\n")
		if len(lines) > 7 && lines[0] == itoa(s.proc.cmd.Process.Pid) && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("wait for postgres to accept connections: %w: %s", err, lastLines(s.readLog(), 5))
		}
	}
}

func endOf(p *process) error {
	if p.err != nil {
		return p.err
	}
	return errors.New("exit status 0")
}

func (s *Server) readLog() string {
	raw, _ := os.ReadFile(filepath.Join(s.dir, logName)) // used to explain another error
	return string(raw)
}

func (s *Server) choosePort() (int, error) {
	if s.opts.Port != 0 {
		return s.opts.Port, nil
	}
	if raw, err := os.ReadFile(filepath.Join(s.dir, portName)); err == nil {
		if port, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil && portFree(port) {
			return port, nil
		}
	}
	return freePort()
}

func (s *Server) rememberPort() error {
	err := os.WriteFile(filepath.Join(s.dir, portName), []byte(itoa(s.port)+"\n"), 0o600)
	if err != nil {
		return fmt.Errorf("remember port: %w", err)
	}
	return nil
}

func portFree(port int) bool {
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", itoa(port)))
	if err != nil {
		return false
	}
	return ln.Close() == nil
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// URL addresses the database every cluster has from the start.
func (s *Server) URL() string { return s.URLFor("postgres") }

// URLFor addresses a database by name.
func (s *Server) URLFor(dbname string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     net.JoinHostPort("127.0.0.1", itoa(s.port)),
		Path:     "/" + dbname,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Dir is the folder the server lives in.
func (s *Server) Dir() string { return s.dir }

// Done is closed when the server has ended, whoever ended it.
func (s *Server) Done() <-chan struct{} { return s.proc.done }

// Stop shuts down fast: sessions are cut, committed work is kept. When ctx or
// an inner limit runs out first, the server is stopped at once, which costs a
// recovery at the next start and no data. Further calls return the same.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.stopErr = s.shutdown(ctx)
		s.release()
	})
	return s.stopErr
}

func (s *Server) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	sig := syscall.SIGINT
	if !s.opts.Persist {
		sig = syscall.SIGQUIT // nothing to keep, so no checkpoint to wait for
	}
	if err := s.proc.signal(sig); err != nil {
		return fmt.Errorf("stop postgres: %w", err)
	}
	select {
	case <-s.proc.done:
		return nil
	case <-ctx.Done():
		s.kill()
		return fmt.Errorf("stop postgres: forced after %w", ctx.Err())
	}
}

// kill ends the server without a checkpoint, and without asking if need be.
func (s *Server) kill() {
	_ = s.proc.signal(syscall.SIGQUIT)
	select {
	case <-s.proc.done:
	case <-time.After(5 * time.Second):
		_ = s.proc.signal(syscall.SIGKILL)
		<-s.proc.done
	}
}

// release gives the folder back, or removes it when it was ours alone.
func (s *Server) release() {
	if s.opts.Dir == "" && s.dir != "" {
		if err := os.RemoveAll(s.dir); err != nil {
			s.opts.Logger.Warn("remove temporary database", "dir", s.dir, "error", err)
		}
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}
