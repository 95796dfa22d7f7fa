//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// launcher is one thread that starts every child. The kernel ends a child with
// the thread that forked it, so the thread is kept for as long as the cluster
// lives; and it has a view of the mounts of its own, so that the small disks it
// mounts vanish with it, however the test ends.
type launcher struct {
	jobs chan func()
	// private: the view of mounts is our own, which takes the rights of root.
	private bool
}

func newLauncher() *launcher {
	l := &launcher{jobs: make(chan func())}
	ready := make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := syscall.Unshare(syscall.CLONE_NEWNS)
		if err == nil {
			err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
		}
		l.private = err == nil
		close(ready)
		for job := range l.jobs {
			job()
		}
	}()
	<-ready
	return l
}

// do runs a function on the thread, where the small disks are visible.
func (l *launcher) do(job func() error) error {
	done := make(chan error, 1)
	l.jobs <- func() { done <- job() }
	return <-done
}

// close ends the thread, and with it whatever it started and did not stop.
func (l *launcher) close() { close(l.jobs) }

// account is who a server runs as that refuses to be root.
type account struct{ uid, gid int }

// unprivileged is nil when the tests do not run as root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("as root, PostgreSQL needs a user to step down to: %w", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &account{uid, gid}, nil
}

func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return filepath.WalkDir(path, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, a.uid, a.gid)
	})
}

// program is what to start, and how.
type program struct {
	name    string
	command []string
	env     []string
	dir     string
	as      *account
	onDeath syscall.Signal // what the child gets when the test is gone
	log     string         // file that its output is appended to
}

// Process is a running child.
type Process struct {
	Name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended; read after done
}

func (l *launcher) start(p program) (*Process, error) {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := p.cmd()
	cmd.Stdout, cmd.Stderr = out, out
	if err := l.do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	child := &Process{Name: p.name, cmd: cmd, done: make(chan struct{})}
	go func() {
		child.err = cmd.Wait()
		close(child.done)
	}()
	return child, nil
}

// run starts a program, waits for it, and returns what it printed.
func (l *launcher) run(p program) (string, error) {
	var out strings.Builder
	cmd := p.cmd()
	cmd.Stdout, cmd.Stderr = &out, &out
	err := l.do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", p.name, err, out.String())
	}
	return out.String(), nil
}

func (p program) cmd() *exec.Cmd {
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Dir, cmd.Env = p.dir, append([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}, p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: p.onDeath}
	if p.as != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.as.uid), Gid: uint32(p.as.gid)}
	}
	return cmd
}

// Signal sends a signal; a child that is gone is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// ended says how a child ended that should not have.
func (p *Process) ended() error { return fmt.Errorf("%s ended: %s", p.Name, p.cmd.ProcessState) }

// Running reports whether the child still is.
func (p *Process) Running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// End waits for the child; a child that takes longer is killed and that is the
// error.
func (p *Process) End(within time.Duration) error {
	select {
	case <-p.done:
		return nil
	case <-time.After(within):
		_ = p.Signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("%s still ran after %v", p.Name, within)
	}
}

// Stop sends a signal and waits.
func (p *Process) Stop(sig syscall.Signal, within time.Duration) error {
	if !p.Running() {
		return nil
	}
	// A stopped process hears nothing but SIGKILL.
	_ = p.Signal(syscall.SIGCONT)
	if err := p.Signal(sig); err != nil {
		return err
	}
	return p.End(within)
}

// children lists the processes that a process has started.
func children(pid int) (found []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // gone
		}
		// The name, in parentheses, may contain anything.
		_, rest, ok := strings.Cut(string(raw), ") ")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if id, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, id)
		}
	}
	return found
}

// peakMemory is the most memory that the child has held so far, in bytes.
func (p *Process) peakMemory() (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, errors.New("no VmHWM in the status")
	}
	kb, err := strconv.Atoi(fields[0])
	return kb << 10, err
}
