package release

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// suspect is a bound pod whose allocation is wrong in the list.
type suspect struct {
	pod        *corev1.Pod
	assignment rdma.Assignment
	// kind is what is wrong, empty if a second look showed that nothing is.
	kind string
}

// report looks for bound pods whose allocation is wrong, and mends what can be mended. A suspect that could not be looked
// at counts as wrong: a gauge that falls while the tenant-controller is away would say that all is well.
func (s *Sweeper) report(ctx context.Context, pods []corev1.Pod, byAllocation map[types.UID]*tenant.Allocation) error {
	found := suspects(pods, byAllocation)
	err := each(ctx, found, func(one *suspect) string { return one.pod.Namespace }, func(ctx context.Context, one *suspect) error {
		kind, err := s.look(ctx, one)
		if err != nil {
			return fmt.Errorf("allocation of pod %s: %w", klog.KObj(one.pod), err)
		}
		one.kind = kind
		return nil
	})
	counts := map[string]int{}
	for _, one := range found {
		counts[one.kind]++
	}
	for _, kind := range []string{kindMissing, kindElsewhere, kindNetworks} {
		s.metrics.wrong.WithLabelValues(kind).Set(float64(counts[kind]))
	}
	return err
}

func suspects(pods []corev1.Pod, byAllocation map[types.UID]*tenant.Allocation) []*suspect {
	var found []*suspect
	for i := range pods {
		pod := &pods[i]
		assignment, ours := rdma.Ours(pod)
		if !ours || pod.Spec.NodeName == "" || terminal(pod) {
			continue
		}
		if kind := wrong(pod, assignment, byAllocation[pod.UID]); kind != "" {
			found = append(found, &suspect{pod: pod, assignment: assignment, kind: kind})
		}
	}
	return found
}

// wrong tells in which way an allocation, nil if there is none, does not fit its bound pod. Empty means that it does.
func wrong(pod *corev1.Pod, assignment rdma.Assignment, a *tenant.Allocation) string {
	switch {
	case a == nil:
		return kindMissing
	case a.Node != pod.Spec.NodeName:
		return kindElsewhere
	case len(lostNetworks(pod, assignment, a)) > 0:
		return kindNetworks
	}
	return ""
}

// look asks for the one allocation, since the list is older than the memory of the pods, and returns what is wrong.
func (s *Sweeper) look(ctx context.Context, found *suspect) (string, error) {
	a, err := s.cfg.Allocations.Get(ctx, s.cfg.Cluster, found.pod.UID)
	if tenant.IsNotFound(err) {
		a, err = nil, nil
	}
	if err != nil {
		return "", err
	}
	kind := wrong(found.pod, found.assignment, a)
	switch kind {
	case kindMissing, kindElsewhere:
		return s.mend(ctx, found.pod, kind, a)
	case kindNetworks:
		// Said by each sweep: the recorder makes one Event of it, which lasts as long as the fault does.
		s.warnLost(found.pod, "has other networks for this pod than it was started with", lostNetworks(found.pod, found.assignment, a))
	}
	return kind, nil
}

// mend reports a bound pod whose allocation is missing (nil) or names another node, and asks for it again if the policy
// says so: as long as the tenant-controller does not know of the pod it may give its networks to another. It returns what
// was wrong, or empty if the pod is over.
func (s *Sweeper) mend(ctx context.Context, pod *corev1.Pod, kind string, present *tenant.Allocation) (string, error) {
	// A live look: the pod may have ended since.
	current := &corev1.Pod{}
	if err := s.cfg.Live.Get(ctx, client.ObjectKeyFromObject(pod), current); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	assignment, ours := rdma.Ours(current)
	if !ours || current.UID != pod.UID || terminal(current) || current.Spec.NodeName == "" {
		return "", nil
	}
	what := "has no allocation for this pod"
	generation := int64(0)
	if present != nil {
		what = "has this pod on node " + foreign(present.Node)
		generation = present.Generation
	}
	if !s.cfg.Repair {
		warnf(s.cfg.Recorder, current, reasonMissing, "Sweep",
			"The tenant-controller %s, which runs on node %s. It may give the pod's networks to another.", what, current.Spec.NodeName)
		return kind, nil
	}
	tenantName, err := s.tenantOf(ctx, current.Namespace)
	if err != nil {
		return "", err
	}
	ask := tenant.EnsureRequest{Cluster: s.cfg.Cluster, Namespace: current.Namespace, Pod: current.Name, Tenant: tenantName,
		Node: current.Spec.NodeName, Requests: tenant.RequestsOf(assignment), Generation: generation}
	answer, err := s.cfg.Allocations.Ensure(ctx, current.UID, ask)
	if err != nil {
		return "", fmt.Errorf("asking for it again: %w", err)
	}
	if lost := lostNetworks(current, assignment, answer); len(lost) > 0 {
		s.warnLost(current, what+", and gave it other networks when asked again", lost)
		return kindNetworks, nil
	}
	warnf(s.cfg.Recorder, current, reasonMended, "Sweep",
		"The tenant-controller %s, which runs on node %s; it was asked again and now knows.", what, current.Spec.NodeName)
	return kind, nil
}

func (s *Sweeper) warnLost(pod *corev1.Pod, what string, lost []string) {
	warnf(s.cfg.Recorder, pod, reasonLost, "Sweep",
		"The tenant-controller %s: %s are in use by the pod without an allocation. Recreate the pod.", what, listed(lost))
}

// lostNetworks returns the networks that the pod was given and that its allocation does not have. As many are looked at as
// were assigned: the allocation may be short of some.
func lostNetworks(pod *corev1.Pod, assignment rdma.Assignment, a *tenant.Allocation) []string {
	inUse, err := rdma.OwnNetworks(pod, assignment)
	if err != nil {
		return nil
	}
	has := map[string]bool{}
	for _, n := range a.Networks {
		has[n.Namespace+"/"+n.Name] = true
	}
	var lost []string
	for _, n := range inUse.Elements() {
		if !has[n.Namespace+"/"+n.Name] {
			lost = append(lost, n.Name)
		}
	}
	return lost
}

func (s *Sweeper) tenantOf(ctx context.Context, name string) (string, error) {
	namespace := &corev1.Namespace{}
	if err := s.cfg.Live.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
		return "", fmt.Errorf("reading the namespace for its tenant: %w", err)
	}
	return rdma.TenantOf(name, namespace.Labels), nil
}
