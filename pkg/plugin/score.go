package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PreScore skips scoring for pods that are not ours.
func (p *TenantNetwork) PreScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	c, err := readCycle(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if c == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score ranks a node by the share of the pod's pools that would be free with the pod on it.
func (p *TenantNetwork) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c, err := readCycle(state)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	if c == nil {
		return 0, nil
	}
	var sum int64
	for _, n := range c.needs {
		sum += freeShare(node.GetAllocatable().GetScalarResources()[n.pool],
			node.GetRequested().GetScalarResources()[n.pool]+n.count)
	}
	score := sum / int64(len(c.needs))
	if p.args.ScoringStrategy == BinPack {
		score = fwk.MaxScore - score
	}
	return score, nil
}

// ScoreExtensions returns nil: the scores lie in the framework's range already.
func (p *TenantNetwork) ScoreExtensions() fwk.ScoreExtensions { return nil }

// freeShare returns (allocatable − requested) / allocatable on the framework's scale from 0 to 100. It is 0 where the
// figures say that less than nothing is free, as while a device plugin restarts.
func freeShare(allocatable, requested int64) int64 {
	if allocatable <= 0 || requested >= allocatable {
		return 0
	}
	return int64(float64(allocatable-max(requested, 0)) / float64(allocatable) * float64(fwk.MaxScore))
}
