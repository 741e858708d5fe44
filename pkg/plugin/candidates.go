package plugin

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/lru"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	// minCandidateNodes is the smallest cluster in which candidates are named. The framework looks at all nodes of a
	// smaller one anyway, which takes no time, and a node that was looked at says in the pod's condition what it lacks.
	minCandidateNodes = 100
	// sampleSize is how many candidates are enough: as many feasible nodes as kube-scheduler looks for at the least
	// (k8s.io/kubernetes v1.37.2, pkg/scheduler/schedule_one.go, minFeasibleNodesToFind).
	sampleSize = 100
	// maxPoolColumns bounds what pods that name ever new pools make the index remember.
	maxPoolColumns = 64
	// maxMissed bounds how many pods are remembered for which no candidate was good. One that is forgotten costs an attempt.
	maxMissed = 10_000
)

// candidates finds nodes on which a pod will probably fit, so that the framework runs its filters and scores on those
// alone. If none of them passes, PostFilter keeps the framework from preempting for it, and the pod's next attempt looks
// at all nodes. docs/decisions/0010-sampled-candidates.md has the reasons and figures.
//
// It is used in scheduling cycles only, which run one after another, and therefore has no lock.
type candidates struct {
	columns map[corev1.ResourceName][]entry
	// next is where in the list of nodes the next look begins, so that all nodes get their turn.
	next int
	// missed holds the UIDs of the pods that fitted on none of their candidates.
	missed *lru.Cache
}

// entry is what one node has free of one pool. It is read again only when the node has changed: a NodeInfo's generation
// is never used twice in a process, so an entry that was read at a node's present generation says what the node says
// now, whatever stood at its place in the list before.
type entry struct {
	// generation of the NodeInfo that the entry was read from; 0 means never.
	generation int64
	free       int64
}

func newCandidates() *candidates {
	return &candidates{columns: map[corev1.ResourceName][]entry{}, missed: lru.New(maxMissed)}
}

// find returns the names of nodes that have room for all needs and pass probably, or nil if there is none. With most it
// stops after so many nodes; without, which is 0, it returns all there are, or nil where they are too many to be a help.
func (c *candidates) find(needs []need, nodes []fwk.NodeInfo, most int, probably func(fwk.NodeInfo) bool) sets.Set[string] {
	columns := make([][]entry, len(needs))
	for i, n := range needs {
		columns[i] = c.column(n.pool, len(nodes))
	}
	limit := most
	if most == 0 {
		// The framework looks for a share of the set, and a set of more than this is slower than none: see the decision.
		limit = len(nodes) / 3
	}
	names := make(sets.Set[string], min(limit, sampleSize))
	place := c.next % len(nodes)
	for range nodes {
		node := nodes[place]
		if roomOn(node, place, needs, columns) && probably(node) {
			if most == 0 && len(names) == limit {
				return nil
			}
			names.Insert(node.Node().Name)
		}
		if place++; place == len(nodes) {
			place = 0
		}
		if most > 0 && len(names) == most {
			break
		}
	}
	c.next = place
	if len(names) == 0 {
		return nil
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

// roomOn brings the entries of one node up to date as far as they are looked at. Its comparison with need is Filter's.
func roomOn(node fwk.NodeInfo, place int, needs []need, columns [][]entry) bool {
	generation := node.GetGeneration()
	for i, n := range needs {
		e := &columns[i][place]
		if e.generation != generation {
			*e = entry{generation: generation, free: node.GetAllocatable().GetScalarResources()[n.pool] - node.GetRequested().GetScalarResources()[n.pool]}
		}
		if e.free < n.count {
			return false
		}
	}
	return true
}

// nodesFor returns nodes with room for the pod, or nil if the framework is to look at all.
func (p *TenantNetwork) nodesFor(state fwk.CycleState, pod *corev1.Pod, c *cycle, nodes []fwk.NodeInfo) *fwk.PreFilterResult {
	// In the cycle of a pod group the framework changes nodes of its snapshot without giving them a new generation.
	if len(nodes) < minCandidateNodes || state.IsPodGroupSchedulingCycle() || !p.mayNarrow() {
		return nil
	}
	if _, missed := p.candidates.missed.Get(pod.UID); missed {
		return nil
	}
	if slices.ContainsFunc(c.needs, func(n need) bool { return p.servedByDRA(n.pool) }) {
		return nil
	}
	most := sampleSize
	if tiedToFewNodes(&pod.Spec) {
		most = 0
	}
	names := p.candidates.find(c.needs, nodes, most, probablyFits(pod, c.needs))
	if names == nil {
		return nil
	}
	c.narrowedTo = len(names)
	return &fwk.PreFilterResult{NodeNames: names}
}

// tiedToFewNodes reports whether a sample of the nodes with room is likely to hold none that is good for the pod, for a
// reason that probablyFits does not see.
func tiedToFewNodes(spec *corev1.PodSpec) bool {
	if affinity := spec.Affinity; affinity != nil && affinity.PodAffinity != nil && len(affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		return true
	}
	return len(spec.ResourceClaims) > 0 ||
		slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == corev1.DoNotSchedule }) ||
		slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// probablyFits returns a check of what most often keeps a pod from a node that has the devices: selector, affinity,
// taints, and other resources that are used up. It decides nothing; the framework's filters do.
func probablyFits(pod *corev1.Pod, needs []need) func(fwk.NodeInfo) bool {
	isOpen := pools.NodeMatcher(pod)
	wants := othersOf(pod, needs)
	return func(info fwk.NodeInfo) bool {
		node := info.Node()
		return !node.Spec.Unschedulable && isOpen(node) && len(info.GetPods()) < info.GetAllocatable().GetAllowedPodNumber() && wants.leftOn(info)
	}
}

// others is what a pod requests besides the devices, in the units of NodeInfo.
type others struct {
	milliCPU, memory, ephemeralStorage int64
	scalars                            []need
}

func othersOf(pod *corev1.Pod, needs []need) others {
	var o others
	for name, quantity := range rdma.Requests(pod) {
		switch name {
		case corev1.ResourceCPU:
			o.milliCPU = quantity.MilliValue()
		case corev1.ResourceMemory:
			o.memory = quantity.Value()
		case corev1.ResourceEphemeralStorage:
			o.ephemeralStorage = quantity.Value()
		default:
			if !slices.ContainsFunc(needs, func(n need) bool { return n.pool == name }) {
				o.scalars = append(o.scalars, need{pool: name, count: quantity.Value()})
			}
		}
	}
	return o
}

func (o others) leftOn(info fwk.NodeInfo) bool {
	allocatable, requested := info.GetAllocatable(), info.GetRequested()
	return o.milliCPU <= allocatable.GetMilliCPU()-requested.GetMilliCPU() && o.memory <= allocatable.GetMemory()-requested.GetMemory() &&
		o.ephemeralStorage <= allocatable.GetEphemeralStorage()-requested.GetEphemeralStorage() &&
		!slices.ContainsFunc(o.scalars, func(n need) bool {
			return n.count > allocatable.GetScalarResources()[n.pool]-requested.GetScalarResources()[n.pool]
		})
}
