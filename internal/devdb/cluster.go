package devdb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A folder looks like this: data/ is the PostgreSQL cluster, port remembers the
// port across restarts, lock is held while a launcher uses the folder, log is
// the server's output.
const (
	dataName = "data"
	portName = "port"
	lockName = "lock"
	logName  = "postgres.log"
)

// ErrInUse says that another launcher already runs a server on the folder.
var ErrInUse = errors.New("data folder is in use by another process")

func itoa(n int) string { return strconv.Itoa(n) }

// lockDir takes the folder for this process. The lock is the kernel's, so it
// vanishes with its holder however that one ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", dir, ErrInUse)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// clusterVersion returns the major version that made the cluster, 0 when there
// is none yet.
func clusterVersion(dir string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(dir, dataName, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read version of %s: %w", dir, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("read version of %s: %w", dir, err)
	}
	return n, nil
}

// createCluster runs initdb into a folder beside the final one and renames it,
// so that an interrupted run never leaves half a cluster that looks whole.
func createCluster(ctx context.Context, bin binaries, acct *account, dir string, durable bool) error {
	tmp := filepath.Join(dir, dataName+".new")
	var lastErr error
	// Not every system has the C.UTF-8 locale (macOS has not).
	for _, locale := range []string{"C.UTF-8", "C"} {
		if err := os.RemoveAll(tmp); err != nil {
			return fmt.Errorf("clear %s: %w", tmp, err)
		}
		args := []string{
			"-D", tmp, "-U", "postgres", "--auth=trust",
			"--encoding=UTF8", "--locale=" + locale, "--no-instructions",
		}
		if !durable {
			args = append(args, "--no-sync")
		}
		cmd := exec.CommandContext(ctx, bin.path("initdb"), args...)
		cmd.Dir, cmd.Env = dir, childEnv(dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: acct.credential()}
		out, err := cmd.CombinedOutput()
		if err == nil {
			return os.Rename(tmp, filepath.Join(dir, dataName))
		}
		lastErr = fmt.Errorf("initdb: %w: %s", err, lastLines(string(out), 5))
		if ctx.Err() != nil {
			return lastErr
		}
	}
	return lastErr
}

// clearStale removes what a crash left behind. The caller holds the folder's
// lock, so a server still running on it is an orphan whose launcher is dead: it
// is stopped, because it may run with other settings and nobody would stop it.
func clearStale(ctx context.Context, dir string) error {
	pidFile := filepath.Join(dir, dataName, "postmaster.pid")
	raw, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", pidFile, err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(first))
	if pid > 1 && alive(pid) && isPostgres(pid) {
		if err := stopOrphan(ctx, pid); err != nil {
			return err
		}
	}
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove stale %s: %w", pidFile, err)
	}
	return nil
}

func stopOrphan(ctx context.Context, pid int) error {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop orphaned postgres %d: %w", pid, err)
		}
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			if !alive(pid) {
				return nil
			}
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("orphaned postgres %d does not stop", pid)
}

const tempPrefix = "queen-pg-"

// sweepTemp removes the temporary folders of launchers that died without
// cleaning up. A folder whose lock can be taken has no launcher; a very young
// one may not have been locked yet.
func sweepTemp() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		lock, err := lockDir(dir)
		if err != nil {
			continue
		}
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
