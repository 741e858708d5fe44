package pools

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// Keys of the ConfigMap that holds the configuration.
const (
	// PoolsKey holds the pools, one a line, the highest priority first.
	PoolsKey = "resource-pools"
	// PolicyKey holds a Policy as YAML.
	PolicyKey = "policy"
)

// Pool is one extended resource that serves RDMA pods.
type Pool struct {
	Name corev1.ResourceName
	// Types are the types that the pool serves, in the order of rdma.Types.
	Types []rdma.Type
	// Shared says that a device of the pool is a token for an adapter that many pods share: asking for more of them
	// brings no more adapters, so such a pool serves a count of 1 only. Pools of k8s-rdma-shared-dev-plugin, named
	// rdma/…, are shared unless the configuration says otherwise.
	Shared bool
}

// Serves reports whether the pool serves count devices of the type.
func (p Pool) Serves(t rdma.Type, count int64) bool {
	return slices.Contains(p.Types, t) && (!p.Shared || count == 1)
}

// Config is what the ConfigMap says. It is not changed after ParseConfig.
type Config struct {
	// Pools in order of priority, the highest first.
	Pools  []Pool
	Policy Policy
}

// Lookup returns the pool of that name.
func (c *Config) Lookup(name corev1.ResourceName) (Pool, bool) {
	i := slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Name == name })
	if i < 0 {
		return Pool{}, false
	}
	return c.Pools[i], true
}

// WhenFull says what becomes of a pod that no node can hold.
type WhenFull string

// The values of WhenFull.
const (
	// Queue admits every pod: one that no node can hold waits for a node that can.
	Queue WhenFull = "queue"
	// Reject refuses a pod that no node could hold even when it is empty. A pod that only has to wait is admitted.
	Reject WhenFull = "reject"
)

// GatedPods says whether pods held by scheduling gates count as waiting for devices.
type GatedPods string

// The values of GatedPods.
const (
	CountGated  GatedPods = "count"
	IgnoreGated GatedPods = "ignore"
)

// Policy is the part of the configuration that is not the list of pools. Zero values stand for the defaults.
type Policy struct {
	// WhenFull defaults to queue.
	WhenFull WhenFull `json:"whenFull,omitempty"`
	// GatedPods defaults to count: pods of a queueing system such as Kueue are gated at first, and a burst of them
	// would otherwise all get the same pool.
	GatedPods GatedPods `json:"gatedPods,omitempty"`
	// MaxCount is the largest number of devices of one type in one pod, 64 by default.
	MaxCount int64 `json:"maxCount,omitempty"`
	// ReservationSeconds is how long an admitted pod's devices are kept in mind before the pod shows up in the
	// informer, 30 by default. A pod that is refused by a later admission step never shows up.
	ReservationSeconds int64 `json:"reservationSeconds,omitempty"`
	// GroupKeys are tried in order; the first that a pod has makes it a member of a group, and all members of a group
	// get the same pool. See DefaultGroupKeys.
	GroupKeys []GroupKey `json:"groupKeys,omitempty"`
	// Sidecars are names of containers that do not get the devices unless the pod asks for it. See DefaultSidecars.
	Sidecars []string `json:"sidecars,omitempty"`
}

// Reservation returns ReservationSeconds as a duration.
func (p Policy) Reservation() time.Duration { return time.Duration(p.ReservationSeconds) * time.Second }

// DefaultSidecars are the proxies and agents that service meshes and log collectors inject, often as the first
// container.
func DefaultSidecars() []string {
	return []string{"istio-proxy", "linkerd-proxy", "envoy", "vault-agent", "cilium-envoy", "kuma-sidecar",
		"consul-dataplane", "aws-otel-collector", "otc-container", "fluent-bit", "filebeat"}
}

// ParseConfig reads the ConfigMap's data. Its errors name the key and line, quote the text and say what is accepted.
func ParseConfig(data map[string]string) (*Config, error) {
	text, ok := data[PoolsKey]
	if !ok {
		return nil, fmt.Errorf("key %q is missing; it lists the pools, one extended resource a line, highest priority first", PoolsKey)
	}
	list, err := parsePools(text)
	if err != nil {
		return nil, err
	}
	policy, err := parsePolicy(data[PolicyKey])
	if err != nil {
		return nil, err
	}
	return &Config{Pools: list, Policy: policy}, nil
}

func parsePools(text string) ([]Pool, error) {
	var list []Pool
	for i, line := range strings.Split(text, "\n") {
		content, _, _ := strings.Cut(line, "#")
		words := strings.Fields(content)
		if len(words) == 0 {
			continue
		}
		pool, err := parsePool(words)
		if err == nil && slices.ContainsFunc(list, func(p Pool) bool { return p.Name == pool.Name }) {
			err = fmt.Errorf("pool %q stands twice; a pool has one place in the order", pool.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("key %q line %d: %w", PoolsKey, i+1, err)
		}
		list = append(list, pool)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("key %q names no pool; at least one extended resource such as mellanox.com/mlnx_sriov_rdma is needed", PoolsKey)
	}
	return list, nil
}

func parsePool(words []string) (Pool, error) {
	pool := Pool{Name: corev1.ResourceName(words[0]), Types: rdma.Types(), Shared: strings.HasPrefix(words[0], "rdma/")}
	if err := validateExtendedResource(words[0]); err != nil {
		return pool, err
	}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		if seen[key] {
			return pool, fmt.Errorf("pool %q: option %q stands twice", pool.Name, key)
		}
		seen[key] = true
		switch {
		case key == "type" && slices.Contains(rdma.Types(), rdma.Type(value)):
			pool.Types = []rdma.Type{rdma.Type(value)}
		case key == "type":
			return pool, fmt.Errorf("pool %q: option %q: the type must be vf or pf; without the option a pool serves both", pool.Name, word)
		case key == "shared" && (value == "true" || value == "false"):
			pool.Shared = value == "true"
		case key == "shared":
			return pool, fmt.Errorf("pool %q: option %q: must be shared=true or shared=false", pool.Name, word)
		default:
			return pool, fmt.Errorf("pool %q: option %q is unknown; known are type=vf, type=pf, shared=true and shared=false", pool.Name, word)
		}
	}
	return pool, nil
}

// validateExtendedResource is the API server's rule for names of extended resources (k8s.io/kubernetes v1.37.2,
// pkg/apis/core/v1/helper.IsExtendedResourceName): qualified with a domain outside kubernetes.io, and still a qualified
// name behind "requests.", as resource quotas spell it.
func validateExtendedResource(name string) error {
	if !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, "requests.") {
		return fmt.Errorf("%q is not an extended resource; it must be domain/name outside kubernetes.io, such as mellanox.com/mlnx_sriov_rdma", name)
	}
	if problems := validation.IsQualifiedName("requests." + name); len(problems) > 0 {
		return fmt.Errorf("%q is not an extended resource: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

// IsExtendedResource reports whether a name that the API server accepted is an extended resource.
func IsExtendedResource(name corev1.ResourceName) bool {
	s := string(name)
	return strings.Contains(s, "/") && !strings.Contains(s, "kubernetes.io/") && !strings.HasPrefix(s, "requests.")
}

func parsePolicy(text string) (Policy, error) {
	var policy Policy
	if err := yaml.UnmarshalStrict([]byte(text), &policy); err != nil {
		return policy, fmt.Errorf("key %q: %w", PolicyKey, err)
	}
	policy.setDefaults()
	if err := policy.validate(); err != nil {
		return policy, fmt.Errorf("key %q: %w", PolicyKey, err)
	}
	return policy, nil
}

func (p *Policy) setDefaults() {
	if p.WhenFull == "" {
		p.WhenFull = Queue
	}
	if p.GatedPods == "" {
		p.GatedPods = CountGated
	}
	if p.MaxCount == 0 {
		p.MaxCount = 64
	}
	if p.ReservationSeconds == 0 {
		p.ReservationSeconds = 30
	}
	if p.GroupKeys == nil {
		p.GroupKeys = DefaultGroupKeys()
	}
	if p.Sidecars == nil {
		p.Sidecars = DefaultSidecars()
	}
}

func (p *Policy) validate() error {
	if p.WhenFull != Queue && p.WhenFull != Reject {
		return fmt.Errorf("whenFull: %q must be %q or %q", p.WhenFull, Queue, Reject)
	}
	if p.GatedPods != CountGated && p.GatedPods != IgnoreGated {
		return fmt.Errorf("gatedPods: %q must be %q or %q", p.GatedPods, CountGated, IgnoreGated)
	}
	if p.MaxCount < 1 || p.MaxCount > 1024 {
		return fmt.Errorf("maxCount: %d must be from 1 to 1024 devices", p.MaxCount)
	}
	if p.ReservationSeconds < 1 || p.ReservationSeconds > 600 {
		return fmt.Errorf("reservationSeconds: %d must be from 1 to 600 seconds", p.ReservationSeconds)
	}
	for i, key := range p.GroupKeys {
		if err := key.validate(); err != nil {
			return fmt.Errorf("groupKeys[%d]: %w", i, err)
		}
	}
	return nil
}
