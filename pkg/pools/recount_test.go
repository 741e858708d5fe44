package pools

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// world is what the informers' stores show.
func world(objects ...any) (nodes []*corev1.Node, charges []Charge) {
	policy := mustConfig("a.com/b").Policy
	for _, object := range objects {
		switch o := object.(type) {
		case *corev1.Node:
			nodes = append(nodes, o)
		case *corev1.Pod:
			if charge, ok := ChargeOf(o, policy); ok {
				charges = append(charges, charge)
			}
		}
	}
	return nodes, charges
}

func TestRecountMendsSumsAndCountsThem(t *testing.T) {
	objects := []any{node("n1", first, 4), node("n2", first, 4), injected("p", "n1", "idp", first), deleting(injected("q", "n1", "idq", first)),
		injected("r", "", "idr", first), gatedPod("s", first)}
	for _, tc := range []struct {
		name    string
		corrupt func(*Ledger)
		sums    int
	}{
		{"nothing wrong is nothing counted", func(*Ledger) {}, 0},
		{"allocatable", func(l *Ledger) { l.totals.allocatable[first] = 7 }, 1},
		{"requested", func(l *Ledger) { l.totals.requested[first]++ }, 1},
		{"releasing", func(l *Ledger) { delete(l.totals.releasing, first) }, 1},
		{"unbound", func(l *Ledger) { l.totals.unbound[first] = asked{-3, l.totals.unbound[first].requests} }, 1},
		{"gated", func(l *Ledger) { l.totals.gated[second] = asked{1, nil} }, 1},
		{"reserved", func(l *Ledger) { l.reserved[first] = asked{9, l.reserved[first].requests} }, 1},
		{"an unbound request of another size", func(l *Ledger) { l.totals.unbound[first].requests[0].devices = 5 }, 1},
		{"an unbound request that is forgotten", func(l *Ledger) { l.totals.unbound[first] = asked{2, nil} }, 1},
		{"a gated request that is not there", func(l *Ledger) { l.totals.gated[second] = asked{0, sizes{{1, 1}}} }, 1},
		{"a reserved request twice", func(l *Ledger) { l.reserved[first].requests[0].times = 2 }, 1},
		{"a node's capacity", func(l *Ledger) { l.offering[first].capacities[0].devices = 64 }, 1},
		{"one node's requested", func(l *Ledger) { l.nodes["n1"].requested[first] = 3 }, 1},
		{"one node's releasing", func(l *Ledger) { l.nodes["n1"].releasing[second] = 3 }, 1},
		{"an offer that is too good", func(l *Ledger) { l.offering[first].list[0].free++ }, 1},
		{"an offer that is forgotten", func(l *Ledger) { l.offering[first].remove(l.nodes["n1"]) }, 1},
		{"an offer that nobody would look at", func(l *Ledger) { l.offering[first].open = 1 }, 1},
		{"a node that is missing", func(l *Ledger) { l.pods["z"] = Charge{UID: "z", Node: "n3", Devices: Counts{first: 1}} }, 1},
		{"a node that is not there", func(l *Ledger) {
			l.nodes["n9"] = &nodeState{requested: Counts{first: 1}, releasing: Counts{}}
		}, 1},
		{"several at once", func(l *Ledger) {
			l.totals.requested[first], l.totals.unbound[first], l.nodes["n1"].requested[first] = 0, asked{}, 0
		}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, want := NewLedger(nil), NewLedger(nil)
			for _, ledger := range []*Ledger{l, want} {
				set(ledger, objects...)
				_, err := ledger.Choose(mustConfig(threePools), demand(1, vf(1)))
				require.NoError(t, err)
			}
			tc.corrupt(l)
			nodes, charges := world(objects...)
			assert.Equal(t, tc.sums, l.Recount(nodes, charges).Sums)
			l.Recount(nodes, charges) // a pod that the corruption made up goes with the second look
			assert.Equal(t, want.Usage(), l.Usage())
			assert.Equal(t, want.NodeUsage(first), l.NodeUsage(first))
			assert.Equal(t, Drift{}, l.Recount(nodes, charges), "it is mended once")
			// The mended ledger goes on counting.
			for _, ledger := range []*Ledger{l, want} {
				set(ledger, injected("t", "n2", "idt", first), node("n2", first, 1, second, 2))
				ledger.DeletePod("p")
				ledger.DeleteNode("n1")
			}
			assert.Equal(t, want.Usage(), l.Usage())
		})
	}
}

func TestRecountBelievesADifferenceWhenItIsSeenTwice(t *testing.T) {
	n1, p := node("n1", first, 4), injected("p", "n1", "idp", first)
	newer := func(n *corev1.Node, version string, devices int) *corev1.Node {
		other := node(n.Name, first, devices)
		other.ResourceVersion = version
		return other
	}
	for _, tc := range []struct {
		name   string
		ledger []any
		shown  []any
		want   Usage
	}{
		{"a pod that was missed", []any{n1}, []any{n1, p}, Usage{Allocatable: 4, Requested: 1, Available: 3, Free: 3, Nodes: 1}},
		{"a pod whose end was missed", []any{n1, p}, []any{n1}, Usage{Allocatable: 4, Available: 4, Free: 4, Nodes: 1}},
		{"a pod whose binding was missed", []any{n1, injected("p", "", "idp", first)}, []any{n1, p}, Usage{Allocatable: 4, Requested: 1, Available: 3, Free: 3, Nodes: 1}},
		{"a node that was missed", []any{p}, []any{n1, p}, Usage{Allocatable: 4, Requested: 1, Available: 3, Free: 3, Nodes: 1}},
		{"a node whose deletion was missed", []any{n1, p}, []any{p}, Usage{}},
		{"a node whose change was missed", []any{n1, p}, []any{newer(n1, "2", 2), p}, Usage{Allocatable: 2, Requested: 1, Available: 1, Free: 1, Nodes: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Pool = first
			l := NewLedger(nil)
			set(l, tc.ledger...)
			before := l.UsageOf(first)
			nodes, charges := world(tc.shown...)
			require.Equal(t, Drift{}, l.Recount(nodes, charges), "the store may only be ahead of its handlers")
			require.Equal(t, before, l.UsageOf(first))
			require.Equal(t, Drift{Missed: 1}, l.Recount(nodes, charges))
			require.Equal(t, tc.want, l.UsageOf(first))
			require.Equal(t, Drift{}, l.Recount(nodes, charges))
		})
	}
	t.Run("a difference that is another one each time must not be believed", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, n1)
		for i, shown := range [][]any{{n1, p}, {n1, deleting(injected("p", "n1", "idp", first))}, {n1}, {n1, p}, {newer(n1, "2", 3)}, {newer(n1, "3", 3)}, {}, {n1}} {
			nodes, charges := world(shown...)
			require.Equal(t, Drift{}, l.Recount(nodes, charges), "recount %d", i)
		}
		require.Equal(t, Usage{Pool: first, Allocatable: 4, Available: 4, Free: 4, Nodes: 1}, l.UsageOf(first))
	})
	t.Run("a difference that its event settles must not be counted", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, n1)
		nodes, charges := world(n1, p)
		require.Equal(t, Drift{}, l.Recount(nodes, charges))
		set(l, p)
		require.Equal(t, Drift{}, l.Recount(nodes, charges))
		l.DeletePod("p")
		require.Equal(t, Drift{}, l.Recount(nodes, charges), "seen before, but not at the recount before")
	})
}
