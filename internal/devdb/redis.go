package devdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// ErrNoRedis says that redis-server is not installed.
var ErrNoRedis = errors.New("no redis-server on PATH: install Redis, or set TEST_REDIS_URL to a server that is already running")

// Redis is a running Redis, a child process or one inside this process.
type Redis struct {
	addr string
	proc *process // nil inside this process
	stop func(context.Context) error
	once sync.Once
	err  error
}

// URL addresses logical database 0.
func (r *Redis) URL() string { return "redis://" + r.addr + "/0" }

// Stop ends the server. Further calls return the same.
func (r *Redis) Stop(ctx context.Context) error {
	r.once.Do(func() { r.err = r.stop(ctx) })
	return r.err
}

// Pause stops the process where it stands, connections stay open. Resume lets
// it go on.
func (r *Redis) Pause() error { return r.signal(syscall.SIGSTOP) }

// Resume ends a pause.
func (r *Redis) Resume() error { return r.signal(syscall.SIGCONT) }

// Kill ends the process without notice.
func (r *Redis) Kill() error { return r.signal(syscall.SIGKILL) }

var errInProcess = errors.New("the Redis inside this process takes no signals")

func (r *Redis) signal(sig syscall.Signal) error {
	if r.proc == nil {
		return errInProcess
	}
	return r.proc.signal(sig)
}

// StartMiniRedis runs a small Redis inside this process, for `queen dev`
// without a Redis at hand. It speaks enough for hints between replicas.
func StartMiniRedis() (*Redis, error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start in-process redis: %w", err)
	}
	return &Redis{addr: m.Addr(), stop: func(context.Context) error {
		m.Close()
		return nil
	}}, nil
}

// RedisOptions of a redis-server.
type RedisOptions struct {
	Port int      // a free one when 0
	Args []string // as on its command line, after those that are always given
}

// StartRedis runs the real redis-server on a free port of the loopback
// interface, without persistence. It outlives ctx, which bounds the start.
func StartRedis(ctx context.Context) (*Redis, error) {
	return StartRedisWith(ctx, RedisOptions{})
}

// StartRedisWith is StartRedis with options.
func StartRedisWith(ctx context.Context, o RedisOptions) (*Redis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNoRedis
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for range 5 {
		var r *Redis
		var taken bool
		r, taken, err = startRedisOnce(ctx, path, o)
		if err == nil {
			return r, nil
		}
		if !taken || o.Port != 0 {
			break
		}
	}
	return nil, fmt.Errorf("start redis: %w", err)
}

// startRedisOnce reports in taken whether somebody else got the port first.
func startRedisOnce(ctx context.Context, path string, o RedisOptions) (_ *Redis, taken bool, err error) {
	port := o.Port
	if port == 0 {
		if port, err = freePort(); err != nil {
			return nil, false, err
		}
	}
	dir, err := os.MkdirTemp("", "queen-redis-")
	if err != nil {
		return nil, false, fmt.Errorf("make folder: %w", err)
	}
	logPath := filepath.Join(dir, "log")
	args := append([]string{
		"--port", itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", dir, "--logfile", logPath, "--daemonize", "no",
	}, o.Args...)
	cmd := exec.Command(path, args...)
	proc, err := launch(cmd, nil, syscall.SIGKILL)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, false, err
	}
	stop := func(ctx context.Context) error {
		defer os.RemoveAll(dir)
		return stopRedis(ctx, proc)
	}
	addr := net.JoinHostPort("127.0.0.1", itoa(port))
	if err := awaitPing(ctx, addr, proc); err != nil {
		log, _ := os.ReadFile(logPath) // used to explain another error
		_ = stop(context.WithoutCancel(ctx))
		return nil, strings.Contains(string(log), "in use"), fmt.Errorf("%w: %s", err, lastLines(string(log), 3))
	}
	return &Redis{addr: addr, proc: proc, stop: stop}, false, nil
}

func stopRedis(ctx context.Context, proc *process) error {
	if err := proc.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop redis: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	select {
	case <-proc.done:
	case <-ctx.Done():
		_ = proc.signal(syscall.SIGKILL)
		<-proc.done
	}
	return nil
}

// awaitPing waits for an answer in Redis' protocol. A bare connect could reach
// a stranger that took the port; so the child must be alive as well.
func awaitPing(ctx context.Context, addr string, proc *process) error {
	for {
		if proc.exited() {
			return fmt.Errorf("redis-server ended at once: %w", endOf(proc))
		}
		if ping(ctx, addr) == nil && !proc.exited() {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("wait for redis: %w", err)
		}
	}
}

func ping(ctx context.Context, addr string) error {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	buf := make([]byte, len("+PONG"))
	if _, err := conn.Read(buf); err != nil {
		return err
	}
	if string(buf) != "+PONG" {
		return fmt.Errorf("answer %q", buf)
	}
	return nil
}
