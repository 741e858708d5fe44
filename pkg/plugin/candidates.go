package plugin

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
)

// candidates finds the nodes that have the devices a pod needs, so that the framework runs all its filters on those
// alone. It reads a node again only when the node has changed: a NodeInfo's generation is never used twice in a process,
// so an entry that was read at a node's present generation says what the node says now, whatever stood at its place in
// the list before. docs/decisions/0007-candidate-set.md has the reasons and figures.
//
// It is used in scheduling cycles only, which run one after another, and therefore has no lock.
type candidates struct {
	columns map[corev1.ResourceName][]entry
	// fitting is scratch space: the places of the nodes found for the present pod.
	fitting []int
	// limitIs is candidateLimit of limitFor nodes.
	limitFor, limitIs int
}

// entry is what one node has of one pool.
type entry struct {
	// generation of the NodeInfo that the entry was read from; 0 means never.
	generation        int64
	allocatable, free int64
	// lowest is the lowest priority among the pods that hold devices of the pool here, noHolder if there is none.
	lowest int32
}

// noHolder is no lower than any pod's priority.
const noHolder = math.MaxInt32

// maxPoolColumns bounds what pods that name ever new pools make the index remember.
const maxPoolColumns = 64

// find returns the nodes of the snapshot that have room for all needs, or nil where all nodes are to be looked at:
// no node has room (preemption may help, and the pod's condition tells what each lacks), more than limit nodes have, or
// preempting a pod on a node without room could make some. Nodes that are left out are not considered for preemption.
func (c *candidates) find(pod *corev1.Pod, needs []need, nodes []fwk.NodeInfo, limit int) sets.Set[string] {
	columns := make([][]entry, len(needs))
	for i, n := range needs {
		columns[i] = c.column(n.pool, len(nodes))
	}
	priority := preemptionPriority(pod)
	c.fitting = c.fitting[:0]
	for i, node := range nodes {
		switch roomOn(node, i, needs, columns, priority) {
		case roomNow:
			if len(c.fitting) == limit {
				return nil
			}
			c.fitting = append(c.fitting, i)
		case roomByPreemption:
			return nil
		case noRoom:
		}
	}
	if len(c.fitting) == 0 {
		return nil
	}
	names := make(sets.Set[string], len(c.fitting))
	for _, i := range c.fitting {
		names.Insert(nodes[i].Node().Name)
	}
	return names
}

// column returns the entries of a pool, one a node.
func (c *candidates) column(pool corev1.ResourceName, size int) []entry {
	column, known := c.columns[pool]
	if !known && len(c.columns) >= maxPoolColumns {
		clear(c.columns)
	}
	if len(column) != size {
		resized := make([]entry, size)
		copy(resized, column)
		column = resized
		c.columns[pool] = column
	}
	return column
}

type room int

const (
	noRoom room = iota
	roomNow
	roomByPreemption
)

// roomOn brings the entries of one node up to date and weighs them. Its comparison with need is Filter's.
func roomOn(node fwk.NodeInfo, place int, needs []need, columns [][]entry, priority int32) room {
	generation := node.GetGeneration()
	result := roomNow
	for i, n := range needs {
		e := &columns[i][place]
		if e.generation != generation {
			e.read(node, n.pool, generation)
		}
		switch {
		case e.free >= n.count:
		case e.allocatable >= n.count && e.lowest < priority:
			result = roomByPreemption
		default:
			return noRoom
		}
	}
	return result
}

func (e *entry) read(node fwk.NodeInfo, pool corev1.ResourceName, generation int64) {
	e.generation = generation
	e.allocatable = node.GetAllocatable().GetScalarResources()[pool]
	requested := node.GetRequested().GetScalarResources()[pool]
	e.free, e.lowest = e.allocatable-requested, noHolder
	if requested == 0 {
		return
	}
	for _, holder := range node.GetPods() {
		if holder.CalculateResource().Resource.GetScalarResources()[pool] > 0 {
			e.lowest = min(e.lowest, corev1helpers.PodPriority(holder.GetPod()))
		}
	}
}

// preemptionPriority returns the priority below which the pod may preempt others.
func preemptionPriority(pod *corev1.Pod) int32 {
	if policy := pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return math.MinInt32
	}
	return corev1helpers.PodPriority(pod)
}

// minCandidateNodes is the smallest cluster in which a set is handed on. The framework looks at all nodes of a smaller
// one anyway, which takes no time, and a node that was looked at says in the pod's condition what it lacks.
const minCandidateNodes = 100

// nodesFor returns the nodes with room for the pod, or nil if the framework is to look at all.
func (p *TenantNetwork) nodesFor(state fwk.CycleState, pod *corev1.Pod, needs []need, nodes []fwk.NodeInfo) *fwk.PreFilterResult {
	// In the cycle of a pod group the framework changes nodes of its snapshot without giving them a new generation.
	if len(nodes) < minCandidateNodes || state.IsPodGroupSchedulingCycle() {
		return nil
	}
	if slices.ContainsFunc(needs, func(n need) bool { return p.servedByDRA(n.pool) }) {
		return nil
	}
	names := p.candidates.find(pod, needs, nodes, p.candidates.limit(len(nodes)))
	if names == nil {
		return nil
	}
	return &fwk.PreFilterResult{NodeNames: names}
}

// limit returns the size of the largest set that is worth handing on in a cluster of so many nodes.
func (c *candidates) limit(nodes int) int {
	if c.limitFor != nodes {
		c.limitFor, c.limitIs = nodes, candidateLimit(nodes)
	}
	return c.limitIs
}

// candidateLimit weighs what the framework does with a set against what it does without one. Given a set it looks for
// a share of the set, which can be more nodes than it looks for in the whole cluster, and the set itself takes time;
// without one it also rejects, on its way, the nodes that have no room. Costs are in units of one node that passes all
// filters and is scored.
func candidateLimit(nodes int) int {
	const rejection, membership = 0.3, 0.05
	wanted := float64(nodesLookedFor(nodes))
	for size := nodes; size > 0; size-- {
		looked := min(float64(nodes), wanted*float64(nodes)/float64(size))
		passed := min(wanted, float64(size))
		without := passed + rejection*(looked-passed)
		with := min(float64(nodesLookedFor(size)), float64(size)) + membership*float64(size)
		if with < without {
			return size
		}
	}
	return 0
}

// nodesLookedFor is how many feasible nodes kube-scheduler looks for among so many unless its configuration says
// otherwise (k8s.io/kubernetes v1.37.2, pkg/scheduler/schedule_one.go, numFeasibleNodesToFind).
func nodesLookedFor(nodes int) int {
	const least = 100
	if nodes < least {
		return nodes
	}
	return max(least, nodes*max(50-nodes/125, 5)/100)
}
