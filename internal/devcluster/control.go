package devcluster

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Kill ends a component's process at once, as kill -9 does, and returns when it is gone. Its successor starts a moment
// later: see WaitReady.
func (c *Cluster) Kill(name string) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	return p.kill()
}

// Stop stops a component on purpose: it stays away until StartComponent.
func (c *Cluster) Stop(name string) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	return p.stop()
}

// Crash ends a component at once, as a power cut does: it stays away until StartComponent.
func (c *Cluster) Crash(name string) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	p.crash()
	return nil
}

// Component is a program that is run as one more part of the cluster: started again when it dies, stopped with the
// cluster, and known to Kill, Stop, LogPath and the like by its name.
type Component struct {
	Name string
	Path string
	Args []string
	// Ready is asked again and again until it returns nil. There has to be one: a program that only just runs does not
	// serve yet.
	Ready func(ctx context.Context) error
	// Fork starts the child: see NewForker. Nil: like every other component.
	Fork func(*exec.Cmd) error
}

// Run starts a component and returns when it is ready.
func (c *Cluster) Run(ctx context.Context, added Component) error {
	if added.Ready == nil {
		return fmt.Errorf("component %s does not say when it is ready", added.Name)
	}
	if _, err := c.process(added.Name); err == nil {
		return fmt.Errorf("there is a component %s already", added.Name)
	}
	return c.run(ctx, component{name: added.Name, path: added.Path, args: added.Args, ready: added.Ready, fork: added.Fork})
}

// StartComponent starts what Stop or Crash ended, and returns when it is ready.
func (c *Cluster) StartComponent(ctx context.Context, name string) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if err := p.start(ctx); err != nil {
		return err
	}
	if p.afterRestart != nil {
		p.afterRestart()
	}
	return nil
}

// Signal sends a signal to a component: SIGSTOP freezes it, SIGCONT lets it go on, SIGTERM has it replaced.
func (c *Cluster) Signal(name string, sig syscall.Signal) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	_, err = p.signal(sig)
	return err
}

// WaitReady returns when a component runs and says that it is ready: after Kill, its successor.
func (c *Cluster) WaitReady(ctx context.Context, name string) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if err := p.await(ctx, nil); err != nil {
		return fmt.Errorf("%s: %w%s", name, err, p.tail())
	}
	return nil
}

// Starts is how often a component has been started: one more after each death.
func (c *Cluster) Starts(name string) int {
	p, err := c.process(name)
	if err != nil {
		return 0
	}
	return p.startCount()
}

// PID is a component's process, 0 while there is none.
func (c *Cluster) PID(name string) int {
	p, err := c.process(name)
	if err != nil {
		return 0
	}
	return p.pid()
}

// Components are the names of everything that was started, in that order.
func (c *Cluster) Components() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, len(c.processes))
	for i, p := range c.processes {
		names[i] = p.name
	}
	return names
}

func (c *Cluster) process(name string) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, p := range c.processes {
		if p.name == name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return nil, fmt.Errorf("no component %q; there are %s", name, strings.Join(names, ", "))
}

// AdminConfig reaches the API server as a member of system:masters, whom no permission stops. Each call returns a copy.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// Client is a client as AdminConfig.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// UserConfig reaches the API server as some user in some groups, with no permissions but those that the cluster's roles
// give: for tests of RBAC and of admission policies.
func (c *Cluster) UserConfig(user string, groups ...string) (*rest.Config, error) {
	return userConfig(c.server, c.ca, user, groups...)
}

// WriteKubeconfig writes a kubeconfig of some user in some groups: UserConfig as a file.
func (c *Cluster) WriteKubeconfig(path, user string, groups ...string) error {
	config, err := c.UserConfig(user, groups...)
	if err != nil {
		return err
	}
	return writeKubeconfig(path, user, config)
}

// KubeconfigPath is the administrator's kubeconfig.
func (c *Cluster) KubeconfigPath() string { return c.path("kubeconfig") }

// KubectlPath is a kubectl of the cluster's version.
func (c *Cluster) KubectlPath() string { return c.path("kubectl") }

// LogPath is the log of a component.
func (c *Cluster) LogPath(name string) string { return c.path("logs", name+".log") }

// AuditLogPath is the API server's audit log, written if Config.AuditLog is set.
func (c *Cluster) AuditLogPath() string { return c.path("logs", "audit.log") }

// MockURL is the mock tenant-controller's address.
func (c *Cluster) MockURL() string { return "http://" + loopback(c.port.mock) }

// MockRequestLogPath is the file in which the mock logs the requests that it served.
func (c *Cluster) MockRequestLogPath() string { return c.path("logs", "mock-requests.log") }

// MetricsURL is where a webhook replica or tenant-scheduler serves its metrics; empty for the others. The scheduler wants
// credentials that may read them (AdminConfig has some).
func (c *Cluster) MetricsURL(name string) string {
	if name == TenantScheduler {
		return "https://" + loopback(c.port.tenantScheduler) + "/metrics"
	}
	for i, replica := range c.port.webhooks {
		if name == WebhookReplica(i) {
			return "http://" + loopback(replica.metrics) + "/metrics"
		}
	}
	return ""
}

// WebhookURL is the balancer in front of the webhook replicas.
func (c *Cluster) WebhookURL() string { return "https://" + loopback(c.port.balancer) }

// WebhookAddress is where a webhook replica serves, past the balancer.
func (c *Cluster) WebhookAddress(replica int) string {
	return loopback(c.port.webhooks[replica].serving)
}

// WaitingReviews is how many connections of the API server wait for an answer of a webhook replica.
func (c *Cluster) WaitingReviews(replica int) int {
	return int(c.balancer.backends[replica].waiting.Load())
}

// CA is the certificate, in PEM, of the authority that signed the serving certificates of the cluster; tenant-webhook's
// only with Config.WebhookCertFiles.
func (c *Cluster) CA() []byte { return append([]byte(nil), c.ca.pem...) }
