package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"
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

// drawPod makes a pod that wants VFs, PFs or both.
func (l *nodeList) drawPod(t *rapid.T, change ...func(*corev1.Pod)) *corev1.Pod {
	assignment := rapid.SampledFrom([]rdma.Assignment{
		{{Type: rdma.VF, Pool: vfPool, Count: 1}}, {{Type: rdma.VF, Pool: vfPool, Count: 2}}, {{Type: rdma.PF, Pool: pfPool, Count: 1}},
		{{Type: rdma.VF, Pool: vfPool, Count: 1}, {Type: rdma.PF, Pool: pfPool, Count: 1}},
	}).Draw(t, "assignment")
	return injected(plainPod(teamA, fmt.Sprint("pod-", l.next())), assignment, change...)
}

func mustPodInfo(pod *corev1.Pod) *framework.PodInfo {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		panic(err)
	}
	return info
}

// TestCandidatesAreNodesWithRoom compares the index, kept through any changes, with Filter on every node.
func TestCandidatesAreNodesWithRoom(t *testing.T) {
	f := newFixture(t, setup{}).TenantNetwork
	named, withheld := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		index := newCandidates()
		list := &nodeList{}
		for range rapid.IntRange(1, 12).Draw(t, "nodes") {
			list.addNode(t)
		}
		check := func(t *rapid.T) {
			pod := list.drawPod(t)
			assignment, ours := rdma.Ours(pod)
			require.True(t, ours)
			c := newCycle(assignment)
			// Some nodes do not pass for another reason.
			closed := rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "closed")
			open := func(node fwk.NodeInfo) bool { return closed == "" || !strings.HasSuffix(node.Node().Name, closed) }
			var want []string
			for _, node := range list.nodes {
				if reasons, _ := f.shortages(c, node); len(reasons) == 0 && open(node) {
					want = append(want, node.Node().Name)
				}
			}
			if most := rapid.IntRange(0, 4).Draw(t, "most"); most > 0 {
				checkSample(t, index, c.needs, list.nodes, most, open, want)
			} else if names := index.find(c.needs, list.nodes, 0, open); len(want) == 0 || len(want) > len(list.nodes)/3 {
				require.Nil(t, names)
				withheld++
			} else {
				require.ElementsMatch(t, want, names.UnsortedList())
				named++
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": check, "add node": list.addNode, "remove node": list.removeNode, "replace node": list.replaceNode,
			"change node": list.changeNode, "add pod": list.addPod, "remove pod": list.removePod, "reverse": list.reverse,
		})
	})
	require.Positive(t, named)
	require.Positive(t, withheld)
}

// checkSample looks until every node with room must have had its turn.
func checkSample(t require.TestingT, index *candidates, needs []need, nodes []fwk.NodeInfo, most int, open func(fwk.NodeInfo) bool, want []string) {
	seen := sets.New[string]()
	for looked := 0; looked < len(want)+most; looked += most {
		names := index.find(needs, nodes, most, open)
		require.Len(t, names, min(most, len(want)))
		seen = seen.Union(names)
	}
	require.ElementsMatch(t, want, seen.UnsortedList())
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

// freeNodes have one free device each.
func freeNodes(count int) (nodes []*corev1.Node) {
	for i := range count {
		nodes = append(nodes, newNode(fmt.Sprint("free-", i), vfPool, 1))
	}
	return nodes
}

// like is a node that differs in something.
func like(node *corev1.Node, change func(*corev1.Node)) *corev1.Node {
	change(node)
	return node
}

const gpu = corev1.ResourceName("nvidia.com/gpu")

func wantsGPU(pod *corev1.Pod) {
	resources := &pod.Spec.Containers[0].Resources
	for _, list := range []*corev1.ResourceList{&resources.Requests, &resources.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[gpu] = resource.MustParse("1")
	}
}

func nextToItsLike(pod *corev1.Pod) {
	pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"job": "j"}},
	}}}}
}

func TestPreFilterNamesCandidates(t *testing.T) {
	free := []*corev1.Node{newNode("free-1", vfPool, 1), newNode("free-2", vfPool, 2)}
	freeAnd := func(nodes ...*corev1.Node) []*corev1.Node { return append(nodes, free...) }
	tainted := corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}
	everywhere := ours("PreFilter", "Filter", "PostFilter", "Score", "Reserve", "PreBind", "Bind")
	for name, tc := range map[string]struct {
		full     int
		free     []*corev1.Node
		placed   []*corev1.Pod
		pod      *corev1.Pod
		dra      bool
		podGroup bool
		missed   bool
		plugins  []tf.RegisterPluginFunc
		want     []string
		// some is how many of the nodes are wanted where it does not matter which.
		some int
	}{
		"the two nodes with a free device":                       {full: 100, free: free, pod: vfPod("p", 1), want: []string{"free-1", "free-2"}},
		"the one node with two":                                  {full: 100, free: free, pod: vfPod("p", 2), want: []string{"free-2"}},
		"also where a holder could be preempted on another node": {full: 100, free: free, pod: vfPod("p", 1, withPriority(1)), want: []string{"free-1", "free-2"}},
		"no more than are enough":                                {free: freeNodes(sampleSize + 50), pod: vfPod("p", 1), some: sampleSize},
		"not a cordoned node": {
			full: 100, free: freeAnd(like(newNode("cordoned", vfPool, 1), func(n *corev1.Node) { n.Spec.Unschedulable = true })),
			pod: vfPod("p", 1), want: []string{"free-1", "free-2"},
		},
		"not a node with a taint that the pod does not tolerate": {
			full: 100, free: freeAnd(like(newNode("tainted", vfPool, 1), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{tainted} })),
			pod: vfPod("p", 1), want: []string{"free-1", "free-2"},
		},
		"a node whose taint the pod tolerates": {
			full: 100, free: []*corev1.Node{like(newNode("tainted", vfPool, 1), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{tainted} })},
			pod:  vfPod("p", 1, func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }),
			want: []string{"tainted"},
		},
		"not a node that the selector does not match": {
			full: 100, free: freeAnd(like(newNode("selected", vfPool, 1), func(n *corev1.Node) { n.Labels["rail"] = "1" })),
			pod:  vfPod("p", 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"rail": "1"} }),
			want: []string{"selected"},
		},
		"not a node whose GPUs are taken": {
			full: 100, free: freeAnd(newNode("gpus-taken", vfPool, 1, gpu, 1), newNode("gpus-free", vfPool, 1, gpu, 1)),
			placed: []*corev1.Pod{plainPod(teamA, "gpu-holder", onNode("gpus-taken"), wantsGPU)},
			pod:    vfPod("p", 1, wantsGPU), want: []string{"gpus-free"},
		},
		"all the few for a pod that is tied to other pods":       {full: 300, free: freeNodes(sampleSize + 10), pod: vfPod("p", 1, nextToItsLike), some: sampleSize + 10},
		"all nodes where many are free, for such a pod":          {full: 100, free: freeNodes(100), pod: vfPod("p", 1, nextToItsLike)},
		"all nodes where none has room: an empty set is the end": {full: 100, pod: vfPod("p", 1)},
		"all nodes of a small cluster":                           {full: minCandidateNodes - 3, free: free, pod: vfPod("p", 1)},
		"all nodes in the cycle of a pod group":                  {full: 100, free: free, pod: vfPod("p", 1), podGroup: true},
		"all nodes for a pool that a DeviceClass serves":         {full: 100, free: free, pod: vfPod("p", 1), dra: true},
		"all nodes for a plain pod":                              {full: 100, free: free, pod: plainPod(teamA, "p")},
		"all nodes for a pod that fitted on no candidate":        {full: 100, free: free, pod: vfPod("p", 1), missed: true},
		"all nodes where another plugin may preempt first": {
			full: 100, free: free, pod: vfPod("p", 1),
			plugins: []tf.RegisterPluginFunc{tf.RegisterPostFilterPlugin("Preempts", tf.NewFakePostFilterPlugin(nil, nil)), everywhere, defaultBinder},
		},
		"all nodes in a profile without the plugin at postFilter": {
			full: 100, free: free, pod: vfPod("p", 1),
			plugins: []tf.RegisterPluginFunc{ours("PreFilter", "Filter", "Score", "Reserve", "PreBind", "Bind"), defaultBinder},
		},
		"all nodes in a profile that says how many to score": {
			full: 100, free: free, pod: vfPod("p", 1),
			plugins: []tf.RegisterPluginFunc{everywhere, defaultBinder, func(_ *frameworkruntime.Registry, profile *config.KubeSchedulerProfile) {
				profile.PercentageOfNodesToScore = new(int32(50))
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, holders := fullNodes(tc.full, 0)
			var options []frameworkruntime.Option
			if tc.dra {
				options = append(options, frameworkruntime.WithSharedDRAManager(classResolver{served: map[corev1.ResourceName]bool{vfPool: true}}))
			}
			f := newFixture(t, setup{nodes: append(nodes, tc.free...), placed: append(holders, tc.placed...), options: options, plugins: tc.plugins})
			state := framework.NewCycleState()
			if tc.podGroup {
				state.SetPodGroupSchedulingCycle(framework.NewCycleState())
			}
			if tc.missed {
				f.candidates.missed.Add(tc.pod.UID, nil)
			}
			result, _, _ := f.framework.RunPreFilterPlugins(f.context(), state, tc.pod)
			switch {
			case tc.some > 0:
				require.Len(t, result.NodeNames, tc.some)
			case tc.want == nil:
				require.True(t, result.AllNodes())
			default:
				require.ElementsMatch(t, tc.want, result.NodeNames.UnsortedList())
			}
		})
	}
}

func TestPostFilter(t *testing.T) {
	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		free     int
		want     fwk.Code
		reason   string
		repeated bool
	}{
		"has a pod tried again that fitted on no candidate": {
			pod: vfPod("p", 1), free: 2, want: fwk.UnschedulableAndUnresolvable, repeated: true,
			reason: "of the nodes with free devices 2 were looked at; all nodes are looked at next",
		},
		"must not stop preemption where all nodes were looked at": {pod: vfPod("p", 1), want: fwk.Unschedulable},
		"must not stop preemption for a plain pod":                {pod: plainPod(teamA, "p"), free: 2, want: fwk.Unschedulable},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, holders := fullNodes(100, 0)
			f := newFixture(t, setup{nodes: append(nodes, freeNodes(tc.free)...), placed: holders})
			state, _ := f.preFilter(tc.pod)
			result, status := f.framework.RunPostFilterPlugins(f.context(), state, tc.pod, framework.NewDefaultNodeToStatus())
			require.Nil(t, result)
			require.Equal(t, tc.want, status.Code())
			require.Equal(t, tc.reason, status.Message())
			if !tc.repeated {
				require.Empty(t, f.activated.names())
				return
			}
			require.Equal(t, []string{tc.pod.Name}, f.activated.names())
			again, _, _ := f.framework.RunPreFilterPlugins(f.context(), framework.NewCycleState(), tc.pod)
			require.True(t, again.AllNodes())
		})
	}
}
