package devnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"tenant.network/tenant-webhook/internal/devcluster"
)

// cloneFlags are the namespaces that a node has of its own.
const cloneFlags = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// newNamespaces returns the function that starts a child as the first process of new namespaces.
func newNamespaces() (func(*exec.Cmd) error, error) {
	start, err := devcluster.NewForker(nil)
	if err != nil {
		return nil, err
	}
	return func(cmd *exec.Cmd) error {
		cmd.SysProcAttr.Cloneflags = cloneFlags
		return start(cmd)
	}, nil
}

// enter moves the calling thread into the namespaces of a process. Of the PID namespace only children become members.
func enter(pid int) error {
	// The thread shares its root and working directory with all others, and nobody may leave the others behind.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	// All are opened before the first is entered: in there /proc is another one.
	for _, name := range []string{"net", "ipc", "uts", "pid", "cgroup", "mnt"} {
		f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/" + name)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	for _, f := range files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("entering %s: %w", f.Name(), err)
		}
	}
	return nil
}

// inside starts children in the node's namespaces. After a power cut these are others.
type inside struct {
	pid    func() int // the node's first process
	cgroup string

	mu    sync.Mutex
	of    int // whose namespaces start is about; guarded by mu
	start func(*exec.Cmd) error
}

func (i *inside) fork(cmd *exec.Cmd) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	pid := i.pid()
	if pid == 0 {
		return errors.New("the node is off")
	}
	if i.of != pid {
		start, err := devcluster.NewForker(func() error { return enter(pid) })
		if err != nil {
			return fmt.Errorf("entering the node: %w", err)
		}
		i.of, i.start = pid, start
	}
	// A child that cannot see its parent takes it for dead and kills itself (syscall.forkAndExecInChild). It ends with the
	// node's first process anyway.
	cmd.SysProcAttr.Pdeathsig = 0
	if err := i.start(cmd); err != nil {
		return err
	}
	return joinCgroups(i.cgroup, cmd.Process.Pid)
}

// DialContext connects from within the node's network namespace. It fits http.Transport.
func (n *Node) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	pid := n.cluster.PID(Init)
	if pid == 0 {
		return nil, errors.New("the node is off")
	}
	type answer struct {
		connection net.Conn
		err        error
	}
	answers := make(chan answer, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: this thread ends with the goroutine
		f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
		if err == nil {
			err = errors.Join(unix.Setns(int(f.Fd()), unix.CLONE_NEWNET), f.Close())
		}
		var a answer
		if a.err = err; err == nil {
			a.connection, a.err = (&net.Dialer{}).DialContext(ctx, network, address)
		}
		answers <- a
	}()
	a := <-answers
	return a.connection, a.err
}

// path is a path of the node's as the host sees it, short enough for a socket's address.
func (n *Node) path(inside string) string {
	return "/proc/" + strconv.Itoa(n.cluster.PID(Init)) + "/root" + inside
}
