package rdma

// Words that users and administrators write.
const (
	// NamespaceLabel with the value NamespaceLabelValue opts a namespace in.
	NamespaceLabel      = "rdma-type"
	NamespaceLabelValue = "vpc"
	// TenantLabel on a namespace names its tenant; without it the tenant is the namespace's name.
	TenantLabel = "tenant.network/tenant"
	// VFAnnotation and PFAnnotation on a pod ask for that many virtual or physical functions. They are read at CREATE only.
	VFAnnotation = "rdma.vf"
	PFAnnotation = "rdma.pf"
	// ContainerAnnotation on a pod names the container that gets the devices.
	ContainerAnnotation = "tenant.network/container"
)

// Words that admission writes on a pod.
const (
	// Domain is the prefix of every key of ours. Admission takes all keys under it away but ContainerAnnotation, and writes
	// its own; those are then guarded. Others that somebody adds later mean nothing to anybody.
	Domain = "tenant.network/"
	// ResourceTypeAnnotation lists the types that the pod asked for, "vf", "pf" or "vf,pf".
	ResourceTypeAnnotation = Domain + "resource-type"
	// ResourcePoolAnnotation lists the pool chosen for each type, in the order of ResourceTypeAnnotation.
	ResourcePoolAnnotation = Domain + "resource-pool"
	// ResourceCountAnnotation lists the number of devices of each type, in the order of ResourceTypeAnnotation.
	// It splits the sum when both types are served from one pool; the sum itself is proved by spec.resources.
	ResourceCountAnnotation = Domain + "resource-count"
	// AdmissionIDAnnotation identifies one admission: neither a UID nor, often, a name exists then.
	AdmissionIDAnnotation = Domain + "admission-id"
	// Finalizer keeps the pod object until its networks have been given back.
	Finalizer = Domain + "cleanup"
	// SchedulerName is the scheduler that knows how to place these pods.
	SchedulerName = "tenant-scheduler"
	// DefaultSchedulerName is what the API server writes where the user wrote nothing (core/v1 defaults).
	DefaultSchedulerName = "default-scheduler"
)

// WrittenAnnotations are the keys that admission writes on a pod. They are read as long as the pod lives, so the policies in
// manifests/guard.yaml name each of them: a search for the prefix in all keys of a pod would exceed what a policy may cost.
func WrittenAnnotations() []string {
	return []string{ResourceTypeAnnotation, ResourcePoolAnnotation, ResourceCountAnnotation, AdmissionIDAnnotation}
}

// Words of Multus and of the Network Plumbing Working Group's specification.
const (
	// NetworksAnnotation lists a pod's additional networks.
	NetworksAnnotation = "k8s.v1.cni.cncf.io/networks"
	// NetworkStatusAnnotation is where Multus writes what it attached.
	NetworkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"
	// DefaultNetworkAnnotation replaces the cluster's default network for a pod.
	DefaultNetworkAnnotation = "v1.multus-cni.io/default-network"
	// ResourceNameAnnotation on a NetworkAttachmentDefinition names the extended resource that feeds it devices.
	ResourceNameAnnotation = "k8s.v1.cni.cncf.io/resourceName"
	// PodUIDLabel on a NetworkAttachmentDefinition says for which pod the tenant-controller made it.
	PodUIDLabel = Domain + "pod-uid"
)
