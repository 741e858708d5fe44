//go:build !linux

package devcluster

import "syscall"

// childAttributes puts a child into a process group of its own, so that a terminal's Ctrl-C reaches only us and the
// order of stopping is ours. Only Linux can tie its life to ours.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
