package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// classResolver maps pools to DeviceClasses, as the in-tree DRA plugin does.
type classResolver struct {
	fwk.SharedDRAManager
	served map[corev1.ResourceName]bool
}

func (r classResolver) DeviceClassResolver() fwk.DeviceClassResolver { return r }

func (r classResolver) GetDeviceClass(name corev1.ResourceName) *resourceapi.DeviceClass {
	if !r.served[name] {
		return nil
	}
	return &resourceapi.DeviceClass{}
}

func TestFilter(t *testing.T) {
	both := rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 2}, {Type: rdma.PF, Pool: pfPool, Count: 1}}
	onePool := rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}, {Type: rdma.PF, Pool: vfPool, Count: 1}}
	holder := func(name string, count int64, change ...func(*corev1.Pod)) *corev1.Pod {
		return vfPod(name, count, append(change, onNode(node1))...)
	}
	for name, tc := range map[string]struct {
		node   *corev1.Node
		placed []*corev1.Pod
		pod    *corev1.Pod
		dra    map[corev1.ResourceName]bool
		want   fwk.Code
		// reasons are exact.
		reasons []string
	}{
		"exactly enough passes": {
			node: newNode(node1, vfPool, 3), placed: []*corev1.Pod{holder("h", 1)}, pod: vfPod("p", 2),
		},
		"one too few is rejected with all figures": {
			node: newNode(node1, vfPool, 3), placed: []*corev1.Pod{holder("h", 2)}, pod: vfPod("p", 2), want: fwk.Unschedulable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 3, requested 2, need 2)"},
		},
		"a node that could not hold the pod if it were empty is not worth preempting on": {
			node: newNode(node1, vfPool, 1), placed: []*corev1.Pod{holder("h", 1)}, pod: vfPod("p", 2), want: fwk.UnschedulableAndUnresolvable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 1, requested 1, need 2)"},
		},
		"a node without the pool is not worth preempting on": {
			node: newNode(node1), pod: vfPod("p", 1), want: fwk.UnschedulableAndUnresolvable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 0, requested 0, need 1)"},
		},
		"allocatable below allocated is told apart": {
			node: newNode(node1, vfPool, 3), placed: []*corev1.Pod{holder("h", 4)}, pod: vfPod("p", 1), want: fwk.Unschedulable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 3, requested 4, need 1): allocatable is below what is allocated, a device plugin may be restarting"},
		},
		"a device plugin that is away is told apart": {
			node: newNode(node1), placed: []*corev1.Pod{holder("h", 4)}, pod: vfPod("p", 1), want: fwk.UnschedulableAndUnresolvable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 0, requested 4, need 1): allocatable is below what is allocated, a device plugin may be restarting"},
		},
		"a terminating pod's devices are not free": {
			node: newNode(node1, vfPool, 1), placed: []*corev1.Pod{holder("h", 1, deleting)}, pod: vfPod("p", 1), want: fwk.Unschedulable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 1, requested 1, need 1)"},
		},
		"all pools that are short are named": {
			node: newNode(node1, vfPool, 2, pfPool, 1), pod: injected(plainPod(teamA, "p"), both), want: fwk.Unschedulable,
			placed: []*corev1.Pod{injected(plainPod(teamA, "h", onNode(node1)), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}, {Type: rdma.PF, Pool: pfPool, Count: 1}})},
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 2, requested 1, need 2)",
				"Insufficient mellanox.com/mlnx_pf_rdma (allocatable 1, requested 1, need 1)"},
		},
		"one pool for both types counts the sum": {
			node: newNode(node1, vfPool, 1), pod: injected(plainPod(teamA, "p"), onePool), want: fwk.UnschedulableAndUnresolvable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 1, requested 0, need 2)"},
		},
		"devices of another pool do not help": {
			node: newNode(node1, pfPool, 8), pod: vfPod("p", 1), want: fwk.UnschedulableAndUnresolvable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 0, requested 0, need 1)"},
		},
		"a pool that a DeviceClass serves is left to the in-tree plugins": {
			node: newNode(node1), placed: []*corev1.Pod{holder("h", 4)}, pod: vfPod("p", 1), dra: map[corev1.ResourceName]bool{vfPool: true},
		},
		"a node with a device plugin is judged by it even if a DeviceClass serves the pool elsewhere": {
			node: newNode(node1, vfPool, 1), placed: []*corev1.Pod{holder("h", 1)}, pod: vfPod("p", 1), dra: map[corev1.ResourceName]bool{vfPool: true}, want: fwk.Unschedulable,
			reasons: []string{"Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 1, requested 1, need 1)"},
		},
		"a plain pod passes a full node": {
			node: newNode(node1, vfPool, 1), placed: []*corev1.Pod{holder("h", 1)}, pod: plainPod(teamA, "p"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var options []frameworkruntime.Option
			if tc.dra != nil {
				options = append(options, frameworkruntime.WithSharedDRAManager(classResolver{served: tc.dra}))
			}
			f := newFixture(t, setup{nodes: []*corev1.Node{tc.node}, placed: tc.placed, options: options})
			status := f.filter(tc.pod, f.nodeInfo(node1))
			require.Equal(t, tc.want.String(), status.Code().String(), status.Message())
			if tc.want != fwk.Success {
				require.Equal(t, tc.reasons, status.Reasons())
			}
		})
	}
}

// TestFilterGoesByTheNodeInfoItIsGiven: cases S31 of docs/cases.md.
func TestFilterGoesByTheNodeInfoItIsGiven(t *testing.T) {
	victim := vfPod("victim", 1, onNode(node1))
	f := newFixture(t, setup{nodes: []*corev1.Node{newNode(node1, vfPool, 1)}, placed: []*corev1.Pod{victim}})
	pod := vfPod("p", 1)
	state := f.passed(pod)

	simulated := f.nodeInfo(node1).Snapshot()
	require.NoError(t, simulated.RemovePod(klog.Background(), victim))
	requireSuccess(t, f.framework.RunFilterPlugins(f.context(), state.Clone(), pod, simulated))

	require.True(t, f.framework.RunFilterPlugins(f.context(), state, pod, f.nodeInfo(node1)).IsRejected(), "the simulation must not leak")
}

// TestFilterCountsNominatedPods: cases S14 of docs/cases.md.
func TestFilterCountsNominatedPods(t *testing.T) {
	nominated, err := framework.NewPodInfo(vfPod("nominated", 2, withPriority(10)))
	require.NoError(t, err)
	f := newFixture(t, setup{nodes: []*corev1.Node{newNode(node1, vfPool, 2)}, queued: []runtime.Object{nominated.Pod}})
	f.nominator.Add(f.context(), nominated.Pod)
	f.nominator.AddNominatedPod(klog.Background(), nominated, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node1})

	lower, higher := vfPod("lower", 1, withPriority(9)), vfPod("higher", 1, withPriority(11))
	status := f.framework.RunFilterPluginsWithNominatedPods(f.context(), f.passed(lower), lower, f.nodeInfo(node1))
	require.True(t, status.IsRejected(), "the devices are promised to a pod of higher priority")
	requireSuccess(t, f.framework.RunFilterPluginsWithNominatedPods(f.context(), f.passed(higher), higher, f.nodeInfo(node1)))
}

func TestFilterReportsAForeignState(t *testing.T) {
	f := newFixture(t, setup{})
	state := framework.NewCycleState()
	state.Write(stateKey, foreignState{})
	require.ErrorContains(t, f.Filter(f.context(), state, vfPod("p", 1), f.nodeInfo(node1)).AsError(), "foreignState")
	_, status := f.Score(f.context(), state, vfPod("p", 1), f.nodeInfo(node1))
	require.ErrorContains(t, status.AsError(), "foreignState")
	require.ErrorContains(t, f.Bind(f.context(), state, vfPod("p", 1), node1).AsError(), "foreignState")
}

type foreignState struct{}

func (s foreignState) Clone() fwk.StateData { return s }
