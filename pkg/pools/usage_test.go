package pools

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The worked example of the product's first description: two nodes, three pods, available 1 and 2.
func TestUsageOfTheWorkedExample(t *testing.T) {
	l := NewLedger(nil)
	set(l,
		node("gpu01", sriov, 2, hca, 2),
		node("gpu02", sriov, 1, hca, 3),
		pod("pod-1", "gpu01", sriov, 1),
		pod("pod-2", "gpu01", sriov, 1, hca, 1),
		pod("pod-3", "gpu02", hca, 2),
	)
	require.Equal(t, []Usage{
		{Pool: sriov, Allocatable: 3, Requested: 2, Available: 1, Free: 1, Nodes: 2},
		{Pool: hca, Allocatable: 5, Requested: 3, Available: 2, Free: 2, Nodes: 2},
	}, l.Usage())
}

// TestUsage: cases W74, S36, S39 of docs/cases.md.
func TestUsage(t *testing.T) {
	unready := func(n *corev1.Node) *corev1.Node {
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		return n
	}
	cordoned := func(n *corev1.Node) *corev1.Node {
		n.Spec.Unschedulable = true
		return n
	}
	allocatable := func(n *corev1.Node, devices int) *corev1.Node {
		n.Status.Allocatable[sriov] = *resource.NewQuantity(int64(devices), resource.DecimalSI)
		return n
	}
	phase := func(p *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
		p.Status.Phase = phase
		return p
	}
	gated := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
		return p
	}
	sidecarFirst := pod("p", "n1", sriov, 1)
	always := corev1.ContainerRestartPolicyAlways
	sidecarFirst.Spec.InitContainers = []corev1.Container{
		{Name: "sidecar", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Requests: list(sriov, 1)}}}
	initPod := pod("p", "n1", sriov, 1)
	initPod.Spec.InitContainers = []corev1.Container{
		{Name: "init", Resources: corev1.ResourceRequirements{Requests: list(sriov, 2)}}}

	wrapping := pod("p", "", sriov, 1<<62)
	wrapping.Spec.Containers = append(wrapping.Spec.Containers, wrapping.Spec.Containers[0], wrapping.Spec.Containers[0], wrapping.Spec.Containers[0])

	for name, tc := range map[string]struct {
		objects []any
		want    Usage
	}{
		"a pod that is not bound yet counts as requested": {
			[]any{node("n1", sriov, 4), pod("p", "", sriov, 1)},
			Usage{Allocatable: 4, Requested: 1, Unbound: 1, Available: 3, Free: 3, Nodes: 1}},
		"a gated pod counts as requested, and is told apart": {
			[]any{node("n1", sriov, 4), gated(pod("p", "", sriov, 1))},
			Usage{Allocatable: 4, Requested: 1, Unbound: 1, Gated: 1, Available: 3, Free: 3, Nodes: 1}},
		"a pod being deleted is available but not free": {
			[]any{node("n1", sriov, 4), deleting(pod("p", "n1", sriov, 3))},
			Usage{Allocatable: 4, Releasing: 3, Available: 4, Free: 1, Nodes: 1}},
		"an unbound pod being deleted holds nothing": {
			[]any{node("n1", sriov, 4), deleting(pod("p", "", sriov, 3))},
			Usage{Allocatable: 4, Available: 4, Free: 4, Nodes: 1}},
		"a succeeded pod holds nothing though its finalizer keeps it": {
			[]any{node("n1", sriov, 4), phase(injected("p", "n1", "id", sriov), corev1.PodSucceeded)},
			Usage{Allocatable: 4, Available: 4, Free: 4, Nodes: 1}},
		"a failed pod holds nothing": {
			[]any{node("n1", sriov, 4), phase(pod("p", "n1", sriov, 1), corev1.PodFailed)},
			Usage{Allocatable: 4, Available: 4, Free: 4, Nodes: 1}},
		"a pod that turned terminal gives back what it held": {
			[]any{node("n1", sriov, 4), pod("p", "n1", sriov, 1), phase(pod("p", "n1", sriov, 1), corev1.PodSucceeded)},
			Usage{Allocatable: 4, Available: 4, Free: 4, Nodes: 1}},
		"a cordoned node and its pods count on neither side": {
			[]any{node("n1", sriov, 4), cordoned(node("n2", sriov, 4)), pod("p", "n2", sriov, 4)},
			Usage{Allocatable: 4, Available: 4, Free: 4, Nodes: 1}},
		"a node that is not Ready and its pods count on neither side": {
			[]any{node("n1", sriov, 4), unready(node("n2", sriov, 4)), pod("p", "n2", sriov, 4)},
			Usage{Allocatable: 4, Available: 4, Free: 4, Nodes: 1}},
		"a node without a Ready condition does not count": {
			[]any{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Allocatable: list(sriov, 4)}}},
			Usage{}},
		"pods of a node that is not known count for nothing": {
			[]any{node("n1", sriov, 4), pod("p", "n9", sriov, 4)},
			Usage{Allocatable: 4, Available: 4, Free: 4, Nodes: 1}},
		"pods that came before their node count when it comes": {
			[]any{pod("p", "n1", sriov, 3), node("n1", sriov, 4)},
			Usage{Allocatable: 4, Requested: 3, Available: 1, Free: 1, Nodes: 1}},
		"more waiting than there is does not make available negative": {
			[]any{node("n1", sriov, 1), pod("p", "n1", sriov, 1), pod("q", "", sriov, 5)},
			Usage{Allocatable: 1, Requested: 6, Unbound: 5, Overcommitted: true, Nodes: 1}},
		"a device plugin that reports less than is held is told apart from a full pool": {
			[]any{allocatable(node("n1", sriov, 8), 1), pod("p", "n1", sriov, 7)},
			Usage{Allocatable: 1, Requested: 7, Overcommitted: true, BelowAllocated: true, Nodes: 1}},
		"a device plugin that went away leaves allocatable 0": {
			[]any{allocatable(node("n1", sriov, 8), 0), pod("p", "n1", sriov, 7)},
			Usage{Requested: 7, Overcommitted: true, BelowAllocated: true}},
		"a resource that a kubelet dropped is below what its pods hold": {
			[]any{node("n1", hca, 8), pod("p", "n1", sriov, 7)},
			Usage{Requested: 7, Overcommitted: true, BelowAllocated: true}},
		"quantities whose sum exceeds int64 do not wrap around": {
			[]any{node("n1", sriov, 4), wrapping},
			Usage{Allocatable: 4, Requested: maxDevices, Unbound: maxDevices, Overcommitted: true, Nodes: 1}},
		"a sidecar is added to the containers": {
			[]any{node("n1", sriov, 4), sidecarFirst},
			Usage{Allocatable: 4, Requested: 2, Available: 2, Free: 2, Nodes: 1}},
		"an init container is a maximum, not a sum": {
			[]any{node("n1", sriov, 4), initPod},
			Usage{Allocatable: 4, Requested: 2, Available: 2, Free: 2, Nodes: 1}},
		"absurd quantities do not overflow": {
			[]any{node("n1", sriov, 4), pod("p", "", sriov, 1<<62), pod("q", "", sriov, 1<<62), pod("r", "", sriov, 1<<62)},
			Usage{Allocatable: 4, Requested: 3 * maxDevices, Unbound: 3 * maxDevices, Overcommitted: true, Nodes: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(nil)
			set(l, tc.objects...)
			tc.want.Pool = sriov
			require.Equal(t, tc.want, l.UsageOf(sriov))
		})
	}
}

func TestUsageMustNotListWhatIsNoExtendedResource(t *testing.T) {
	l := NewLedger(nil)
	n := node("n1")
	n.Status.Allocatable["hugepages-1Gi"] = resource.MustParse("4Gi")
	n.Status.Allocatable["attachable-volumes-csi-x"] = resource.MustParse("4")
	n.Status.Allocatable["example.kubernetes.io/thing"] = resource.MustParse("4")
	set(l, n)
	require.Empty(t, l.Usage())
}

func TestANodeThatIsDeletedTakesItsDevicesAlong(t *testing.T) {
	l := NewLedger(nil)
	set(l, node("n1", sriov, 4), pod("p", "n1", sriov, 1))
	l.DeleteNode("n1")
	require.Equal(t, Usage{Pool: sriov}, l.UsageOf(sriov))
	set(l, node("n1", sriov, 4))
	require.Equal(t, Usage{Pool: sriov, Allocatable: 4, Requested: 1, Available: 3, Free: 3, Nodes: 1}, l.UsageOf(sriov))
}

func TestNodeUsageIsInOrderAndPerNode(t *testing.T) {
	l := NewLedger(nil)
	set(l, node("n2", sriov, 4), node("n1", sriov, 2), node("n3", hca, 9), pod("p", "n2", sriov, 1), deleting(pod("q", "n2", sriov, 2)))
	require.Equal(t, []NodeUsage{
		{Node: "n1", Pool: sriov, Eligible: true, Allocatable: 2, Free: 2},
		{Node: "n2", Pool: sriov, Eligible: true, Allocatable: 4, Requested: 1, Releasing: 2, Free: 1},
	}, l.NodeUsage(sriov))
}
