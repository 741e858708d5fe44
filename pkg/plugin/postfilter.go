package plugin

import (
	"context"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// PostFilter runs when no node passed. If only candidates were looked at, it ends the attempt before anybody is preempted
// and has the pod tried again with all nodes; otherwise it leaves the matter to the plugins behind it, unless nobody is to
// be evicted because the tenant-controller may still be down.
func (p *TenantNetwork) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c, err := readCycle(state)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if c == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if c.narrowedTo == 0 {
		return nil, p.mayPreempt(pod, nodes)
	}
	p.candidates.missed.Add(pod.UID, nil)
	// The pod is in flight: the queue takes it back into its backoff and does not wait for an event.
	p.handle.Activate(klog.FromContext(ctx), map[string]*corev1.Pod{klog.KObj(pod).String(): pod})
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
		fmt.Sprintf("of the nodes with free devices %d were looked at; all nodes are looked at next", c.narrowedTo))
}

// mayPreempt leaves a pod to the plugins behind this one, or keeps them from evicting others for it while nobody knows
// whether the tenant-controller is back. A pod for which they would not do so anyway takes no other pod's chance.
func (p *TenantNetwork) mayPreempt(pod *corev1.Pod, nodes fwk.NodeToStatusReader) *fwk.Status {
	tenantName := p.tenantOf(pod.Namespace)
	if p.breakers.closed(tenantName) || preemptionPriority(pod) == math.MinInt32 || !p.somebodyInTheWay(nodes) {
		return fwk.NewStatus(fwk.Unschedulable)
	}
	if reason := p.breakers.mayPreempt(tenantName, pod); reason != "" {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
	}
	return fwk.NewStatus(fwk.Unschedulable)
}

// somebodyInTheWay reports whether there is a node that could hold the pod if others went. That is what preemption goes by.
func (p *TenantNetwork) somebodyInTheWay(nodes fwk.NodeToStatusReader) bool {
	found, err := nodes.NodesForStatusCode(p.handle.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	return err != nil || len(found) > 0
}
