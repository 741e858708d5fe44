package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

func TestPreBindLooksAtTheNodeAgainAfterTheCall(t *testing.T) {
	for name, tc := range map[string]struct {
		// meanwhile happens while the tenant-controller is asked for 1 of the node's 2 devices.
		meanwhile func(f *fixture)
		want      string
	}{
		"another scheduler took all devices (S33)": {func(f *fixture) {
			f.see(vfPod("thief", 2, onNode(node1)))
		}, "node node-1 changed while the tenant-controller was asked: Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 2, requested 2, need 1)"},
		"a pod that asks for the pool in plain took them": {func(f *fixture) {
			thief := plainPod(teamB, "thief")
			thief.Spec.NodeName = node1
			thief.Spec.Containers[0].Resources.Requests = devices(vfPool, 2)
			f.see(thief)
		}, "requested 2, need 1"},
		"the device plugin lost devices (S35)": {func(f *fixture) {
			f.seeNode(newNode(node1, vfPool, 0))
		}, "(allocatable 0, requested 0, need 1)"},
		"the node is gone": {func(f *fixture) {
			require.NoError(f.t, f.informers.Core().V1().Nodes().Informer().GetIndexer().Delete(newNode(node1)))
		}, "the node is gone"},
		"a pod of ours that is about to be bound counts, although nobody shows it yet": {func(f *fixture) {
			other := vfPod("other", 2)
			f.see(other)
			f.aboutToBeBound(other)
		}, "requested 2, need 1"},

		"one device that is left is enough": {func(f *fixture) { f.see(vfPod("other", 1, onNode(node1))) }, ""},
		"pods on other nodes do not count":  {func(f *fixture) { f.see(vfPod("other", 2, onNode(node2))) }, ""},
		"pods that ended do not count": {func(f *fixture) {
			ended := vfPod("ended", 2, onNode(node1))
			ended.Status.Phase = corev1.PodSucceeded
			f.see(ended)
		}, ""},
		"a pod of ours that the informer shows already is not counted twice": {func(f *fixture) {
			other := vfPod("other", 1, onNode(node1))
			f.see(other)
			f.aboutToBeBound(other)
		}, ""},
		"a pod of ours that was deleted before it was bound does not count": {func(f *fixture) {
			f.aboutToBeBound(vfPod("deleted", 2))
		}, ""},
		"a pod of ours that is being deleted before it was bound does not count": {func(f *fixture) {
			other := vfPod("deleting", 2, deleting)
			f.see(other)
			f.aboutToBeBound(other)
		}, ""},
		"the pod itself does not count": {func(f *fixture) {
			f.aboutToBeBound(vfPod("p", 2))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := vfPod("p", 1)
			f.create(pod)
			f.allocator.change = func(*tenant.Allocation) { tc.meanwhile(f) }
			_, status := f.prepared(pod)
			if tc.want == "" {
				requireSuccess(t, status)
				return
			}
			requireFault(t, status, tc.want)
			f.mustNotBind(pod)
			require.NotNil(t, f.allocator.holds(pod.UID), "the allocation stays with the pod for the next attempt")
		})
	}
}

// aboutToBeBound has a pod between Reserve and Bind on node1.
func (f *fixture) aboutToBeBound(pod *corev1.Pod) {
	f.t.Helper()
	assignment, ours := rdma.Ours(pod)
	require.True(f.t, ours)
	f.inFlight.add(pod.UID, placement{pod: pod, node: node1, assignment: assignment})
}
