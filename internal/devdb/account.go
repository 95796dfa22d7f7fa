package devdb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the operating-system user a server runs as. A nil account means
// the current one. PostgreSQL refuses to run as root, and containers and CI
// machines often are root, so there the launcher steps down.
type account struct {
	name     string
	uid, gid uint32
}

// runAs picks the account: nil for a normal user, else `postgres` where the
// package made it, else `nobody`.
func runAs() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil || uid == 0 {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("running as root and PostgreSQL refuses to: no user postgres or nobody to step down to")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own hands a folder and all in it to the account.
func (a *account) own(dir string) error {
	if a == nil {
		return nil
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(a.uid), int(a.gid))
	})
	if err != nil {
		return fmt.Errorf("hand %s to user %s: %w", dir, a.name, err)
	}
	return nil
}

// canReach reports whether the account may enter every folder above and
// including dir. Root's home is 0700 on most systems, so a path below it is
// invisible to the user we step down to, however dir itself is owned.
func (a *account) canReach(dir string) bool {
	return a == nil || a.firstClosed(dir) == ""
}

// firstClosed names the topmost folder on the way to dir that the account may
// not enter; parts that do not exist yet do not count.
func (a *account) firstClosed(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	var chain []string
	for p := abs; ; p = filepath.Dir(p) {
		chain = append(chain, p)
		if p == filepath.Dir(p) {
			break
		}
	}
	for i := len(chain) - 1; i >= 0; i-- {
		info, err := os.Stat(chain[i])
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		if err != nil || !a.mayEnter(info) {
			return chain[i]
		}
	}
	return ""
}

func (a *account) mayEnter(info fs.FileInfo) bool {
	mode := info.Mode().Perm()
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case ok && st.Uid == a.uid:
		return mode&0o100 != 0
	case ok && st.Gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// DefaultDir is where `queen dev` keeps its data unless told otherwise:
// ~/.queen/dev, or a system folder when the server's user cannot enter the
// home directory (root, mostly).
func DefaultDir() (string, error) {
	acct, err := runAs()
	if err != nil {
		return "", err
	}
	return firstReachable(acct, "dev", homeDir(".queen"), "/var/lib/queen", filepath.Join(os.TempDir(), "queen"))
}

func homeDir(name string) string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, name)
}

// firstReachable returns base/name for the first base that can be created and
// that the account can enter.
func firstReachable(acct *account, name string, bases ...string) (string, error) {
	for _, base := range bases {
		if base == "" || !acct.canReach(base) {
			continue
		}
		// 0755 because the account has to pass through it; what it protects
		// is the folder inside.
		if err := os.MkdirAll(base, 0o755); err != nil || !acct.canReach(base) {
			continue
		}
		return filepath.Join(base, name), nil
	}
	return "", fmt.Errorf("no folder for %s: none of %q is usable", name, bases)
}
