package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"tenant.network/tenant-webhook/internal/devnode"
)

// leavesNothing starts `make node`, ends it in both ways, and looks for what is left on the machine.
func leavesNothing(ctx context.Context, o options, out io.Writer) error {
	dir, err := filepath.Abs(o.dir + "-leftovers")
	if err != nil {
		return err
	}
	before, err := lookAtHost()
	if err != nil {
		return err
	}
	for _, end := range []struct {
		name   string
		signal syscall.Signal
		clean  bool
	}{{"Ctrl-C", syscall.SIGINT, false}, {"SIGKILL and -clean", syscall.SIGKILL, true}} {
		begun := time.Now()
		if err := runNode(ctx, o.bin, dir, end.signal, out); err != nil {
			return fmt.Errorf("%s: %w", end.name, err)
		}
		if end.clean {
			output, err := exec.CommandContext(ctx, filepath.Join(o.bin, "node"), "-dir", dir, "-clean").CombinedOutput()
			if err != nil {
				return fmt.Errorf("node -clean: %w: %s", err, output)
			}
		}
		if err := eventually(ctx, "nothing is left", func(context.Context) error { return leftOnHost(dir, before) }); err != nil {
			return fmt.Errorf("%s: %w", end.name, err)
		}
		fmt.Fprintf(out, "node: ✓ make node shows 2 more interfaces and leaves nothing after %s (%.0fs)\n", end.name, time.Since(begun).Seconds())
	}
	return nil
}

// runNode runs the program until it has shown its proof, signals it, and waits for its end.
func runNode(ctx context.Context, bin, dir string, signal syscall.Signal, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(bin, "node"), "-dir", dir, "-bin", bin)
	command.Stderr = out
	output, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	proved := false
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if strings.Contains(lines.Text(), "proof: eth0 and 2 more interfaces") {
			proved = true
			if err := command.Process.Signal(signal); err != nil {
				return err
			}
		}
	}
	err = command.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && signal == syscall.SIGKILL {
		err = nil
	}
	if !proved {
		return fmt.Errorf("it showed no proof: %w", err)
	}
	return err
}

// host is what a machine has besides us.
type host struct{ interfaces, pidNamespaces map[string]bool }

func lookAtHost() (host, error) {
	h := host{interfaces: map[string]bool{}, pidNamespaces: map[string]bool{}}
	all, err := net.Interfaces()
	for _, i := range all {
		h.interfaces[i.Name] = true
	}
	processes, globErr := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, link := range processes {
		if namespace, err := os.Readlink(link); err == nil {
			h.pidNamespaces[namespace] = true
		}
	}
	return h, errors.Join(err, globErr)
}

// leftOnHost looks for processes, mounts, interfaces, cgroups and files of a node in this directory.
func leftOnHost(dir string, before host) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory %s is there", dir)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(mounts), dir) {
		return fmt.Errorf("something is mounted from or below %s", dir)
	}
	if cgroups, _ := filepath.Glob("/sys/fs/cgroup/*/" + devnode.Cgroup(filepath.Join(dir, "node"))); len(cgroups) > 0 {
		return fmt.Errorf("cgroups %v are there", cgroups)
	}
	now, err := lookAtHost()
	if err != nil {
		return err
	}
	for name := range now.interfaces {
		if !before.interfaces[name] {
			return fmt.Errorf("interface %s is there", name)
		}
	}
	for namespace := range now.pidNamespaces {
		if !before.pidNamespaces[namespace] {
			return fmt.Errorf("processes of the namespace %s run", namespace)
		}
	}
	return processesOf(dir)
}

// processesOf looks for processes that name the directory, as all of the cluster's do.
func processesOf(dir string) error {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range commands {
		command, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(command), dir) {
			return fmt.Errorf("%s: %s", path, strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return nil
}
