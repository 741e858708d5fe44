package feed

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// NewInformer makes a cache's informers. That of pods never sees the pods that neither the ledger, nor the release
// controller, nor the watchdog asks about, which are nearly all of a cluster: no selector of the API server can tell them
// apart.
func NewInformer(source cache.ListerWatcher, object runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	if _, ok := object.(*corev1.Pod); ok {
		source = relevantPods(cache.ToListerWatcherWithContext(source))
	}
	return cache.NewSharedIndexInformer(source, object, resync, indexers)
}

func relevantPods(source cache.ListerWatcherWithContext) cache.ListerWatcher {
	r := &relevance{}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := source.ListWithContext(ctx, options)
			if all, ok := list.(*corev1.PodList); ok && err == nil {
				r.forget(options)
				all.Items = slices.DeleteFunc(all.Items, func(pod corev1.Pod) bool { return !r.of(&pod) })
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := source.WatchWithContext(ctx, options)
			if err != nil {
				return nil, err
			}
			return watch.Filter(events, r.filter), nil
		},
	}
}

// relevance knows which pods pass. Most of what counts never changes, so most pods pass or do not for their whole life.
type relevance struct {
	mu sync.Mutex
	// byWords are the pods that passed for their finalizer or annotations alone, and cease to be relevant when these go.
	byWords map[types.UID]struct{}
}

// forget begins anew with the first page of a list.
func (r *relevance) forget(options metav1.ListOptions) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if options.Continue == "" || r.byWords == nil {
		r.byWords = map[types.UID]struct{}{}
	}
}

// always reports whether a pod is relevant for as long as it is there: it holds devices, or tenant-scheduler places it.
func always(pod *corev1.Pod) bool {
	return pools.HoldsDevices(pod) || pod.Spec.SchedulerName == rdma.SchedulerName
}

// of reports whether a pod is relevant. Besides those that always are, these are the pods that wait for their networks to
// be given back, and those that ask for devices.
func (r *relevance) of(pod *corev1.Pod) bool {
	if always(pod) {
		return true
	}
	if !slices.Contains(pod.Finalizers, rdma.Finalizer) && !rdma.HasIntent(pod.Annotations) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byWords == nil {
		r.byWords = map[types.UID]struct{}{}
	}
	r.byWords[pod.UID] = struct{}{}
	return true
}

// filter drops the events of pods that are not relevant, and turns the change by which a pod ceases to be so into its
// deletion.
func (r *relevance) filter(event watch.Event) (watch.Event, bool) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok || event.Type == watch.Bookmark || event.Type == watch.Error {
		return event, true
	}
	if event.Type != watch.Deleted && r.of(pod) {
		return event, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, passed := r.byWords[pod.UID]
	delete(r.byWords, pod.UID)
	if event.Type == watch.Deleted {
		return event, passed || always(pod)
	}
	event.Type = watch.Deleted
	return event, passed
}
