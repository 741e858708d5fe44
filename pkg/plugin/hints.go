package plugin

import (
	"context"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// EventsToRegister lists what can make a pod schedulable that this plugin rejected. Pods that wait for the
// tenant-controller are not here: the breaker activates them.
func (p *TenantNetwork) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		// A new node, or a device plugin that reports more devices, can hold the pod.
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable}, QueueingHintFn: p.nodeHint},
		// A pod that ends (a terminal pod arrives as deleted) frees its devices, or ends a conflict in a group.
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}, QueueingHintFn: p.podHint},
		// A DeviceClass can take over a pool's name, whose devices then stand in no node's allocatable.
		{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: p.deviceClassHint},
	}, nil
}

func (p *TenantNetwork) nodeHint(logger klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	_, node, err := schedutil.As[*corev1.Node](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	assignment, ours := rdma.Ours(pod)
	if !ours {
		return fwk.Queue, nil
	}
	list := assignment.Pools()
	// A pod that holds the node's devices now wakes this one when it ends: the informer's store, which is read here, is
	// never behind the events. Holders that the pod may preempt do not count.
	held, _, err := p.boundHolders(pod, list, node.Name, preemptionPriority(pod))
	if err != nil {
		return fwk.Queue, err
	}
	for _, pool := range list {
		allocatable := node.Status.Allocatable[pool]
		if allocatable.Value()-held[pool] < assignment.Total(pool) && !p.servedByDRA(pool) {
			logger.V(5).Info("node does not have the pod's devices to spare", "pod", klog.KObj(pod), "node", node.Name, "pool", pool)
			return fwk.QueueSkip, nil
		}
	}
	logger.V(5).Info("node may hold the pod now", "pod", klog.KObj(pod), "node", node.Name)
	return fwk.Queue, nil
}

func (p *TenantNetwork) podHint(logger klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	deleted, _, err := schedutil.As[*corev1.Pod](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	assignment, ours := rdma.Ours(pod)
	if !ours {
		return fwk.Queue, nil
	}
	policy := p.pools().Policy
	if group := policy.GroupOf(pod.Namespace, pod); group.Name != "" && group == policy.GroupOf(deleted.Namespace, deleted) {
		return fwk.Queue, nil
	}
	freed := rdma.Requests(deleted)
	if slices.ContainsFunc(assignment.Pools(), func(pool corev1.ResourceName) bool {
		quantity := freed[pool]
		return quantity.Sign() > 0
	}) {
		logger.V(5).Info("pod that ended held devices of the pool", "pod", klog.KObj(pod), "ended", klog.KObj(deleted))
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

func (p *TenantNetwork) deviceClassHint(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	_, class, err := schedutil.As[*resourceapi.DeviceClass](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	assignment, ours := rdma.Ours(pod)
	if !ours || class.Spec.ExtendedResourceName != nil &&
		slices.Contains(assignment.Pools(), corev1.ResourceName(*class.Spec.ExtendedResourceName)) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// preemptionPriority returns the priority below which the pod may preempt others.
func preemptionPriority(pod *corev1.Pod) int32 {
	if policy := pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return math.MinInt32
	}
	return corev1helpers.PodPriority(pod)
}
