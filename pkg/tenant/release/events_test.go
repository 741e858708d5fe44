package release

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// TestAnEventIsOneThatTheAPIServerTakes: it refuses texts of more than 1024 bytes, and the recorder drops the Event then.
func TestAnEventIsOneThatTheAPIServerTakes(t *testing.T) {
	long := strings.Repeat("ä ", 3000)
	onLongNode := func(a *tenant.Allocation) { a.Node = long }
	refused := func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "UnexpectedAdmissionError", long
		p.Spec.NodeName = strings.Repeat("n", 253)
	}
	release := func(pod *corev1.Pod, forceAfter time.Duration, broken error) *events {
		f := newFixture(t, []client.Object{pod})
		f.controller.policy.forceAfter, f.networks.broken = forceAfter, broken
		_, err := f.reconcile()
		require.Equal(t, broken != nil && forceAfter == 0, err != nil)
		return f.events
	}
	sweep := func(pod *corev1.Pod, repair bool, allocations ...tenant.Allocation) *events {
		f := newSweep(t, allocations, []client.Object{pod}, nil, func(c *SweepConfig) { c.Repair = repair })
		require.NoError(t, f.sweep(t.Context()))
		return f.events
	}
	for name, tc := range map[string]struct {
		events           *events
		wantReason, want string
	}{
		"a node's refusal": {release(podWith(refused), 0, nil), reasonRefused, "must be placed by " + rdma.SchedulerName + "."},
		"a failed release": {release(podWith(succeeded), 0, errors.New(long)), reasonReleaseFailed, "which is tried again: ä ä"},
		"a forced release": {release(podWith(succeeded, deleted(-time.Hour)), time.Minute, errors.New(long)), reasonForced, "the sweep does that later: ä ä"},
		"an allocation that names another node": {
			sweep(rdmaPod("p", "u1", "n1"), false, allocation("u1", "p", "n2", onLongNode)), reasonMissing, "It may give the pod's networks to another."},
		"an allocation that was moved": {
			sweep(rdmaPod("p", "u1", "n1"), true, allocation("u1", "p", "n2", onLongNode)), reasonMended, "it was asked again and now knows."},
		"many networks that changed": {
			sweep(manyNetworks(64), true, allocation("u1", "p", "n2", onLongNode)), reasonLost, " and 62 more are in use by the pod without an allocation. Recreate the pod."},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, tc.events.all, 1)
			require.Contains(t, tc.events.all[0], "Warning "+tc.wantReason)
			note := tc.events.notes[0]
			require.Contains(t, note, tc.want, "what is to be done must not be cut off")
			require.LessOrEqual(t, len(note), 1024)
			require.True(t, utf8.ValidString(note))
		})
	}
}

// manyNetworks is a pod with as many networks, of long names.
func manyNetworks(n int64) *corev1.Pod {
	return rdmaPod("p", "u1", "n1", func(pod *corev1.Pod) {
		assignment := rdma.Assignment{{Type: rdma.VF, Pool: "a.com/vf", Count: n}}
		pod.Annotations = assignment.Annotations()
		pod.Spec.Containers[0].Resources.Requests = devices(n)
		var networks []string
		for i := range n {
			networks = append(networks, fmt.Sprintf("ns/%03d-%s@rdma%d", i, strings.Repeat("x", 150), i))
		}
		pod.Annotations[rdma.NetworksAnnotation] = strings.Join(networks, ",")
	})
}

func TestListed(t *testing.T) {
	for name, tc := range map[string]struct {
		names []string
		want  string
	}{
		"one":                                   {[]string{"a"}, "a"},
		"two":                                   {[]string{"a", "b"}, "a, b"},
		"as many as there is room for":          {[]string{strings.Repeat("a", 397), "b"}, strings.Repeat("a", 397) + ", b"},
		"those that do not fit in are counted":  {[]string{strings.Repeat("a", 398), "b", "c"}, strings.Repeat("a", 398) + " and 2 more"},
		"the first must be named, however long": {[]string{strings.Repeat("a", 500), "b"}, strings.Repeat("a", 397) + "… and 1 more"},
		"foreign text is made fit for one line": {[]string{"a\nb", "c\u202ed"}, "a b, c d"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, listed(tc.names)) })
	}
}
