package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// state is the cluster at one moment, as its parts show it.
type state struct {
	Nodes       []corev1.Node
	Pods        []corev1.Pod
	Allocations []tenant.Allocation
	Networks    []metav1.PartialObjectMetadata // with our label
	// Ledgers are the pages of the webhook replicas.
	Ledgers map[string]ledgerPage
}

// ledgerPage is /pools of a replica: the sums, and node by node.
type ledgerPage struct {
	Pools []pools.Usage
	Nodes []pools.NodeUsage
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// placeable says whether new pods may go to the node.
func placeable(node *corev1.Node) bool {
	return eligible(node) && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

// eligible nodes are Ready and not cordoned.
func eligible(node *corev1.Node) bool {
	return !node.Spec.Unschedulable && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// held are the devices that pods hold, by node; those of pods without a node are under "".
func (s *state) held() map[string]map[string]int64 {
	held := map[string]map[string]int64{}
	for i := range s.Pods {
		pod := &s.Pods[i]
		if terminal(pod) {
			continue
		}
		if held[pod.Spec.NodeName] == nil {
			held[pod.Spec.NodeName] = map[string]int64{}
		}
		for pool, n := range devicesOf(rdma.Requests(pod)) {
			held[pod.Spec.NodeName][pool] += n
		}
	}
	return held
}

// fits says on which node the devices of the pod are free.
func (s *state) fits(pod *corev1.Pod, held map[string]map[string]int64) (string, bool) {
	wants := devicesOf(rdma.Requests(pod))
	for i := range s.Nodes {
		node := &s.Nodes[i]
		offers := devicesOf(node.Status.Allocatable)
		fits := placeable(node)
		for pool, n := range wants {
			fits = fits && offers[pool]-held[node.Name][pool] >= n
		}
		if fits {
			return node.Name, true
		}
	}
	return "", false
}

// waiting are the pods that should not be as they are once everything works: Pending although they fit, being deleted,
// or gated.
func (s *state) waiting() []violation {
	held := s.held()
	var found []violation
	for i := range s.Pods {
		pod := &s.Pods[i]
		var text string
		switch node, fits := s.fits(pod, held); {
		case pod.DeletionTimestamp != nil:
			text = fmt.Sprintf("it is being deleted since %s, phase %s, finalizers %v", pod.DeletionTimestamp.UTC().Format("15:04:05"), pod.Status.Phase, pod.Finalizers)
		case pod.Status.Phase == corev1.PodPending && pod.Spec.NodeName != "":
			text = "it is Pending on " + pod.Spec.NodeName
		case pod.Status.Phase == corev1.PodPending && fits:
			text = fmt.Sprintf("it is Pending and would fit on %s: %s", node, scheduledMessage(pod))
		default:
			continue
		}
		found = append(found, violation{stuck, string(pod.UID), pod.Namespace + "/" + pod.Name, text})
	}
	return found
}

func scheduledMessage(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Reason + ": " + c.Message
		}
	}
	return "no scheduler has looked at it"
}

// usesNetworks says whether the pod is one of ours that has networks now. Its finalizer does not matter: it may be gone
// although the pod runs, which is what is looked for.
func usesNetworks(pod *corev1.Pod) bool {
	_, assigned := pod.Annotations[rdma.ResourcePoolAnnotation]
	return assigned && pod.Spec.NodeName != "" && !terminal(pod)
}

// compareAllocations: live pods and allocations are the same, node by node, and so are the networks in the cluster.
func (s *state) compareAllocations() []violation {
	var found []violation
	byUID := map[string]*corev1.Pod{}
	for i := range s.Pods {
		byUID[string(s.Pods[i].UID)] = &s.Pods[i]
	}
	allocated := map[string]bool{}
	for _, a := range s.Allocations {
		uid := string(a.PodUID)
		allocated[uid] = true
		name := a.Namespace + "/" + a.Pod
		pod := byUID[uid]
		switch {
		case pod == nil:
			found = append(found, violation{leaked, uid, name, "its allocation is there though the pod is gone"})
		case terminal(pod):
			found = append(found, violation{leaked, uid, name, "its allocation is there though the pod is " + string(pod.Status.Phase)})
		case pod.Spec.NodeName != "" && pod.Spec.NodeName != a.Node:
			found = append(found, violation{wrong, uid, name, fmt.Sprintf("its allocation is for node %s, it runs on %s", a.Node, pod.Spec.NodeName)})
		}
	}
	made := map[string]int{}
	for _, network := range s.Networks {
		uid := network.Labels[rdma.PodUIDLabel]
		made[uid]++
		if pod := byUID[uid]; (pod == nil || terminal(pod)) && !allocated[uid] {
			found = append(found, violation{leaked, uid, network.Namespace + "/?", "network " + network.Name + " is there though nobody has it"})
		}
	}
	return append(found, compareLive(byUID, allocated, made)...)
}

// compareLive: every live pod has its allocation and its networks.
func compareLive(byUID map[string]*corev1.Pod, allocated map[string]bool, made map[string]int) []violation {
	var found []violation
	for _, uid := range slices.Sorted(maps.Keys(byUID)) {
		pod := byUID[uid]
		if !usesNetworks(pod) {
			continue
		}
		want := 0
		for _, n := range devicesOf(rdma.Requests(pod)) {
			want += int(n)
		}
		switch name := pod.Namespace + "/" + pod.Name; {
		case !allocated[uid]:
			found = append(found, violation{double, uid, name, "it lives on " + pod.Spec.NodeName + " and has no allocation"})
		case made[uid] != want:
			found = append(found, violation{wrong, uid, name, fmt.Sprintf("%d networks are there for its %d devices", made[uid], want)})
		}
	}
	return found
}

// recount is what the ledger should say, computed from nodes and pods alone.
func (s *state) recount() ledgerPage {
	sums := map[string]*pools.Usage{}
	usage := func(pool string) *pools.Usage {
		if sums[pool] == nil {
			sums[pool] = &pools.Usage{Pool: corev1.ResourceName(pool)}
		}
		return sums[pool]
	}
	held, page := s.held(), ledgerPage{}
	for i := range s.Nodes {
		node := &s.Nodes[i]
		counts, ok := held[node.Name], eligible(node)
		for pool, n := range devicesOf(node.Status.Allocatable) {
			page.Nodes = append(page.Nodes, pools.NodeUsage{Node: node.Name, Pool: corev1.ResourceName(pool), Eligible: ok,
				Allocatable: n, Requested: counts[pool], Free: max(n-counts[pool], 0)})
			if ok {
				usage(pool).Allocatable += n
				usage(pool).Nodes++
			}
		}
		for pool, n := range counts {
			if ok {
				usage(pool).Requested += n
				usage(pool).BelowAllocated = usage(pool).BelowAllocated || n > devicesOf(node.Status.Allocatable)[pool]
			}
		}
	}
	for pool, n := range held[""] {
		usage(pool).Requested += n
		usage(pool).Unbound += n
	}
	for _, u := range sums {
		u.Overcommitted = u.Allocatable < u.Requested
		u.Available = max(u.Allocatable-u.Requested, 0)
		u.Free = u.Available
		page.Pools = append(page.Pools, *u)
	}
	page.sort()
	return page
}

func (p *ledgerPage) sort() {
	slices.SortFunc(p.Pools, func(a, b pools.Usage) int { return strings.Compare(string(a.Pool), string(b.Pool)) })
	slices.SortFunc(p.Nodes, func(a, b pools.NodeUsage) int {
		return strings.Compare(a.Node+" "+string(a.Pool), b.Node+" "+string(b.Pool))
	})
}

// compareLedgers: every replica's ledger is the recount. It is asked at rest: nothing is being deleted, gated or admitted.
func (s *state) compareLedgers() []violation {
	want := s.recount()
	var found []violation
	fail := func(replica, format string, args ...any) {
		found = append(found, violation{Class: drift, Pod: replica, Text: fmt.Sprintf(format, args...)})
	}
	for _, replica := range slices.Sorted(maps.Keys(s.Ledgers)) {
		have := s.Ledgers[replica]
		have.sort()
		for i := range have.Pools {
			have.Pools[i].Reserved = 0 // what was promised to creates that failed later is nobody else's to know
		}
		if !slices.Equal(have.Pools, want.Pools) {
			fail(replica, "pools are %+v, counted were %+v", have.Pools, want.Pools)
		}
		for _, node := range want.Nodes {
			if !slices.Contains(have.Nodes, node) {
				fail(replica, "counted was %+v, it says otherwise", node)
			}
		}
	}
	return found
}
