// Package feed brings nodes and pods from the informers to the ledger, recounts it regularly, and shows it to people:
// log lines, metrics and an HTTP page.
package feed

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/pools"
)

// DefaultInterval is how often the ledger is recounted and logged.
const DefaultInterval = 30 * time.Second

// Feed keeps a ledger current.
type Feed struct {
	cache    ctrlcache.Cache
	ledger   *pools.Ledger
	config   func() *pools.Config
	interval time.Duration
	clock    clock.WithTicker
	metrics  *Metrics
	synced   []func() bool
}

// Config says what a Feed connects.
type Config struct {
	Cache  ctrlcache.Cache
	Ledger *pools.Ledger
	// Pools returns the pool configuration in force.
	Pools func() *pools.Config
	// Interval between recounts, DefaultInterval if 0.
	Interval time.Duration
	// Clock is the real one if nil.
	Clock clock.WithTicker
	// Metrics may be nil.
	Metrics *Metrics
}

// New connects the ledger to the cache's informers, which the cache's owner starts.
func New(ctx context.Context, cfg Config) (*Feed, error) {
	f := &Feed{cache: cfg.Cache, ledger: cfg.Ledger, config: cfg.Pools, interval: cfg.Interval, clock: cfg.Clock, metrics: cfg.Metrics}
	if f.interval == 0 {
		f.interval = DefaultInterval
	}
	if f.clock == nil {
		f.clock = clock.RealClock{}
	}
	for _, source := range []struct {
		object  client.Object
		handler cache.ResourceEventHandler
	}{
		{&corev1.Node{}, handler(f.setNode, f.deleteNode)},
		{&corev1.Pod{}, handler(f.setPod, f.deletePod)},
	} {
		informer, err := f.cache.GetInformer(ctx, source.object, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("informer of %T: %w", source.object, err)
		}
		registration, err := informer.AddEventHandler(source.handler)
		if err != nil {
			return nil, fmt.Errorf("handler for %T: %w", source.object, err)
		}
		f.synced = append(f.synced, registration.HasSynced)
	}
	return f, nil
}

// Synced reports whether the ledger has seen everything that was there when the informers started. Before that its
// figures are wrong.
func (f *Feed) Synced() bool {
	for _, synced := range f.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// NeedLeaderElection tells controller-runtime that every replica keeps a ledger.
func (f *Feed) NeedLeaderElection() bool { return false }

// Start recounts at every interval until ctx ends.
func (f *Feed) Start(ctx context.Context) error {
	ticker := f.clock.NewTicker(f.interval)
	defer ticker.Stop()
	for {
		if f.Synced() {
			if err := f.recount(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "resource pools were not recounted")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Reload decodes all pods anew, as after a change of the configuration: which group a pod belongs to depends on it.
func (f *Feed) Reload(ctx context.Context) error {
	_, charges, err := f.list(ctx)
	if err != nil {
		return err
	}
	for _, charge := range charges {
		f.ledger.Regroup(charge)
	}
	return nil
}

func (f *Feed) recount(ctx context.Context) error {
	nodes, charges, err := f.list(ctx)
	if err != nil {
		return err
	}
	drift := f.ledger.Recount(nodes, charges)
	if f.metrics != nil {
		f.metrics.addDrift(drift)
	}
	logger := klog.FromContext(ctx)
	if drift != (pools.Drift{}) {
		logger.Error(nil, "resource pools had drifted and were mended", "sums", drift.Sums, "missed", drift.Missed)
	}
	logUsage(logger, f.ledger.Usage())
	return nil
}

// list reads the informers' stores without copying; nothing of it is changed.
func (f *Feed) list(ctx context.Context) ([]*corev1.Node, []pools.Charge, error) {
	var nodes corev1.NodeList
	if err := f.cache.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing nodes: %w", err)
	}
	var pods corev1.PodList
	if err := f.cache.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing pods: %w", err)
	}
	objects := make([]*corev1.Node, len(nodes.Items))
	for i := range nodes.Items {
		objects[i] = &nodes.Items[i]
	}
	policy := f.config().Policy
	var charges []pools.Charge
	for i := range pods.Items {
		if charge, ok := pools.ChargeOf(&pods.Items[i], policy); ok {
			charges = append(charges, charge)
		}
	}
	return objects, charges, nil
}

func (f *Feed) setNode(node *corev1.Node)    { f.ledger.SetNode(node) }
func (f *Feed) deleteNode(node *corev1.Node) { f.ledger.DeleteNode(node.Name) }

func (f *Feed) setPod(pod *corev1.Pod) {
	if charge, ok := pools.ChargeOf(pod, f.config().Policy); ok {
		f.ledger.SetPod(charge)
	} else {
		f.ledger.DeletePod(pod.UID)
	}
}

func (f *Feed) deletePod(pod *corev1.Pod) { f.ledger.DeletePod(pod.UID) }

// handler turns informer events into set and remove. An object deleted and created again under its name can arrive as
// one update with another UID, and a delete can arrive as a tombstone.
func handler[T client.Object](set, remove func(T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if typed, ok := object.(T); ok {
				set(typed)
			}
		},
		UpdateFunc: func(before, after any) {
			old, okOld := before.(T)
			typed, ok := after.(T)
			if okOld && ok && old.GetUID() != typed.GetUID() {
				remove(old)
			}
			if ok {
				set(typed)
			}
		},
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			if typed, ok := object.(T); ok {
				remove(typed)
			}
		},
	}
}
