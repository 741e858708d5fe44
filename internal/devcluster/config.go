package devcluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Names of the components, as Kill, Stop, Signal, LogPath and Config.Without take them.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	KubeScheduler     = "kube-scheduler"
	Kwok              = "kwok"
	Mock              = "tenant-controller-mock"
	Webhook           = "tenant-webhook" // all replicas; a single one is WebhookReplica(i)
	TenantScheduler   = "tenant-scheduler"
)

// WebhookReplica is the name of one webhook replica, counted from 0.
func WebhookReplica(i int) string { return Webhook + "-" + strconv.Itoa(i) }

// Extended resources of the default nodes.
const (
	DefaultVFResource = "mellanox.com/mlnx_sriov_rdma"
	DefaultPFResource = "mellanox.com/mlnx_pf_rdma"
)

const (
	systemNamespace = "webhook-system"
	tenantLabel     = "rdma-type"
	tenantLabelVPC  = "vpc"
)

// Config says what cluster to start. The zero value is the cluster of `make cluster`, without the project's own
// programs as long as Manifests is nil.
type Config struct {
	// Dir holds everything the cluster writes: kubeconfig, kubectl, logs/NAME.log, pids/NAME, data. It is made if it is
	// missing; what an earlier cluster left in it is removed. Default: .devcluster
	Dir string
	// BinDir holds the binaries controlplane, tenant-webhook, tenant-scheduler and tenant-controller-mock. Default: bin
	BinDir string

	// Nodes to create. Default (nil): DefaultNodes(4). An empty slice makes none.
	Nodes []Node
	// TenantNamespaces are created with the label rdma-type=vpc. Default (nil): tenant-a.
	TenantNamespaces []string

	// Manifests are the project's own: manifests/*.yaml and mock/*.yaml are applied, but for what only makes
	// sense with container images (Deployments, Services, …). Nil: none, and none of the project's programs run either.
	Manifests fs.FS
	// FollowDeployments runs the project's programs while the cluster has Deployments of them in webhook-system, instead
	// of applying Manifests: for tests of how the project is installed and taken away. See WriteOverlay.
	FollowDeployments bool
	// Transform changes a manifest's object before it is applied, or leaves it out. It sees every object, after
	// devcluster's own changes. Default: none.
	Transform Transform
	// Without names components that are not started (constants above). What needs them is the caller's to know: without
	// Kwok no node becomes Ready, without ControllerManager no namespace gets a service account.
	Without []string

	// WebhookReplicas behind the balancer. Default: 2.
	WebhookReplicas int
	// WebhookCertFiles has tenant-webhook serve a certificate of the cluster's CA from files. Off by default: it makes its
	// own, as the shipped manifests have it.
	WebhookCertFiles bool
	// WebhookArgs, SchedulerArgs and MockArgs are appended to the command lines of the project's programs.
	WebhookArgs, SchedulerArgs, MockArgs []string
	// Env is appended to the environment of the project's programs, by component (Webhook, TenantScheduler, Mock).
	Env map[string][]string
	// SchedulerFeatureGates are tenant-scheduler's --feature-gates. Default (nil): those of the shipped Deployment.
	SchedulerFeatureGates map[string]bool
	// SchedulerConfigPatch changes the shipped KubeSchedulerConfiguration, a decoded YAML document, before
	// tenant-scheduler reads it. Default: none.
	SchedulerConfigPatch func(config map[string]any) error
	// LeaderElect leaves the scheduler configuration's leader election on. Off by default: after a kill the successor
	// would wait for the dead one's lease.
	LeaderElect bool

	// Wiretap, if set, sees every request of tenant-webhook and tenant-scheduler on its way.
	Wiretap Wiretap

	// AuditLog makes the API server write AuditLogPath: JSON lines, requests and responses in full for pods,
	// pods/binding and pods/status, metadata for everything else.
	AuditLog bool
	// APIServerBinary is another kube-apiserver than that of controlplane, such as one of an earlier release. Default: none.
	APIServerBinary string
	// APIServerArgs, ControllerManagerArgs and KubeSchedulerArgs are appended to the command lines of kube-apiserver,
	// kube-controller-manager and kube-scheduler.
	APIServerArgs, ControllerManagerArgs, KubeSchedulerArgs []string

	// StartTimeout bounds the start of each component. Default: 90s, which a loaded machine with 2 cores needs.
	StartTimeout time.Duration
	// StopGrace is how long a component may take after SIGTERM before it is killed, which is an error. Default: 90s, more
	// than what is under way may take by the programs' own limits: 60s at kube-apiserver, 20s at tenant-webhook.
	StopGrace time.Duration
	// Log takes progress lines. Default: none.
	Log io.Writer
}

// Node is a node to create.
type Node struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Taints      []corev1.Taint
	// Extended resources, capacity and allocatable alike: name to quantity. It may also set cpu (64), memory (512Gi)
	// and pods (250).
	Extended map[string]string
}

// DefaultNodes are n alike nodes with both pools: 4 virtual functions and 2 physical ones each.
func DefaultNodes(n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{
			Name:     "node-" + strconv.Itoa(i+1),
			Extended: map[string]string{DefaultVFResource: "4", DefaultPFResource: "2"},
		}
	}
	return nodes
}

// complete fills in the defaults and makes paths absolute: children get them, whatever their working directory.
func (c Config) complete() (Config, error) {
	var errs []error
	for dir, fallback := range map[*string]string{&c.Dir: ".devcluster", &c.BinDir: "bin"} {
		if *dir == "" {
			*dir = fallback
		}
		abs, err := filepath.Abs(*dir)
		errs = append(errs, err)
		*dir = abs
	}
	if c.Nodes == nil {
		c.Nodes = DefaultNodes(4)
	}
	if c.TenantNamespaces == nil {
		c.TenantNamespaces = []string{"tenant-a"}
	}
	if c.WebhookReplicas == 0 {
		c.WebhookReplicas = 2
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = 90 * time.Second
	}
	if c.StopGrace == 0 {
		c.StopGrace = 90 * time.Second
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	if c.Manifests != nil && c.FollowDeployments {
		errs = append(errs, errors.New("either Manifests are applied, or Deployments are followed"))
	}
	return c, errors.Join(append(errs, c.checkBinaries())...)
}

// checkBinaries fails before anything is started, naming what to build.
func (c Config) checkBinaries() error {
	programs := map[string]bool{"controlplane": true}
	for _, name := range []string{Mock, Webhook, TenantScheduler} {
		programs[name] = c.ours(name)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if !programs[name] {
			continue
		}
		if info, err := os.Stat(filepath.Join(c.BinDir, name)); err != nil || !info.Mode().IsRegular() {
			errs = append(errs, fmt.Errorf("no binary %s: build it first (make build)", filepath.Join(c.BinDir, name)))
		}
	}
	return errors.Join(errs...)
}

// with says whether a component is to be started.
func (c Config) with(name string) bool { return !slices.Contains(c.Without, name) }

// ours says whether one of the project's own programs is to be started.
func (c Config) ours(name string) bool {
	return (c.Manifests != nil || c.FollowDeployments) && c.with(name)
}
