// Package watchdog speaks up for pods that something silently went wrong with: admission was bypassed, no scheduler looks
// at them, or the cluster lacks what their networks are made of.
package watchdog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// Reasons of Events on pods.
const (
	reasonNotInjected  = "RDMANotInjected" // as tenant-scheduler's
	reasonNotScheduled = "TenantSchedulerSilent"
	reasonNoNetworks   = "NoNetworkAttachmentDefinitions"
)

const (
	// patience is how long a scheduler that runs may take to look at a pod for the first time.
	patience = time.Minute
	// readTimeout bounds the read of a namespace.
	readTimeout = 10 * time.Second
	// remembered is how many pods were spoken about last, so that each is once.
	remembered = 8192
)

// Recorder is the part of an event recorder that the watchdog needs.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Config says what a Watchdog works with.
type Config struct {
	// Live reads namespaces from the API server.
	Live     client.Reader
	Recorder Recorder
	// NetworksAbsent tells whether the cluster has no CRD of NetworkAttachmentDefinitions.
	NetworksAbsent func() bool
	// Excluded are the namespaces whose pods the webhook is not called for, whatever their label.
	Excluded   []string
	Clock      clock.PassiveClock
	Registerer prometheus.Registerer
}

// Watchdog looks at every pod of ours, or that should be. It runs on the leader.
type Watchdog struct {
	cfg   Config
	found *prometheus.CounterVec
	// done has what was said, or found to need no word, by finding.
	done *lru.Cache
}

// finding is one thing that is wrong with a pod.
type finding struct {
	uid    types.UID
	reason string
}

// New returns a watchdog, to be set up with a manager.
func New(cfg Config) (*Watchdog, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	w := &Watchdog{cfg: cfg, done: lru.New(remembered), found: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rdma_watchdog_pods_total",
		Help: "Pods that an Event was raised for, by its reason: RDMANotInjected, TenantSchedulerSilent or NoNetworkAttachmentDefinitions.",
	}, []string{"reason"})}
	for _, reason := range []string{reasonNotInjected, reasonNotScheduled, reasonNoNetworks} {
		w.found.WithLabelValues(reason)
	}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(w.found); err != nil {
			return nil, fmt.Errorf("registering metrics of the watchdog: %w", err)
		}
	}
	return w, nil
}

// SetupWithManager adds the watchdog to the manager.
func (w *Watchdog) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("watchdog").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(object client.Object) bool {
			pod, ok := object.(*corev1.Pod)
			return ok && (suspect(pod) || waits(pod))
		}))).
		Complete(reconcile.AsReconciler(mgr.GetClient(), w))
}

// Reconcile implements reconcile.ObjectReconciler.
func (w *Watchdog) Reconcile(ctx context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := w.checkInjected(ctx, pod); err != nil {
		return reconcile.Result{}, err
	}
	if !waits(pod) {
		return reconcile.Result{}, nil
	}
	if hasFinalizer(pod) && w.cfg.NetworksAbsent() {
		w.say(pod, reasonNoNetworks, "Schedule", "The cluster has no CRD network-attachment-definitions.k8s.cni.cncf.io, so no networks can be made for the pod. Is Multus installed?")
	}
	if looked(pod) || len(pod.Spec.SchedulingGates) > 0 {
		return reconcile.Result{}, nil
	}
	if left := patience - w.cfg.Clock.Since(pod.CreationTimestamp.Time); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	w.say(pod, reasonNotScheduled, "Schedule", "No scheduler has looked at the pod within %v. Is %s running?", patience, rdma.SchedulerName)
	return reconcile.Result{}, nil
}

// checkInjected speaks up for a pod that should have gone through admission and did not.
func (w *Watchdog) checkInjected(ctx context.Context, pod *corev1.Pod) error {
	if !suspect(pod) || w.said(pod, reasonNotInjected) || slices.Contains(w.cfg.Excluded, pod.Namespace) {
		return nil
	}
	namespace := &corev1.Namespace{}
	if err := w.cfg.Live.Get(ctx, client.ObjectKey{Name: pod.Namespace}, namespace); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("reading the pod's namespace: %w", err))
	}
	if namespace.Labels[rdma.NamespaceLabel] != rdma.NamespaceLabelValue {
		w.done.Add(finding{pod.UID, reasonNotInjected}, nil) // the policy warned; tenant-webhook was not asked to serve it
		return nil
	}
	w.say(pod, reasonNotInjected, "Admit", "The pod asks for RDMA devices but gets none: it did not go through tenant-webhook, which reads %s and %s only when a pod is created. Is its webhook configuration as shipped? Recreate the pod.",
		rdma.VFAnnotation, rdma.PFAnnotation)
	return nil
}

// suspect tells whether the pod wants devices and shows no trace of admission. What the plugin sees it speaks about itself.
func suspect(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	_, admitted := pod.Annotations[rdma.ResourcePoolAnnotation]
	return rdma.HasIntent(pod.Annotations) && !mirror && !admitted && !hasFinalizer(pod) && !over(pod) &&
		pod.Spec.SchedulerName != rdma.SchedulerName
}

// waits tells whether tenant-scheduler has to place the pod.
func waits(pod *corev1.Pod) bool {
	return pod.Spec.SchedulerName == rdma.SchedulerName && pod.Spec.NodeName == "" && !over(pod)
}

// looked tells whether some scheduler has looked at the pod.
func looked(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
}

func over(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func hasFinalizer(pod *corev1.Pod) bool { return slices.Contains(pod.Finalizers, rdma.Finalizer) }

func (w *Watchdog) said(pod *corev1.Pod, reason string) bool {
	_, ok := w.done.Get(finding{pod.UID, reason})
	return ok
}

// say raises the Event, once a pod as long as this program leads.
func (w *Watchdog) say(pod *corev1.Pod, reason, action, note string, args ...any) {
	if w.said(pod, reason) {
		return
	}
	w.done.Add(finding{pod.UID, reason}, nil)
	w.found.WithLabelValues(reason).Inc()
	w.cfg.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, reason, action, note, args...)
}
