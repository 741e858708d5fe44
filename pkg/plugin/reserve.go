package plugin

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// inFlight is the set of pods between Reserve and the end of their binding.
type inFlight struct {
	mu   sync.Mutex
	pods map[podUID]string
}

func newInFlight() *inFlight { return &inFlight{pods: map[podUID]string{}} }

func (f *inFlight) add(uid podUID, node string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods[uid] = node
	return len(f.pods)
}

func (f *inFlight) remove(uid podUID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, uid)
	return len(f.pods)
}

// Reserve remembers the pod in memory and nothing else: it also runs in simulations. It never rejects what Filter let
// pass, or the pod would come back to the same node for ever.
func (p *TenantNetwork) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	if c, err := readCycle(state); err != nil || c == nil {
		return fwk.AsStatus(err)
	}
	p.metrics.inFlight.Set(float64(p.inFlight.add(pod.UID, node)))
	return nil
}

// Unreserve touches memory only. After a binding whose answer was lost nobody knows whether the pod is bound, so that
// giving its networks back here could take them from a running pod; the release controller gives them back.
func (p *TenantNetwork) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.metrics.inFlight.Set(float64(p.inFlight.remove(pod.UID)))
}
