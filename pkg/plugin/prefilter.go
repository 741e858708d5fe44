package plugin

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

type podUID = types.UID

// oursIndex lists the pods that carry our finalizer by namespace.
const oursIndex = Name + "/ours"

func indexOurs(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || !slices.Contains(pod.Finalizers, rdma.Finalizer) {
		return nil, nil
	}
	return []string{pod.Namespace}, nil
}

// PreFilter decides whether the pod is ours, refuses it where looking at nodes would be in vain, and otherwise names the
// nodes that are worth looking at.
func (p *TenantNetwork) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	assignment, ok := rdma.Ours(pod)
	if !ok {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if err := p.wiring(); err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if reason := p.groupConflict(pod, assignment); reason != "" {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
	}
	// An open breaker keeps the pod from holding a device, and from preempting others, in vain.
	if reason := p.breakers.blocked(p.tenantOf(pod.Namespace), p.claimantOf(pod), pod); reason != "" {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
	}
	c := newCycle(assignment)
	state.Write(stateKey, c)
	return p.nodesFor(state, pod, c, nodes), nil
}

// PreFilterExtensions returns nil: Filter goes by the NodeInfo alone, which the framework itself keeps right when it
// simulates other pods.
func (p *TenantNetwork) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// claimantOf returns what a breaker knows a pod by: the members of a gang are placed together or not at all.
func (p *TenantNetwork) claimantOf(pod *corev1.Pod) string {
	if group := p.groupOf(pod); group != (pools.Group{}) {
		return group.String()
	}
	return string(pod.UID)
}

// tenantOf returns the tenant whose breaker a namespace's pods go by.
func (p *TenantNetwork) tenantOf(namespace string) string {
	object, err := p.namespaces.Get(namespace)
	if err != nil {
		return namespace
	}
	return rdma.TenantOf(object.Name, object.Labels)
}
