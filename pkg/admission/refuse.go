package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

func annotationPath(key string) *field.Path { return field.NewPath("metadata", "annotations").Key(key) }

// refusals returns what makes a pod impossible to serve: it would get a device without its network, or wait for ever.
func refusals(pod *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if pod.Spec.NodeName != "" {
		errs = append(errs, field.Invalid(spec.Child("nodeName"), short(pod.Spec.NodeName),
			"must be empty: a pod with rdma.vf or rdma.pf is placed by "+rdma.SchedulerName+"; use a node selector to choose the node"))
	}
	if name := pod.Spec.SchedulerName; name != "" && name != rdma.DefaultSchedulerName && name != rdma.SchedulerName {
		errs = append(errs, field.NotSupported(spec.Child("schedulerName"), short(name),
			[]string{rdma.DefaultSchedulerName, rdma.SchedulerName}))
	}
	if pod.Spec.HostNetwork {
		errs = append(errs, field.Invalid(spec.Child("hostNetwork"), true,
			"must be false: Multus attaches no networks to a pod in the host's network namespace"))
	}
	if len(pod.Spec.Containers) == 0 {
		return append(errs, field.Required(spec.Child("containers"), "must have at least one, which gets the devices"))
	}
	if name, ok := pod.Annotations[rdma.ContainerAnnotation]; ok && !slices.Contains(containerNames(pod), name) {
		errs = append(errs, field.NotSupported(annotationPath(rdma.ContainerAnnotation), short(name), containerNames(pod)))
	}
	return errs
}

// short bounds what an error repeats of a text that nobody has validated yet, in characters.
func short(text string) string { return fmt.Sprintf("%.80s", text) }

func containerNames(pod *corev1.Pod) []string {
	names := make([]string, len(pod.Spec.Containers))
	for i := range pod.Spec.Containers {
		names[i] = pod.Spec.Containers[i].Name
	}
	return names
}

// multusNamespace is where Multus looks up a default network that is named without a namespace (its own setting
// multusNamespace, which this is the default of).
const multusNamespace = metav1.NamespaceSystem

// validateNetworks checks the user's part of the Multus annotations, and keeps it away from devices of the pools.
func validateNetworks(pod *corev1.Pod, namespace string, cfg *pools.Config, attachments func(namespace, name string) (Attachment, bool)) field.ErrorList {
	poolOf := func(namespace, name string) (string, bool) {
		nad, known := attachments(namespace, name)
		if !known {
			return "", false
		}
		_, configured := cfg.Lookup(corev1.ResourceName(nad.Pool))
		return nad.Pool, configured
	}
	var errs field.ErrorList
	if text, ok := pod.Annotations[rdma.NetworksAnnotation]; ok {
		errs = append(errs, rdma.ValidateUserNetworks(annotationPath(rdma.NetworksAnnotation), text, namespace, poolOf)...)
	}
	if text, ok := pod.Annotations[rdma.DefaultNetworkAnnotation]; ok {
		path := annotationPath(rdma.DefaultNetworkAnnotation)
		errs = append(errs, rdma.ValidateDefaultNetwork(path, text, multusNamespace, poolOf)...)
		networks, _ := rdma.ParseNetworks(text, multusNamespace) // what cannot be read was refused just now
		for _, n := range networks.Elements() {
			if nad, known := attachments(n.Namespace, n.Name); known && nad.PodUID != "" {
				errs = append(errs, field.Invalid(path, short(text), "must not name a network that was made for another pod"))
			}
		}
	}
	return errs
}

// networkRoom is for one network of ours in the annotation, in bytes: namespace and name of 63, an interface of 15, and
// the keys of the JSON form. wordsRoom is for the rest of what is written on the pod.
const (
	networkRoom = 63 + 63 + 15 + 48
	wordsRoom   = 2048
)

// checkRoom refuses annotations that leave no room for the networks: they are appended when the pod is bound, far too
// late to tell the user. The API server bounds keys and values of a pod together.
func checkRoom(pod *corev1.Pod, intent rdma.Intent) field.ErrorList {
	limit := validation.TotalAnnotationSizeLimitB - wordsRoom
	for _, ask := range intent {
		limit = max(limit-int(ask.Count)*networkRoom, 0)
	}
	size := 0
	for key, value := range pod.Annotations {
		if key == rdma.ContainerAnnotation || !strings.HasPrefix(key, rdma.Domain) { // the others are written anew
			size += len(key) + len(value)
		}
	}
	if size <= limit {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations"), field.OmitValueType{},
		fmt.Sprintf("must be at most %d bytes together, not %d: the pod's networks are added to them later", limit, size))}
}

// forgeries returns what of ours a mirror pod carries. Mirror pods pass, since they only show what a kubelet runs, so
// nothing on them is written anew.
func forgeries(pod *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	const detail = "must not be on a mirror pod: it is written by tenant-webhook alone"
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		if strings.HasPrefix(key, rdma.Domain) && key != rdma.ContainerAnnotation {
			errs = append(errs, field.Invalid(annotationPath(key), short(pod.Annotations[key]), detail))
		}
	}
	if slices.Contains(pod.Finalizers, rdma.Finalizer) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "finalizers"), rdma.Finalizer, detail))
	}
	return errs
}

// quoteNames joins resource names for a message.
func quoteNames(names []corev1.ResourceName) string {
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(parts, " and ")
}
