package release

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// Defaults of Config.
const (
	DefaultSandboxWait = time.Minute
	// Retries start at once and end at the longest pause that still gives networks back soon after an outage.
	firstRetry  = 200 * time.Millisecond
	longestWait = 30 * time.Second
)

// Bounds of the work on one pod. Each part has its own: a release that takes all its time, as more attempts or longer ones
// than by default can, must leave the finalizer's patch some.
const (
	readTimeout    = 10 * time.Second
	releaseTimeout = 20 * time.Second
	patchTimeout   = 10 * time.Second
)

// Releaser gives networks back. Release is idempotent: gone already is success.
type Releaser interface {
	Release(ctx context.Context, cluster string, podUID types.UID, generation int64) error
}

// Config says what a Controller works with. Zero durations stand for the defaults.
type Config struct {
	// Client reads pods and nodes from memory and patches pods.
	Client client.Client
	// Live reads from the API server.
	Live     client.Reader
	Releaser Releaser
	Recorder Recorder
	// Cluster identifies this cluster to the tenant-controller.
	Cluster string
	// SandboxWait bounds how long a terminal pod's sandbox is waited for.
	SandboxWait time.Duration
	// ForceAfter is how long after a deletion's grace period the networks are given back whatever the node says; 0
	// means never.
	ForceAfter time.Duration
	// Workers is the number of pods worked on at once, 10 if 0.
	Workers    int
	Clock      clock.PassiveClock
	Registerer prometheus.Registerer
}

// Controller gives a stopped pod's networks back and then removes its finalizer.
type Controller struct {
	cfg      Config
	policy   policy
	released *prometheus.CounterVec
	// done has when the finalizers that were removed last went, by the pods' UIDs.
	done *lru.Cache
}

// New returns a controller.
func New(cfg Config) (*Controller, error) {
	if cfg.SandboxWait == 0 {
		cfg.SandboxWait = DefaultSandboxWait
	}
	if cfg.Workers == 0 {
		cfg.Workers = 10
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	c := &Controller{cfg: cfg, done: lru.New(rememberedPods), policy: policy{sandboxWait: cfg.SandboxWait, forceAfter: cfg.ForceAfter},
		released: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rdma_release_pods_total",
			Help: "Pods by result: released, refused (released because their node did not admit them), forced (the finalizer went without a release), or failed (tried again).",
		}, []string{"result"}),
	}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(c.released); err != nil {
			return nil, fmt.Errorf("registering metrics of the release: %w", err)
		}
	}
	return c, nil
}

// nodeIndex lists pods with our finalizer by node.
const nodeIndex = "release/node"

// SetupWithManager adds the controller to the manager. It looks at a pod when the pod changes, and at a node's pods when
// the node goes away or out of service.
func (c *Controller) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeIndex, indexByNode); err != nil {
		return fmt.Errorf("index of pods by node: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("release").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(object client.Object) bool {
			pod, ok := object.(*corev1.Pod)
			return ok && hasFinalizer(pod)
		}))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.podsOf)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: c.cfg.Workers,
			RateLimiter:             newRateLimiter(),
			NewQueue:                newQueue,
		}).
		Complete(reconcile.AsReconciler(mgr.GetClient(), c))
}

func indexByNode(object client.Object) []string {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || !hasFinalizer(pod) {
		return nil
	}
	return []string{pod.Spec.NodeName}
}

func newRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, longestWait)
}

// podsOf returns the pods of a node that must be looked at again: only a node that is gone or out of service changes
// anything for them.
func (c *Controller) podsOf(ctx context.Context, object client.Object) []reconcile.Request {
	var node corev1.Node
	err := c.cfg.Client.Get(ctx, client.ObjectKeyFromObject(object), &node)
	if err == nil && !outOfService(&node) {
		return nil
	}
	var list corev1.PodList
	if err := c.cfg.Client.List(ctx, &list, client.MatchingFields{nodeIndex: object.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "pods of a node that went away were not listed; they are looked at when they change", "node", object.GetName())
		return nil
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return requests
}

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	if !hasFinalizer(pod) {
		return reconcile.Result{}, nil
	}
	if left := c.memoryLags(pod.UID); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	node, err := c.nodeOf(ctx, pod)
	if err != nil {
		return reconcile.Result{}, err
	}
	v := c.policy.stopped(pod, node, c.cfg.Clock.Now())
	logger := klog.FromContext(ctx).WithValues("podUID", pod.UID)
	if !v.stopped {
		logger.V(4).Info("networks are kept", "reason", v.reason, "lookAgainAfter", v.after)
		return reconcile.Result{RequeueAfter: v.after}, nil
	}
	result, err := c.giveBack(ctx, pod)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := c.removeFinalizer(ctx, pod); err != nil {
		return reconcile.Result{}, err
	}
	c.done.Add(pod.UID, c.cfg.Clock.Now())
	if result == "refused" {
		warnf(c.cfg.Recorder, pod, reasonRefused, "Release",
			"Node %s did not admit the pod (%s), so its networks were given back. Somebody else may have taken its devices: all pods that use a pool must be placed by %s.",
			pod.Spec.NodeName, foreign(pod.Status.Reason+": "+pod.Status.Message), rdma.SchedulerName)
	}
	c.released.WithLabelValues(result).Inc()
	logger.Info("networks released", "result", result, "reason", v.reason, "node", pod.Spec.NodeName)
	return reconcile.Result{}, nil
}

// giveBack returns what became of the networks, as the metric has it, or why the pod must stay.
func (c *Controller) giveBack(ctx context.Context, pod *corev1.Pod) (string, error) {
	bounded, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	// 0: whatever there is. The networks belong to the pod's UID, and the pod is over.
	err := c.cfg.Releaser.Release(bounded, c.cfg.Cluster, pod.UID, 0)
	switch {
	case err == nil && refusedByNode(pod):
		return "refused", nil
	case err == nil:
		return "released", nil
	case ctx.Err() != nil:
		// This program stops, which says nothing about the tenant-controller.
		return "", fmt.Errorf("releasing the networks: %w", err)
	}
	c.released.WithLabelValues("failed").Inc()
	if !c.policy.overdue(pod, c.cfg.Clock.Now()) {
		warnf(c.cfg.Recorder, pod, reasonReleaseFailed, "Release",
			"The pod's networks could not be given back, which is tried again: %v", err)
		return "", fmt.Errorf("releasing the networks: %w", err)
	}
	warnf(c.cfg.Recorder, pod, reasonForced, "Release",
		"The pod goes since --force-release-after=%v is over, although its networks could not be given back; the sweep does that later: %v", c.cfg.ForceAfter, err)
	return "forced", nil
}

// nodeOf returns the pod's node, or nil if it does not exist. That is believed only from the API server: the memory may
// not have heard of a new node yet.
func (c *Controller) nodeOf(ctx context.Context, pod *corev1.Pod) (*corev1.Node, error) {
	if pod.Spec.NodeName == "" || terminal(pod) {
		return nil, nil // the node does not matter then
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	node := &corev1.Node{}
	key := client.ObjectKey{Name: pod.Spec.NodeName}
	err := c.cfg.Client.Get(ctx, key, node)
	if apierrors.IsNotFound(err) {
		err = c.cfg.Live.Get(ctx, key, node)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil // nil means: gone
	}
	if err != nil {
		return nil, fmt.Errorf("reading the pod's node: %w", err)
	}
	return node, nil
}
