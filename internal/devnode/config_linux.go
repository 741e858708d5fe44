package devnode

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"
)

// Names of the node's components, for the cluster's Kill, Stop, Crash and LogPath.
const (
	Init         = "node-init"
	Containerd   = "containerd"
	Kubelet      = "kubelet"
	DevicePlugin = "deviceplugin"
)

// Image is what pods on the node run: see the program workload. There is no registry, and so no other.
const Image = "devnode/workload:1"

// multusUser is whom Multus is to the API server.
const multusUser = "system:serviceaccount:kube-system:multus"

// Config says what node to add.
type Config struct {
	// Name of the node. Default: node-1
	Name string
	// Dir holds everything the node writes. It must not lie below /run, /var/lib or /var/log, which are the node's own in
	// its mount namespace. What an earlier node left in it is removed.
	Dir string
	// BinDir holds controlplane, node-init, workload, deviceplugin and multus.
	BinDir string
	// Pools are the device plugin's extended resources and their numbers of devices.
	Pools map[string]int
}

func (c Config) complete() (Config, error) {
	if c.Name == "" {
		c.Name = "node-1"
	}
	var errs []error
	for _, dir := range []*string{&c.Dir, &c.BinDir} {
		abs, err := filepath.Abs(*dir)
		errs = append(errs, err)
		*dir = abs
	}
	for _, hidden := range []string{"/run", "/var/run", "/var/lib", "/var/log", "/proc", "/sys"} {
		for _, dir := range []string{c.Dir, c.BinDir} {
			if dir == hidden || strings.HasPrefix(dir, hidden+"/") {
				errs = append(errs, fmt.Errorf("directory %s: must not lie below %s, which a node has of its own", dir, hidden))
			}
		}
	}
	return c, errors.Join(errs...)
}

// Cgroup is the name of the cgroup of the node in a directory, given as an absolute path: by it Clean finds it.
func Cgroup(dir string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dir))
	return fmt.Sprintf("devnode-%08x", hash.Sum32())
}
