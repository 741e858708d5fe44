// Command node-init is the first process in the namespaces of a development node. It turns what it inherited from the
// host into the node's own mounts, cgroups and network, reaps orphans, and takes the whole node along when it ends.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// notPossible is the exit code for what this machine cannot do.
const notPossible = 2

func main() {
	runtime.LockOSThread() // the main thread's namespaces are the process's to others
	var o options
	flag.StringVar(&o.dir, "dir", "", "directory of the node: its run, var-lib and var-log are mounted")
	flag.StringVar(&o.name, "name", "node-1", "host name")
	flag.StringVar(&o.cgroup, "cgroup", "", "cgroup below which the node's containers are")
	flag.StringVar(&o.apiServer, "api-server", "", "loopback address that leads to the API server, through run/apiserver.sock")
	flag.BoolVar(&o.probe, "probe", false, "only find out whether this machine can run a node; -dir is for trying")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(notPossible)
	}
}

type options struct {
	dir, name, cgroup, apiServer string
	probe                        bool
}

func run(o options) error {
	if o.dir == "" {
		return errors.New("-dir is missing")
	}
	if os.Getpid() != 1 {
		return errors.New("not the first process of a PID namespace")
	}
	if err := mounts(o); err != nil {
		return err
	}
	if o.probe {
		return errors.Join(probeOverlay(o.dir), probeNetwork())
	}
	if err := errors.Join(unix.Sethostname([]byte(o.name)), network()); err != nil {
		return err
	}
	if err := serveAPI(o.apiServer); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, unix.SIGCHLD)
	if err := os.WriteFile(filepath.Join("/run", "ready"), nil, 0o644); err != nil {
		return err
	}
	for {
		select {
		case <-stop:
			return nil
		case <-orphans:
			reap()
		}
	}
}

// reap waits for all children that have ended: containers' shims, whose parents ended before them.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if pid <= 0 {
			return
		}
	}
}
