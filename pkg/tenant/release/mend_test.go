package release

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// wrongPods are the pods that the last sweep found wrong, by kind.
type wrongPods struct{ missing, elsewhere, networks int }

func (f *sweepFixture) wrong() wrongPods {
	of := func(kind string) int { return int(testutil.ToFloat64(f.metrics.wrong.WithLabelValues(kind))) }
	return wrongPods{missing: of("missing"), elsewhere: of("other_node"), networks: of("networks")}
}

func withNetworks(podUID types.UID) func(*tenant.Allocation) {
	return func(a *tenant.Allocation) { a.Networks = networksOf(podUID) }
}

func TestSweepReportsAndRepairsBoundPods(t *testing.T) {
	for name, tc := range map[string]struct {
		allocations []tenant.Allocation
		pod         *corev1.Pod
		repair      bool
		other       bool
		wantEvent   string
		wantNode    string
	}{
		"a missing allocation is asked for again (W79)":  {nil, rdmaPod("p", "u1", "n1"), true, false, reasonMended, "n1"},
		"an allocation that names another node is moved": {[]tenant.Allocation{allocation("u1", "p", "n2")}, rdmaPod("p", "u1", "n1"), true, false, reasonMended, "n1"},
		"networks that changed are reported as lost":     {nil, rdmaPod("p", "u1", "n1"), true, true, reasonLost, "n1"},
		"without repair it is only reported":             {nil, rdmaPod("p", "u1", "n1"), false, false, reasonMissing, ""},
		"a right allocation is not touched":              {[]tenant.Allocation{allocation("u1", "p", "n1")}, rdmaPod("p", "u1", "n1"), true, false, "", "n1"},
		"an unbound pod needs none":                      {nil, rdmaPod("p", "u1", ""), true, false, "", ""},
		"an ended pod needs none":                        {nil, rdmaPod("p", "u1", "n1", hasSucceeded), true, false, "", ""},
		"a plain pod needs none":                         {nil, rdmaPod("p", "u1", "n1", withoutFinalizer), true, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSweep(t, tc.allocations, []client.Object{tc.pod}, nil, func(c *SweepConfig) { c.Repair = tc.repair })
			f.book.other = tc.other
			require.NoError(t, f.sweep(t.Context()))
			if tc.wantEvent == "" {
				require.Empty(t, f.events.all)
			} else {
				require.Len(t, f.events.all, 1)
				require.Contains(t, f.events.all[0], "u1 Warning "+tc.wantEvent)
			}
			require.Equal(t, tc.wantNode, f.book.all["u1"].Node)
			f.events.all = nil
			require.NoError(t, f.sweep(t.Context()))
			if tc.repair && !tc.other {
				require.Empty(t, f.events.all, "what is repaired is not reported again")
				require.Zero(t, f.wrong())
			}
		})
	}
}

func TestSweepBelievesASecondLookOverAnOldList(t *testing.T) {
	// The pod was bound, and its allocation made, after the list was read.
	f := newSweep(t, nil, []client.Object{rdmaPod("p", "u1", "n1")}, nil)
	f.book.all["u1"] = allocation("u1", "p", "n1")
	old := allocation("u1", "p", "n1", withNetworks("u9"))
	for _, list := range []map[types.UID]*tenant.Allocation{nil, {"u1": &old}} {
		require.NoError(t, f.report(t.Context(), []corev1.Pod{*rdmaPod("p", "u1", "n1")}, list))
		require.Empty(t, f.events.all)
		require.Zero(t, f.wrong())
	}
}

func TestSweepSaysForHowLongAPodUsesNetworksThatAreNotIts(t *testing.T) {
	f := newSweep(t, nil, []client.Object{rdmaPod("p", "u1", "n1")}, nil)
	f.book.other = true // the tenant-controller lost its memory
	for range 3 {
		f.events.all = nil
		require.NoError(t, f.sweep(t.Context()))
		require.Equal(t, wrongPods{networks: 1}, f.wrong())
		require.Len(t, f.events.all, 1)
		require.Contains(t, f.events.all[0], "u1 Warning NetworksChanged")
		require.Contains(t, f.events.all[0], "nad-u1 are in use by the pod without an allocation. Recreate the pod.")
	}
	for _, c := range []client.Client{f.memory, f.live} {
		require.NoError(t, c.Update(t.Context(), rdmaPod("p", "u1", "n1", withoutFinalizer)))
		require.NoError(t, c.Delete(t.Context(), rdmaPod("p", "u1", "n1")))
		require.NoError(t, c.Create(t.Context(), rdmaPod("p", "u2", "n1")))
	}
	f.book.all = map[types.UID]tenant.Allocation{"u2": allocation("u2", "p", "n1")}
	f.events.all = nil
	require.NoError(t, f.sweep(t.Context()))
	require.Zero(t, f.wrong())
	require.Empty(t, f.events.all)
}

func TestSweepComparesThePodsNetworksWithItsAllocations(t *testing.T) {
	networks := func(text string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Annotations[rdma.NetworksAnnotation] = text }
	}
	for name, tc := range map[string]struct {
		pod        *corev1.Pod
		allocation tenant.Allocation
		repair     bool
		want       wrongPods
		wantEvents int
	}{
		"other networks are reported":                    {rdmaPod("p", "u1", "n1"), allocation("u1", "p", "n1", withNetworks("u9")), true, wrongPods{networks: 1}, 1},
		"other networks are reported without repair":     {rdmaPod("p", "u1", "n1"), allocation("u1", "p", "n1", withNetworks("u9")), false, wrongPods{networks: 1}, 1},
		"an allocation that has none is reported":        {rdmaPod("p", "u1", "n1"), allocation("u1", "p", "n1", func(a *tenant.Allocation) { a.Networks = nil }), true, wrongPods{networks: 1}, 1},
		"another node and other networks are networks":   {rdmaPod("p", "u1", "n1"), allocation("u1", "p", "n2", withNetworks("u9")), true, wrongPods{networks: 1}, 1},
		"another node alone is reported as such":         {rdmaPod("p", "u1", "n1"), allocation("u1", "p", "n2"), true, wrongPods{elsewhere: 1}, 1},
		"a missing one stays so without repair":          {rdmaPod("p", "u1", "n1"), allocation("u2", "p", "n1", aged(0)), false, wrongPods{missing: 1}, 1},
		"the user's networks must not be":                {rdmaPod("p", "u1", "n1", networks("mine,ns/nad-u1@rdma0")), allocation("u1", "p", "n1"), true, wrongPods{}, 0},
		"an ended pod's must not be":                     {rdmaPod("p", "u1", "n1", hasSucceeded), allocation("u1", "p", "n1", withNetworks("u9")), true, wrongPods{}, 0},
		"those of a pod that is bound nowhere must not":  {rdmaPod("p", "u1", ""), allocation("u1", "p", "n1", aged(0)), true, wrongPods{}, 0},
		"an annotation that cannot be read must not be":  {rdmaPod("p", "u1", "n1", networks("[null]")), allocation("u1", "p", "n1", withNetworks("u9")), true, wrongPods{}, 0},
		"one that memory does not have must not be, too": {rdmaPod("p", "u1", "n1", networks("")), allocation("u1", "p", "n1", withNetworks("u9")), true, wrongPods{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSweep(t, []tenant.Allocation{tc.allocation}, []client.Object{tc.pod}, nil, func(c *SweepConfig) { c.Repair = tc.repair })
			require.NoError(t, f.sweep(t.Context()))
			require.Equal(t, tc.want, f.wrong())
			require.Len(t, f.events.all, tc.wantEvents)
		})
	}
}

func TestAPodThatCannotBeLookedAtStaysWrong(t *testing.T) {
	f := newSweep(t, []tenant.Allocation{allocation("u1", "p", "n1", withNetworks("u9")), allocation("u2", "q", "n2")},
		[]client.Object{rdmaPod("p", "u1", "n1"), rdmaPod("q", "u2", "n1"), rdmaPod("r", "u3", "n1")}, nil)
	f.book.broken = errors.New("down")
	require.ErrorContains(t, f.sweep(t.Context()), "allocation of pod ns/p: down")
	require.Equal(t, wrongPods{missing: 1, elsewhere: 1, networks: 1}, f.wrong())
	f.book.broken = nil
	require.NoError(t, f.sweep(t.Context()))
	require.NoError(t, f.sweep(t.Context()))
	require.Equal(t, wrongPods{networks: 1}, f.wrong(), "the other two were mended")
}
