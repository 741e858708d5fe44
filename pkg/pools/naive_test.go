package pools

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// requested is the effective request, said in another way than PodRequests: of one init container and one container the
// larger.
func requested(p *corev1.Pod, name corev1.ResourceName) int64 {
	n := p.Spec.Containers[0].Resources.Requests[name]
	most := n.Value()
	for _, c := range p.Spec.InitContainers {
		n := c.Resources.Requests[name]
		most = max(most, n.Value())
	}
	return most
}

func holds(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

func eligible(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && n.Status.Conditions[0].Status == corev1.ConditionTrue
}

func quantity(l corev1.ResourceList, name corev1.ResourceName) int64 {
	q := l[name]
	return q.Value()
}

// usage is D5, word by word.
func (s *sim) usage(name corev1.ResourceName) Usage {
	u := Usage{Pool: name}
	for _, n := range s.nodes {
		if !eligible(n) {
			continue
		}
		here := quantity(n.Status.Allocatable, name)
		u.Allocatable += here
		if here > 0 {
			u.Nodes++
		}
		if requested, releasing := s.onNode(n.Name, name); here < requested+releasing {
			u.BelowAllocated = true
		}
	}
	for _, p := range s.pods {
		n, known := s.nodes[p.Spec.NodeName]
		switch count := requested(p, name); {
		case !holds(p):
		case p.Spec.NodeName == "" && p.DeletionTimestamp == nil:
			u.Unbound += count
			u.Requested += count
			if len(p.Spec.SchedulingGates) > 0 {
				u.Gated += count
			}
		case !known || !eligible(n):
		case p.DeletionTimestamp != nil:
			u.Releasing += count
		default:
			u.Requested += count
		}
	}
	for _, r := range s.reserved {
		if r.entry.Pool == name {
			u.Reserved += r.entry.Count
		}
	}
	u.Overcommitted = u.Requested > u.Allocatable
	u.Available = max(u.Allocatable-u.Requested, 0)
	u.Free = max(u.Allocatable-u.Requested-u.Releasing, 0)
	return u
}

func (s *sim) onNode(node string, name corev1.ResourceName) (held, releasing int64) {
	for _, p := range s.pods {
		switch {
		case !holds(p) || p.Spec.NodeName != node:
		case p.DeletionTimestamp != nil:
			releasing += requested(p, name)
		default:
			held += requested(p, name)
		}
	}
	return held, releasing
}

// naive is D6 for one type, word by word.
func (s *sim) naive(d Demand, ask rdma.Ask, group string) string {
	held := s.heldByGroup(group, ask.Type, d.AdmissionID)
	options := s.options(ask, held)
	if len(options) == 0 || options[0] == shared && ask.Count > 1 {
		return "refused"
	}
	say := func(pool corev1.ResourceName, outcome Outcome) string {
		return fmt.Sprintf("%v outcome %d from group %t", rdma.Assignment{{Type: ask.Type, Pool: pool, Count: ask.Count}}, outcome, len(held) > 0)
	}
	for _, outcome := range []Outcome{Room, RoomAfterRelease} {
		for _, pool := range options {
			if s.room(d, ask.Count, pool, outcome == RoomAfterRelease) {
				return say(pool, outcome)
			}
		}
	}
	for _, pool := range options {
		if s.everRoom(d, ask.Count, pool) {
			return say(pool, Waits)
		}
	}
	if s.cfg.Policy.WhenFull == Reject && len(held) == 0 {
		return "refused"
	}
	return say(options[0], NoNode)
}

func (s *sim) options(ask rdma.Ask, held []corev1.ResourceName) []corev1.ResourceName {
	var options []corev1.ResourceName
	for _, pool := range s.cfg.Pools {
		if slices.Contains(held, pool.Name) {
			return []corev1.ResourceName{pool.Name}
		}
		if len(held) == 0 && slices.Contains(pool.Types, ask.Type) && (!pool.Shared || ask.Count == 1) {
			options = append(options, pool.Name)
		}
	}
	return options
}

func (s *sim) everRoom(d Demand, count int64, pool corev1.ResourceName) bool {
	for _, n := range s.nodes {
		ever := func(name corev1.ResourceName) int64 {
			return max(quantity(n.Status.Capacity, name), quantity(n.Status.Allocatable, name))
		}
		if selects(d.Pod, n) && hasCPU(d.Pod, n) && ever(pool) >= count && ever(gpu) >= requested(d.Pod, gpu) {
			return true
		}
	}
	return false
}

func selects(p *corev1.Pod, n *corev1.Node) bool {
	host, ok := p.Spec.NodeSelector[corev1.LabelHostname]
	return !ok || host == n.Name
}

func hasCPU(p *corev1.Pod, n *corev1.Node) bool {
	return quantity(n.Status.Allocatable, corev1.ResourceCPU) >= requested(p, corev1.ResourceCPU)
}

func (s *sim) room(d Demand, count int64, pool corev1.ResourceName, afterRelease bool) bool {
	waiting := s.waiting(d, pool)
	var slots int64
	for _, n := range s.nodes {
		if !eligible(n) || !selects(d.Pod, n) || !hasCPU(d.Pod, n) || quantity(n.Status.Allocatable, gpu) < requested(d.Pod, gpu) {
			continue
		}
		held, releasing := s.onNode(n.Name, pool)
		free := quantity(n.Status.Allocatable, pool) - held
		if !afterRelease {
			free -= releasing
		}
		slots += max(free, 0) / count
	}
	return slots > (waiting+count-1)/count
}

// waiting leaves out what not even the largest node could hold.
func (s *sim) waiting(d Demand, pool corev1.ResourceName) int64 {
	var largest, waiting int64
	for _, n := range s.nodes {
		largest = max(largest, quantity(n.Status.Capacity, pool), quantity(n.Status.Allocatable, pool))
	}
	for _, p := range s.pods {
		ignored := len(p.Spec.SchedulingGates) > 0 && s.cfg.Policy.GatedPods == IgnoreGated
		if count := requested(p, pool); holds(p) && p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !ignored && count <= largest {
			waiting += count
		}
	}
	for id, r := range s.reserved {
		if r.entry.Pool == pool && id != d.AdmissionID && r.entry.Count <= largest {
			waiting += r.entry.Count
		}
	}
	return waiting
}

func (s *sim) heldByGroup(group string, t rdma.Type, own string) []corev1.ResourceName {
	var held []corev1.ResourceName
	for _, p := range s.pods {
		if a, ours := rdma.Ours(p); ours && group != "" && p.Labels[gang] == group && holds(p) && p.DeletionTimestamp == nil && a[0].Type == t {
			held = append(held, a[0].Pool)
		}
	}
	for id, r := range s.reserved {
		if group != "" && r.group == group && id != own && r.entry.Type == t {
			held = append(held, r.entry.Pool)
		}
	}
	return held
}
