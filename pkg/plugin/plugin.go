package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/pools/poolconfig"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// Name is the plugin's name in the scheduler's configuration.
const Name = "TenantNetwork"

// startTimeout bounds what New reads from the API server.
const startTimeout = 15 * time.Second

// Allocator is what the plugin asks of the tenant-controller. It is called concurrently.
type Allocator interface {
	// Ensure is idempotent by pod UID: the same ask gets the same networks.
	Ensure(ctx context.Context, podUID podUID, ask tenant.EnsureRequest) (*tenant.Allocation, error)
}

// TenantNetwork is the plugin. Everything but what is guarded in its parts is set once, in New.
type TenantNetwork struct {
	handle     fwk.Handle
	args       *Args
	cluster    string
	pools      func() *pools.Config
	allocator  Allocator
	nads       attachments
	pods       corelisters.PodLister
	byIndex    cache.Indexer
	nodes      corelisters.NodeLister
	namespaces corelisters.NamespaceLister
	breakers   *breakers
	inFlight   *inFlight
	// asking bounds how many pods the tenant-controller and the API server are asked for at the same time.
	asking     *semaphore.Weighted
	candidates *candidates
	mayNarrow  func() bool
	clock      clock.Clock
	// wake has the scheduling queue try pods again.
	wake    func(map[string]*corev1.Pod)
	wiring  func() error
	metrics *metricSet
}

var (
	_ fwk.PreFilterPlugin   = &TenantNetwork{}
	_ fwk.FilterPlugin      = &TenantNetwork{}
	_ fwk.PostFilterPlugin  = &TenantNetwork{}
	_ fwk.PreScorePlugin    = &TenantNetwork{}
	_ fwk.ScorePlugin       = &TenantNetwork{}
	_ fwk.ReservePlugin     = &TenantNetwork{}
	_ fwk.PreBindPlugin     = &TenantNetwork{}
	_ fwk.BindPlugin        = &TenantNetwork{}
	_ fwk.EnqueueExtensions = &TenantNetwork{}
	_ fwk.SignPlugin        = &TenantNetwork{}
)

// New is the plugin's factory. It reads the pool configuration and the cluster's identity from the API server, so that
// what is wrong there stops the scheduler at once, and not the first pod.
func New(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := parseArgs(object)
	if err != nil {
		return nil, err
	}
	client, err := tenant.New(args.clientConfig())
	if err != nil {
		return nil, err
	}
	registerer := legacyregistry.Registerer()
	api, err := tenant.WithMetrics(client, registerer)
	if err != nil {
		return nil, err
	}
	nads, err := metadata.NewForConfig(handle.KubeConfig())
	if err != nil {
		return nil, fmt.Errorf("client for NetworkAttachmentDefinitions: %w", err)
	}
	return newPlugin(ctx, args, handle, api, attachments{client: nads}, clock.RealClock{})
}

// newPlugin connects the plugin's parts; tests call it with their own.
func newPlugin(ctx context.Context, args *Args, handle fwk.Handle, allocator Allocator, nads attachments, c clock.Clock) (*TenantNetwork, error) {
	cluster, err := clusterID(ctx, handle.ClientSet(), args.Cluster)
	if err != nil {
		return nil, err
	}
	config, err := sharedPoolConfig(ctx, handle, args.PoolConfig)
	if err != nil {
		return nil, err
	}
	factory := handle.SharedInformerFactory()
	podInformer := factory.Core().V1().Pods()
	if err := addIndexes(podInformer.Informer()); err != nil {
		return nil, err
	}
	p := &TenantNetwork{
		handle:     handle,
		args:       args,
		cluster:    cluster,
		pools:      config.Current,
		allocator:  allocator,
		nads:       nads,
		pods:       podInformer.Lister(),
		byIndex:    podInformer.Informer().GetIndexer(),
		nodes:      factory.Core().V1().Nodes().Lister(),
		namespaces: factory.Core().V1().Namespaces().Lister(),
		inFlight:   newInFlight(sharedMetrics().inFlight),
		candidates: newCandidates(),
		asking:     semaphore.NewWeighted(args.TenantController.MaxConcurrent),
		clock:      c,
		metrics:    sharedMetrics(),
	}
	p.wake = func(pods map[string]*corev1.Pod) { handle.Activate(klog.FromContext(ctx), pods) }
	p.breakers = newBreakers(args.Breaker, c, p.waits, p.wake)
	if _, err := podInformer.Informer().AddEventHandler(p.groupWatcher()); err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	p.mayNarrow = sync.OnceValue(func() bool { return mayNarrow(klog.FromContext(ctx), handle) })
	p.wiring = sync.OnceValue(func() error { return checkWiring(handle) })
	return p, nil
}

// clusterID identifies the cluster to a tenant-controller that may serve many.
func clusterID(ctx context.Context, client kubernetes.Interface, configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	namespace, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("identifying the cluster by the UID of namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return string(namespace.UID), nil
}

// sharedPoolConfig starts watching the ConfigMap. The factory runs once a profile; each has a watch of its own.
func sharedPoolConfig(ctx context.Context, handle fwk.Handle, ref ObjectRef) (*poolconfig.Watcher, error) {
	config := poolconfig.Config{Client: handle.ClientSet(), Namespace: ref.Namespace, Name: ref.Name,
		Registerer: legacyregistry.Registerer()}
	if recorder := handle.EventRecorder(); recorder != nil {
		config.Recorder = recorder
	}
	watcher, err := poolconfig.New(ctx, config)
	if err != nil {
		return nil, err
	}
	go func() {
		if err := watcher.Start(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "pool configuration is not watched")
		}
	}()
	return watcher, nil
}

// Name implements fwk.Plugin.
func (p *TenantNetwork) Name() string { return Name }
