package plugin

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const oneWrite = "create binding"

// TestBindWritesNodeAndNetworksAtOnce: cases W16, S8 of docs/cases.md.
func TestBindWritesNodeAndNetworksAtOnce(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 2, annotated("mine", "kept"))
	f.create(pod)
	requireSuccess(t, f.bound(pod))

	stored := f.stored(pod)
	require.Equal(t, node1, stored.Spec.NodeName)
	require.Equal(t, "team-a/p-0@rdma0,team-a/p-1@rdma1", stored.Annotations[rdma.NetworksAnnotation])
	require.Equal(t, "kept", stored.Annotations["mine"])
	require.Equal(t, []string{oneWrite}, podWrites(f.client))
}

func TestBindLeavesOtherPodsToDefaultBinder(t *testing.T) {
	for name, tc := range map[string]struct {
		pod   *corev1.Pod
		event string
	}{
		"a plain pod without a word": {pod: plainPod(teamA, "p")},
		"a pod with intent that admission never saw, aloud": {
			pod:   plainPod(teamA, "p", annotated(rdma.VFAnnotation, "1")),
			event: "did not go through the tenant-webhook",
		},
		"a pod whose annotation is not paid for, aloud": {
			pod:   vfPod("p", 1, annotated(rdma.ResourceCountAnnotation, "3")),
			event: "says 3 of mellanox.com/mlnx_sriov_rdma, but the containers request 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			f.create(tc.pod)
			before := notInjectedPods(t)
			requireSuccess(t, f.bound(tc.pod))

			stored := f.stored(tc.pod)
			require.Equal(t, node1, stored.Spec.NodeName)
			require.Equal(t, tc.pod.Annotations, stored.Annotations)
			require.Equal(t, []string{oneWrite}, podWrites(f.client))
			require.Empty(t, f.allocator.asked())
			if tc.event == "" {
				require.Empty(t, f.events)
				require.InDelta(t, before, notInjectedPods(t), 0)
				return
			}
			event := <-f.events
			require.Contains(t, event, "Warning "+reasonNotInjected)
			require.Contains(t, event, tc.event)
			require.InDelta(t, before+1, notInjectedPods(t), 0)
		})
	}
}

func notInjectedPods(t *testing.T) float64 {
	t.Helper()
	value, err := testutil.GetCounterMetricValue(sharedMetrics().notInjected)
	require.NoError(t, err)
	return value
}

func TestBindMustNotBindWithoutState(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	f.create(pod)
	for name, status := range map[string]*fwk.Status{
		"PreBind": f.framework.RunPreBindPlugins(f.context(), framework.NewCycleState(), assumed(pod, node1), node1),
		"Bind":    f.framework.RunBindPlugins(f.context(), framework.NewCycleState(), assumed(pod, node1), node1),
	} {
		t.Run(name, func(t *testing.T) { requireFault(t, status, "cycle state of an RDMA pod was lost") })
	}
	f.mustNotBind(pod)
}

func TestBindMustNotBindWithoutPreBind(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	f.create(pod)
	requireFault(t, f.framework.RunBindPlugins(f.context(), f.passed(pod), assumed(pod, node1), node1), "enabled at preBind?")
	f.mustNotBind(pod)
}

func TestBindMustNotBindToAnotherNodeThanPreBindAskedFor(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	f.create(pod)
	state, status := f.prepared(pod)
	requireSuccess(t, status)
	requireFault(t, f.framework.RunBindPlugins(f.context(), state, assumed(pod, node2), node2), "no networks for node node-2")
	f.mustNotBind(pod)
}

func TestBindGoesByTheAgeOfTheNetworks(t *testing.T) {
	t.Run("29 seconds are young enough", func(t *testing.T) {
		f := newFixture(t, setup{})
		pod := vfPod("p", 1)
		f.create(pod)
		state, status := f.prepared(pod)
		requireSuccess(t, status)
		f.clock.Step(29 * time.Second)
		requireSuccess(t, f.framework.RunBindPlugins(f.context(), state, assumed(pod, node1), node1))
	})
	t.Run("older ones are not bound", func(t *testing.T) {
		f := newFixture(t, setup{})
		pod := vfPod("p", 1)
		f.create(pod)
		state, status := f.prepared(pod)
		requireSuccess(t, status)
		f.clock.Step(31 * time.Second)
		requireFault(t, f.framework.RunBindPlugins(f.context(), state, assumed(pod, node1), node1), "given 31s ago, not less than 30s")
		f.mustNotBind(pod)
		// The next attempt asks again and gets the same networks.
		requireSuccess(t, f.bound(pod))
		require.Equal(t, "team-a/p-0@rdma0", f.stored(pod).Annotations[rdma.NetworksAnnotation])
		require.Len(t, f.allocator.asked(), 2)
	})
	t.Run("the time that the tenant-controller took counts", func(t *testing.T) {
		f := newFixture(t, setup{})
		pod := vfPod("p", 1)
		f.create(pod)
		f.allocator.during = func() { f.clock.Step(20 * time.Second) }
		state, status := f.prepared(pod)
		requireSuccess(t, status)
		f.clock.Step(11 * time.Second)
		requireFault(t, f.framework.RunBindPlugins(f.context(), state, assumed(pod, node1), node1), "not less than 30s")
	})
	t.Run("the call may not outlast them", func(t *testing.T) {
		f := newFixture(t, setup{args: Args{BindTimeout: metav1.Duration{Duration: time.Minute}}})
		asked := f.clock.Now()
		f.clock.Step(25 * time.Second)
		timeout, err := f.bindTimeout(asked)
		require.NoError(t, err)
		require.Equal(t, 5*time.Second, timeout)
		f.clock.Step(5 * time.Second)
		_, err = f.bindTimeout(asked)
		require.ErrorContains(t, err, "given 30s ago, not less than 30s")
	})
}

// TestBindFindsOutHowAFailedBindingWent: cases W76, S1, S5 of docs/cases.md.
func TestBindFindsOutHowAFailedBindingWent(t *testing.T) {
	lost := errors.New("connection lost")
	// elsewhere says how the API server has the pod when the call fails.
	elsewhere := func(change func(*corev1.Pod)) func(*fixture, *corev1.Pod) {
		return func(f *fixture, pod *corev1.Pod) {
			f.server.refuse = lost
			f.server.before = func() {
				now := pod.DeepCopy()
				change(now)
				f.store(now)
			}
		}
	}
	const networks = "team-a/p-0@rdma0"
	for name, tc := range map[string]struct {
		given func(*fixture, *corev1.Pod)
		want  string
	}{
		"in place although the answer was lost is success": {given: func(f *fixture, _ *corev1.Pod) { f.server.lose = lost }},
		"in place since a repetition met the first one's success is success": {given: func(f *fixture, _ *corev1.Pod) {
			f.server.lose = apierrors.NewInternalError(errors.New("etcd timed out")) // BindPod repeats these
		}},
		"not in place is an error": {given: func(f *fixture, _ *corev1.Pod) { f.server.refuse = lost }, want: "connection lost"},
		"on another node is an error": {
			given: elsewhere(func(p *corev1.Pod) { onNode(node2)(p); annotated(rdma.NetworksAnnotation, networks)(p) }), want: "connection lost",
		},
		"on the node without our networks is an error": {given: elsewhere(onNode(node1)), want: "connection lost"},
		"on the node with other networks is an error": {
			given: elsewhere(func(p *corev1.Pod) { onNode(node1)(p); annotated(rdma.NetworksAnnotation, "other")(p) }), want: "connection lost",
		},
		"a pod of another UID in place is an error": {
			given: elsewhere(func(p *corev1.Pod) {
				p.UID = "another"
				onNode(node1)(p)
				annotated(rdma.NetworksAnnotation, networks)(p)
			}), want: "connection lost",
		},
		"a pod being deleted is an error": {given: func(f *fixture, pod *corev1.Pod) {
			f.server.before = func() {
				now := pod.DeepCopy()
				deleting(now)
				f.store(now)
			}
		}, want: "is being deleted"},
		"a look that fails too says that nobody knows": {given: func(f *fixture, _ *corev1.Pod) {
			f.server.lose = lost
			f.server.unread = errors.New("API server is away")
		}, want: "whether the pod is bound is not known: API server is away"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := vfPod("p", 1)
			f.create(pod)
			tc.given(f, pod)
			status := f.bound(pod)
			if tc.want == "" {
				requireSuccess(t, status)
				require.Equal(t, node1, f.stored(pod).Spec.NodeName)
				require.Equal(t, networks, f.stored(pod).Annotations[rdma.NetworksAnnotation])
			} else {
				requireFault(t, status, tc.want)
			}
			require.Len(t, f.allocator.asked(), 1)
		})
	}
}

// TestBindRefusesAReplacedPod: cases W75, S9 of docs/cases.md.
func TestBindRefusesAReplacedPod(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	f.create(pod)
	state, status := f.prepared(pod)
	requireSuccess(t, status)
	replaced := pod.DeepCopy()
	replaced.UID = "another"
	f.store(replaced)
	requireFault(t, f.framework.RunBindPlugins(f.context(), state, assumed(pod, node1), node1), "UID")
	require.Empty(t, f.stored(pod).Spec.NodeName)
}

// TestBindEndsThePodsTimeInFlight: cases S2, S4 of docs/cases.md.
func TestBindEndsThePodsTimeInFlight(t *testing.T) {
	f := newFixture(t, setup{})
	before := inFlightPods(t)
	pod := vfPod("p", 1)
	f.create(pod)
	state := f.passed(pod)
	requireSuccess(t, f.framework.RunReservePluginsReserve(f.context(), state, pod, node1))
	requireSuccess(t, f.framework.RunPreBindPlugins(f.context(), state, assumed(pod, node1), node1))
	require.InDelta(t, before+1, inFlightPods(t), 0)
	requireSuccess(t, f.framework.RunBindPlugins(f.context(), state, assumed(pod, node1), node1))
	require.InDelta(t, before, inFlightPods(t), 0)
}
