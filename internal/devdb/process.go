package devdb

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// process is a running child and the news of its end.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after the child is gone and reaped
	err  error         // how it ended; read after done
}

// launch starts the child in a process group of its own: Ctrl-C in a terminal
// goes to the whole foreground group, and the database must outlive the broker
// that is still draining.
func launch(cmd *exec.Cmd, acct *account, onParentDeath syscall.Signal) (*process, error) {
	attr := &syscall.SysProcAttr{Setpgid: true, Credential: acct.credential()}
	dieWithParent(attr, onParentDeath)
	cmd.SysProcAttr = attr

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel watches the thread that forked, not the process. The
		// thread is held until the child is gone, or the Go runtime could
		// retire it and take a healthy server down with it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// alive reports whether a process with this id exists, whoever owns it.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// isPostgres tells a server apart from an innocent process that got the same id
// after a reboot.
func isPostgres(pid int) bool {
	out, err := exec.Command("ps", "-o", "comm=", "-p", itoa(pid)).Output()
	if err != nil {
		return false
	}
	return strings.HasPrefix(filepath.Base(strings.TrimSpace(string(out))), "postgres")
}

// childEnv is the launcher's environment without the variables that would
// redirect the server (PGDATA, PGPORT, …), and with messages in English,
// because they end up in bug reports.
func childEnv(home string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") ||
			strings.HasPrefix(kv, "LANG") || strings.HasPrefix(kv, "HOME=") {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "HOME="+home, "LC_ALL=C")
}
