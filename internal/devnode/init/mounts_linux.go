package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mounts makes the mount namespace the node's own. Nothing done here reaches the host.
func mounts(o options) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	if o.probe {
		return nil
	}
	if err := ownCgroups(o.cgroup); err != nil {
		return err
	}
	for dir, target := range map[string]string{"run": "/run", "var-lib": "/var/lib", "var-log": "/var/log"} {
		if err := unix.Mount(filepath.Join(o.dir, dir), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", dir, target, err)
		}
	}
	return nil
}

// probeOverlay tries the file system that containers are made of.
func probeOverlay(dir string) error {
	var paths []string
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		paths = append(paths, path)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", paths[0], paths[1], paths[2])
	if err := unix.Mount("overlay", paths[3], "overlay", 0, options); err != nil {
		return fmt.Errorf("kernel feature overlayfs: %w", err)
	}
	return unix.Unmount(paths[3], 0)
}
