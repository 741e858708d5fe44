package plugin

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// Filter rejects nodes without enough free devices. It goes by the NodeInfo that it is given: preemption and nominated
// pods are simulated in copies of it.
func (p *TenantNetwork) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	c, err := readCycle(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if c == nil {
		return nil
	}
	if reasons, never := p.shortages(c.assignment, node); never {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasons...)
	} else if len(reasons) > 0 {
		return fwk.NewStatus(fwk.Unschedulable, reasons...)
	}
	return nil
}

// shortages returns all reasons why the node cannot serve the assignment now, and whether it could not if it were empty:
// then nobody is to be preempted for it.
func (p *TenantNetwork) shortages(assignment rdma.Assignment, node fwk.NodeInfo) (reasons []string, never bool) {
	for _, pool := range assignment.Pools() {
		need := assignment.Total(pool)
		allocatable := node.GetAllocatable().GetScalarResources()[pool]
		requested := node.GetRequested().GetScalarResources()[pool]
		if allocatable-requested >= need || allocatable == 0 && p.servedByDRA(pool) {
			continue
		}
		reasons = append(reasons, shortage(pool, allocatable, requested, need))
		never = never || need > allocatable
	}
	return reasons, never
}

// shortage is the text that the pod's condition shows. It starts with what NodeResourcesFit would say, since people and
// programs know those words.
func shortage(pool corev1.ResourceName, allocatable, requested, need int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Insufficient %s (allocatable %d, requested %d, need %d)", pool, allocatable, requested, need)
	if allocatable < requested {
		b.WriteString(": allocatable is below what is allocated, a device plugin may be restarting")
	}
	return b.String()
}

// servedByDRA reports whether a DeviceClass serves the pool's name through dynamic resource allocation. Such devices
// stand in no node's allocatable; the in-tree plugins count them.
func (p *TenantNetwork) servedByDRA(pool corev1.ResourceName) bool {
	manager := p.handle.SharedDRAManager()
	if manager == nil {
		return false
	}
	resolver := manager.DeviceClassResolver()
	return resolver != nil && resolver.GetDeviceClass(pool) != nil
}
