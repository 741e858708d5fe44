package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	componentresource "k8s.io/component-helpers/resource"
	"pgregory.net/rapid"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// TestRequestsAreThoseThatKubernetesCounts draws pods with and without what makes a sum of more than one container.
func TestRequestsAreThoseThatKubernetesCounts(t *testing.T) {
	list := func(t *rapid.T, label string) corev1.ResourceList {
		m := rapid.MapOfN(rapid.SampledFrom([]corev1.ResourceName{"cpu", "memory", "a.com/b"}), rapid.Int64Range(0, 9), 0, 3).Draw(t, label)
		var all corev1.ResourceList
		for name, n := range m {
			if all == nil {
				all = corev1.ResourceList{}
			}
			all[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
		return all
	}
	rapid.Check(t, func(t *rapid.T) {
		pod := &corev1.Pod{}
		for range rapid.IntRange(0, 2).Draw(t, "containers") {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(t, "requests")}})
		}
		for range rapid.IntRange(0, 1).Draw(t, "init") {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(t, "init requests")}})
		}
		if rapid.Bool().Draw(t, "pod-level") {
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: list(t, "pod requests")}
		}
		pod.Spec.Overhead = list(t, "overhead")
		want := componentresource.PodRequests(pod, componentresource.PodResourcesOptions{})
		got := rdma.Requests(pod)
		require.True(t, apiequality.Semantic.DeepEqual(want, got), "want %v, got %v", want, got)
		for name := range want {
			one := rdma.Request(pod, name)
			require.Zero(t, one.Cmp(want[name]))
		}
		for name := range got {
			delete(got, name) // the caller's
		}
		require.True(t, apiequality.Semantic.DeepEqual(want, rdma.Requests(pod)))
	})
}
