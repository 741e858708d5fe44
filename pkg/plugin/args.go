package plugin

import (
	"cmp"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"tenant.network/tenant-webhook/pkg/pools/poolconfig"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// ScoringStrategy says which of the nodes that fit is preferred.
type ScoringStrategy string

// The strategies.
const (
	// Spread prefers the node with the largest free share of the pod's pools.
	Spread ScoringStrategy = "Spread"
	// BinPack prefers the node with the smallest, and so keeps whole nodes free for large pods.
	BinPack ScoringStrategy = "BinPack"
)

// Args are the plugin's arguments in the KubeSchedulerConfiguration. Zero values stand for the defaults.
type Args struct {
	metav1.TypeMeta `json:",inline"`
	// ScoringStrategy defaults to Spread.
	ScoringStrategy ScoringStrategy `json:"scoringStrategy,omitempty"`
	// PoolConfig names the ConfigMap with the pools, webhook-system/resource-pool-config by default.
	PoolConfig ObjectRef `json:"poolConfig"`
	// Cluster identifies this cluster to the tenant-controller. By default it is the UID of the namespace kube-system.
	Cluster string `json:"cluster,omitempty"`
	// TenantController says how the tenant-controller is reached.
	TenantController TenantController `json:"tenantController"`
	// PreBindTimeout bounds all that PreBind does for one pod once it is the pod's turn, 15s by default.
	PreBindTimeout metav1.Duration `json:"preBindTimeout"`
	// BindTimeout bounds the binding call, 10s by default.
	BindTimeout metav1.Duration `json:"bindTimeout"`
	// Breaker says when pods wait instead of asking a tenant-controller that is sick.
	Breaker BreakerArgs `json:"breaker"`
}

// ObjectRef names an object.
type ObjectRef struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// TenantController says how the tenant-controller is reached; see tenant.Config.
type TenantController struct {
	// URL is overridden by the environment variable TENANT_CONTROLLER_URL.
	URL           string          `json:"url,omitempty"`
	Timeout       metav1.Duration `json:"timeout"`
	Retries       int             `json:"retries,omitempty"`
	RetryInterval metav1.Duration `json:"retryInterval"`
	// MaxConcurrent is how many pods may be asked for at the same time, 200 by default.
	MaxConcurrent int64 `json:"maxConcurrent,omitempty"`
}

// BreakerArgs are the limits of the circuit breakers, of which there is one a tenant and one for all.
type BreakerArgs struct {
	// Failures in a row open a breaker, 5 by default.
	Failures uint32 `json:"failures,omitempty"`
	// Pause is how long a breaker stays open before one pod is let through as a probe, 10s by default.
	Pause metav1.Duration `json:"pause"`
}

// parseArgs decodes strictly, sets defaults and validates. The framework itself decodes the arguments of plugins that it
// does not know leniently: a misspelled field would silently be a default.
func parseArgs(object runtime.Object) (*Args, error) {
	args := &Args{}
	switch typed := object.(type) {
	case nil:
	case *runtime.Unknown:
		if err := yaml.UnmarshalStrict(typed.Raw, args); err != nil {
			return nil, fmt.Errorf("arguments of plugin %s: %w", Name, err)
		}
	default:
		return nil, fmt.Errorf("arguments of plugin %s: want %T, got %T", Name, &runtime.Unknown{}, object)
	}
	args.setDefaults(os.Getenv)
	if err := args.validate(); err != nil {
		return nil, fmt.Errorf("arguments of plugin %s: %w", Name, err)
	}
	return args, nil
}

func (a *Args) setDefaults(getenv func(string) string) {
	a.ScoringStrategy = cmp.Or(a.ScoringStrategy, Spread)
	a.PoolConfig.Namespace = cmp.Or(a.PoolConfig.Namespace, poolconfig.DefaultNamespace)
	a.PoolConfig.Name = cmp.Or(a.PoolConfig.Name, poolconfig.DefaultName)
	a.TenantController.URL = cmp.Or(getenv("TENANT_CONTROLLER_URL"), a.TenantController.URL)
	a.PreBindTimeout.Duration = cmp.Or(a.PreBindTimeout.Duration, 15*time.Second)
	a.BindTimeout.Duration = cmp.Or(a.BindTimeout.Duration, 10*time.Second)
	a.TenantController.MaxConcurrent = cmp.Or(a.TenantController.MaxConcurrent, 200)
	a.Breaker.Failures = cmp.Or(a.Breaker.Failures, 5)
	a.Breaker.Pause.Duration = cmp.Or(a.Breaker.Pause.Duration, 10*time.Second)
}

func (a *Args) validate() error {
	if a.ScoringStrategy != Spread && a.ScoringStrategy != BinPack {
		return fmt.Errorf("scoringStrategy: %q must be %q or %q", a.ScoringStrategy, Spread, BinPack)
	}
	if n := a.TenantController.MaxConcurrent; n < 1 || n > 10_000 {
		return fmt.Errorf("tenantController.maxConcurrent: %d must be from 1 to 10000", n)
	}
	for _, d := range []struct {
		name     string
		value    time.Duration
		low, top time.Duration
	}{
		{"preBindTimeout", a.PreBindTimeout.Duration, time.Second, maxEnsureAge},
		{"bindTimeout", a.BindTimeout.Duration, time.Second, time.Minute},
		{"breaker.pause", a.Breaker.Pause.Duration, time.Second, time.Hour},
	} {
		if d.value < d.low || d.value > d.top {
			return fmt.Errorf("%s: %q must be from %v to %v", d.name, d.value, d.low, d.top)
		}
	}
	return nil
}

// clientConfig adds what the arguments say to what the environment says.
func (a *Args) clientConfig() tenant.Config {
	config := tenant.ConfigFromEnvironment(os.Getenv)
	config.URL = a.TenantController.URL
	config.Timeout = a.TenantController.Timeout.Duration
	config.Retries = a.TenantController.Retries
	config.RetryInterval = a.TenantController.RetryInterval.Duration
	return config
}
