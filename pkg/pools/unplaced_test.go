package pools

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// absurd returns pods without a node that ask for so many devices of the first pool each.
func absurd(pods, devices int, gated bool) []any {
	var all []any
	for i := range pods {
		p := pod(fmt.Sprintf("absurd-%d-%d", devices, i), "", first, devices)
		if gated {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gate"}}
		}
		all = append(all, p)
	}
	return all
}

// A pool is left to those who can use it: what exceeds every node waits for ever, and would keep everybody else away for
// as long.
func TestDemandThatNoNodeCanMeet(t *testing.T) {
	allocatable := func(n *corev1.Node, devices int64) *corev1.Node {
		n.Status.Allocatable[first] = *resource.NewQuantity(devices, resource.DecimalSI)
		return n
	}
	cordoned := func(n *corev1.Node) *corev1.Node {
		n.Spec.Unschedulable = true
		return n
	}
	for name, tc := range map[string]struct {
		policy  string
		objects []any
		more    []any
		want    corev1.ResourceName
	}{
		"pods that exceed every node must not drive others off their pool": {
			objects: []any{node("n1", first, 8, second, 8)}, more: absurd(20, 64, false), want: first},
		"one device more than the largest node has is too many": {
			objects: []any{node("n1", first, 2, second, 8), node("n2", first, 8)}, more: absurd(2, 9, false), want: first},
		"pods that the largest node could hold count": {
			objects: []any{node("n1", first, 2, second, 8), node("n2", first, 8)}, more: absurd(2, 8, false), want: second},
		"pods that can be placed count beside those that cannot": {
			objects: []any{node("n1", first, 2, second, 8)}, more: append(absurd(20, 64, false), absurd(2, 1, false)...), want: second},
		"what exceeds the nodes of one pool counts in another that has larger ones": {
			objects: []any{node("n1", first, 8, second, 2), node("n2", first, 2)}, more: absurd(2, 8, false), want: second},
		"pods that wait for a device plugin count while it is away": {
			objects: []any{node("n1", first, 2, second, 8), allocatable(node("n2", first, 8), 0)}, more: absurd(1, 8, false), want: second},
		"pods that wait for a cordoned node count": {
			objects: []any{node("n1", first, 2, second, 8), cordoned(node("n2", first, 8))}, more: absurd(1, 8, false), want: second},
		"pods that were too large count when a larger node comes": {
			objects: append(absurd(1, 4, false), node("n1", first, 2, second, 8)), more: []any{cordoned(node("n2", first, 4))}, want: second},
		"pods that were too large count when their node grows": {
			objects: append(absurd(1, 4, false), node("n1", first, 2, second, 8)), more: []any{allocatable(node("n1", first, 4, second, 8), 2)}, want: second},
		"pods do not count any more when the last node that could hold them shrinks": {
			objects: append(absurd(1, 4, false), node("n1", first, 4, second, 8)), more: []any{node("n1", first, 3, second, 8)}, want: first},
		"gated pods that exceed every node must not drive others off their pool": {
			objects: []any{node("n1", first, 8, second, 8)}, more: absurd(20, 64, true), want: first},
		"gated pods that are ignored must not be taken off the demand twice": {
			policy: "gatedPods: ignore", objects: []any{node("n1", first, 2, second, 8), pod("p", "", first, 2)},
			more: absurd(20, 64, true), want: second},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(nil)
			set(l, tc.objects...)
			set(l, tc.more...)
			choice, err := l.Choose(mustConfig(threePools, tc.policy), demand1())
			require.NoError(t, err)
			require.Equal(t, Room, choice.Outcome)
			require.Equal(t, tc.want, choice.Assignment[0].Pool)
		})
	}
}

// demand1 asks for one device and reserves nothing.
func demand1() Demand { return Demand{Intent: vf(1), Pod: pod("new", "")} }

func TestDemandCountsAsTheNodesComeAndGo(t *testing.T) {
	l, cfg := NewLedger(nil), mustConfig(threePools)
	set(l, node("n1", first, 2, second, 8), pod("large", "", first, 4))
	for i, step := range []struct {
		do   func()
		want corev1.ResourceName
	}{
		{func() {}, first},
		{func() { set(l, node("n2", first, 4), pod("holder", "n2", first, 4)) }, second},
		{func() { l.DeleteNode("n2") }, first},
		{func() { set(l, node("n2", first, 4)) }, second},
		{func() { set(l, node("n3", first, 4)) }, first}, // which has room for it, and n1 for others
		{func() { l.DeleteNode("n2"); l.DeleteNode("n3") }, first},
	} {
		step.do()
		choice, err := l.Choose(cfg, demand1())
		require.NoError(t, err)
		require.Equal(t, step.want, choice.Assignment[0].Pool, "step %d", i)
	}
}

func TestReservationsThatNoNodeCanMeet(t *testing.T) {
	t.Run("they must not drive others off their pool", func(t *testing.T) {
		l, cfg := NewLedger(nil), mustConfig(threePools)
		set(l, node("n1", first, 8, second, 8))
		for i := range 20 {
			choice, err := l.Choose(cfg, demand(i, vf(64)))
			require.NoError(t, err)
			require.Equal(t, NoNode, choice.Outcome)
		}
		choice, err := l.Choose(cfg, demand1())
		require.NoError(t, err)
		require.Equal(t, first, choice.Assignment[0].Pool)
		require.Equal(t, Room, choice.Outcome)
	})
	t.Run("a second pass must not take its own off the demand of others", func(t *testing.T) {
		l, cfg := NewLedger(nil), mustConfig(threePools)
		set(l, node("n1", first, 2, second, 8))
		_, err := l.Choose(cfg, demand(1, vf(64)))
		require.NoError(t, err)
		set(l, pod("p", "", first, 2))
		choice, err := l.Choose(cfg, demand(1, vf(1))) // a webhook between the passes lowered the count
		require.NoError(t, err)
		require.Equal(t, second, choice.Assignment[0].Pool)
	})
}

func TestDemandThatNoNodeCanMeetIsShownAllTheSame(t *testing.T) {
	l := NewLedger(nil)
	set(l, node("n1", first, 8))
	set(l, absurd(2, 64, false)...)
	set(l, absurd(1, 32, true)...)
	_, err := l.Choose(mustConfig(threePools), demand(1, vf(64)))
	require.NoError(t, err)
	require.Equal(t, Usage{Pool: first, Allocatable: 8, Requested: 160, Unbound: 160, Gated: 32, Reserved: 64, Overcommitted: true, Nodes: 1}, l.UsageOf(first))
}

// What a tenant asks for in vain must not make others' choices dear: 10,000 requests, each of another size.
func BenchmarkBesideDemandThatNoNodeCanMeet(b *testing.B) {
	for _, absurdPods := range []int{0, 10_000} {
		l, cfg := NewLedger(nil), mustConfig(threePools)
		set(l, node("n1", first, 8, second, 8))
		for i := range absurdPods {
			set(l, absurd(1, 9+i, false)...)
		}
		charge, _ := ChargeOf(pod("p", "", first, 1), cfg.Policy)
		b.Run(fmt.Sprintf("choice/requests=%d", absurdPods), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Choose(cfg, demand1()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("event/requests=%d", absurdPods), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.SetPod(charge)
				l.DeletePod(charge.UID)
			}
		})
	}
}
