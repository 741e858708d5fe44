package pools

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Usage is the state of one pool over all eligible nodes. All figures are numbers of devices.
type Usage struct {
	Pool corev1.ResourceName `json:"pool"`
	// Allocatable is the sum over the eligible nodes (Ready and not cordoned).
	Allocatable int64 `json:"allocatable"`
	// Requested is what pods on those nodes and pods not yet bound request, without pods being deleted.
	Requested int64 `json:"requested"`
	// Unbound is the part of Requested that belongs to pods not yet bound, Gated the part of it held by gates.
	Unbound int64 `json:"unbound"`
	Gated   int64 `json:"gated"`
	// Releasing is what pods being deleted still hold.
	Releasing int64 `json:"releasing"`
	// Reserved is what was promised at admission to pods that the informer does not show yet.
	Reserved int64 `json:"reserved"`
	// Available is Allocatable − Requested, at least 0; Free is what can be used now, Available − Releasing, at least 0.
	Available int64 `json:"available"`
	Free      int64 `json:"free"`
	// Overcommitted says that Allocatable − Requested is negative.
	Overcommitted bool `json:"overcommitted"`
	// BelowAllocated says that on some node the allocatable is below what its pods hold, as while a device plugin
	// restarts. That is not the same as a full pool.
	BelowAllocated bool `json:"belowAllocated"`
	// Nodes is the number of eligible nodes that offer the pool.
	Nodes int64 `json:"nodes"`
}

// Usage returns every extended resource that a node offers or a pod requests, ordered by name.
func (l *Ledger) Usage() []Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	names := map[corev1.ResourceName]struct{}{}
	for _, counts := range []Counts{l.totals.allocatable, l.totals.requested, l.totals.releasing} {
		for name := range counts {
			names[name] = struct{}{}
		}
	}
	for _, requests := range []unplaced{l.totals.unbound, l.reserved} {
		for name := range requests {
			names[name] = struct{}{}
		}
	}
	for name := range l.offering {
		names[name] = struct{}{}
	}
	all := make([]Usage, 0, len(names))
	for _, name := range slices.SortedFunc(maps.Keys(names), compareNames) {
		all = append(all, l.usage(name))
	}
	return all
}

// UsageOf returns the state of one pool.
func (l *Ledger) UsageOf(pool corev1.ResourceName) Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	return l.usage(pool)
}

func (l *Ledger) usage(pool corev1.ResourceName) Usage {
	t := l.totals
	u := Usage{
		Pool:        pool,
		Allocatable: t.allocatable[pool],
		Requested:   t.requested[pool] + t.unbound[pool].devices,
		Unbound:     t.unbound[pool].devices,
		Gated:       t.gated[pool].devices,
		Releasing:   t.releasing[pool],
		Reserved:    l.reserved[pool].devices,
	}
	available := l.available(pool)
	u.Overcommitted = available < 0
	u.Available = max(available, 0)
	u.Free = max(available-u.Releasing, 0)
	for _, n := range l.nodes { // not only those that offer the pool: a kubelet can drop a resource that pods hold
		if !n.eligible {
			continue
		}
		if n.allocatable[pool] > 0 {
			u.Nodes++
		}
		if n.allocatable[pool] < n.requested[pool]+n.releasing[pool] {
			u.BelowAllocated = true
		}
	}
	return u
}

// available is allocatable − requested, which can be negative.
func (l *Ledger) available(pool corev1.ResourceName) int64 {
	return l.totals.allocatable[pool] - l.totals.requested[pool] - l.totals.unbound[pool].devices
}

// NodeUsage is the state of one pool on one node, in numbers of devices.
type NodeUsage struct {
	Node        string              `json:"node"`
	Pool        corev1.ResourceName `json:"pool"`
	Eligible    bool                `json:"eligible"`
	Allocatable int64               `json:"allocatable"`
	Requested   int64               `json:"requested"`
	Releasing   int64               `json:"releasing"`
	Free        int64               `json:"free"`
}

// NodeUsage returns the state of one pool on every node that offers it, ordered by node.
func (l *Ledger) NodeUsage(pool corev1.ResourceName) []NodeUsage {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []NodeUsage{}
	for _, name := range slices.Sorted(maps.Keys(l.nodes)) {
		n := l.nodes[name]
		if n.capacity[pool] == 0 {
			continue
		}
		all = append(all, NodeUsage{Node: name, Pool: pool, Eligible: n.eligible, Allocatable: n.allocatable[pool],
			Requested: n.requested[pool], Releasing: n.releasing[pool], Free: n.free(pool, false)})
	}
	return all
}
