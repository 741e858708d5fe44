package release

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// TestNetworksAreReleasedBeforeTheFinalizerGoes: cases W12, W66 of docs/cases.md.
func TestNetworksAreReleasedBeforeTheFinalizerGoes(t *testing.T) {
	f := newFixture(t, []client.Object{podWith(succeeded)})
	var atRelease []string
	f.networks.before = func() { atRelease = f.finalizers() }
	f.beforePatch = func() error {
		assert.Empty(t, f.networks.held, "the finalizer must not go before the networks")
		return nil
	}
	result, err := f.reconcile()
	require.NoError(t, err)
	assert.Zero(t, result)
	assert.Equal(t, []string{ours}, atRelease)
	assert.Empty(t, f.finalizers())
	assert.Empty(t, f.networks.held)
	assert.Empty(t, f.events.all)
	f.counted(1, 0)
}

func TestAPodThatItsNodeRefusedIsReleasedAndReported(t *testing.T) {
	refused := func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "UnexpectedAdmissionError", "no device"
	}
	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		reported int
	}{
		"the kubelet did not admit it":                      {podWith(refused), 1},
		"its containers failed, which must not be reported": {podWith(phase(corev1.PodFailed), ended(time.Second)), 0},
		"it was evicted, which must not be reported":        {podWith(refused, ended(time.Second)), 0},
		"it succeeded, which must not be reported":          {podWith(succeeded), 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, []client.Object{tc.pod})
			_, err := f.reconcile()
			require.NoError(t, err)
			assert.Empty(t, f.networks.held)
			assert.Empty(t, f.finalizers())
			require.Len(t, f.events.all, tc.reported)
			assert.InDelta(t, tc.reported, testutil.ToFloat64(f.controller.released.WithLabelValues("refused")), 0)
			if tc.reported > 0 {
				assert.Contains(t, f.events.all[0], "Warning RefusedByNode")
				assert.Contains(t, f.events.all[0], "Node n1 did not admit the pod (UnexpectedAdmissionError: no device)")
			}
		})
	}
}

func TestAPodThatIsNotOverMustNotBeReleased(t *testing.T) {
	terminating := podWith(deleted(-time.Hour))
	for _, tc := range []struct {
		name    string
		objects []client.Object
		again   time.Duration
	}{
		{"it runs", []client.Object{podWith(), nodeWith(corev1.ConditionTrue)}, 0},
		{"its deletion has begun", []client.Object{terminating, nodeWith(corev1.ConditionTrue)}, 0},
		{"its node is cut off", []client.Object{terminating, nodeWith(corev1.ConditionUnknown)}, 0},
		{"it waits for a node", []client.Object{podWith(unbound)}, 0},
		{"its sandbox is being taken down", []client.Object{podWith(succeeded, sandbox(corev1.ConditionTrue), ended(20*time.Second))}, 40 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, tc.objects)
			result, err := f.reconcile()
			require.NoError(t, err)
			assert.Equal(t, reconcile.Result{RequeueAfter: tc.again}, result)
			assert.Equal(t, []string{ours}, f.finalizers())
			assert.True(t, f.networks.held["uid-1"])
			f.counted(0, 0)
		})
	}
}

func TestAPodWithoutOurFinalizerMustNotBeTouched(t *testing.T) {
	f := newFixture(t, []client.Object{podWith(succeeded, finalizers("a.com/x"))})
	_, err := f.reconcile()
	require.NoError(t, err)
	assert.Equal(t, []string{"a.com/x"}, f.finalizers())
	assert.True(t, f.networks.held["uid-1"])
}

// TestReleasedByUIDWhateverBecameOfTheAnnotations: cases W70, S18 of docs/cases.md.
func TestReleasedByUIDWhateverBecameOfTheAnnotations(t *testing.T) {
	f := newFixture(t, []client.Object{podWith(succeeded, func(p *corev1.Pod) { p.Annotations = nil })})
	_, err := f.reconcile()
	require.NoError(t, err)
	assert.Empty(t, f.networks.held)
	assert.Empty(t, f.finalizers())
}

// TestAPodDeletedBeforeItWasBoundGoes: cases W61, S57 of docs/cases.md.
func TestAPodDeletedBeforeItWasBoundGoes(t *testing.T) {
	f := newFixture(t, []client.Object{podWith(unbound, deleted(30*time.Second))})
	_, err := f.reconcile()
	require.NoError(t, err)
	assert.Equal(t, []string{"gone"}, f.finalizers(), "nothing else held it")
	assert.Empty(t, f.networks.held)
}

// TestAFailedReleaseKeepsTheFinalizerAndIsTriedAgain: cases W72 of docs/cases.md.
func TestAFailedReleaseKeepsTheFinalizerAndIsTriedAgain(t *testing.T) {
	f := newFixture(t, []client.Object{podWith(succeeded)})
	f.networks.broken = errors.New("tenant-controller: release: 503 Unavailable")
	for i := range 3 {
		_, err := f.reconcile()
		require.ErrorIs(t, err, f.networks.broken, "the work queue tries again after an error only")
		assert.Equal(t, []string{ours}, f.finalizers())
		f.counted(0, i+1)
	}
	require.Len(t, f.events.all, 3)
	assert.Equal(t, "uid-1 Warning NetworkReleaseFailed Release: The pod's networks could not be given back, which is tried again: tenant-controller: release: 503 Unavailable", f.events.all[0])
	f.networks.broken = nil
	_, err := f.reconcile()
	require.NoError(t, err)
	assert.Empty(t, f.finalizers())
	assert.Empty(t, f.networks.held)
	f.counted(1, 3)
}

// TestRetriesGrowAndEnd: cases W72, W81 of docs/cases.md.
func TestRetriesGrowAndEnd(t *testing.T) {
	limiter, item := newRateLimiter(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "p"}}
	var pauses []time.Duration
	for range 12 {
		pauses = append(pauses, limiter.When(item))
	}
	assert.Equal(t, 200*time.Millisecond, pauses[0])
	assert.Equal(t, 400*time.Millisecond, pauses[1])
	assert.Equal(t, 30*time.Second, pauses[11])
	assert.IsNonDecreasing(t, pauses)
	limiter.Forget(item)
	assert.Equal(t, 200*time.Millisecond, limiter.When(item))
}

func TestAPodThatIsGoneIsDone(t *testing.T) {
	f := newFixture(t, []client.Object{nodeWith(corev1.ConditionTrue)}, podWith(succeeded))
	_, err := f.reconcile()
	require.NoError(t, err)
	assert.Empty(t, f.networks.held)
}

func TestTheNode(t *testing.T) {
	terminating := podWith(deleted(-time.Minute))
	for _, tc := range []struct {
		name         string
		live, memory []client.Object
		released     bool
	}{
		{"a node that the memory does not know yet must not count as gone", []client.Object{terminating, nodeWith(corev1.ConditionTrue)}, []client.Object{terminating}, false},
		{"a node that is cut off and not in the memory must not count as gone", []client.Object{terminating, nodeWith(corev1.ConditionUnknown)}, []client.Object{terminating}, false},
		{"a node that the API server does not know either is gone", []client.Object{terminating}, []client.Object{terminating}, true},
		{"a node that is out of service", []client.Object{terminating, nodeWith(corev1.ConditionUnknown, corev1.TaintNodeOutOfService)}, nil, true},
		{"a node that is out of service must not take the networks of a pod that nobody deletes", []client.Object{podWith(), nodeWith(corev1.ConditionUnknown, corev1.TaintNodeOutOfService)}, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, tc.live, tc.memory...)
			_, err := f.reconcile()
			require.NoError(t, err)
			if tc.released {
				assert.Equal(t, []string{"gone"}, f.finalizers())
				assert.Empty(t, f.networks.held)
				return
			}
			assert.Equal(t, []string{ours}, f.finalizers())
			assert.True(t, f.networks.held["uid-1"])
		})
	}
	t.Run("a node that cannot be read must not count as gone", func(t *testing.T) {
		f := newFixture(t, []client.Object{terminating})
		f.controller.cfg.Live = interceptor.NewClient(f.live, interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return apierrors.NewServiceUnavailable("away")
			}})
		_, err := f.reconcile()
		require.ErrorContains(t, err, "reading the pod's node: away")
		assert.Equal(t, []string{ours}, f.finalizers())
		assert.True(t, f.networks.held["uid-1"])
	})
}

func TestANodeThatGoesAwayBringsItsPodsUp(t *testing.T) {
	on := func(name, node string, list ...string) *corev1.Pod {
		return podWith(finalizers(list...), func(p *corev1.Pod) { p.Name, p.UID, p.Spec.NodeName = name, types.UID(name), node })
	}
	objects := []client.Object{on("a", "n1", ours), on("b", "n1", "x.com/y", ours), on("foreign", "n1", "x.com/y"), on("plain", "n1"),
		on("elsewhere", "n2", ours), on("unbound", "", ours)}
	for _, tc := range []struct {
		name string
		node *corev1.Node
		want string
	}{
		{"a node that was deleted", nil, "a b"},
		{"a node that is out of service", nodeWith(corev1.ConditionUnknown, corev1.TaintNodeOutOfService), "a b"},
		{"a node in order must not", nodeWith(corev1.ConditionTrue), ""},
		{"a node that is only NotReady must not", nodeWith(corev1.ConditionFalse), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := objects
			if tc.node != nil {
				all = append([]client.Object{tc.node}, objects...)
			}
			f := newFixture(t, all)
			var names []string
			for _, request := range f.controller.podsOf(t.Context(), nodeWith(corev1.ConditionTrue)) {
				require.Equal(t, "ns", request.Namespace)
				names = append(names, request.Name)
			}
			assert.Equal(t, tc.want, strings.Join(names, " "))
		})
	}
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	c, err := New(Config{Registerer: registry})
	require.NoError(t, err)
	c.released.WithLabelValues("released")
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
	_, err = New(Config{Registerer: registry})
	require.ErrorContains(t, err, "registering metrics of the release")
}

func TestAnOverduePodGoesThoughItsNetworksCannotBeGivenBack(t *testing.T) {
	pod := rdmaPod("p", "u1", "n1", hasSucceeded, func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-10 * time.Minute)} })
	for name, tc := range map[string]struct {
		forceAfter time.Duration
		wantGone   bool
		wantEvent  string
	}{
		"by default it waits":                 {0, false, reasonReleaseFailed},
		"before the time is over it waits":    {11 * time.Minute, false, reasonReleaseFailed},
		"when the time is over it goes, said": {10 * time.Minute, true, reasonForced},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, []client.Object{pod})
			f.controller.policy.forceAfter = tc.forceAfter
			f.networks.broken = errors.New("down")
			_, err := f.reconcile()
			require.Equal(t, tc.wantGone, err == nil)
			require.Equal(t, tc.wantGone, !slices.Contains(f.finalizers(), rdma.Finalizer))
			require.Len(t, f.events.all, 1)
			require.Contains(t, f.events.all[0], tc.wantEvent)
			require.True(t, f.networks.held["u1"], "the tenant-controller still has them, for the sweep")
		})
	}
}
