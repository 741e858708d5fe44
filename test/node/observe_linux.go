package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	// ownNetworksLabel says how many networks a pod's user wrote: what is expected is not read from what is checked.
	ownNetworksLabel = "own-networks"
	// provokedLabel is on pods that the kubelet may refuse, because the scenario wants it to.
	provokedLabel = "provoked"
)

// seen is what the observer found out. All pods are known by UID.
type seen struct {
	mu         sync.Mutex
	all        map[types.UID]bool // RDMA pods that were placed on the node
	inspected  map[types.UID]bool
	refused    map[types.UID]bool
	onPurpose  map[types.UID]bool // refused, and meant to be
	early      map[types.UID]bool // lost their networks while a container ran
	interfaces map[types.UID]int  // additional interfaces found
	expected   map[types.UID]int
	texts      []string
}

func newSeen() *seen {
	return &seen{all: map[types.UID]bool{}, inspected: map[types.UID]bool{}, refused: map[types.UID]bool{}, onPurpose: map[types.UID]bool{},
		early: map[types.UID]bool{}, interfaces: map[types.UID]int{}, expected: map[types.UID]int{}}
}

// verdict is the last line.
type verdict struct{ pods, interfaces, expected, admissionErrors, earlyReleases, leaked, differing int }

func (v verdict) String() string {
	return fmt.Sprintf("pods=%d interfaces=%d expected=%d admission_errors=%d early_releases=%d leaked=%d",
		v.pods, v.interfaces, v.expected, v.admissionErrors, v.earlyReleases, v.leaked)
}

func (v verdict) good() bool {
	return v.interfaces == v.expected && v.admissionErrors == 0 && v.earlyReleases == 0 && v.leaked == 0 && v.differing == 0
}

func (s *seen) verdict(leaked int) verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := verdict{pods: len(s.all), admissionErrors: len(s.refused), earlyReleases: len(s.early), leaked: leaked, differing: len(s.texts)}
	for uid, n := range s.expected {
		v.expected += n
		v.interfaces += s.interfaces[uid]
	}
	return v
}

func (s *seen) pods() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

func (s *seen) provoked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.onPurpose)
}

func (s *seen) violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.texts)
}

// violationf notes something that must not be.
func (s *seen) violationf(format string, values ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts = append(s.texts, fmt.Sprintf(format, values...))
}

// observe watches pods, and the container runtime beside the tenant-controller, until the context ends.
func (w *world) observe(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(w.client, 0)
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { w.look(ctx, object) },
		UpdateFunc: func(_, object any) { w.look(ctx, object) },
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go w.watchReleases(ctx)
	return nil
}

func (w *world) look(ctx context.Context, object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || !rdma.HasIntent(pod.Annotations) {
		return
	}
	w.seen.mu.Lock()
	w.seen.all[pod.UID] = true
	inspect := hasStarted(pod) && !w.seen.inspected[pod.UID]
	if inspect {
		w.seen.inspected[pod.UID] = true
	}
	if refusedByNode(pod) {
		if _, provoked := pod.Labels[provokedLabel]; provoked {
			w.seen.onPurpose[pod.UID] = true
		} else {
			w.seen.refused[pod.UID] = true
		}
	}
	w.seen.mu.Unlock()
	if inspect {
		w.inspections.Go(func() { w.inspect(ctx, pod) })
	}
}

// refusedByNode tells a pod that the kubelet did not admit from one whose containers failed.
func refusedByNode(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" && len(pod.Status.ContainerStatuses) == 0
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// hasStarted reports whether the pod's last container has had time to say what it found.
func hasStarted(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running != nil || status.State.Terminated != nil && !status.State.Terminated.StartedAt.IsZero() {
			return true
		}
	}
	return false
}

// watchReleases compares the containers that run with the allocations that exist. A pod that is found without its
// allocation is looked at again: if its container still runs, the networks were given back too early.
func (w *world) watchReleases(ctx context.Context) {
	had := map[types.UID]bool{}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		before, err := w.node.Running(ctx)
		if err != nil {
			continue // containerd is down, on purpose
		}
		allocations, err := w.mock.List(ctx, w.id)
		if err != nil {
			continue
		}
		has := map[types.UID]bool{}
		for _, allocation := range allocations {
			has[allocation.PodUID], had[allocation.PodUID] = true, true
		}
		for uid := range before {
			if had[uid] && !has[uid] {
				w.confirmEarly(ctx, uid)
			}
		}
	}
}

func (w *world) confirmEarly(ctx context.Context, uid types.UID) {
	after, err := w.node.Running(ctx)
	if err != nil || !after[uid] {
		return
	}
	w.seen.mu.Lock()
	defer w.seen.mu.Unlock()
	w.seen.early[uid] = true
}

// expectation is how many additional interfaces a pod asked for: by its intent, and by its user's own networks.
func expectation(pod *corev1.Pod) int {
	total := 0
	for _, text := range []string{pod.Annotations[rdma.VFAnnotation], pod.Annotations[rdma.PFAnnotation], pod.Labels[ownNetworksLabel]} {
		n, _ := strconv.Atoi(text) // "" is none
		total += n
	}
	return total
}

// leftovers are things that should have gone.
func (w *world) leftovers(ctx context.Context) []string {
	var left []string
	err := eventually(ctx, "nothing is left on the node", func(ctx context.Context) error {
		left = w.lookForLeftovers(ctx)
		if len(left) > 0 {
			return fmt.Errorf("%s", strings.Join(left, "; "))
		}
		return nil
	})
	if err != nil && len(left) == 0 {
		left = []string{err.Error()}
	}
	return left
}

func (w *world) lookForLeftovers(ctx context.Context) []string {
	var left []string
	note := func(what string, n int, err error) {
		if err != nil {
			left = append(left, fmt.Sprintf("%s: %v", what, err))
		} else if n > 0 {
			left = append(left, fmt.Sprintf("%d %s", n, what))
		}
	}
	allocations, err := w.mock.List(ctx, w.id)
	note("allocations", len(allocations), err)
	nads, err := w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("").List(ctx, metav1.ListOptions{LabelSelector: rdma.PodUIDLabel})
	n := 0
	if err == nil {
		n = len(nads.Items)
	}
	note("NetworkAttachmentDefinitions", n, err)
	pods, err := w.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	n = 0
	if err == nil {
		for i := range pods.Items {
			if slices.Contains(pods.Items[i].Finalizers, rdma.Finalizer) {
				n++
			}
		}
	}
	note("pods with our finalizer", n, err)
	sandboxes, err := w.node.Sandboxes(ctx)
	note("pod sandboxes", sandboxes, err)
	namespaces, err := w.node.PodNetworks()
	note("pod network namespaces", namespaces, err)
	leases, err := w.node.Addresses()
	note("addresses in use", leases, err)
	interfaces, err := w.node.PodInterfaces()
	note("ends of pods' interfaces", interfaces, err)
	return left
}
