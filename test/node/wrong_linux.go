package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// wrongPart plays a part of the system wrongly, until the context ends: the run must then fail.
type wrongPart func(context.Context, *world) error

func wrongOf(name string) (wrongPart, error) {
	parts := map[string]wrongPart{"": nil, "ignore-terminating": ignoreTerminating, "release-at-delete": releaseAtDelete}
	part, known := parts[name]
	if !known {
		return nil, fmt.Errorf("-wrong: %q must be one of %q", name, slices.Sorted(maps.Keys(parts)))
	}
	return part, nil
}

// ignoreTerminating takes the scheduler's place and counts as the project's first description did: the devices of pods
// that are being deleted are free.
func ignoreTerminating(ctx context.Context, w *world) error {
	if err := w.Stop(devcluster.TenantScheduler); err != nil {
		return err
	}
	repeat(ctx, func() {
		pods, err := w.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		node, nodeErr := w.client.CoreV1().Nodes().Get(ctx, nodeOne, metav1.GetOptions{})
		if err != nil || nodeErr != nil {
			return
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && fitsWrongly(pod, node, pods.Items) {
				if w.bind(ctx, pod) == nil {
					pod.Spec.NodeName = nodeOne
				}
			}
		}
	})
	return nil
}

func fitsWrongly(pod *corev1.Pod, node *corev1.Node, all []corev1.Pod) bool {
	assignment, ours := rdma.Ours(pod)
	if !ours {
		return false
	}
	for _, pool := range assignment.Pools() {
		allocatable := node.Status.Allocatable[pool]
		free := allocatable.Value()
		for i := range all {
			other := &all[i]
			if other.Spec.NodeName == nodeOne && !hasEnded(other) && other.DeletionTimestamp == nil {
				held := rdma.Requests(other)[pool]
				free -= held.Value()
			}
		}
		if free < assignment.Total(pool) {
			return false
		}
	}
	return true
}

// bind does what the scheduler's plugin does once the node is known.
func (w *world) bind(ctx context.Context, pod *corev1.Pod) error {
	assignment, _ := rdma.Ours(pod)
	answer, err := w.mock.Ensure(ctx, pod.UID, tenant.EnsureRequest{Cluster: w.id, Namespace: pod.Namespace, Pod: pod.Name,
		Tenant: pod.Namespace, Node: nodeOne, Requests: tenant.RequestsOf(assignment)})
	if err != nil {
		return err
	}
	var ours []rdma.Attachment
	for _, network := range answer.Networks {
		ours = append(ours, rdma.Attachment{Namespace: network.Namespace, Name: network.Name, Interface: network.Interface})
	}
	networks, err := rdma.MergeNetworks(pod.Annotations[rdma.NetworksAnnotation], pod.Namespace, ours)
	if err != nil {
		return err
	}
	return w.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID, Annotations: map[string]string{rdma.NetworksAnnotation: networks}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: nodeOne},
	}, metav1.CreateOptions{})
}

// releaseAtDelete gives the networks back as soon as a pod is being deleted, as the project's first description did.
func releaseAtDelete(ctx context.Context, w *world) error {
	repeat(ctx, func() {
		pods, err := w.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.DeletionTimestamp == nil || !slices.Contains(pod.Finalizers, rdma.Finalizer) {
				continue
			}
			if w.mock.Release(ctx, w.id, pod.UID, 0) == nil {
				_, _ = w.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType,
					[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			}
		}
	})
	return nil
}

func repeat(ctx context.Context, act func()) {
	go func() {
		for ctx.Err() == nil {
			act()
			<-time.After(interval)
		}
	}()
}
