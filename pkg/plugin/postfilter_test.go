package plugin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

func TestPostFilterWhileTheTenantControllerIsSick(t *testing.T) {
	taken := framework.NewNodeToStatus(nil, fwk.NewStatus(fwk.Unschedulable))
	hopeless := framework.NewNodeToStatus(nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable))
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		nodes  *framework.NodeToStatus
		closed bool
		want   fwk.Code
	}{
		"keeps others from being evicted for a pod":                {pod: vfPod("p", 2), nodes: taken, want: fwk.UnschedulableAndUnresolvable},
		"must not hold a pod that never preempts":                  {pod: vfPod("p", 2, never), nodes: taken, want: fwk.Unschedulable},
		"must not hold a pod that no node could take":              {pod: vfPod("p", 2), nodes: hopeless, want: fwk.Unschedulable},
		"must not hold a plain pod":                                {pod: plainPod(teamA, "p"), nodes: taken, want: fwk.Unschedulable},
		"must not hold any pod once the tenant-controller is well": {pod: vfPod("p", 2), nodes: taken, closed: true, want: fwk.Unschedulable},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{args: Args{Breaker: BreakerArgs{Failures: 1, Pause: metav1.Duration{Duration: time.Hour}}}})
			state, _ := f.preFilter(tc.pod)
			if !tc.closed {
				done, err := f.breakers.allow(t.Context(), acme)
				require.NoError(t, err)
				done(unavailable())
			}
			_, status := f.framework.RunPostFilterPlugins(f.context(), state, tc.pod, tc.nodes)
			require.Equal(t, tc.want.String(), status.Code().String())
		})
	}
}
