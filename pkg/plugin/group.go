package plugin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// groupConflict says which member of the pod's group holds another pool. A job that is spread over two fabrics cannot
// talk to itself; two webhook replicas can have chosen differently in the same moment.
func (p *TenantNetwork) groupConflict(pod *corev1.Pod, assignment rdma.Assignment) string {
	for _, other := range p.members(pod) {
		held, ok := rdma.Ours(other)
		if !ok || other.DeletionTimestamp != nil {
			continue
		}
		if mine, theirs, differ := twoPools(assignment, held); differ {
			return fmt.Sprintf("group %s is split over two pools: this pod has %s, pod %s has %s; delete the pods of one of them",
				p.groupOf(pod), mine, other.Name, theirs)
		}
	}
	return ""
}

func (p *TenantNetwork) groupOf(pod *corev1.Pod) pools.Group {
	return p.pools().Policy.GroupOf(pod.Namespace, pod)
}

// members returns the other pods of ours in the pod's group.
func (p *TenantNetwork) members(pod *corev1.Pod) []*corev1.Pod {
	group := p.groupOf(pod)
	if group == (pools.Group{}) {
		return nil
	}
	objects, err := p.byIndex.ByIndex(oursIndex, pod.Namespace)
	if err != nil {
		return nil // there is no such index, which is not so
	}
	var members []*corev1.Pod
	for _, object := range objects {
		if other, ok := object.(*corev1.Pod); ok && other.UID != pod.UID && p.groupOf(other) == group {
			members = append(members, other)
		}
	}
	return members
}

// twoPools returns the first pools by which two assignments differ for the same type.
func twoPools(a, b rdma.Assignment) (mine, theirs corev1.ResourceName, differ bool) {
	for _, e := range a {
		for _, h := range b {
			if e.Type == h.Type && e.Pool != h.Pool {
				return e.Pool, h.Pool, true
			}
		}
	}
	return "", "", false
}

// groupWatcher wakes the members of a split group when one that never had a node ends. The scheduling queue hears nothing
// of such pods (k8s.io/kubernetes v1.37.2, pkg/scheduler/eventhandlers.go, deletePodFromSchedulingQueue), so that no
// queueing hint is asked.
func (p *TenantNetwork) groupWatcher() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(oldObject, newObject any) {
			was, okOld := oldObject.(*corev1.Pod)
			is, okNew := newObject.(*corev1.Pod)
			if okOld && okNew && was.DeletionTimestamp == nil && is.DeletionTimestamp != nil {
				p.endsSplit(is)
			}
		},
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				p.endsSplit(pod)
			}
		},
	}
}

// endsSplit wakes those that wait for the pod to go because it has another pool.
func (p *TenantNetwork) endsSplit(pod *corev1.Pod) {
	held, ours := rdma.Ours(pod)
	if !ours || pod.Spec.NodeName != "" {
		return
	}
	wake := map[string]*corev1.Pod{}
	for _, other := range p.members(pod) {
		assignment, ok := rdma.Ours(other)
		if !ok || other.Spec.NodeName != "" || other.DeletionTimestamp != nil {
			continue
		}
		if _, _, differ := twoPools(assignment, held); differ {
			wake[other.Namespace+"/"+other.Name] = other
		}
	}
	if len(wake) > 0 {
		p.wake(wake)
	}
}
