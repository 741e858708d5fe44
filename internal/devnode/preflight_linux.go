package devnode

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// NotPossibleError says what this machine lacks for a node.
type NotPossibleError struct{ What, Remedy string }

func (e *NotPossibleError) Error() string {
	return fmt.Sprintf("no node here: %s; %s", e.What, e.Remedy)
}

const install = "hack/node-install.sh installs it on Debian and Ubuntu"

// tools of the distribution that a node consists of.
type tools struct{ containerd, ctr, runc, cni string }

// plugins are the CNI plugins that the node's networks use.
var plugins = []string{"bridge", "host-local", "loopback"}

func findTools() (tools, error) {
	var t tools
	for name, path := range map[string]*string{"containerd": &t.containerd, "ctr": &t.ctr, "runc": &t.runc, "containerd-shim-runc-v2": new(string)} {
		found, err := exec.LookPath(name)
		if err != nil {
			return t, &NotPossibleError{What: name + " is not installed", Remedy: install}
		}
		*path = found
	}
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if hasPlugins(dir) {
			t.cni = dir
			return t, nil
		}
	}
	return t, &NotPossibleError{What: "the CNI plugins " + strings.Join(plugins, ", ") + " are not installed", Remedy: install}
}

func hasPlugins(dir string) bool {
	for _, name := range plugins {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// preflight finds out whether this machine can run a node, by trying. It leaves nothing behind.
func preflight(ctx context.Context, bin string) error {
	if os.Geteuid() != 0 {
		return &NotPossibleError{What: "not root", Remedy: "a node makes namespaces, mounts and bridges of its own: run it as root"}
	}
	dir, err := os.MkdirTemp("", "devnode-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a few empty directories of the temporary ones
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	probe := exec.CommandContext(ctx, filepath.Join(bin, "node-init"), "-probe", "-dir", dir)
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: cloneFlags, Pdeathsig: syscall.SIGKILL}
	var output bytes.Buffer
	probe.Stdout, probe.Stderr = &output, &output
	err = probe.Start()
	if err != nil {
		return &NotPossibleError{What: fmt.Sprintf("new namespaces (mount, pid, net, ipc, uts): %v", err), Remedy: "the kernel or a sandbox forbids it"}
	}
	if err := probe.Wait(); err != nil {
		return &NotPossibleError{What: strings.TrimSpace(output.String()), Remedy: "the kernel or a sandbox forbids it"}
	}
	return nil
}
