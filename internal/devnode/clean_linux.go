package devnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	cgroupRoot   = "/sys/fs/cgroup"
	cleanTimeout = 10 * time.Second
)

// Clean removes what a node in this directory left: the processes in its cgroup, the cgroup, and the directory. All else
// ended with its namespaces. Nothing to clean is fine. The node must not be running.
func Clean(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(cleanTimeout)
	for {
		err := removeCgroups(Cgroup(dir))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return err
		}
		<-time.After(50 * time.Millisecond) // a process that was killed takes a moment
	}
	return os.RemoveAll(dir)
}

// joinCgroups moves a process into the node's cgroups; its children are born there.
func joinCgroups(name string, pid int) error {
	roots, err := cgroups(name)
	if err != nil {
		return err
	}
	for _, root := range roots {
		err := os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
		if err != nil && !errors.Is(err, syscall.ESRCH) { // it has ended already, which its supervisor will notice
			return err
		}
	}
	return nil
}

// cgroups are the cgroups of this name, one in each hierarchy.
func cgroups(name string) ([]string, error) {
	var roots []string
	for _, parent := range []string{cgroupRoot, filepath.Join(cgroupRoot, "*")} {
		found, err := filepath.Glob(filepath.Join(parent, name))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			// cpu,cpuacct and the like have several names, all but one of them links.
			if target, err := filepath.EvalSymlinks(path); err == nil && target == path {
				roots = append(roots, path)
			}
		}
	}
	return roots, nil
}

// removeCgroups kills what is in the cgroups of this name and removes them, in each hierarchy.
func removeCgroups(name string) error {
	roots, err := cgroups(name)
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range roots {
		errs = append(errs, removeCgroup(root))
	}
	return errors.Join(errs...)
}

func removeCgroup(root string) error {
	var groups []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			groups = append(groups, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(groups) // children first
	for _, group := range groups {
		if err := killAll(group); err != nil {
			return err
		}
		if err := os.Remove(group); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return nil
}

func killAll(group string) error {
	content, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.FieldsSeq(string(content)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			return fmt.Errorf("%s: %q is no process", group, line)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("killing %d: %w", pid, err)
		}
	}
	return nil
}
