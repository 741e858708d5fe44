package plugin

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"pgregory.net/rapid"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// nodeList is a snapshot's list of nodes under change.
type nodeList struct {
	nodes    []fwk.NodeInfo
	sequence int
}

func (l *nodeList) next() int { l.sequence++; return l.sequence }

func (l *nodeList) draw(t *rapid.T) (fwk.NodeInfo, int) {
	i := rapid.IntRange(0, len(l.nodes)-1).Draw(t, "place")
	return l.nodes[i], i
}

func (l *nodeList) addNode(t *rapid.T) {
	node := framework.NewNodeInfo()
	node.SetNode(newNode(fmt.Sprint("node-", l.next()), vfPool, rapid.IntRange(0, 4).Draw(t, "VFs"), pfPool, rapid.IntRange(0, 2).Draw(t, "PFs")))
	at := rapid.IntRange(0, len(l.nodes)).Draw(t, "at")
	l.nodes = slices.Insert(slices.Clone(l.nodes), at, fwk.NodeInfo(node))
}

func (l *nodeList) removeNode(t *rapid.T) {
	if len(l.nodes) > 1 {
		_, i := l.draw(t)
		l.nodes = slices.Delete(slices.Clone(l.nodes), i, i+1)
	}
}

// replaceNode takes a node away and puts one of its name in its place, as when a machine is registered anew.
func (l *nodeList) replaceNode(t *rapid.T) {
	old, i := l.draw(t)
	node := framework.NewNodeInfo()
	node.SetNode(newNode(old.Node().Name, vfPool, rapid.IntRange(0, 4).Draw(t, "VFs")))
	l.nodes = slices.Clone(l.nodes)
	l.nodes[i] = node
}

func (l *nodeList) changeNode(t *rapid.T) {
	node, _ := l.draw(t)
	node.SetNode(newNode(node.Node().Name, vfPool, rapid.IntRange(0, 4).Draw(t, "VFs"), pfPool, rapid.IntRange(0, 2).Draw(t, "PFs")))
}

func (l *nodeList) addPod(t *rapid.T) {
	node, _ := l.draw(t)
	node.AddPodInfo(mustPodInfo(l.drawPod(t, onNode(node.Node().Name))))
}

func (l *nodeList) removePod(t *rapid.T) {
	node, _ := l.draw(t)
	if pods := node.GetPods(); len(pods) > 0 {
		require.NoError(t, node.RemovePod(klog.Logger{}, rapid.SampledFrom(pods).Draw(t, "pod").GetPod()))
	}
}

func (l *nodeList) reverse(*rapid.T) {
	l.nodes = slices.Clone(l.nodes)
	slices.Reverse(l.nodes)
}

// drawPod makes a pod of any priority that wants VFs, PFs, both or, where it is already placed, neither.
func (l *nodeList) drawPod(t *rapid.T, change ...func(*corev1.Pod)) *corev1.Pod {
	assignment := rapid.SampledFrom([]rdma.Assignment{
		{{Type: rdma.VF, Pool: vfPool, Count: 1}}, {{Type: rdma.VF, Pool: vfPool, Count: 2}}, {{Type: rdma.PF, Pool: pfPool, Count: 1}},
		{{Type: rdma.VF, Pool: vfPool, Count: 1}, {Type: rdma.PF, Pool: pfPool, Count: 1}},
	}).Draw(t, "assignment")
	change = append(change, withPriority(rapid.Int32Range(-1, 2).Draw(t, "priority")))
	if policy := rapid.SampledFrom([]corev1.PreemptionPolicy{"", corev1.PreemptNever, corev1.PreemptLowerPriority}).Draw(t, "policy"); policy != "" {
		change = append(change, func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &policy })
	}
	return injected(plainPod(teamA, fmt.Sprint("pod-", l.next())), assignment, change...)
}

func mustPodInfo(pod *corev1.Pod) *framework.PodInfo {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		panic(err)
	}
	return info
}

// fitsIfPreempted reports whether the pod would fit if all pods that it may preempt were gone.
func fitsIfPreempted(t require.TestingT, f *TenantNetwork, c *cycle, pod *corev1.Pod, node fwk.NodeInfo) bool {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false
	}
	emptied := node.Snapshot()
	for _, other := range node.GetPods() {
		if corev1helpers.PodPriority(other.GetPod()) < corev1helpers.PodPriority(pod) {
			require.NoError(t, emptied.RemovePod(klog.Logger{}, other.GetPod()))
		}
	}
	reasons, _ := f.shortages(c, emptied)
	return len(reasons) == 0
}

// TestCandidatesLeaveOutNoNodeThatCouldHoldThePod compares the index, kept through any changes, with Filter on every node.
func TestCandidatesLeaveOutNoNodeThatCouldHoldThePod(t *testing.T) {
	f := newFixture(t, setup{}).TenantNetwork
	handedOn, withheld := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		index := candidates{columns: map[corev1.ResourceName][]entry{}}
		list := &nodeList{}
		for range rapid.IntRange(1, 12).Draw(t, "nodes") {
			list.addNode(t)
		}
		check := func(t *rapid.T) {
			pod := list.drawPod(t)
			assignment, ours := rdma.Ours(pod)
			require.True(t, ours)
			c := newCycle(assignment)
			limit := rapid.SampledFrom([]int{1, 3, 100}).Draw(t, "limit")
			names := index.find(pod, c.needs, list.nodes, limit)
			fitting, preemptable := 0, false
			for _, node := range list.nodes {
				reasons, _ := f.shortages(c, node)
				fits := len(reasons) == 0
				if fits {
					fitting++
				} else if fitsIfPreempted(t, f, c, pod, node) {
					preemptable = true
				}
				if names != nil {
					require.Equal(t, fits, names.Has(node.Node().Name), "node %s", node)
				}
			}
			if names == nil {
				withheld++
				return
			}
			handedOn++
			require.False(t, preemptable, "a node that is left out is out of preemption too")
			require.Positive(t, fitting, "an empty set would end the attempt")
			require.LessOrEqual(t, fitting, limit)
		}
		t.Repeat(map[string]func(*rapid.T){
			"": check, "add node": list.addNode, "remove node": list.removeNode, "replace node": list.replaceNode,
			"change node": list.changeNode, "add pod": list.addPod, "remove pod": list.removePod, "reverse": list.reverse,
		})
	})
	require.Positive(t, handedOn)
	require.Positive(t, withheld)
}

// fullNodes have one device each, which a pod of the priority holds.
func fullNodes(count int, priority int32) (nodes []*corev1.Node, holders []*corev1.Pod) {
	for i := range count {
		node := newNode(fmt.Sprint("full-", i), vfPool, 1)
		nodes = append(nodes, node)
		holders = append(holders, vfPod(fmt.Sprint("holder-", i), 1, onNode(node.Name), withPriority(priority)))
	}
	return nodes, holders
}

func TestPreFilterNamesTheNodesWithRoom(t *testing.T) {
	free := []*corev1.Node{newNode("free-1", vfPool, 1), newNode("free-2", vfPool, 2)}
	for name, tc := range map[string]struct {
		full     int
		holders  int32
		free     []*corev1.Node
		pod      *corev1.Pod
		dra      bool
		podGroup bool
		want     []string
	}{
		"the two nodes with a free device": {full: 100, free: free, pod: vfPod("p", 1), want: []string{"free-1", "free-2"}},
		"the one node with two":            {full: 100, free: free, pod: vfPod("p", 2), want: []string{"free-2"}},
		"holders of the same priority are not in the way": {
			full: 100, free: free, holders: 7, pod: vfPod("p", 1, withPriority(7)), want: []string{"free-1", "free-2"},
		},
		"a pod that never preempts needs no others": {
			full: 100, free: free, pod: vfPod("p", 1, withPriority(9), never),
			want: []string{"free-1", "free-2"},
		},
		"a pod of the lowest priority there is":              {full: 100, free: free, pod: vfPod("p", 1, withPriority(math.MinInt32)), want: []string{"free-1", "free-2"}},
		"all nodes where a holder could be preempted":        {full: 100, free: free, pod: vfPod("p", 1, withPriority(1))},
		"all nodes where none has room: an empty set is bad": {full: 100, pod: vfPod("p", 1)},
		"all nodes of a small cluster":                       {full: minCandidateNodes - 3, free: free, pod: vfPod("p", 1)},
		"all nodes in the cycle of a pod group":              {full: 100, free: free, pod: vfPod("p", 1), podGroup: true},
		"all nodes for a pool that a DeviceClass serves":     {full: 100, free: free, pod: vfPod("p", 1), dra: true},
		"all nodes for a plain pod":                          {full: 100, free: free, pod: plainPod(teamA, "p")},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, holders := fullNodes(tc.full, tc.holders)
			var options []frameworkruntime.Option
			if tc.dra {
				options = append(options, frameworkruntime.WithSharedDRAManager(classResolver{served: map[corev1.ResourceName]bool{vfPool: true}}))
			}
			f := newFixture(t, setup{nodes: append(nodes, tc.free...), placed: holders, options: options})
			state := framework.NewCycleState()
			if tc.podGroup {
				state.SetPodGroupSchedulingCycle(framework.NewCycleState())
			}
			result, _, _ := f.framework.RunPreFilterPlugins(f.context(), state, tc.pod)
			if tc.want == nil {
				require.True(t, result.AllNodes())
				return
			}
			require.ElementsMatch(t, tc.want, result.NodeNames.UnsortedList())
		})
	}
}

func TestCandidateLimit(t *testing.T) {
	for nodes, want := range map[int]int{100: 85, 500: 455, 2000: 1705, 5000: 1875, 15000: 8999} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) { require.Equal(t, want, candidateLimit(nodes)) })
	}
}
