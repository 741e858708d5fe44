package devcluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// serviceAccounts of the project's programs, all in webhook-system.
var serviceAccounts = map[string]string{
	Mock:            "tenant-controller",
	Webhook:         "tenant-webhook",
	TenantScheduler: "tenant-scheduler",
}

// startProject applies the manifests and runs the project's programs.
func (c *Cluster) startProject(ctx context.Context) error {
	if c.config.Manifests == nil {
		return nil
	}
	set, err := loadManifests(c.config.Manifests)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.progressf("applying the manifests")
	if err := c.applyManifests(ctx, set, notWebhookConfiguration); err != nil {
		return err
	}
	for component, account := range serviceAccounts {
		if !c.config.with(component) {
			continue
		}
		if err := c.writeTokenKubeconfig(ctx, component, account); err != nil {
			return err
		}
	}
	if c.config.with(Webhook) {
		// Before the webhook is there, which is not ready until its certificate is trusted; nobody creates pods yet.
		if err := c.exposeBalancer(ctx); err != nil {
			return err
		}
		if err := c.applyManifests(ctx, set, isWebhookConfiguration); err != nil {
			return err
		}
	}
	if err := c.startServices(ctx); err != nil {
		return err
	}
	if c.config.with(TenantScheduler) {
		return c.startTenantScheduler(ctx, set)
	}
	return nil
}

// startServices starts the mock and the webhook replicas with their balancer.
func (c *Cluster) startServices(ctx context.Context) error {
	var components []component
	if c.config.with(Mock) {
		components = append(components, c.mock())
	}
	if c.config.with(Webhook) {
		webhooks, err := c.webhooks() //nolint:contextcheck // the balancer lives as long as the cluster
		if err != nil {
			return err
		}
		components = append(components, webhooks...)
	}
	return c.run(ctx, components...)
}

// webhooks are the webhook replicas; their balancer listens from the first time on.
func (c *Cluster) webhooks() ([]component, error) {
	mock, err := c.through(Webhook, c.MockURL())
	if err != nil {
		return nil, err
	}
	components := make([]component, len(c.port.webhooks))
	backends := make([]*backend, len(c.port.webhooks))
	for i, ports := range c.port.webhooks {
		components[i] = c.webhook(i, ports, mock)
		backends[i] = &backend{addr: loopback(ports.serving), ready: components[i].ready}
	}
	if c.balancer == nil {
		c.balancer, err = newBalancer(loopback(c.port.balancer), backends...)
	}
	return components, err
}

func (c *Cluster) mock() component {
	address := loopback(c.port.mock)
	return component{
		name: Mock, path: c.binary(Mock), env: c.config.Env[Mock], ready: c.probe("http://" + address + "/healthz"),
		args: append([]string{
			"-listen", address,
			"-kubeconfig", c.kubeconfigOf(Mock),
			"-request-log", c.MockRequestLogPath(),
		}, c.config.MockArgs...),
	}
}

func (c *Cluster) webhook(replica int, ports webhookPorts, tenantController string) component {
	health := loopback(ports.health)
	args := []string{
		"--kubeconfig=" + c.kubeconfigOf(Webhook),
		"--webhook-host=127.0.0.1",
		"--webhook-port=" + strconv.Itoa(ports.serving),
		"--metrics-bind-address=" + loopback(ports.metrics),
		"--health-probe-bind-address=" + health,
		"--pod-namespace=" + systemNamespace,
		"--shutdown-delay=" + (5 * readyPeriod).String(), // the balancer notices sooner than a Service
	}
	if c.config.WebhookCertFiles {
		args = append(args, "--cert-dir="+c.path("certs"))
	}
	return component{
		name: WebhookReplica(replica), path: c.binary(Webhook), ready: c.probe("http://" + health + "/readyz"),
		env: append([]string{
			"TENANT_CONTROLLER_URL=" + tenantController,
			"POD_NAME=" + WebhookReplica(replica),
			"POD_NAMESPACE=" + systemNamespace,
		}, c.config.Env[Webhook]...),
		args: append(args, c.config.WebhookArgs...),
	}
}

func (c *Cluster) startTenantScheduler(ctx context.Context, set manifestSet) error {
	config := c.path("config", "tenant-scheduler.yaml")
	if err := c.writeSchedulerConfig(set, config); err != nil {
		return err
	}
	kubeconfig := c.kubeconfigOf(TenantScheduler)
	args := []string{
		"--config=" + config,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.port.tenantScheduler),
		"--tls-cert-file=" + c.path("certs", "tls.crt"),
		"--tls-private-key-file=" + c.path("certs", "tls.key"),
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
	}
	gates := formatGates(c.config.SchedulerFeatureGates)
	if c.config.SchedulerFeatureGates == nil {
		gates = set.schedulerFeatureGates()
	}
	if gates != "" {
		args = append(args, "--feature-gates="+gates)
	}
	mock, err := c.through(TenantScheduler, c.MockURL())
	if err != nil {
		return err
	}
	return c.run(ctx, component{
		name: TenantScheduler, path: c.binary(TenantScheduler),
		args:  append(args, c.config.SchedulerArgs...),
		env:   append([]string{"TENANT_CONTROLLER_URL=" + mock}, c.config.Env[TenantScheduler]...),
		ready: c.probe("https://" + loopback(c.port.tenantScheduler) + "/readyz"),
	})
}

func formatGates(gates map[string]bool) string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		pairs = append(pairs, fmt.Sprintf("%s=%t", name, gates[name]))
	}
	return strings.Join(pairs, ",")
}
