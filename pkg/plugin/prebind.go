package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// PreBindPreFlight says Skip for pods that are not ours: anything else would cost each of them a PATCH of
// status.nominatedNodeName. It is not called at all while the gate NominatedNodeNameForExpectation is off.
func (p *TenantNetwork) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	c, err := bindingCycle(state, pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if c == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	// Not parallel, and the last in order: nothing may fail or dawdle between the networks and the binding.
	return &fwk.PreBindPreFlightResult{AllowParallel: false}, nil
}

// PreBind gets the pod's networks for the node from the tenant-controller and makes the annotation for Bind. The result
// of a call that failed is unknown; the next attempt asks again for the same pod UID and gets the same networks.
func (p *TenantNetwork) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	c, err := bindingCycle(state, pod)
	if err != nil || c == nil {
		return fwk.AsStatus(err)
	}
	t, err := p.takeTurn(ctx, pod.Namespace)
	if err != nil {
		return fwk.AsStatus(err)
	}
	defer t.end()
	ctx, cancel := context.WithTimeout(ctx, p.args.PreBindTimeout.Duration)
	defer cancel()
	asked := p.clock.Now()
	networks, err := p.networksFor(ctx, t, c.assignment, pod, node)
	if err != nil {
		return fwk.AsStatus(err)
	}
	c.ensured = ensured{node: node, networks: networks, asked: asked}
	p.metrics.preBind.Observe(p.clock.Since(asked).Seconds())
	return nil
}

// bindingCycle tells "not ours", which is nil, from "ours, but the state was lost", which must not be bound.
func bindingCycle(state fwk.CycleState, pod *corev1.Pod) (*cycle, error) {
	c, err := readCycle(state)
	if err != nil || c != nil {
		return c, err
	}
	if _, ours := rdma.Ours(pod); ours {
		return nil, errors.New("the cycle state of an RDMA pod was lost; it is not bound without its networks")
	}
	return nil, nil // nil means: not ours
}

func (p *TenantNetwork) networksFor(ctx context.Context, t *turn, assignment rdma.Assignment, pod *corev1.Pod, node string) (string, error) {
	current, err := p.waiting(pod, assignment)
	if err != nil {
		return "", err
	}
	answer, err := p.ensure(ctx, t, assignment, current, node)
	if err != nil {
		return "", err
	}
	if answer.Node != node {
		return "", fmt.Errorf("the tenant-controller answered for node %q, asked was %q", answer.Node, node)
	}
	if err := p.nads.checkAnswer(ctx, p.pools(), pod, assignment, answer); err != nil {
		return "", fmt.Errorf("networks of the pod cannot be used: %w", err)
	}
	// The call may have taken long; what it was made for may be gone.
	if current, err = p.waiting(pod, assignment); err != nil {
		return "", err
	}
	if err := p.stillFits(current, assignment, node); err != nil {
		return "", err
	}
	return p.annotation(ctx, current, assignment, answer)
}

// waiting returns the pod as the informer shows it, or why it need not be bound any more.
func (p *TenantNetwork) waiting(pod *corev1.Pod, assignment rdma.Assignment) (*corev1.Pod, error) {
	current, err := p.pods.Pods(pod.Namespace).Get(pod.Name)
	if err != nil {
		return nil, fmt.Errorf("the pod is gone: %w", err)
	}
	return current, stillWaiting(current, pod.UID, assignment)
}

// waits is waiting for the breakers, which only ask whether to wake the pod.
func (p *TenantNetwork) waits(pod *corev1.Pod) bool {
	assignment, ours := rdma.Ours(pod)
	if !ours {
		return false
	}
	_, err := p.waiting(pod, assignment)
	return err == nil
}

func stillWaiting(current *corev1.Pod, uid podUID, assignment rdma.Assignment) error {
	switch {
	case current.UID != uid:
		return fmt.Errorf("the pod was replaced by another of its name, with UID %s", current.UID)
	case current.DeletionTimestamp != nil:
		return errors.New("the pod is being deleted")
	case current.Spec.NodeName != "":
		return fmt.Errorf("the pod is bound to node %s already", current.Spec.NodeName)
	}
	// Where the policy that guards these keys is missing, anybody may take the finalizer or the annotations away.
	held, err := rdma.ReadAssignment(current)
	if err != nil {
		return fmt.Errorf("what admission wrote on the pod was changed: %w", err)
	}
	if !slices.Equal(held, assignment) {
		return fmt.Errorf("what admission wrote on the pod was changed: it says %v now, and said %v", held, assignment)
	}
	return nil
}

// ensure asks the tenant-controller. A stale generation means that somebody else moved the allocation, so the pod is
// read again before the one repetition.
func (p *TenantNetwork) ensure(ctx context.Context, t *turn, assignment rdma.Assignment, pod *corev1.Pod, node string) (*tenant.Allocation, error) {
	ask := tenant.EnsureRequest{Cluster: p.cluster, Namespace: pod.Namespace, Pod: pod.Name, Tenant: t.tenant, Node: node,
		Requests: tenant.RequestsOf(assignment)}
	answer, err := p.ensureOnce(ctx, t, pod.UID, ask)
	var conflict *tenant.Error
	if !tenant.IsConflict(err) || !errors.As(err, &conflict) {
		return answer, err
	}
	current, getErr := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if getErr != nil {
		return nil, fmt.Errorf("reading the pod after a conflict: %w", getErr)
	}
	if err := stillWaiting(current, pod.UID, assignment); err != nil {
		return nil, err
	}
	ask.Generation = 0
	if conflict.Current != nil {
		ask.Generation = conflict.Current.Generation
	}
	klog.FromContext(ctx).V(2).Info("allocation changed meanwhile, asking once more", "pod", klog.KObj(pod), "generation", ask.Generation)
	return p.ensureOnce(ctx, t, pod.UID, ask)
}

// ownerOf returns the tenant that is to own the pod's networks. The first ensure decides that for good, so a namespace
// that the informer does not show yet is not taken for one without the label.
func (p *TenantNetwork) ownerOf(ctx context.Context, namespace string) (string, error) {
	object, err := p.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) {
		object, err = p.handle.ClientSet().CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	}
	if err != nil {
		return "", fmt.Errorf("finding the tenant that owns namespace %s: %w", namespace, err)
	}
	return rdma.TenantOf(object.Name, object.Labels), nil
}

// ensureOnce makes one call and tells the breakers how it went.
func (p *TenantNetwork) ensureOnce(ctx context.Context, t *turn, uid podUID, ask tenant.EnsureRequest) (*tenant.Allocation, error) {
	done := t.done
	t.done = nil
	if done == nil { // it asks once more
		var err error
		if done, err = p.breakers.allow(ctx, t.tenant); err != nil {
			return nil, err
		}
	}
	answer, err := p.allocator.Ensure(ctx, uid, ask)
	done(err)
	return answer, err
}

// annotation merges the user's networks with the pod's own, and checks the result as the API server would on an update:
// the binding call does not, and a pod with illegal annotations could never be updated again, not even by its kubelet.
func (p *TenantNetwork) annotation(ctx context.Context, pod *corev1.Pod, assignment rdma.Assignment, answer *tenant.Allocation) (string, error) {
	path := field.NewPath("metadata", "annotations")
	if err := p.checkUser(ctx, path, pod, assignment); err != nil {
		return "", err
	}
	ours := make([]rdma.Attachment, len(answer.Networks))
	for i, network := range answer.Networks {
		ours[i] = rdma.Attachment{Namespace: network.Namespace, Name: network.Name, Interface: network.Interface}
	}
	merged, err := rdma.MergeNetworks(pod.Annotations[rdma.NetworksAnnotation], pod.Namespace, ours)
	if err != nil {
		return "", err
	}
	final := maps.Clone(pod.Annotations)
	final[rdma.NetworksAnnotation] = merged
	if errs := apivalidation.ValidateAnnotations(final, path); len(errs) > 0 {
		return "", errs.ToAggregate()
	}
	return merged, nil
}

// multusNamespace is where Multus looks up a default network that is named without a namespace, unless told otherwise.
const multusNamespace = metav1.NamespaceSystem

// checkUser looks at the user's part of the Multus annotations as admission did: the webhook may have been bypassed since,
// or a NetworkAttachmentDefinition have changed.
func (p *TenantNetwork) checkUser(ctx context.Context, path *field.Path, pod *corev1.Pod, assignment rdma.Assignment) error {
	var readErrs []error
	poolOf := func(namespace, name string) (string, bool) {
		pool, err := p.nads.resourceName(ctx, namespace, name)
		readErrs = append(readErrs, err)
		_, configured := p.pools().Lookup(corev1.ResourceName(pool))
		return pool, configured || slices.Contains(assignment.Pools(), corev1.ResourceName(pool))
	}
	errs := rdma.ValidateUserNetworks(path.Key(rdma.NetworksAnnotation), pod.Annotations[rdma.NetworksAnnotation], pod.Namespace, poolOf)
	if text, ok := pod.Annotations[rdma.DefaultNetworkAnnotation]; ok {
		errs = append(errs, rdma.ValidateDefaultNetwork(path.Key(rdma.DefaultNetworkAnnotation), text, multusNamespace, poolOf)...)
	}
	return errors.Join(append(readErrs, errs.ToAggregate())...)
}

// maxEnsureAge is how old the tenant-controller's answer may be when the pod is bound. The release controller gives the
// networks of an unbound pod back only long after that.
const maxEnsureAge = 30 * time.Second
