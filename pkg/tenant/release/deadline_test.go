package release

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestTheTimeForARelease runs in the time of a synctest bubble, which passes when all wait.
func TestTheTimeForARelease(t *testing.T) {
	const forEver = 24 * time.Hour
	ended, overdue := rdmaPod("p", "u1", "n1", hasSucceeded), rdmaPod("p", "u1", "n1", hasSucceeded, deleted(-time.Hour))
	for name, tc := range map[string]struct {
		pod        *corev1.Pod
		forceAfter time.Duration
		takes      time.Duration
		patchTakes time.Duration
		wantGone   bool
		wantEvents []string
	}{
		"an overdue pod goes although the release took all its time":           {overdue, time.Minute, forEver, time.Second, true, []string{reasonForced}},
		"a pod whose release took nearly all its time goes":                    {ended, 0, 20*time.Second - 1, time.Second, true, nil},
		"without force a pod must not go although the release took its time":   {overdue, 0, forEver, time.Second, false, []string{reasonReleaseFailed}},
		"a pod must not hold a worker for ever though nobody answers":          {overdue, time.Minute, forEver, forEver, false, []string{reasonForced}},
		"a pod must not hold a worker for ever while its finalizer is held up": {ended, 0, time.Second, forEver, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, []client.Object{tc.pod})
				f.controller.policy.forceAfter = tc.forceAfter
				f.networks.takes, f.patchTakes = tc.takes, tc.patchTakes
				began := time.Now()
				_, err := f.reconcile()
				require.Equal(t, tc.wantGone, err == nil, "%v", err)
				require.Less(t, time.Since(began), time.Minute)
				finalizers := f.finalizers()
				require.Equal(t, tc.wantGone, len(finalizers) == 0 || finalizers[0] == "gone", "%v", finalizers)
				require.Len(t, f.events.all, len(tc.wantEvents))
				for i, want := range tc.wantEvents {
					require.Contains(t, f.events.all[i], want)
				}
			})
		})
	}
}

// TestAProgramThatStopsMustNotForce: the release failed because the program stops, which says nothing about the
// tenant-controller.
func TestAProgramThatStopsMustNotForce(t *testing.T) {
	f := newFixture(t, []client.Object{rdmaPod("p", "u1", "n1", hasSucceeded, deleted(-time.Hour))})
	f.controller.policy.forceAfter = time.Minute
	ctx, stop := context.WithCancel(t.Context())
	f.networks.before, f.networks.takes = stop, time.Hour
	pod := &corev1.Pod{}
	require.NoError(t, f.memory.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "p"}, pod))
	_, err := f.controller.Reconcile(ctx, pod)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{ours}, f.finalizers())
	require.Empty(t, f.events.all)
}
