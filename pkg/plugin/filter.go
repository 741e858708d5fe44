package plugin

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Filter rejects nodes without enough free devices. It goes by the NodeInfo that it is given: preemption and nominated
// pods are simulated in copies of it.
func (p *TenantNetwork) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	c, err := readCycle(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if c == nil {
		return nil
	}
	if reasons, never := p.shortages(c, node); never {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasons...)
	} else if len(reasons) > 0 {
		return fwk.NewStatus(fwk.Unschedulable, reasons...)
	}
	return nil
}

// shortages returns all reasons why the node cannot serve the pod's needs now, and whether it could not if it were empty:
// then nobody is to be preempted for it.
func (p *TenantNetwork) shortages(c *cycle, node fwk.NodeInfo) (reasons []string, never bool) {
	for _, n := range c.needs {
		lacks := shortage{
			need:        n,
			allocatable: node.GetAllocatable().GetScalarResources()[n.pool],
			requested:   node.GetRequested().GetScalarResources()[n.pool],
		}
		if lacks.allocatable-lacks.requested >= n.count || lacks.allocatable == 0 && p.servedByDRA(n.pool) {
			continue
		}
		reasons = append(reasons, c.textOf(lacks))
		never = never || n.count > lacks.allocatable
	}
	return reasons, never
}

// shortage is how a node, or the nodes that are like it, falls short of one need.
type shortage struct {
	need
	allocatable, requested int64
	// text is what the pod's condition shows.
	text string
}

// textOf returns the text of a shortage. It is called from many goroutines at once.
func (c *cycle) textOf(s shortage) string {
	if last := c.shortage.Load(); last != nil && last.need == s.need && last.allocatable == s.allocatable && last.requested == s.requested {
		return last.text
	}
	made := s // only what is kept goes to the heap
	made.text = s.String()
	c.shortage.Store(&made)
	return made.text
}

// String starts with what NodeResourcesFit would say, since people and programs know those words.
func (s shortage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Insufficient %s (allocatable %d, requested %d, need %d)", s.pool, s.allocatable, s.requested, s.count)
	if s.allocatable < s.requested {
		b.WriteString(": allocatable is below what is allocated, a device plugin may be restarting")
	}
	return b.String()
}

// servedByDRA reports whether a DeviceClass serves the pool's name through dynamic resource allocation. Such devices
// stand in no node's allocatable; the in-tree plugins count them.
func (p *TenantNetwork) servedByDRA(pool corev1.ResourceName) bool {
	manager := p.handle.SharedDRAManager()
	if manager == nil {
		return false
	}
	resolver := manager.DeviceClassResolver()
	return resolver != nil && resolver.GetDeviceClass(pool) != nil
}
