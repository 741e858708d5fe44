package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

const (
	adminUser    = "devcluster-admin"
	mastersGroup = "system:masters"
)

// Cluster is a running cluster. All methods may be called from several goroutines.
type Cluster struct {
	config Config
	lock   *os.File // keeps a second cluster out of the directory
	ports  *ports
	port   portPlan
	ca     *authority
	admin  *rest.Config
	server string

	client  kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper

	balancer   *balancer
	taps       taps
	stopLeases func() // nil until keepLeases
	// stopFollowing is nil until follow.
	stopFollowing func()

	mu        sync.Mutex
	processes []*process // in the order of their start; guarded by mu

	shutdown func() error
}

// Start starts a cluster and returns when it works: components ready, manifests applied, nodes Ready. ctx bounds the
// start only; the cluster runs until Shutdown or the end of this process. When anything fails, all that was started is
// stopped again.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	config, err := config.complete()
	if err != nil {
		return nil, fmt.Errorf("devcluster: %w", err)
	}
	c := &Cluster{config: config}
	c.shutdown = sync.OnceValue(c.stopAll)
	if err := c.start(ctx); err != nil {
		return nil, fmt.Errorf("devcluster: %w", errors.Join(err, c.Shutdown()))
	}
	return c, nil
}

// start is the order of things; each step needs the ones before it.
func (c *Cluster) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		c.prepare,
		c.startStore,
		c.connect,
		c.startControlPlane,
		c.bootstrap,
		c.startProject,
		c.awaitReady,
		c.follow,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the directory, certificates and ports.
func (c *Cluster) prepare(context.Context) error {
	if err := c.claimDir(); err != nil {
		return err
	}
	var err error
	if c.ports, err = newPorts(); err != nil {
		return err
	}
	if c.port, err = planPorts(c.ports, c.config.WebhookReplicas); err != nil {
		return err
	}
	c.server = "https://" + loopback(c.port.apiServer)
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	if err := c.ca.writeCerts(c.path("certs")); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	return errors.Join(c.writeUserKubeconfigs(), c.writeAuditPolicy(), c.writeKwokConfig(), c.linkKubectl())
}

// claimDir locks the directory and clears what an earlier cluster left there: its data belongs to another CA. The log
// files of a finished cluster go too, so that a log is about one cluster.
func (c *Cluster) claimDir() error {
	if err := os.MkdirAll(c.config.Dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(c.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	c.lock = lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another cluster runs in %s: %w", c.config.Dir, err)
	}
	for _, name := range []string{"logs", "pids", "data", "certs", "kubeconfigs", "config"} {
		if err := os.RemoveAll(c.path(name)); err != nil {
			return err
		}
		if err := os.Mkdir(c.path(name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// linkKubectl puts a kubectl of the cluster's version into the directory.
func (c *Cluster) linkKubectl() error {
	link := c.path("kubectl")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(c.binary("controlplane"), link)
}

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.config.Dir}, elements...)...)
}

func (c *Cluster) binary(name string) string { return filepath.Join(c.config.BinDir, name) }

// run starts components at the same time and returns when all are ready.
func (c *Cluster) run(ctx context.Context, components ...component) error {
	errs := make([]error, len(components))
	var wg sync.WaitGroup
	for i, component := range components {
		wg.Go(func() { errs[i] = c.runOne(ctx, component) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *Cluster) runOne(ctx context.Context, component component) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	p := newProcess(component, c.config.Dir, c.config.StopGrace)
	c.mu.Lock()
	c.processes = append(c.processes, p)
	c.mu.Unlock()

	c.progressf("starting %s", component.name)
	begun := time.Now()
	if err := p.start(ctx); err != nil {
		return err
	}
	c.progressf("%s is ready (%.1fs)", component.name, time.Since(begun).Seconds())
	return nil
}

func (c *Cluster) progressf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintf(c.config.Log, "devcluster: "+format+"\n", args...)
}

// Shutdown stops everything in the reverse order of its start and returns what went wrong on the way. Logs stay, the
// data goes. Calling it again returns the same.
func (c *Cluster) Shutdown() error { return c.shutdown() }

func (c *Cluster) stopAll() error {
	if c.stopFollowing != nil {
		c.stopFollowing() // first: it starts components
	}
	c.mu.Lock()
	processes := slices.Clone(c.processes)
	c.mu.Unlock()
	slices.Reverse(processes)
	if c.stopLeases != nil {
		c.stopLeases()
	}
	var errs []error
	for _, p := range processes {
		errs = append(errs, p.stop())
	}
	if c.balancer != nil {
		errs = append(errs, c.balancer.close())
	}
	errs = append(errs, c.taps.close())
	if c.ports != nil {
		errs = append(errs, c.ports.close())
	}
	if c.lock != nil {
		// The data is of no use without the CA's key, which was in memory only.
		errs = append(errs, os.RemoveAll(c.path("data")), c.lock.Close())
	}
	return errors.Join(errs...)
}
