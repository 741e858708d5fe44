package release

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestOnlyOurFinalizerGoes: cases W14, W67 of docs/cases.md.
func TestOnlyOurFinalizerGoes(t *testing.T) {
	const job, a, b = "batch.kubernetes.io/job-tracking", "a.com/x", "b.com/y"
	for _, tc := range []struct {
		name       string
		have, want []string
	}{
		{"ours alone", []string{ours}, nil},
		{"ours first", []string{ours, job}, []string{job}},
		{"ours last", []string{job, ours}, []string{job}},
		{"ours in the middle", []string{a, ours, b}, []string{a, b}},
		{"one that resembles ours", []string{"tenant.network/cleanup2", ours, "tenant.network/clean"}, []string{"tenant.network/cleanup2", "tenant.network/clean"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, []client.Object{podWith(succeeded, finalizers(tc.have...))})
			_, err := f.reconcile()
			require.NoError(t, err)
			assert.ElementsMatch(t, tc.want, f.finalizers())
		})
	}
}

// TestAFinalizerThatFailsToGoIsTriedAgain: cases W66 of docs/cases.md.
func TestAFinalizerThatFailsToGoIsTriedAgain(t *testing.T) {
	f := newFixture(t, []client.Object{podWith(succeeded)})
	f.beforePatch = func() error { return apierrors.NewInternalError(errors.New("etcd is away")) }
	_, err := f.reconcile()
	require.ErrorContains(t, err, "etcd is away")
	assert.Equal(t, []string{ours}, f.finalizers())
	f.counted(0, 0)
	f.beforePatch = nil
	_, err = f.reconcile() // the second release finds nothing, which is success
	require.NoError(t, err)
	assert.Empty(t, f.finalizers())
	f.counted(1, 0)
}

// TestAListThatChangesMeanwhileIsReadAgain: cases W67 of docs/cases.md.
func TestAListThatChangesMeanwhileIsReadAgain(t *testing.T) {
	const job = "batch.kubernetes.io/job-tracking"
	once := func(f *fixture, what func() error) {
		done := false
		f.beforePatch = func() error {
			if done {
				return nil
			}
			done = true
			return what()
		}
	}
	for _, tc := range []struct {
		name string
		what func(f *fixture) error
		want []string
	}{
		{"another finalizer went and ours moved up", func(f *fixture) error { f.change(finalizers(ours, "a.com/x")); return nil }, []string{"a.com/x"}},
		{"another finalizer came before ours", func(f *fixture) error { f.change(finalizers("b.com/y", job, ours, "a.com/x")); return nil }, []string{"b.com/y", job, "a.com/x"}},
		{"ours went already", func(f *fixture) error { f.change(finalizers(job, "a.com/x")); return nil }, []string{job, "a.com/x"}},
		{"a conflict", func(*fixture) error {
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("modified"))
		}, []string{job, "a.com/x"}},
		{"the pod is gone", func(f *fixture) error {
			f.change(func(p *corev1.Pod) { p.Finalizers = nil })
			return f.live.Delete(f.t.Context(), podWith())
		}, []string{"gone"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, []client.Object{podWith(succeeded, finalizers(job, ours, "a.com/x"))})
			once(f, func() error { return tc.what(f) })
			_, err := f.reconcile()
			require.NoError(t, err)
			assert.Equal(t, tc.want, f.finalizers())
			assert.Empty(t, f.networks.held)
		})
	}
	t.Run("a patch that is refused each time must say why", func(t *testing.T) {
		f := newFixture(t, []client.Object{podWith(succeeded)})
		tries := 0
		f.beforePatch = func() error {
			tries++
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{field.TooLong(field.NewPath("metadata", "annotations"), "", 262144)})
		}
		_, err := f.reconcile()
		require.ErrorContains(t, err, "metadata.annotations: Too long")
		assert.Equal(t, 3, tries, "it must not go on for ever")
		assert.Equal(t, []string{ours}, f.finalizers())
	})
}

// TestAnotherPodOfTheNameMustNotLoseItsFinalizer: cases S17, W75 of docs/cases.md.
func TestAnotherPodOfTheNameMustNotLoseItsFinalizer(t *testing.T) {
	successor := podWith(func(p *corev1.Pod) { p.UID = "uid-2" })
	f := newFixture(t, []client.Object{successor, nodeWith(corev1.ConditionTrue)}, podWith(succeeded))
	_, err := f.reconcile()
	require.NoError(t, err)
	assert.Equal(t, []string{ours}, f.finalizers())
	assert.Equal(t, map[types.UID]bool{"uid-2": true}, f.networks.held)
}

func TestAnOldMemoryDoesNotReleaseTwice(t *testing.T) {
	pod := rdmaPod("p", "u1", "n1", hasSucceeded)
	f := newFixture(t, []client.Object{pod})
	_, err := f.reconcile()
	require.NoError(t, err)
	f.networks.broken = errors.New("must not be asked again")
	f.clock.SetTime(now.Add(4 * time.Second))
	result, err := f.reconcile()
	require.NoError(t, err)
	require.Equal(t, reconcile.Result{RequeueAfter: 6 * time.Second}, result, "it must not be forgotten either")
	require.InDelta(t, 1, testutil.ToFloat64(f.controller.released.WithLabelValues("released")), 0)
}

// TestAFinalizerThatSomebodyBringsBackGoesAgain: a merge patch of another controller carries the list of finalizers as its
// own memory had it, and while ours is gone from the pod no policy guards it.
func TestAFinalizerThatSomebodyBringsBackGoesAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration
		// wantAgain is when the pod is looked at again if it is too early now.
		wantAgain time.Duration
	}{
		"at once: the pod is looked at again":         {0, 10 * time.Second},
		"in the last moment in which the memory lags": {10*time.Second - 1, 1},
		"when the memory must have caught up":         {10 * time.Second, 0},
		"an hour later":                               {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, []client.Object{podWith(succeeded)})
			_, err := f.reconcile()
			require.NoError(t, err)
			require.Empty(t, f.finalizers())
			f.change(finalizers("batch.kubernetes.io/job-tracking", ours))
			f.clock.SetTime(now.Add(tc.after))
			result, err := f.reconcile()
			require.NoError(t, err)
			require.Equal(t, reconcile.Result{RequeueAfter: tc.wantAgain}, result)
			f.clock.SetTime(now.Add(tc.after + tc.wantAgain))
			_, err = f.reconcile()
			require.NoError(t, err)
			require.Equal(t, []string{"batch.kubernetes.io/job-tracking"}, f.finalizers())
		})
	}
}
