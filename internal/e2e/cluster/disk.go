//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrNoDisk says that a disk of a limited size cannot be had here.
var ErrNoDisk = errors.New("no right to mount a disk of a limited size: run as root")

// disk is a folder with a limited size: a tmpfs that only the launcher's thread
// and its children see. Without the right to mount it is an ordinary folder.
type disk struct {
	l   *launcher
	dir string
}

func (l *launcher) newDisk(dir string, size int64) (*disk, error) {
	d := &disk{l: l, dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if !l.private {
		return d, nil
	}
	err := l.do(func() error {
		return syscall.Mount("queen-cluster", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", size))
	})
	if err != nil {
		return nil, fmt.Errorf("mount a disk: %w", err)
	}
	return d, nil
}

func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill takes all the space there is.
func (d *disk) fill() error {
	if !d.l.private {
		return ErrNoDisk
	}
	return d.l.do(func() error {
		f, err := os.Create(d.ballast())
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		block := []byte(strings.Repeat("full", 16<<10))
		for {
			if _, err := f.Write(block); err != nil {
				if errors.Is(err, syscall.ENOSPC) {
					return nil
				}
				return err
			}
		}
	})
}

// free gives the space back.
func (d *disk) free() error {
	return d.l.do(func() error { return os.RemoveAll(d.ballast()) })
}
