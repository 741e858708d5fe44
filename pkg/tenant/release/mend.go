package release

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// mend reports a bound pod whose allocation is missing (nil) or names another node, and asks for it again if the policy
// says so: as long as the tenant-controller does not know of the pod it may give its networks to another.
func (s *Sweeper) mend(ctx context.Context, pod *corev1.Pod, assignment rdma.Assignment, present *tenant.Allocation) error {
	// A live look: the pod may have ended since.
	current := &corev1.Pod{}
	if err := s.cfg.Live.Get(ctx, client.ObjectKeyFromObject(pod), current); err != nil {
		return client.IgnoreNotFound(err)
	}
	if current.UID != pod.UID || terminal(current) || current.Spec.NodeName == "" || !hasFinalizer(current) {
		return nil
	}
	what := "has no allocation for this pod"
	generation := int64(0)
	if present != nil {
		what = "has this pod on node " + foreign(present.Node)
		generation = present.Generation
	}
	if !s.cfg.Repair {
		warn(s.cfg.Recorder, current, reasonMissing, "Sweep",
			"The tenant-controller %s, which runs on node %s. It may give the pod's networks to another.", what, current.Spec.NodeName)
		return nil
	}
	tenantName, err := s.tenantOf(ctx, current.Namespace)
	if err != nil {
		return err
	}
	ask := tenant.EnsureRequest{Cluster: s.cfg.Cluster, Namespace: current.Namespace, Pod: current.Name, Tenant: tenantName,
		Node: current.Spec.NodeName, Requests: tenant.RequestsOf(assignment), Generation: generation}
	answer, err := s.cfg.Allocations.Ensure(ctx, current.UID, ask)
	if err != nil {
		return fmt.Errorf("asking for it again: %w", err)
	}
	if lost := lostNetworks(current, assignment, answer); len(lost) > 0 {
		warn(s.cfg.Recorder, current, reasonLost, "Sweep",
			"The tenant-controller %s, and gave it other networks when asked again: %s are in use by the pod without an allocation. Recreate the pod.", what, listed(lost))
		return nil
	}
	warn(s.cfg.Recorder, current, reasonMended, "Sweep",
		"The tenant-controller %s, which runs on node %s; it was asked again and now knows.", what, current.Spec.NodeName)
	return nil
}

// lostNetworks returns the networks that the pod was given and that the allocation does not have.
func lostNetworks(pod *corev1.Pod, assignment rdma.Assignment, answer *tenant.Allocation) []string {
	inUse, err := rdma.ParseNetworks(pod.Annotations[rdma.NetworksAnnotation], pod.Namespace)
	if err != nil {
		return nil
	}
	has := map[string]bool{}
	for _, n := range answer.Networks {
		has[n.Namespace+"/"+n.Name] = true
	}
	// Ours are the last ones of the list (rdma.MergeNetworks), as many as were assigned: the answer may be short of some.
	elements := inUse.Elements()
	elements = elements[max(0, len(elements)-int(assignment.Devices())):]
	var lost []string
	for _, n := range elements {
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

type sweepMetrics struct {
	orphans, blocked, lastSuccess prometheus.Gauge
	released, failures            prometheus.Counter
	wrong                         *prometheus.GaugeVec
}

func newSweepMetrics(registerer prometheus.Registerer) (*sweepMetrics, error) {
	m := &sweepMetrics{
		orphans: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rdma_sweep_orphans",
			Help: "Allocations without a live pod that the last sweep found."}),
		blocked: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rdma_sweep_blocked",
			Help: "1 while the sweep found so many allocations without a live pod that it waits for --sweep-confirm."}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rdma_sweep_last_success_timestamp_seconds",
			Help: "When the last sweep came to its end, in seconds since 1970."}),
		released: prometheus.NewCounter(prometheus.CounterOpts{Name: "rdma_sweep_released_total",
			Help: "Allocations that the sweep gave back."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "rdma_sweep_failures_total",
			Help: "Sweeps that did not come to their end."}),
		wrong: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rdma_sweep_wrong_allocations",
			Help: "Bound pods whose allocation the last sweep found missing or on other_node."}, []string{"kind"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.orphans, m.blocked, m.lastSuccess, m.released, m.failures, m.wrong} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("registering metrics of the sweep: %w", err)
		}
	}
	return m, nil
}
