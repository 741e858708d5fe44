package tenant

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// API is what a tenant-controller can do. All methods are safe for concurrent use and may be repeated: a call whose
// answer was lost is made again with the same arguments. Errors are *Error; see IsConflict, IsFinal, IsUnavailable.
type API interface {
	// Ensure makes sure that the pod has its networks for the node and returns them. It is idempotent: the same ask
	// gets the same answer, another node changes the allocation's node and nothing else.
	// A stale generation is a conflict that carries the present allocation.
	Ensure(ctx context.Context, podUID types.UID, ask EnsureRequest) (*Allocation, error)
	// Release gives the pod's networks back. Gone already is success. generation is the one seen last; with another
	// one at present it is a conflict that carries the present allocation. 0 releases whatever is there.
	Release(ctx context.Context, cluster string, podUID types.UID, generation int64) error
	// ReleaseUnused is Release on the condition that the last ensure is at least minAge ago, compared and released in
	// one step. If it is not, that is a conflict too: somebody is about to use the networks.
	ReleaseUnused(ctx context.Context, cluster string, podUID types.UID, generation int64, minAge time.Duration) error
	// Get returns one allocation; see IsNotFound.
	Get(ctx context.Context, cluster string, podUID types.UID) (*Allocation, error)
	// List returns all allocations of the cluster. It is no snapshot: each is as it was when its page was read.
	List(ctx context.Context, cluster string) ([]Allocation, error)
	// Healthy returns nil if the tenant-controller says that it can serve.
	Healthy(ctx context.Context) error
}

// Request asks for networks of one type from one pool.
type Request struct {
	// Type is "vf" (virtual function) or "pf" (physical function).
	Type string `json:"type"`
	// Pool is the extended resource that the devices come from, such as "nvidia.com/rdma-vf". Pools whose name
	// starts with "rdma/" are shared: their device is a token and their networks carry no resource name.
	Pool string `json:"pool"`
	// Count is the number of networks, at least 1.
	Count int64 `json:"count"`
}

// EnsureRequest is the body of an ensure: the state that the caller wants for one pod.
type EnsureRequest struct {
	// Cluster scopes the pod UID; by default it is the UID of the namespace kube-system.
	Cluster string `json:"cluster"`
	// Namespace and Pod name the pod. They belong to its UID and never change.
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	// Tenant owns the networks. It is read when the allocation is made; later ones do not move it.
	Tenant string `json:"tenant"`
	// Node is the one that the pod is going to be bound to, or is bound to.
	Node string `json:"node"`
	// Requests belong to the pod's UID and never change; the order of the networks follows theirs.
	Requests []Request `json:"requests"`
	// Generation is the one seen last, or 0 if none was.
	Generation int64 `json:"generation,omitempty"`
}

// Network is one NetworkAttachmentDefinition that was handed out. It exists before it is in an answer.
type Network struct {
	// Namespace is the pod's own.
	Namespace string `json:"namespace"`
	// Name is that of the NetworkAttachmentDefinition.
	Name string `json:"name"`
	// Pool is the extended resource that feeds it devices.
	Pool string `json:"pool"`
	// Interface is the interface name wished for inside the pod; empty leaves it to the caller.
	Interface string `json:"interface,omitempty"`
}

// Allocation is what a pod holds.
type Allocation struct {
	// PodUID and Cluster are the allocation's key.
	PodUID  types.UID `json:"podUID"`
	Cluster string    `json:"cluster"`
	// Namespace, Pod and Tenant are those of the first ensure.
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Tenant    string `json:"tenant"`
	// Node is that of the last ensure.
	Node string `json:"node"`
	// Requests are those of the first ensure.
	Requests []Request `json:"requests"`
	// Networks never change while the allocation lives.
	Networks []Network `json:"networks"`
	// Generation is the tenant-controller's count: it grows with every accepted change and is never used twice for
	// a pod UID. Values may be skipped.
	Generation int64 `json:"generation"`
	// AgeSeconds is the time since the last accepted ensure (not since creation), in whole seconds, rounded down.
	AgeSeconds int64 `json:"ageSeconds"`
}

// Age is the time since the last accepted ensure, as the tenant-controller's clock has it.
func (a *Allocation) Age() time.Duration {
	return time.Duration(a.AgeSeconds) * time.Second
}

// AllocationList is one page of a list.
type AllocationList struct {
	Allocations []Allocation `json:"allocations"`
	// Continue is the token for the next page; empty on the last one.
	Continue string `json:"continue,omitempty"`
}

// ProblemContentType is the media type of an error's body (RFC 9457).
const ProblemContentType = "application/problem+json"

// Problem is the body of an error.
type Problem struct {
	// Type is a URI for the kind of problem, "about:blank" if it has none.
	Type string `json:"type,omitempty"`
	// Title is the same for all problems of a kind.
	Title string `json:"title,omitempty"`
	// Status repeats the HTTP status code.
	Status int `json:"status,omitempty"`
	// Detail is for people; it lands in the pod's Event.
	Detail string `json:"detail,omitempty"`
	// Reason is for programs: one CamelCase word, such as StaleGeneration.
	Reason string `json:"reason,omitempty"`
	// Allocation is the present one; only with status 409.
	Allocation *Allocation `json:"allocation,omitempty"`
}

// Reasons that the contract gives a meaning to. A tenant-controller may use others with final errors.
const (
	// ReasonStaleGeneration (409): the generation is not the present one.
	ReasonStaleGeneration = "StaleGeneration"
	// ReasonTooYoung (409): the last ensure is more recent than a release's condition allows.
	ReasonTooYoung = "TooYoung"
	// ReasonPodChanged (422): namespace, name or requests differ from those that the UID's networks were made for.
	ReasonPodChanged = "PodChanged"
	// ReasonInvalid (400, 422): the request breaks the contract.
	ReasonInvalid = "Invalid"
	// ReasonNotFound (404): there is no such allocation.
	ReasonNotFound = "NotFound"
	// ReasonUnavailable (503): try again later.
	ReasonUnavailable = "Unavailable"
)

// RequestsOf returns what admission decided for a pod as the tenant-controller is asked for it.
func RequestsOf(assignment rdma.Assignment) []Request {
	requests := make([]Request, len(assignment))
	for i, e := range assignment {
		requests[i] = Request{Type: string(e.Type), Pool: string(e.Pool), Count: e.Count}
	}
	return requests
}
