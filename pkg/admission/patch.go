package admission

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitzero"`
}

// pointer escapes a key for a JSON pointer (RFC 6901, section 3).
var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// patch returns the operations that turn the pod as it was sent into the changed one. It looks only at what Inject
// changes, so that fields which this program does not know pass through untouched.
func patch(before, after *corev1.Pod) []operation {
	ops := patchMap(make([]operation, 0, 8), "/metadata/annotations", before.Annotations, after.Annotations)
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

func patchContainers(ops []operation, path string, before, after []corev1.Container) []operation {
	for i := range after {
		old, changed := &before[i].Resources, &after[i].Resources
		if sameQuantities(old.Requests, changed.Requests) && sameQuantities(old.Limits, changed.Limits) {
			continue
		}
		at := path + "/" + strconv.Itoa(i) + "/resources"
		if old.Requests == nil && old.Limits == nil && old.Claims == nil {
			ops = append(ops, add(at, changed)) // "resources" itself may be absent
			continue
		}
		ops = patchList(ops, at+"/requests", old.Requests, changed.Requests)
		ops = patchList(ops, at+"/limits", old.Limits, changed.Limits)
	}
	return ops
}

func sameQuantities(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

// patchList adds and replaces quantities; none is ever removed.
func patchList(ops []operation, path string, before, after corev1.ResourceList) []operation {
	if before == nil {
		if len(after) > 0 {
			ops = append(ops, add(path, after))
		}
		return ops
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		quantity := after[name]
		if had, ok := before[name]; !ok || had.Cmp(quantity) != 0 {
			ops = append(ops, add(path+"/"+pointer.Replace(string(name)), quantity.String()))
		}
	}
	return ops
}

// patchMap adds, replaces and removes keys; a map that is absent is made whole, since a key cannot be added to nothing.
func patchMap(ops []operation, path string, before, after map[string]string) []operation {
	if before == nil {
		if len(after) > 0 {
			ops = append(ops, add(path, after))
		}
		return ops
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[key]; !ok {
			ops = append(ops, operation{Op: "remove", Path: path + "/" + pointer.Replace(key)})
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
func add(path string, value any) operation {
	return operation{Op: "add", Path: path, Value: value}
}
