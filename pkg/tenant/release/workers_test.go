package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// running are so many bound pods, NAMESPACE-0 and so on, of which the tenant-controller knows nothing.
func running(namespace string, n int) []client.Object {
	var pods []client.Object
	for i := range n {
		name := fmt.Sprintf("%s-%d", namespace, i)
		pods = append(pods, rdmaPod(name, types.UID(name), "n1", func(pod *corev1.Pod) { pod.Namespace = namespace }))
	}
	return pods
}

// known returns how many allocations of the namespace the tenant-controller has.
func (b *book) known(namespace string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, a := range b.all {
		if a.Namespace == namespace {
			n++
		}
	}
	return n
}

// The tests that wait run in the time of a synctest bubble, which passes when all wait.

func TestATenantControllerThatForgotAllIsToldInOneSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSweep(t, nil, running("many", 300), nil)
		f.book.takes = map[string]time.Duration{"many": time.Second}
		began := time.Now()
		require.NoError(t, f.sweep(t.Context()))
		require.Equal(t, 300, f.book.known("many"))
		require.Equal(t, 30*time.Second, time.Since(began))
		require.Equal(t, 10, f.book.most, "it must not be overrun either")
	})
}

func TestASweepEndsInTimeAndTheNextGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSweep(t, nil, running("many", 150), nil)
		f.book.takes = map[string]time.Duration{"many": 11 * time.Second}
		began := time.Now()
		for _, want := range []int{50, 100, 150} {
			err := f.sweep(t.Context())
			require.Equal(t, want, f.book.known("many"))
			if want == 150 {
				require.NoError(t, err)
				break
			}
			left := 150 - want
			require.EqualError(t, err, fmt.Sprintf("%d of %d are left for the next sweep: context deadline exceeded", left, left+50))
			require.Equal(t, wrongPods{missing: left + 50}, f.wrong(), "those that are left are still wrong")
		}
		require.LessOrEqual(t, time.Since(began), 3*time.Minute)
	})
}

func TestASweepTellsTheFirstErrorsAndCountsTheOthers(t *testing.T) {
	f := newSweep(t, nil, running("many", 100), nil)
	f.book.broken = errors.New("refused")
	err := f.sweep(t.Context())
	require.ErrorContains(t, err, "allocation of pod many/many-")
	require.ErrorContains(t, err, "and 95 more")
	require.Less(t, len(err.Error()), 500)
}

func TestATenantWhoseRepairsHangMustNotKeepOthersWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSweep(t, []tenant.Allocation{allocation("gone", "gone", "n1")}, append(running("many", 100), running("ns", 5)...), nil)
		f.book.takes = map[string]time.Duration{"many": 24 * time.Hour}
		require.Error(t, f.sweep(t.Context()))
		require.Equal(t, 5, f.book.known("ns"), "all but the one that was left behind, which is released")
		require.NotContains(t, f.book.all, types.UID("gone"))
		require.Zero(t, f.book.known("many"))
	})
}

func TestReleasesThatHangMustNotKeepRepairsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left []tenant.Allocation
		for i := range 10 {
			name := fmt.Sprint("gone-", i)
			left = append(left, allocation(types.UID(name), name, "n1", func(a *tenant.Allocation) { a.Namespace = "many" }))
		}
		f := newSweep(t, left, running("ns", 5), nil)
		f.book.takes = map[string]time.Duration{"many": 24 * time.Hour}
		require.Error(t, f.sweep(t.Context()))
		require.Equal(t, 5, f.book.known("ns"))
		require.Equal(t, 10, f.book.known("many"))
	})
}

func TestASweepThatIsCutShortMustNotCallOffTheAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left []tenant.Allocation
		for i := range 30 {
			name := fmt.Sprint("gone-", i)
			left = append(left, allocation(types.UID(name), name, "n1"))
		}
		f := newSweep(t, left, nil, nil)
		require.ErrorContains(t, f.sweep(t.Context()), "--sweep-confirm=30")
		calls := 0
		var mu sync.Mutex
		f.cfg.Live = interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
			Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
				mu.Lock()
				calls++
				hangs := calls > 5
				mu.Unlock()
				if hangs {
					<-ctx.Done()
					return ctx.Err()
				}
				return api.Get(ctx, key, object, opts...)
			}})
		require.ErrorContains(t, f.sweep(t.Context()), "are left for the next sweep")
		require.Len(t, f.book.all, 30, "the five that were judged are not all")
		require.InDelta(t, 1, testutil.ToFloat64(f.metrics.blocked), 0)
		require.InDelta(t, 30, testutil.ToFloat64(f.metrics.orphans), 0)
	})
}

func TestByTurns(t *testing.T) {
	first := func(text string) string { return text[:1] }
	for name, tc := range map[string]struct {
		items []string
		// want are the namespaces of each round.
		want []string
	}{
		"nothing":       {nil, nil},
		"one namespace": {[]string{"a1", "a2"}, []string{"a", "a"}},
		"the small ones come in the first rounds":  {[]string{"a1", "a2", "a3", "a4", "b1", "c1", "c2"}, []string{"abc", "ac", "a", "a"}},
		"the order in which they come is no merit": {[]string{"c1", "b1", "b2", "a1"}, []string{"abc", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tc.items)
			got := byTurns(tc.items, first)
			require.ElementsMatch(t, tc.items, got, "nothing is lost or doubled")
			require.Equal(t, before, tc.items, "what was given must not be changed")
			for _, want := range tc.want {
				var namespaces []string
				for _, item := range got[:len(want)] {
					namespaces = append(namespaces, first(item))
				}
				slices.Sort(namespaces)
				require.Equal(t, want, strings.Join(namespaces, ""))
				got = got[len(want):]
			}
		})
	}
}
