package devnode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/internal/devnode/relay"
)

// readyTimeout bounds the time from the kubelet's start until pods are placed on the node.
const readyTimeout = 90 * time.Second

// Node is a running node.
type Node struct {
	config  Config
	cluster *devcluster.Cluster
	tools   tools
	inside  *inside
	api     net.Listener
}

// Start adds a node to the cluster and returns when pods can run on it. The node's processes are components of the
// cluster and end with it; Stop then clears the rest. A *NotPossibleError says what this machine lacks.
func Start(ctx context.Context, cluster *devcluster.Cluster, config Config) (*Node, error) {
	config, err := config.complete()
	if err != nil {
		return nil, fmt.Errorf("devnode: %w", err)
	}
	n := &Node{config: config, cluster: cluster}
	n.inside = &inside{pid: func() int { return cluster.PID(Init) }, cgroup: Cgroup(config.Dir)}
	for _, step := range []func(context.Context) error{
		n.prepare,
		n.connect,
		n.startInit,
		n.startRuntime,
		n.startKubelet,
		n.startDevicePlugin,
		n.awaitReady,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("devnode: %w", errors.Join(err, n.Stop()))
		}
	}
	return n, nil
}

// Check finds out whether this machine can run a node, before anything is started for it.
func Check(ctx context.Context, bin string) error {
	if _, err := findTools(); err != nil {
		return err
	}
	return preflight(ctx, bin)
}

// prepare makes the directory and all files in it.
func (n *Node) prepare(context.Context) error {
	var err error
	if n.tools, err = findTools(); err != nil {
		return err
	}
	if err := Clean(n.config.Dir); err != nil {
		return fmt.Errorf("clearing what an earlier node left: %w", err)
	}
	return n.writeFiles()
}

// connect lets the node reach the API server, and gives its programs their permissions.
func (n *Node) connect(ctx context.Context) error {
	listener, err := net.Listen("unix", filepath.Join(n.config.Dir, "run", "apiserver.sock"))
	if err != nil {
		return err
	}
	n.api = listener
	go relay.Serve(listener, "tcp", n.apiServer())
	return errors.Join(
		n.cluster.Apply(ctx, rbac, nil),
		n.cluster.WriteKubeconfig(n.file("kubelet.kubeconfig"), "system:node:"+n.config.Name, "system:nodes"),
		n.cluster.WriteKubeconfig(n.file("multus.kubeconfig"), multusUser),
	)
}

// apiServer is its address, on the host's loopback and, through the relay, on the node's.
func (n *Node) apiServer() string {
	return strings.TrimPrefix(n.cluster.AdminConfig().Host, "https://")
}

func (n *Node) startInit(ctx context.Context) error {
	fork, err := newNamespaces()
	if err != nil {
		return err
	}
	return n.cluster.Run(ctx, devcluster.Component{
		Name: Init, Path: n.binary("node-init"), Fork: fork,
		Args: []string{"-dir", n.config.Dir, "-name", n.config.Name, "-cgroup", Cgroup(n.config.Dir), "-api-server", n.apiServer()},
		Ready: func(context.Context) error {
			_, err := os.Stat(n.path("/run/ready"))
			return err
		},
	})
}

// run starts one of the node's programs in its namespaces.
func (n *Node) run(ctx context.Context, component devcluster.Component) error {
	component.Fork = n.inside.fork
	return n.cluster.Run(ctx, component)
}

func (n *Node) startRuntime(ctx context.Context) error {
	err := n.run(ctx, devcluster.Component{
		Name: Containerd, Path: n.tools.containerd, Args: []string{"--config", n.file("containerd.toml")},
		Ready: n.runtimeReady,
	})
	if err != nil {
		return err
	}
	return n.importImages(ctx)
}

func (n *Node) importImages(ctx context.Context) error {
	archive := n.file("images.tar")
	if err := writeImages(archive, n.binary("workload")); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	output, err := exec.CommandContext(ctx, n.tools.ctr, "--address", n.path(containerdSocket), "--namespace", "k8s.io",
		"images", "import", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("importing images: %w: %s", err, output)
	}
	return nil
}

func (n *Node) startKubelet(ctx context.Context) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DialContext: n.DialContext, DisableKeepAlives: true}}
	return n.run(ctx, devcluster.Component{
		Name: Kubelet, Path: n.binary("controlplane"),
		Args: []string{
			"kubelet",
			"--config=" + n.file("kubelet.yaml"),
			"--kubeconfig=" + n.file("kubelet.kubeconfig"),
			"--root-dir=/var/lib/kubelet", // device plugins and Multus look for its sockets there
			"--cert-dir=/var/lib/kubelet/pki",
			"--hostname-override=" + n.config.Name,
			"--node-ip=192.0.2.1",
		},
		Ready: func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10248/healthz", http.NoBody)
			if err != nil {
				return err
			}
			response, err := client.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close() //nolint:errcheck // only the status counts
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("healthz: %s", response.Status)
			}
			return nil
		},
	})
}

func (n *Node) startDevicePlugin(ctx context.Context) error {
	args := []string{"-control", devicePluginSocket}
	for _, name := range slices.Sorted(maps.Keys(n.config.Pools)) {
		args = append(args, "-pool", name+"="+strconv.Itoa(n.config.Pools[name]))
	}
	return n.run(ctx, devcluster.Component{
		Name: DevicePlugin, Path: n.binary("deviceplugin"), Args: args, Ready: n.devicePluginReady,
	})
}

// awaitReady waits until the scheduler can place pods that ask for the pools' devices.
func (n *Node) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var last error
	for {
		if last = n.ready(ctx); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s is not ready after %s: %w", n.config.Name, readyTimeout, last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (n *Node) ready(ctx context.Context) error {
	node, err := n.cluster.Client().CoreV1().Nodes().Get(ctx, n.config.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(node.Spec.Taints) > 0 {
		return fmt.Errorf("it has taints %v", node.Spec.Taints)
	}
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	if !ready {
		return fmt.Errorf("its conditions are %v", node.Status.Conditions)
	}
	for name, devices := range n.config.Pools {
		if have := node.Status.Allocatable[corev1.ResourceName(name)]; have.Value() != int64(devices) {
			return fmt.Errorf("%s: allocatable %d, not %d", name, have.Value(), devices)
		}
	}
	return nil
}

// PowerOff ends all of the node at once, its containers included.
func (n *Node) PowerOff() error {
	started := n.cluster.Components()
	var errs []error
	// Their supervisors must not start them anew in a node that has none, so the first process comes last.
	for _, name := range []string{DevicePlugin, Kubelet, Containerd, Init} {
		if slices.Contains(started, name) { // a start that failed may not have come to all of them
			errs = append(errs, n.cluster.Crash(name))
		}
	}
	return errors.Join(errs...)
}

// PowerOn starts the node after PowerOff and returns when its programs are there.
func (n *Node) PowerOn(ctx context.Context) error {
	if err := removeSockets(n.config.Dir); err != nil {
		return err
	}
	for _, name := range []string{Init, Containerd, Kubelet, DevicePlugin} {
		if err := n.cluster.StartComponent(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the node and removes everything it left behind. The cluster may be stopped already.
func (n *Node) Stop() error {
	err := n.PowerOff()
	if n.api != nil {
		err = errors.Join(err, n.api.Close())
	}
	return errors.Join(err, Clean(n.config.Dir))
}

func (n *Node) binary(name string) string { return filepath.Join(n.config.BinDir, name) }

func (n *Node) file(name string) string { return filepath.Join(n.config.Dir, "etc", name) }

// PodLogs is the directory with the pods' logs: NAMESPACE_NAME_UID/CONTAINER/0.log in it.
func (n *Node) PodLogs() string { return filepath.Join(n.config.Dir, "var-log", "pods") }
