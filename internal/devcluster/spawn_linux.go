package devcluster

import "syscall"

// childAttributes puts a child into a process group of its own, so that a terminal's Ctrl-C reaches only us and the
// order of stopping is ours, and ties its life to ours even if we are killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
