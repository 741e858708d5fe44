package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/component-base/metrics/testutil"
)

// TestReserveTouchesMemoryOnly: cases S29 of docs/cases.md.
func TestReserveTouchesMemoryOnly(t *testing.T) {
	f := newFixture(t, setup{})
	before := inFlightPods(t)
	pod := vfPod("p", 1)
	f.create(pod)
	f.client.ClearActions()
	state := f.passed(pod)

	// Simulations reserve and unreserve many times, and twice in a row.
	for range 3 {
		requireSuccess(t, f.framework.RunReservePluginsReserve(f.context(), state, pod, node1))
		requireSuccess(t, f.framework.RunReservePluginsReserve(f.context(), state, pod, node2))
		require.InDelta(t, before+1, inFlightPods(t), 0)
		f.framework.RunReservePluginsUnreserve(f.context(), state, pod, node2)
		f.framework.RunReservePluginsUnreserve(f.context(), state, pod, node2)
		require.InDelta(t, before, inFlightPods(t), 0)
	}

	require.Empty(t, f.allocator.asked())
	require.Empty(t, f.calls())
	require.Empty(t, f.nads.Actions())
}

// TestUnreserveMustNotReleaseNetworks: cases S1, S6, S7 of docs/cases.md.
func TestUnreserveMustNotReleaseNetworks(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	f.create(pod)
	state, status := f.prepared(pod)
	requireSuccess(t, status)
	held := *f.allocator.holds(pod.UID)
	asked := len(f.allocator.asked())

	f.framework.RunReservePluginsUnreserve(f.context(), state, pod, node1)

	require.Equal(t, held, *f.allocator.holds(pod.UID))
	require.Len(t, f.allocator.asked(), asked)
}

func TestReserveIgnoresPodsThatAreNotOurs(t *testing.T) {
	f := newFixture(t, setup{})
	before := inFlightPods(t)
	pod := plainPod(teamA, "plain")
	state := f.passed(pod)
	requireSuccess(t, f.framework.RunReservePluginsReserve(f.context(), state, pod, node1))
	require.InDelta(t, before, inFlightPods(t), 0)
	f.framework.RunReservePluginsUnreserve(f.context(), state, pod, node1) // also without a Reserve before
	require.InDelta(t, before, inFlightPods(t), 0)
}

func TestProfilesShareTheGaugeOfPodsInFlight(t *testing.T) {
	before := inFlightPods(t)
	one, other := newFixture(t, setup{}), newFixture(t, setup{})
	pod := vfPod("p", 1)
	state := one.passed(pod)
	requireSuccess(t, one.Reserve(one.context(), state, pod, node1))
	requireSuccess(t, other.Reserve(other.context(), state, pod, node1))
	require.InDelta(t, before+2, inFlightPods(t), 0)
	one.Unreserve(one.context(), state, pod, node1)
	require.InDelta(t, before+1, inFlightPods(t), 0)
	other.Unreserve(other.context(), state, pod, node1)
}

func inFlightPods(t *testing.T) float64 {
	t.Helper()
	value, err := testutil.GetGaugeMetricValue(sharedMetrics().inFlight)
	require.NoError(t, err)
	return value
}
