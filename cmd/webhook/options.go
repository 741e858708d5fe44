package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"

	"tenant.network/tenant-webhook/pkg/pools/feed"
	"tenant.network/tenant-webhook/pkg/pools/poolconfig"
	"tenant.network/tenant-webhook/pkg/tenant"
	"tenant.network/tenant-webhook/pkg/tenant/release"
)

// options are the program's flags.
type options struct {
	kubeconfig   string
	podNamespace string
	poolConfig   string
	cluster      string

	webhookHost string
	webhookPort int
	certDir     string
	certSecret  string
	certRotate  bool
	service     string
	hookConfig  string
	metricsAddr string
	healthAddr  string
	leaderElect bool
	stopDelay   time.Duration
	drainFor    time.Duration

	refresh      time.Duration
	sandboxWait  time.Duration
	forceRelease time.Duration
	sweepPeriod  time.Duration
	sweepGrace   time.Duration
	unboundAfter time.Duration
	sweepConfirm int
	sweepRepair  bool
	tenant       tenant.Config
	logging      *logsapi.LoggingConfiguration
	featureGates featuregate.MutableFeatureGate
	flags        *pflag.FlagSet
}

func newOptions() *options {
	gates := featuregate.NewFeatureGate()
	utilruntime.Must(logsapi.AddFeatureGates(gates))
	o := &options{tenant: tenant.ConfigFromEnvironment(os.Getenv), logging: logsapi.NewLoggingConfiguration(),
		featureGates: gates, flags: pflag.NewFlagSet("tenant-webhook", pflag.ContinueOnError)}
	fs := o.flags
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of a kubeconfig; empty means the pod's own service account.")
	fs.StringVar(&o.podNamespace, "pod-namespace", poolconfig.DefaultNamespace, "Namespace of this program, of the pool configuration and of the leader election lease.")
	fs.StringVar(&o.poolConfig, "pool-config", poolconfig.DefaultName, "Name of the ConfigMap with the pools.")
	fs.StringVar(&o.cluster, "cluster", "", "Identity of this cluster towards the tenant-controller; empty means the UID of namespace kube-system.")

	fs.StringVar(&o.webhookHost, "webhook-host", "", "Address on which webhooks are served; empty means all.")
	fs.IntVar(&o.webhookPort, "webhook-port", 9443, "Port on which webhooks are served.")
	fs.StringVar(&o.certSecret, "cert-secret", "tenant-webhook-certs", "Secret in --pod-namespace with the serving certificate (tls.crt, tls.key) and its CA (ca.crt); a change is picked up, and the caBundle of --webhook-config is kept in step.")
	fs.BoolVar(&o.certRotate, "cert-rotate", true, "Make and renew the certificates in --cert-secret; without, somebody else does, such as cert-manager.")
	fs.StringVar(&o.service, "webhook-service", name, "Service in --pod-namespace by which API servers call; the certificate is made for SERVICE.NAMESPACE.svc.")
	fs.StringVar(&o.hookConfig, "webhook-config", name, "MutatingWebhookConfiguration whose caBundle is kept.")
	fs.StringVar(&o.certDir, "cert-dir", "", "Serve tls.crt and tls.key of this directory instead of --cert-secret; a change of the files is picked up, the caBundle is yours to keep.")
	fs.StringVar(&o.metricsAddr, "metrics-bind-address", ":8080", "Address of /metrics and of /pools, the state of the pools as JSON.")
	fs.StringVar(&o.healthAddr, "health-probe-bind-address", ":8081", "Address of /healthz and /readyz.")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "Elect the replica that runs the release controller.")
	fs.DurationVar(&o.stopDelay, "shutdown-delay", 5*time.Second, "How long a stopping replica says that it is not ready, and goes on serving, before it closes: until Services have noticed.")
	fs.DurationVar(&o.drainFor, "drain-timeout", 20*time.Second, "How long a stopping replica finishes reviews.")

	fs.DurationVar(&o.refresh, "refresh-interval", feed.DefaultInterval, "How often the pools are recounted and logged.")
	fs.DurationVar(&o.sandboxWait, "sandbox-wait", release.DefaultSandboxWait, "How long the sandbox of a terminal pod is waited for on nodes that do not report it.")
	fs.DurationVar(&o.forceRelease, "force-release-after", 0, "Let a deleted pod go this long after its grace period even though its node does not say that it stopped, or the tenant-controller does not take its networks back. Dangerous: on a node that is cut off the pod may still use them. 0 means never.")
	fs.DurationVar(&o.sweepPeriod, "sweep-period", release.DefaultSweepPeriod, "How often allocations and pods are compared.")
	fs.DurationVar(&o.sweepGrace, "sweep-grace", release.DefaultSweepGrace, "How long ago an allocation's last use must be before it is taken as left behind.")
	fs.DurationVar(&o.unboundAfter, "sweep-unbound-after", release.DefaultUnboundAfter, "The same for an allocation whose pod exists but is not bound; at least 2m.")
	fs.IntVar(&o.sweepConfirm, "sweep-confirm", 0, "Let a sweep release up to this many allocations although that is more than 10 and more than 20 % of all.")
	fs.BoolVar(&o.sweepRepair, "sweep-repair", true, "Ask again for the networks of bound pods whose allocation is missing or names another node; without, only report them.")

	fs.StringVar(&o.tenant.URL, "tenant-controller-url", o.tenant.URL, "URL of the tenant-controller (environment: TENANT_CONTROLLER_URL).")
	fs.DurationVar(&o.tenant.Timeout, "tenant-controller-timeout", tenant.DefaultTimeout, "Time for one attempt of a request.")
	fs.IntVar(&o.tenant.Retries, "tenant-controller-retries", tenant.DefaultRetries, "Attempts after the first; 0 means none.")
	fs.DurationVar(&o.tenant.RetryInterval, "tenant-controller-retry-interval", tenant.DefaultRetryInterval, "Pause between attempts.")
	logsapi.AddFlags(o.logging, fs)
	return o
}

// parse reads the command line and rejects what cannot work, naming the flag.
func (o *options) parse(args []string) error {
	if err := o.flags.Parse(args); err != nil {
		return fmt.Errorf("reading flags: %w", err)
	}
	if o.flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; there are only flags", o.flags.Arg(0))
	}
	if o.webhookPort < 1 || o.webhookPort > 65535 {
		return fmt.Errorf("--webhook-port: %d must be from 1 to 65535", o.webhookPort)
	}
	for _, n := range []struct{ flag, value string }{
		{"cert-secret", o.certSecret}, {"webhook-service", o.service}, {"webhook-config", o.hookConfig},
	} {
		if n.value == "" {
			return fmt.Errorf("--%s: must name an object; it is empty", n.flag)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{
		{"refresh-interval", o.refresh, time.Second},
		{"sandbox-wait", o.sandboxWait, time.Second},
		{"force-release-after", o.forceRelease, 0},
		{"shutdown-delay", o.stopDelay, 0},
		{"drain-timeout", o.drainFor, 0},
		{"sweep-period", o.sweepPeriod, time.Second},
		{"sweep-grace", o.sweepGrace, 0},
		// The scheduler binds by an answer for 30 s, the API server works on a binding for 34 s.
		{"sweep-unbound-after", o.unboundAfter, 2 * time.Minute},
		{"tenant-controller-timeout", o.tenant.Timeout, time.Millisecond}, // 0 is the default in tenant.Config
		{"tenant-controller-retry-interval", o.tenant.RetryInterval, time.Millisecond},
	} {
		if d.value < d.least {
			return fmt.Errorf("--%s: %v must be at least %v", d.flag, d.value, d.least)
		}
	}
	if o.tenant.Retries < 0 || o.tenant.Retries > tenant.MaxRetries {
		return fmt.Errorf("--tenant-controller-retries: %d must be from 0 to %d", o.tenant.Retries, tenant.MaxRetries)
	}
	if o.tenant.Retries == 0 {
		o.tenant.Retries = -1 // 0 is the default there
	}
	if o.sweepConfirm < 0 {
		return fmt.Errorf("--sweep-confirm: %d must not be negative", o.sweepConfirm)
	}
	return logsapi.ValidateAndApply(o.logging, o.featureGates)
}
