package rdma

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	componentresource "k8s.io/component-helpers/resource"
)

// Entry is what admission decided for one type.
type Entry struct {
	Type Type
	// Pool is the extended resource that serves the type.
	Pool corev1.ResourceName
	// Count is a number of devices, at least 1.
	Count int64
}

// Assignment is what admission decided for a pod: one Entry a type, in the order of Types. Two entries may name the
// same pool.
type Assignment []Entry

// ErrNotAssigned is returned by ReadAssignment for a pod that never went through admission.
var ErrNotAssigned = errors.New("the pod did not go through the tenant-webhook")

// Total returns the number of devices that the assignment takes from the pool.
func (a Assignment) Total(pool corev1.ResourceName) int64 {
	var total int64
	for _, e := range a {
		if e.Pool == pool {
			total += e.Count
		}
	}
	return total
}

// Devices returns the number of devices of all entries, which is the number of networks that the pod gets.
func (a Assignment) Devices() int64 {
	var total int64
	for _, e := range a {
		total += e.Count
	}
	return total
}

// Pools returns the distinct pools in the order of their first entry.
func (a Assignment) Pools() []corev1.ResourceName {
	pools := make([]corev1.ResourceName, 0, len(a))
	for _, e := range a {
		if !slices.Contains(pools, e.Pool) {
			pools = append(pools, e.Pool)
		}
	}
	return pools
}

// Annotations returns the annotations that carry the assignment on a pod.
func (a Assignment) Annotations() map[string]string {
	types, pools, counts := make([]string, len(a)), make([]string, len(a)), make([]string, len(a))
	for i, e := range a {
		types[i], pools[i], counts[i] = string(e.Type), string(e.Pool), strconv.FormatInt(e.Count, 10)
	}
	return map[string]string{
		ResourceTypeAnnotation:  strings.Join(types, ","),
		ResourcePoolAnnotation:  strings.Join(pools, ","),
		ResourceCountAnnotation: strings.Join(counts, ","),
	}
}

// Requests returns the pod's effective requests as the kubelet and kube-scheduler count them: init containers a
// maximum, sidecars and containers a sum, overhead added (k8s.io/component-helpers/resource.PodRequests).
// The list is the caller's.
func Requests(pod *corev1.Pod) corev1.ResourceList {
	if nothingToAddUp(pod) {
		return maps.Clone(pod.Spec.Containers[0].Resources.Requests) // a sum takes 20 allocations
	}
	return componentresource.PodRequests(pod, componentresource.PodResourcesOptions{})
}

// Request is Requests of one resource.
func Request(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if nothingToAddUp(pod) {
		return pod.Spec.Containers[0].Resources.Requests[name]
	}
	return Requests(pod)[name]
}

// nothingToAddUp is true of most pods.
func nothingToAddUp(pod *corev1.Pod) bool {
	spec := &pod.Spec
	return len(spec.Containers) == 1 && len(spec.InitContainers) == 0 && spec.Overhead == nil && spec.Resources == nil
}

// Ours reports whether the pod went through admission, and what was decided: it has our finalizer, a readable
// assignment, and requests that match it. All parts of the product go by this one function.
func Ours(pod *corev1.Pod) (Assignment, bool) {
	assignment, err := ReadAssignment(pod)
	return assignment, err == nil
}

// ReadAssignment is Ours with the reason why a pod is not ours: ErrNotAssigned, or what contradicts what. The
// annotations alone prove nothing, users can write them: only counts that the pod's requests pay for are believed.
func ReadAssignment(pod *corev1.Pod) (Assignment, error) {
	if !slices.Contains(pod.Finalizers, Finalizer) {
		return nil, fmt.Errorf("%w: finalizer %s is missing", ErrNotAssigned, Finalizer)
	}
	assignment, err := parseAssignment(pod.Annotations)
	if err != nil {
		return nil, err
	}
	requests := Requests(pod)
	for _, pool := range assignment.Pools() {
		requested := requests[pool]
		// Cmp, not Value: a sum that exceeds int64 wraps around there.
		if want := assignment.Total(pool); requested.CmpInt64(want) != 0 {
			return nil, fmt.Errorf("annotation %s says %d of %s, but the containers request %s",
				ResourceCountAnnotation, want, bounded(string(pool)), requested.String())
		}
	}
	return assignment, nil
}

func parseAssignment(annotations map[string]string) (Assignment, error) {
	text, ok := annotations[ResourcePoolAnnotation]
	if !ok {
		return nil, fmt.Errorf("%w: annotation %s is missing", ErrNotAssigned, ResourcePoolAnnotation)
	}
	pools := strings.Split(text, ",")
	types := strings.Split(annotations[ResourceTypeAnnotation], ",")
	counts := strings.Split(annotations[ResourceCountAnnotation], ",")
	if len(pools) != len(types) || len(pools) != len(counts) || len(pools) > len(Types()) {
		return nil, fmt.Errorf("annotations %s=%q, %s=%q and %s=%q must have one entry for each type",
			ResourceTypeAnnotation, bounded(annotations[ResourceTypeAnnotation]), ResourcePoolAnnotation, bounded(text),
			ResourceCountAnnotation, bounded(annotations[ResourceCountAnnotation]))
	}
	assignment := make(Assignment, 0, len(pools))
	last := -1
	for i := range pools {
		rank := slices.Index(Types(), Type(types[i]))
		if rank <= last {
			return nil, fmt.Errorf("annotation %s=%q must be vf, pf or vf,pf",
				ResourceTypeAnnotation, bounded(annotations[ResourceTypeAnnotation]))
		}
		last = rank
		count, err := strconv.ParseInt(counts[i], 10, 32) // so that sums stay inside int64
		if err != nil || !countPattern.MatchString(counts[i]) {
			return nil, fmt.Errorf("annotation %s=%q must be whole numbers",
				ResourceCountAnnotation, bounded(annotations[ResourceCountAnnotation]))
		}
		assignment = append(assignment, Entry{Type: Type(types[i]), Pool: corev1.ResourceName(pools[i]), Count: count})
	}
	return assignment, nil
}
