package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchy is one mounted cgroup hierarchy: several of them with cgroup v1, one with v2, both on hybrid hosts.
type hierarchy struct{ point, kind, options string }

// ownCgroups makes a cgroup of this name the root of all that the node sees: what the runtime makes is below it on the
// host, and nothing else is in there. It must run on the process's main thread, whose cgroup namespace is the one that
// others enter.
func ownCgroups(name string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	mounted := hierarchies(string(mounts))
	if mounted == nil {
		return errors.New("kernel feature cgroups: none are mounted")
	}
	for _, h := range mounted {
		if err := h.join(name); err != nil {
			return fmt.Errorf("cgroup %s: %w", h.point, err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("cgroup namespace: %w", err)
	}
	// A file system is not mounted over itself, so all goes on a new one.
	if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return fmt.Errorf("mounting %s: %w", cgroupRoot, err)
	}
	for _, h := range mounted {
		if err := os.MkdirAll(h.point, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(h.kind, h.point, h.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, h.options); err != nil {
			return fmt.Errorf("mounting %s on %s (%s): %w", h.kind, h.point, h.options, err)
		}
	}
	return nil
}

// hierarchies are read from a list of mounts (proc_pid_mountinfo(5)).
func hierarchies(mounts string) []hierarchy {
	var found []hierarchy
	for line := range strings.Lines(mounts) {
		first, second, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, source := strings.Fields(first), strings.Fields(second)
		if len(fields) < 5 || len(source) < 3 || !strings.HasPrefix(source[0], "cgroup") {
			continue
		}
		h := hierarchy{point: fields[4], kind: source[0]}
		if h.kind == "cgroup" { // version 2 takes none
			options := slices.DeleteFunc(strings.Split(source[2], ","), func(o string) bool {
				return o == "rw" || o == "ro" || strings.HasPrefix(o, "release_agent=")
			})
			if slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "name=") }) {
				options = append(options, "none")
			}
			h.options = strings.Join(options, ",")
		}
		found = append(found, h)
	}
	return found
}

// join moves this process into the cgroup.
func (h hierarchy) join(name string) error {
	own := filepath.Join(h.point, name)
	if err := os.MkdirAll(own, 0o755); err != nil {
		return err
	}
	// A cpuset without CPUs takes no process, and version 1 makes new ones like that.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if h.kind != "cgroup" {
			break
		}
		value, err := os.ReadFile(filepath.Join(h.point, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(own, file), value, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644) // 0: who writes
}
