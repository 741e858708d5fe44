package plugin

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// nadResource is the NetworkAttachmentDefinition (Network Plumbing Working Group, de-facto standard v1.3).
var nadResource = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// attachments reads NetworkAttachmentDefinitions. They are read live: the tenant-controller makes them moments before.
type attachments struct {
	client metadata.Interface
}

func (a attachments) get(ctx context.Context, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	return a.client.Resource(nadResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
}

// madeFor returns what carries the pod's UID, by name. Several networks cost one request so, and the client's rate is
// shared by all pods that are about to be bound.
func (a attachments) madeFor(ctx context.Context, pod *corev1.Pod) (map[string]*metav1.PartialObjectMetadata, error) {
	list, err := a.client.Resource(nadResource).Namespace(pod.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{rdma.PodUIDLabel: string(pod.UID)}.String()})
	if err != nil {
		return nil, fmt.Errorf("reading the NetworkAttachmentDefinitions of the pod: %w", err)
	}
	made := make(map[string]*metav1.PartialObjectMetadata, len(list.Items))
	for i := range list.Items {
		made[list.Items[i].Name] = &list.Items[i]
	}
	return made, nil
}

// resourceName returns the pool that feeds a NAD. One that does not exist feeds from none: Multus will say so. One that
// cannot be read may feed from any, which is for the caller to refuse.
func (a attachments) resourceName(ctx context.Context, namespace, name string) (string, error) {
	nad, err := a.get(ctx, namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading NetworkAttachmentDefinition %s/%s: %w", namespace, name, err)
	}
	return nad.Annotations[rdma.ResourceNameAnnotation], nil
}

// checkAnswer makes sure that the networks are what was asked for: their number, their pools, the pod's own namespace,
// each a NAD of its own that exists and was made for this pod. Multus itself would attach an interface without a device
// when there are too few, and say nothing.
func (a attachments) checkAnswer(ctx context.Context, cfg *pools.Config, pod *corev1.Pod, assignment rdma.Assignment, answer *tenant.Allocation) error {
	if got, want := int64(len(answer.Networks)), assignment.Devices(); got != want {
		return fmt.Errorf("the tenant-controller gave %d networks, the pod asked for %d", got, want)
	}
	var made map[string]*metav1.PartialObjectMetadata
	if len(answer.Networks) > 1 {
		var err error
		if made, err = a.madeFor(ctx, pod); err != nil {
			return err
		}
	}
	perPool := map[corev1.ResourceName]int64{}
	seen := map[string]bool{}
	var errs []error
	for _, network := range answer.Networks {
		if network.Namespace != pod.Namespace {
			errs = append(errs, fmt.Errorf("network %s/%s is not in the pod's namespace %s", network.Namespace, network.Name, pod.Namespace))
		}
		if seen[network.Name] {
			errs = append(errs, fmt.Errorf("network %s was given twice", network.Name))
		}
		seen[network.Name] = true
		perPool[corev1.ResourceName(network.Pool)]++
		errs = append(errs, a.checkNetwork(ctx, cfg, pod, network, made[network.Name]))
	}
	for _, pool := range assignment.Pools() {
		if got, want := perPool[pool], assignment.Total(pool); got != want {
			errs = append(errs, fmt.Errorf("the tenant-controller gave %d networks of pool %s, the pod has %d devices of it", got, pool, want))
		}
	}
	return errors.Join(errs...)
}

// checkNetwork takes the NAD if it is known, and otherwise reads it, if only to say what is wrong with it.
func (a attachments) checkNetwork(ctx context.Context, cfg *pools.Config, pod *corev1.Pod, network tenant.Network, nad *metav1.PartialObjectMetadata) error {
	var err error
	if nad == nil || network.Namespace != pod.Namespace {
		nad, err = a.get(ctx, network.Namespace, network.Name)
	}
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("NetworkAttachmentDefinition %s/%s does not exist; the tenant-controller must create it before it answers", network.Namespace, network.Name)
	case err != nil:
		return fmt.Errorf("reading NetworkAttachmentDefinition %s/%s: %w", network.Namespace, network.Name, err)
	}
	if owner := nad.Labels[rdma.PodUIDLabel]; owner != string(pod.UID) {
		return fmt.Errorf("NetworkAttachmentDefinition %s/%s has label %s=%q, which is not this pod's UID", network.Namespace, network.Name, rdma.PodUIDLabel, owner)
	}
	resourceName := nad.Annotations[rdma.ResourceNameAnnotation]
	pool, configured := cfg.Lookup(corev1.ResourceName(network.Pool))
	switch {
	case pool.Shared && resourceName != "":
		return fmt.Errorf("NetworkAttachmentDefinition %s/%s has annotation %s=%q, but pool %s is shared: its devices are tokens that no CNI plugin can use", network.Namespace, network.Name, rdma.ResourceNameAnnotation, resourceName, network.Pool)
	case pool.Shared || !configured && resourceName == "":
		return nil // nobody knows any more whether a pool that was taken out of the configuration is shared
	case resourceName != network.Pool:
		return fmt.Errorf("NetworkAttachmentDefinition %s/%s has annotation %s=%q, want %q", network.Namespace, network.Name, rdma.ResourceNameAnnotation, resourceName, network.Pool)
	}
	return nil
}
