package plugin

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// scores rates a node with every number of devices in use.
func scores(t *testing.T, strategy ScoringStrategy, pod *corev1.Pod, total int) []int64 {
	t.Helper()
	all := make([]int64, 0, total)
	for used := range total {
		placed := []*corev1.Pod{}
		if used > 0 {
			placed = append(placed, vfPod(fmt.Sprintf("holder-%d", used), int64(used), onNode(node1)))
		}
		f := newFixture(t, setup{args: Args{ScoringStrategy: strategy}, nodes: []*corev1.Node{newNode(node1, vfPool, total)}, placed: placed})
		result, status := f.framework.RunScorePlugins(f.context(), f.passed(pod), pod, []fwk.NodeInfo{f.nodeInfo(node1)})
		requireSuccess(t, status)
		all = append(all, result[0].TotalScore)
	}
	return all
}

func TestScoreSpreadPrefersTheFreestNode(t *testing.T) {
	require.Equal(t, []int64{87, 75, 62, 50, 37, 25, 12, 0}, scores(t, Spread, vfPod("p", 1), 8))
}

func TestScoreBinPackPrefersTheFullestNode(t *testing.T) {
	require.Equal(t, []int64{13, 25, 38, 50, 63, 75, 88, 100}, scores(t, BinPack, vfPod("p", 1), 8))
}

func TestScoreIsTheMeanOverPools(t *testing.T) {
	f := newFixture(t, setup{nodes: []*corev1.Node{newNode(node1, vfPool, 4, pfPool, 2)}})
	pod := injected(plainPod(teamA, "p"), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}, {Type: rdma.PF, Pool: pfPool, Count: 2}})
	score, status := f.Score(f.context(), f.passed(pod), pod, f.nodeInfo(node1))
	requireSuccess(t, status)
	require.Equal(t, int64((75+0)/2), score)
}

func TestScoreDoesNotTellNodesApartForPlainPods(t *testing.T) {
	f := newFixture(t, setup{placed: []*corev1.Pod{vfPod("holder", 1, onNode(node1))}})
	pod := plainPod(teamA, "plain")
	nodes := []fwk.NodeInfo{f.nodeInfo(node1), f.nodeInfo(node2)}
	result, status := f.framework.RunScorePlugins(f.context(), f.passed(pod), pod, nodes)
	requireSuccess(t, status)
	require.Equal(t, result[0].TotalScore, result[1].TotalScore)
}

func TestFreeShareStaysInRangeAndFallsWithUse(t *testing.T) {
	figures := []int64{math.MinInt64, -1, 0, 1, 2, 3, 7, 99, 100, 101, 1 << 40, math.MaxInt64}
	for _, allocatable := range figures {
		last := fwk.MaxScore
		for _, requested := range figures {
			share := freeShare(allocatable, requested)
			require.GreaterOrEqual(t, share, fwk.MinScore, "%d of %d", requested, allocatable)
			require.LessOrEqual(t, share, last, "%d of %d must not score above fewer", requested, allocatable)
			last = share
		}
	}
}
