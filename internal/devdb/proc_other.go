//go:build !linux

package devdb

import "syscall"

// dieWithParent has no equivalent outside Linux; the next start on the same
// folder stops an orphan instead.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
