package plugin

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// devicesIndex lists the pods that request any extended resource by node.
const devicesIndex = Name + "/devices"

func indexDevices(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, nil
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if strings.Contains(string(name), "/") {
					return []string{pod.Spec.NodeName}, nil
				}
			}
		}
	}
	return nil, nil
}

// stillFits looks at the node once more after the tenant-controller's answer, which can take seconds: meanwhile another
// scheduler may have bound pods there, a device plugin may have lost devices, the node may be gone. A kubelet would
// refuse the pod for good. The scheduler's snapshot must not be read while binding, so this goes by the informers, and
// by what this plugin has in flight itself.
func (p *TenantNetwork) stillFits(pod *corev1.Pod, assignment rdma.Assignment, nodeName string) error {
	node, err := p.nodes.Get(nodeName)
	if err != nil {
		return fmt.Errorf("the node is gone: %w", err)
	}
	list := assignment.Pools()
	held, counted, err := p.boundHolders(pod, list, nodeName, math.MinInt32)
	if err != nil {
		return err
	}
	for _, other := range p.inFlight.on(nodeName) {
		if counted[other.pod.UID] || p.ending(other.pod) {
			continue
		}
		for _, pool := range list {
			held[pool] += other.assignment.Total(pool)
		}
	}
	for _, pool := range list {
		allocatable := node.Status.Allocatable[pool]
		if count := assignment.Total(pool); allocatable.Value()-held[pool] < count && (!allocatable.IsZero() || !p.servedByDRA(pool)) {
			return fmt.Errorf("node %s changed while the tenant-controller was asked: %s", nodeName,
				shortage{need: need{pool, count}, allocatable: allocatable.Value(), requested: held[pool]})
		}
	}
	return nil
}

// ending reports whether an unbound pod is deleted or being deleted: kube-scheduler has given its devices to others by
// then, and the API server will not bind it.
func (p *TenantNetwork) ending(pod *corev1.Pod) bool {
	current, err := p.pods.Pods(pod.Namespace).Get(pod.Name)
	return err != nil || current.UID != pod.UID || current.DeletionTimestamp != nil
}

// boundHolders counts what the other pods of at least the priority that are bound to the node hold of the pools, and
// returns the pods it knows by UID, the pod itself among them.
func (p *TenantNetwork) boundHolders(pod *corev1.Pod, list []corev1.ResourceName, nodeName string, priority int32) (map[corev1.ResourceName]int64, map[podUID]bool, error) {
	bound, err := p.byIndex.ByIndex(devicesIndex, nodeName)
	if err != nil {
		return nil, nil, fmt.Errorf("pods of node %s: %w", nodeName, err)
	}
	held := map[corev1.ResourceName]int64{}
	known := map[podUID]bool{pod.UID: true}
	for _, object := range bound {
		other, ok := object.(*corev1.Pod)
		if !ok || known[other.UID] || other.Status.Phase == corev1.PodSucceeded || other.Status.Phase == corev1.PodFailed {
			continue
		}
		known[other.UID] = true
		if corev1helpers.PodPriority(other) < priority {
			continue
		}
		requests := rdma.Requests(other)
		for _, pool := range list {
			quantity := requests[pool]
			held[pool] += quantity.Value()
		}
	}
	return held, known, nil
}

func addIndexes(informer cache.SharedIndexInformer) error {
	for name, index := range map[string]cache.IndexFunc{oursIndex: indexOurs, devicesIndex: indexDevices} {
		if _, ok := informer.GetIndexer().GetIndexers()[name]; ok {
			continue // another profile's instance was here first
		}
		if err := informer.AddIndexers(cache.Indexers{name: index}); err != nil {
			return fmt.Errorf("index of pods: %w", err)
		}
	}
	return nil
}
