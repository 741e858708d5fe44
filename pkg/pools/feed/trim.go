package feed

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// TrimPod is a transform for an informer of pods: it keeps what the ledger and the release controller read. Most pods
// of a cluster ask for no devices, and all of them together must fit into a small program's memory.
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
			Overhead:        pod.Spec.Overhead,
			Resources:       pod.Spec.Resources,
			InitContainers:  trimContainers(pod.Spec.InitContainers),
			Containers:      trimContainers(pod.Spec.Containers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	trimmed.DeletionTimestamp, trimmed.Finalizers = pod.DeletionTimestamp, pod.Finalizers
	for key, value := range pod.Annotations {
		if strings.HasPrefix(key, rdma.Domain) {
			metav1.SetMetaDataAnnotation(&trimmed.ObjectMeta, key, value)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReadyToStartContainers {
			trimmed.Status.Conditions = []corev1.PodCondition{condition}
		}
	}
	trimmed.Status.InitContainerStatuses = trimStatuses(pod.Status.InitContainerStatuses)
	trimmed.Status.ContainerStatuses = trimStatuses(pod.Status.ContainerStatuses)
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

func trimContainers(containers []corev1.Container) []corev1.Container {
	if containers == nil {
		return nil
	}
	trimmed := make([]corev1.Container, len(containers))
	for i, c := range containers {
		trimmed[i] = corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy,
			Resources: corev1.ResourceRequirements{Requests: c.Resources.Requests}}
	}
	return trimmed
}

// trimStatuses keeps when each container ended.
func trimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var trimmed []corev1.ContainerStatus
	for _, s := range statuses {
		if t := s.State.Terminated; t != nil {
			trimmed = append(trimmed, corev1.ContainerStatus{Name: s.Name,
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: t.FinishedAt}}})
		}
	}
	return trimmed
}
