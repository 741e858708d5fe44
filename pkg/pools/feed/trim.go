package feed

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// keptAnnotations are those that are read. Other keys of our domain are anybody's, and not worth the memory.
var keptAnnotations = append(rdma.WrittenAnnotations(), rdma.VFAnnotation, rdma.PFAnnotation, corev1.MirrorPodAnnotationKey)

// TrimPod is a transform for an informer of pods: it keeps what the ledger, the release controller and the watchdog read.
// All that is left of the containers is one with the pod's effective requests for devices, so that these are worked out
// once.
func TrimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil // a tombstone, whose object was trimmed when it came
	}
	trimmed := &corev1.Pod{
		ObjectMeta: trimMeta(pod.ObjectMeta),
		Spec: corev1.PodSpec{
			NodeName:        pod.Spec.NodeName,
			SchedulingGates: pod.Spec.SchedulingGates,
			SchedulingGroup: pod.Spec.SchedulingGroup,
			SchedulerName:   pod.Spec.SchedulerName,
			Containers:      effective(pod),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message},
	}
	trimmed.DeletionTimestamp, trimmed.Finalizers = pod.DeletionTimestamp, pod.Finalizers
	trimmed.CreationTimestamp = pod.CreationTimestamp
	for _, key := range keptAnnotations {
		if value, ok := pod.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&trimmed.ObjectMeta, key, value)
		}
	}
	if networks := ownNetworks(pod); networks != "" {
		metav1.SetMetaDataAnnotation(&trimmed.ObjectMeta, rdma.NetworksAnnotation, networks)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReadyToStartContainers ||
			condition.Type == corev1.PodScheduled && pod.Spec.SchedulerName == rdma.SchedulerName {
			trimmed.Status.Conditions = append(trimmed.Status.Conditions, condition)
		}
	}
	failed := pod.Status.Phase == corev1.PodFailed
	trimmed.Status.InitContainerStatuses = trimStatuses(pod.Status.InitContainerStatuses, failed)
	trimmed.Status.ContainerStatuses = trimStatuses(pod.Status.ContainerStatuses, failed)
	return trimmed, nil
}

// TrimNode is a transform for an informer of nodes: it keeps what the ledger and the release controller read.
func TrimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	trimmed := &corev1.Node{
		ObjectMeta: trimMeta(node.ObjectMeta),
		Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
		Status:     corev1.NodeStatus{Allocatable: node.Status.Allocatable, Capacity: node.Status.Capacity},
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	return trimmed, nil
}

func trimMeta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, Labels: meta.Labels}
}

// effective returns one container with all that the pod requests of extended resources.
func effective(pod *corev1.Pod) []corev1.Container {
	if !pools.HoldsDevices(pod) {
		return nil
	}
	requests := rdma.Requests(pod)
	maps.DeleteFunc(requests, func(name corev1.ResourceName, _ resource.Quantity) bool { return !pools.IsExtendedResource(name) })
	return []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
}

// ownNetworks is what the sweep compares with the pod's allocation. The user's part of the annotation, which can have as
// many bytes as all annotations together, is left out.
func ownNetworks(pod *corev1.Pod) string {
	assignment, ours := rdma.Ours(pod)
	if !ours || pod.Spec.NodeName == "" {
		return ""
	}
	networks, err := rdma.OwnNetworks(pod, assignment)
	if err != nil {
		return ""
	}
	return networks.String()
}

// trimStatuses keeps when each container ended, and of a failed pod that there was one at all: a pod without any was
// refused by its node.
func trimStatuses(statuses []corev1.ContainerStatus, failed bool) []corev1.ContainerStatus {
	var trimmed []corev1.ContainerStatus
	for _, s := range statuses {
		kept := corev1.ContainerStatus{Name: s.Name}
		if t := s.State.Terminated; t != nil {
			kept.State.Terminated = &corev1.ContainerStateTerminated{FinishedAt: t.FinishedAt}
		}
		if failed || kept.State.Terminated != nil {
			trimmed = append(trimmed, kept)
		}
	}
	return trimmed
}
