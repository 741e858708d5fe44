package plugin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func TestPreFilterDecidesWhatIsOurs(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want rdma.Assignment
	}{
		"a pod as admission leaves it is ours": {
			pod:  vfPod("p", 2),
			want: rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 2}},
		},
		"a pod of a pool taken out of the configuration is ours": {
			pod:  injected(plainPod(teamA, "p"), rdma.Assignment{{Type: rdma.VF, Pool: retiredPool, Count: 1}}),
			want: rdma.Assignment{{Type: rdma.VF, Pool: retiredPool, Count: 1}},
		},
		"a plain pod is skipped":                     {pod: plainPod(teamA, "p")},
		"a pod with intent alone is skipped":         {pod: plainPod(teamA, "p", annotated(rdma.VFAnnotation, "1"))},
		"a pod without the finalizer is skipped":     {pod: vfPod("p", 1, func(p *corev1.Pod) { p.Finalizers = nil })},
		"a pod that claims more than it pays for is": {pod: vfPod("p", 1, annotated(rdma.ResourceCountAnnotation, "2"))},
		"a pod that pays without an annotation is":   {pod: vfPod("p", 1, func(p *corev1.Pod) { p.Annotations = nil })},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			state := framework.NewCycleState()
			_, status := f.PreFilter(f.context(), state, tc.pod, nil)
			c, err := readCycle(state)
			require.NoError(t, err)
			if tc.want == nil {
				require.Equal(t, fwk.Skip.String(), status.Code().String())
				require.Nil(t, c)
				return
			}
			requireSuccess(t, status)
			require.Empty(t, cmp.Diff(tc.want, c.assignment))
		})
	}
}

func TestPreFilterRefusesASplitGroup(t *testing.T) {
	inGroup := labelled("scheduling.x-k8s.io/pod-group", "train")
	onPool := func(pool corev1.ResourceName, change ...func(*corev1.Pod)) *corev1.Pod {
		return injected(plainPod(teamA, "other"), rdma.Assignment{{Type: rdma.VF, Pool: pool, Count: 1}}, change...)
	}
	for name, tc := range map[string]struct {
		member *corev1.Pod
		split  bool
	}{
		"a member on another pool splits the group":          {member: onPool(sharedPool, inGroup), split: true},
		"a running member on another pool splits the group":  {member: onPool(sharedPool, inGroup, onNode(node2)), split: true},
		"a member on a retired pool splits the group":        {member: onPool(retiredPool, inGroup), split: true},
		"a member on the same pool does not":                 {member: onPool(vfPool, inGroup)},
		"a member that is being deleted does not count":      {member: onPool(sharedPool, inGroup, deleting)},
		"a pod of another group does not count":              {member: onPool(sharedPool, labelled("scheduling.x-k8s.io/pod-group", "serve"))},
		"a pod of the group's name under another key":        {member: onPool(sharedPool, labelled("training.kubeflow.org/job-name", "train"))},
		"a pod in no group does not count":                   {member: onPool(sharedPool)},
		"a member that is not ours does not count":           {member: plainPod(teamA, "other", inGroup, annotated(rdma.ResourcePoolAnnotation, string(sharedPool)))},
		"a member that forged its assignment does not count": {member: onPool(sharedPool, inGroup, annotated(rdma.ResourceCountAnnotation, "7"))},
		"a group of the same name in another namespace is another": {
			member: injected(plainPod(teamB, "other", inGroup), rdma.Assignment{{Type: rdma.VF, Pool: sharedPool, Count: 1}}),
		},
		"a member of another type does not conflict": {
			member: injected(plainPod(teamA, "other", inGroup), rdma.Assignment{{Type: rdma.PF, Pool: pfPool, Count: 1}}),
		},
		"the pod itself as it was before does not count": {
			member: injected(plainPod(teamA, "pod", inGroup), rdma.Assignment{{Type: rdma.VF, Pool: sharedPool, Count: 1}}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			f.see(tc.member)
			_, status := f.preFilter(vfPod("pod", 1, inGroup))
			if !tc.split {
				requireSuccess(t, status)
				return
			}
			require.Equal(t, fwk.UnschedulableAndUnresolvable.String(), status.Code().String())
			held, _ := rdma.Ours(tc.member)
			for _, want := range []string{teamA + "/train", string(vfPool), string(held[0].Pool), "pod other"} {
				require.Contains(t, status.Message(), want)
			}
		})
	}
}

func TestPreFilterWaitsWhileABreakerIsOpen(t *testing.T) {
	f := newFixture(t, setup{args: Args{Breaker: BreakerArgs{Failures: 2}}})
	f.allocator.fail = always(unavailable())
	first, second := vfPod("first", 1), vfPod("second", 1)
	f.create(first, second)
	for _, pod := range []*corev1.Pod{first, second} {
		_, status := f.prepared(pod)
		requireFault(t, status, "503")
	}
	asked := len(f.allocator.asked())

	state, status := f.preFilter(vfPod("third", 1))
	require.Equal(t, fwk.UnschedulableAndUnresolvable.String(), status.Code().String(), "a pod that waits must not preempt others")
	require.Contains(t, status.Message(), "the tenant-controller does not answer")
	require.Contains(t, status.Message(), "503")
	c, err := readCycle(state)
	require.NoError(t, err)
	require.Nil(t, c)

	// A pod that passed PreFilter before is not let through to the network.
	late := framework.NewCycleState()
	late.Write(stateKey, newCycle(rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}}))
	requireFault(t, f.framework.RunPreBindPlugins(f.context(), late, assumed(first, node1), node1), "does not answer")
	require.Len(t, f.allocator.asked(), asked)

	_, status = f.preFilter(plainPod(teamA, "plain"))
	requireSuccess(t, status)
}

func TestTenantOf(t *testing.T) {
	f := newFixture(t, setup{})
	require.Equal(t, acme, f.tenantOf(teamA))
	require.Equal(t, teamB, f.tenantOf(teamB))
	require.Equal(t, "not-seen-yet", f.tenantOf("not-seen-yet"))
}

func TestOursIndexIsSharedByProfiles(t *testing.T) {
	f := newFixture(t, setup{})
	informer := f.informers.Core().V1().Pods().Informer()
	require.NoError(t, addIndexes(informer))
	f.see(vfPod("p", 1), plainPod(teamA, "plain"))
	indexed, err := informer.GetIndexer().ByIndex(oursIndex, teamA)
	require.NoError(t, err)
	require.Len(t, indexed, 1)
	values, err := informer.GetIndexer().GetIndexers()[oursIndex](cache.DeletedFinalStateUnknown{})
	require.NoError(t, err)
	require.Empty(t, values)
}
