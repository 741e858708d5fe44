package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
)

// pointer escapes a key for a JSON pointer (RFC 6901, section 3).
var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// patch returns the operations that turn the pod as it was sent into the changed one. It looks only at what Inject
// changes, so that fields which this program does not know pass through untouched.
func patch(before, after *corev1.Pod) []jsonpatch.JsonPatchOperation {
	ops := patchMap(nil, "/metadata/annotations", before.Annotations, after.Annotations)
	switch had, has := len(before.Finalizers), after.Finalizers; {
	case had == 0 && len(has) > 0:
		ops = append(ops, add("/metadata/finalizers", has))
	case len(has) > had:
		for _, finalizer := range has[had:] {
			ops = append(ops, add("/metadata/finalizers/-", finalizer))
		}
	}
	if before.Spec.SchedulerName != after.Spec.SchedulerName {
		ops = append(ops, add("/spec/schedulerName", after.Spec.SchedulerName))
	}
	ops = patchContainers(ops, "/spec/initContainers", before.Spec.InitContainers, after.Spec.InitContainers)
	return patchContainers(ops, "/spec/containers", before.Spec.Containers, after.Spec.Containers)
}

func patchContainers(ops []jsonpatch.JsonPatchOperation, path string, before, after []corev1.Container) []jsonpatch.JsonPatchOperation {
	for i := range after {
		old, changed := before[i].Resources, after[i].Resources
		at := fmt.Sprintf("%s/%d/resources", path, i)
		if len(old.Requests) == len(changed.Requests) && len(old.Limits) == len(changed.Limits) &&
			sameQuantities(old.Requests, changed.Requests) && sameQuantities(old.Limits, changed.Limits) {
			continue
		}
		if old.Requests == nil && old.Limits == nil && old.Claims == nil {
			ops = append(ops, add(at, changed)) // "resources" itself may be absent
			continue
		}
		ops = patchMap(ops, at+"/requests", quantities(old.Requests), quantities(changed.Requests))
		ops = patchMap(ops, at+"/limits", quantities(old.Limits), quantities(changed.Limits))
	}
	return ops
}

func sameQuantities(a, b corev1.ResourceList) bool {
	for name, quantity := range b {
		had, ok := a[name]
		if !ok || had.Cmp(quantity) != 0 {
			return false
		}
	}
	return true
}

// quantities returns a list as the text that goes into JSON; nil stays nil.
func quantities(list corev1.ResourceList) map[string]string {
	if list == nil {
		return nil
	}
	texts := make(map[string]string, len(list))
	for name, quantity := range list {
		texts[string(name)] = quantity.String()
	}
	return texts
}

// patchMap adds, replaces and removes keys; a map that is absent is made whole, since a key cannot be added to nothing.
func patchMap(ops []jsonpatch.JsonPatchOperation, path string, before, after map[string]string) []jsonpatch.JsonPatchOperation {
	if before == nil {
		if len(after) > 0 {
			ops = append(ops, add(path, after))
		}
		return ops
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[key]; !ok {
			ops = append(ops, jsonpatch.NewOperation("remove", path+"/"+pointer.Replace(key), nil))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		value := after[key]
		if had, ok := before[key]; !ok || had != value {
			ops = append(ops, add(path+"/"+pointer.Replace(key), value))
		}
	}
	return ops
}

// add also replaces: RFC 6902, section 4.1.
func add(path string, value any) jsonpatch.JsonPatchOperation {
	return jsonpatch.NewOperation("add", path, value)
}
