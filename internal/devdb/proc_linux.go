package devdb

import "syscall"

// dieWithParent asks the kernel to signal the child when the launcher dies
// without a chance to stop it, so that a killed test run leaves nothing behind.
func dieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
