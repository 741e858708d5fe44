package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func TestSignPod(t *testing.T) {
	base := vfPod("base", 2)
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		same bool
	}{
		"a pod that asks for the same is alike":        {pod: vfPod("other", 2), same: true},
		"what does not matter for nodes may differ":    {pod: vfPod("other", 2, annotated("note", "x"), annotated(rdma.AdmissionIDAnnotation, "7")), same: true},
		"another count differs":                        {pod: vfPod("other", 1)},
		"another pool differs":                         {pod: injected(plainPod(teamA, "other"), rdma.Assignment{{Type: rdma.VF, Pool: sharedPool, Count: 2}})},
		"another type of the same pool differs":        {pod: injected(plainPod(teamA, "other"), rdma.Assignment{{Type: rdma.PF, Pool: vfPool, Count: 2}})},
		"another namespace, which may be a tenant's":   {pod: injected(plainPod(teamB, "other"), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 2}})},
		"a plain pod differs":                          {pod: plainPod(teamA, "other")},
		"a pod that only says so differs":              {pod: vfPod("other", 2, func(p *corev1.Pod) { p.Finalizers = nil })},
		"a split over two types of the pool differs":   {pod: injected(plainPod(teamA, "other"), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}, {Type: rdma.PF, Pool: vfPool, Count: 1}})},
		"a pod with the same and one more pool is not": {pod: injected(plainPod(teamA, "other"), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 2}, {Type: rdma.PF, Pool: pfPool, Count: 1}})},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			mine, other := f.framework.SignPod(f.context(), base), f.framework.SignPod(f.context(), tc.pod)
			require.NotEmpty(t, mine)
			require.NotEmpty(t, other, "without a signature batching is off")
			require.Equal(t, tc.same, string(mine) == string(other), "%s and %s", mine, other)
		})
	}
}

func TestSignPodSaysNothingAboutPlainPods(t *testing.T) {
	f := newFixture(t, setup{})
	fragments, status := f.SignPod(t.Context(), plainPod(teamA, "plain"))
	requireSuccess(t, status)
	require.Empty(t, fragments)
	one, other := f.framework.SignPod(f.context(), plainPod(teamA, "one")), f.framework.SignPod(f.context(), plainPod(teamB, "other"))
	require.NotEmpty(t, one)
	require.Equal(t, string(one), string(other))
}
