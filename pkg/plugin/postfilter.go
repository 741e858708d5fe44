package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// PostFilter runs when no node passed. If only candidates were looked at, it ends the attempt before anybody is preempted
// and has the pod tried again with all nodes; otherwise it leaves the matter to the plugins behind it, unless nobody is to
// be evicted because the tenant-controller may still be down.
func (p *TenantNetwork) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c, err := readCycle(state)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if c == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if c.narrowedTo == 0 {
		if reason := p.breakers.mayPreempt(p.tenantOf(pod.Namespace), pod); reason != "" {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
		}
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	p.candidates.missed.Add(pod.UID, nil)
	// The pod is in flight: the queue takes it back into its backoff and does not wait for an event.
	p.handle.Activate(klog.FromContext(ctx), map[string]*corev1.Pod{klog.KObj(pod).String(): pod})
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
		fmt.Sprintf("of the nodes with free devices %d were looked at; all nodes are looked at next", c.narrowedTo))
}
