package devnode

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PodNetworks is the number of pods' network namespaces on the node.
func (n *Node) PodNetworks() (int, error) {
	entries, err := os.ReadDir(filepath.Join(n.config.Dir, "run", "netns"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return len(entries), err
}

// Addresses is the number of addresses that the CNI plugin host-local has given out: a file for each.
func (n *Node) Addresses() (int, error) {
	count := 0
	root := filepath.Join(n.config.Dir, "var-lib", "cni", "networks")
	err := filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.Type().IsRegular() && strings.Count(entry.Name(), ".") == 3 && !strings.HasPrefix(entry.Name(), "last_") {
			count++
		}
		return err
	})
	return count, err
}

// PodInterfaces is the number of interfaces in the node's network whose other ends are in pods.
func (n *Node) PodInterfaces() (int, error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(n.cluster.PID(Init)) + "/net/dev")
	if err != nil {
		return 0, err
	}
	count := 0
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(strings.TrimSpace(line), "veth") {
			count++
		}
	}
	return count, nil
}
