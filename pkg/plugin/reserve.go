package plugin

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
	fwk "k8s.io/kube-scheduler/framework"
)

// inFlight is the set of pods between Reserve and the end of their binding. All profiles share the gauge, so that it
// counts up and down and is never set.
type inFlight struct {
	gauge *metrics.Gauge
	mu    sync.Mutex
	pods  sets.Set[podUID]
}

func newInFlight(gauge *metrics.Gauge) *inFlight {
	return &inFlight{gauge: gauge, pods: sets.New[podUID]()}
}

func (f *inFlight) add(uid podUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.pods.Has(uid) {
		f.pods.Insert(uid)
		f.gauge.Inc()
	}
}

func (f *inFlight) remove(uid podUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods.Has(uid) {
		f.pods.Delete(uid)
		f.gauge.Dec()
	}
}

// Reserve remembers the pod in memory and nothing else: it also runs in simulations. It never rejects what Filter let
// pass, or the pod would come back to the same node for ever.
func (p *TenantNetwork) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	if c, err := readCycle(state); err != nil || c == nil {
		return fwk.AsStatus(err)
	}
	p.inFlight.add(pod.UID)
	return nil
}

// Unreserve touches memory only. After a binding whose answer was lost nobody knows whether the pod is bound, so that
// giving its networks back here could take them from a running pod; the release controller gives them back.
func (p *TenantNetwork) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.inFlight.remove(pod.UID)
}
