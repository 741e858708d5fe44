package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// atCalm is a cluster at rest: a node of two devices, and a pod that holds one of them.
func atCalm() *state {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{vfPool: resource.MustParse("2")},
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	pod := rdmaPod("a", 1)
	pod.Spec.NodeName, pod.Status.Phase = "n1", corev1.PodRunning
	network := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "net-a", Labels: map[string]string{rdma.PodUIDLabel: "a"}}}
	s := &state{Nodes: []corev1.Node{node}, Pods: []corev1.Pod{*pod}, Networks: []metav1.PartialObjectMetadata{network},
		Allocations: []tenant.Allocation{{PodUID: "a", Namespace: "ns", Pod: "pod-a", Node: "n1"}}}
	s.Ledgers = map[string]ledgerPage{"replica": s.recount()}
	return s
}

func pending(uid string, devices int64) corev1.Pod {
	pod := rdmaPod(uid, devices)
	pod.Status.Phase = corev1.PodPending
	return *pod
}

func TestTheStateShows(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*state)
		want   map[class]int
	}{
		"nothing at rest": {func(*state) {}, nil},
		"nothing where a pod waits that does not fit": {func(s *state) {
			s.Pods = append(s.Pods, pending("b", 2))
			s.Ledgers["replica"] = s.recount()
		}, nil},
		"nothing where a pod that waits has its networks already": {func(s *state) {
			s.Pods = append(s.Pods, pending("b", 2))
			s.Allocations = append(s.Allocations, tenant.Allocation{PodUID: "b"})
			s.Ledgers["replica"] = s.recount()
		}, nil},
		"a pod that waits though it fits": {func(s *state) {
			s.Pods = append(s.Pods, pending("b", 1))
			s.Ledgers["replica"] = s.recount()
		}, map[class]int{stuck: 1}},
		"a pod that does not start on its node": {func(s *state) {
			s.Pods[0].Status.Phase = corev1.PodPending
			s.Nodes[0].Status.Allocatable[vfPool] = resource.MustParse("1")
			s.Ledgers["replica"] = s.recount()
		}, map[class]int{stuck: 1}},
		"a pod that does not go away": {func(s *state) {
			s.Pods[0].DeletionTimestamp = &metav1.Time{}
		}, map[class]int{stuck: 1}},
		"a live pod without an allocation": {func(s *state) { s.Allocations = nil }, map[class]int{double: 1}},
		"a live pod without an allocation and finalizer": {func(s *state) {
			s.Allocations, s.Pods[0].Finalizers = nil, nil
		}, map[class]int{double: 1}},
		"an allocation for another node":  {func(s *state) { s.Allocations[0].Node = "n2" }, map[class]int{wrong: 1}},
		"a pod whose network was deleted": {func(s *state) { s.Networks = nil }, map[class]int{wrong: 1}},
		"an allocation without a pod":     {func(s *state) { s.Allocations = append(s.Allocations, tenant.Allocation{PodUID: "x"}) }, map[class]int{leaked: 1}},
		"an allocation of a pod that is over": {func(s *state) {
			s.Pods[0].Status.Phase = corev1.PodFailed
			s.Ledgers["replica"] = s.recount()
		}, map[class]int{leaked: 1}},
		"a network without a pod": {func(s *state) {
			s.Networks = append(s.Networks, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{rdma.PodUIDLabel: "x"}}})
		}, map[class]int{leaked: 1}},
		"a ledger that lost a pod":                          {func(s *state) { s.Ledgers["replica"].Pools[0].Requested = 0 }, map[class]int{drift: 1}},
		"a ledger with a node's devices where they are not": {func(s *state) { s.Ledgers["replica"].Nodes[0].Requested = 0 }, map[class]int{drift: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := atCalm()
			tc.change(s)
			r := &result{violations: append(append(s.waiting(), s.compareAllocations()...), s.compareLedgers()...)}
			for _, c := range []class{leaked, double, wrong, stuck, overcommitted, drift} {
				assert.Equal(t, tc.want[c], r.count(c), "%s: %v", c, r.violations)
			}
		})
	}
}

func TestAPodFitsWhereItsDevicesAreFree(t *testing.T) {
	s := atCalm()
	pod := pending("b", 1)
	_, fits := s.fits(&pod, s.held())
	assert.True(t, fits)
	s.Nodes[0].Spec.Unschedulable = true
	_, fits = s.fits(&pod, s.held())
	assert.False(t, fits, "not on a cordoned node")
	assert.Equal(t, types.UID("b"), pod.UID)
}
