//go:build linux || darwin

package main

import (
	"fmt"
	"syscall"
)

// freeBytes is what is left on the disk of a folder.
func freeBytes(dir string) (free int64, known bool) {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil {
		return 0, false
	}
	return int64(fs.Bavail) * int64(fs.Bsize), true //nolint:unconvert // Bsize has another type on another system
}

// allowFiles raises this process' limit of open files as far as it may and returns the limit.
func allowFiles(want uint64) (uint64, error) {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	if lim.Cur >= want {
		return lim.Cur, nil
	}
	// The hard limit too, where the process may; else up to it.
	for _, raised := range []syscall.Rlimit{{Cur: want, Max: max(want, lim.Max)}, {Cur: min(want, lim.Max), Max: lim.Max}} {
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			return raised.Cur, nil
		}
	}
	return lim.Cur, nil
}
