package pools

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// Counts holds a number of devices per extended resource. Absent means 0.
type Counts map[corev1.ResourceName]int64

// maxDevices bounds one object's count, so that sums over a whole cluster stay inside int64: the API server accepts any
// integer quantity, from anybody.
const maxDevices = int64(1) << 40

// devices returns the extended resources of a list as numbers of devices, nil if there is none.
func devices(list corev1.ResourceList) Counts {
	var counts Counts
	for name, quantity := range list {
		if !IsExtendedResource(name) {
			continue
		}
		if n := deviceCount(quantity); n > 0 {
			if counts == nil {
				counts = Counts{}
			}
			counts[name] = n
		}
	}
	return counts
}

func deviceCount(quantity resource.Quantity) int64 {
	switch { // before Value, which wraps around where a sum exceeds int64
	case quantity.Sign() <= 0:
		return 0
	case quantity.CmpInt64(maxDevices) > 0:
		return maxDevices
	}
	return quantity.Value()
}

// add adds sign times the other counts; entries that become 0 are dropped, so that equal states are equal maps.
func (c Counts) add(other Counts, sign int64) {
	for name, n := range other {
		if sum := c[name] + sign*n; sum == 0 {
			delete(c, name)
		} else {
			c[name] = sum
		}
	}
}

// Charge is what one pod takes. It is made once, when the pod is decoded, and not changed afterwards.
type Charge struct {
	UID types.UID
	// Node is the node that the pod is bound to, empty while it is not.
	Node string
	// Devices are the pod's effective requests for extended resources, ours or not.
	Devices Counts
	// Deleting says that the pod's deletion has begun. Its devices are still held until it is terminal or gone.
	Deleting bool
	// Gated says that scheduling gates hold the pod back.
	Gated bool
	// AdmissionID is the pod's rdma.AdmissionIDAnnotation.
	AdmissionID string
	// Group and Assignment are set for pods that went through admission.
	Group      Group
	Assignment rdma.Assignment
}

// HoldsDevices reports whether the pod requests an extended resource. It never changes in a pod's life, and costs less than
// ChargeOf.
func HoldsDevices(pod *corev1.Pod) bool {
	for name := range pod.Spec.Overhead {
		if IsExtendedResource(name) {
			return true
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if IsExtendedResource(name) {
					return true
				}
			}
		}
	}
	return false
}

// ChargeOf decodes a pod. It returns false for a pod that takes nothing: a terminal one (kube-scheduler's own pod
// informer leaves those out too), or one without extended resources.
func ChargeOf(pod *corev1.Pod, policy Policy) (Charge, bool) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return Charge{}, false
	}
	counts := devices(rdma.Requests(pod))
	if counts == nil {
		return Charge{}, false
	}
	charge := Charge{
		UID:      pod.UID,
		Node:     pod.Spec.NodeName,
		Devices:  counts,
		Deleting: pod.DeletionTimestamp != nil,
		Gated:    len(pod.Spec.SchedulingGates) > 0,
	}
	if assignment, ok := rdma.Ours(pod); ok {
		charge.Assignment = assignment
		charge.AdmissionID = pod.Annotations[rdma.AdmissionIDAnnotation]
		charge.Group = policy.GroupOf(pod.Namespace, pod)
	}
	return charge, true
}

func (c Charge) equal(other Charge) bool {
	return c.UID == other.UID && c.Node == other.Node && maps.Equal(c.Devices, other.Devices) &&
		c.Deleting == other.Deleting && c.Gated == other.Gated && c.AdmissionID == other.AdmissionID &&
		c.Group == other.Group && slices.Equal(c.Assignment, other.Assignment)
}
