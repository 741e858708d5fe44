package plugin

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	fwk "k8s.io/kube-scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// inFlight holds the pods between Reserve and the end of their binding. All profiles share the gauge, so that it counts
// up and down and is never set.
type inFlight struct {
	gauge *metrics.Gauge
	mu    sync.Mutex
	pods  map[podUID]placement
}

// placement is where a pod is about to be bound, and what it takes there.
type placement struct {
	pod        *corev1.Pod
	node       string
	assignment rdma.Assignment
}

func newInFlight(gauge *metrics.Gauge) *inFlight {
	return &inFlight{gauge: gauge, pods: map[podUID]placement{}}
}

func (f *inFlight) add(uid podUID, p placement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.pods[uid]; !ok {
		f.gauge.Inc()
	}
	f.pods[uid] = p
}

func (f *inFlight) remove(uid podUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.pods[uid]; ok {
		delete(f.pods, uid)
		f.gauge.Dec()
	}
}

// on returns what is about to be bound to a node.
func (f *inFlight) on(node string) []placement {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []placement
	for _, p := range f.pods {
		if p.node == node {
			found = append(found, p)
		}
	}
	return found
}

// Reserve remembers the pod in memory and nothing else: it also runs in simulations. It never rejects what Filter let
// pass, or the pod would come back to the same node for ever. The breakers learn here that the pod has a node.
func (p *TenantNetwork) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	c, err := readCycle(state)
	if err != nil || c == nil {
		return fwk.AsStatus(err)
	}
	p.inFlight.add(pod.UID, placement{pod: pod, node: node, assignment: c.assignment})
	p.breakers.claim(p.tenantOf(pod.Namespace), p.claimantOf(pod))
	return nil
}

// Unreserve touches memory only. After a binding whose answer was lost nobody knows whether the pod is bound, so that
// giving its networks back here could take them from a running pod; the release controller gives them back.
func (p *TenantNetwork) Unreserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) {
	p.inFlight.remove(pod.UID)
	if c, err := readCycle(state); err == nil && c != nil {
		p.breakers.yield(p.tenantOf(pod.Namespace), p.claimantOf(pod))
	}
}
