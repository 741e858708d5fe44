package pools

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	first  = corev1.ResourceName("a.com/first")
	second = corev1.ResourceName("b.com/second")
	phys   = corev1.ResourceName("c.com/phys")
)

const threePools = "a.com/first type=vf\nb.com/second type=vf\nc.com/phys type=pf"

// TestChoose: cases S39, W34 of docs/cases.md.
func TestChoose(t *testing.T) {
	gpuPod := pod("new", "", gpu, 8)
	onN2 := pod("new", "")
	onN2.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n2"}
	affine := pod("new", "")
	affine.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}}}}}}}}
	tolerant := pod("new", "")
	tolerant.Spec.Tolerations = []corev1.Toleration{{Key: "rdma", Operator: corev1.TolerationOpExists}}
	tainted := func(n *corev1.Node) *corev1.Node {
		n.Spec.Taints = []corev1.Taint{{Key: "rdma", Effect: corev1.TaintEffectNoSchedule}}
		return n
	}
	away := func(n *corev1.Node, pool corev1.ResourceName) *corev1.Node {
		n.Status.Allocatable[pool] = resource.Quantity{}
		return n
	}
	cordoned := func(n *corev1.Node) *corev1.Node {
		n.Spec.Unschedulable = true
		return n
	}
	// What a kubelet keeps for itself is in the capacity for ever, and never in the allocatable.
	keeping := func(n *corev1.Node, name corev1.ResourceName, capacity, allocatable string) *corev1.Node {
		n.Status.Capacity[name], n.Status.Allocatable[name] = resource.MustParse(capacity), resource.MustParse(allocatable)
		return n
	}
	vfAndPf := rdma.Intent{{Type: rdma.VF, Count: 1}, {Type: rdma.PF, Count: 1}}

	for name, tc := range map[string]struct {
		pools   string
		policy  string
		objects []any
		demand  Demand
		want    []corev1.ResourceName
		outcome Outcome
		refused string
	}{
		"the pool of highest priority is taken while it has room": {
			objects: []any{node("n1", first, 1, second, 8)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{first}, outcome: Room},
		"the next pool is taken when the first is full": {
			objects: []any{node("n1", first, 1, second, 8), pod("p", "n1", first, 1)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{second}, outcome: Room},
		"devices on two nodes do not serve one pod together": {
			objects: []any{node("n1", first, 1), node("n2", first, 1), node("n3", second, 2)}, demand: demand(0, vf(2)),
			want: []corev1.ResourceName{second}, outcome: Room},
		"devices that waiting pods will take are no room": {
			objects: []any{node("n1", first, 2, second, 8), pod("p", "", first, 2)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{second}, outcome: Room},
		"waiting pods are counted in bundles of the demand, rounded up": {
			// 3 waiting devices are 2 bundles of 2; 3 slots are left over 2 nodes, so one bundle fits.
			objects: []any{node("n1", first, 4), node("n2", first, 2), node("n3", second, 8), pod("p", "", first, 3)}, demand: demand(0, vf(2)),
			want: []corev1.ResourceName{first}, outcome: Room},
		"devices of a pod being deleted are not free now": {
			objects: []any{node("n1", first, 1, second, 8), deleting(pod("p", "n1", first, 1))}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{second}, outcome: Room},
		"devices of a pod being deleted are taken before waiting for a full pool": {
			objects: []any{node("n1", first, 1, second, 1), pod("p", "n1", first, 1), deleting(pod("q", "n1", second, 1))}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{second}, outcome: RoomAfterRelease},
		"a pod waits for the pool of highest priority when all are full": {
			objects: []any{node("n1", first, 1, second, 1), pod("p", "n1", first, 1, second, 1)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{first}, outcome: Waits},
		"a pod does not wait for a pool that is too small for it": {
			objects: []any{node("n1", first, 1, second, 2), pod("p", "n1", second, 1)}, demand: demand(0, vf(2)),
			want: []corev1.ResourceName{second}, outcome: Waits},
		"a GPU pod gets the lower pool when only CPU nodes have the higher one": {
			objects: []any{node("cpu", first, 8), node("gpu", second, 8, gpu, 8)},
			demand:  Demand{Intent: vf(1), Pod: gpuPod}, want: []corev1.ResourceName{second}, outcome: Room},
		"a GPU pod waits for its GPU nodes' pool, busy as they are": {
			objects: []any{node("cpu", first, 8), node("gpu", second, 1, gpu, 8), pod("p", "gpu", second, 1, gpu, 8)},
			demand:  Demand{Intent: vf(1), Pod: gpuPod}, want: []corev1.ResourceName{second}, outcome: Waits},
		"a GPU pod waits for its GPU nodes' pool while their device plugin is away": {
			objects: []any{node("cpu", first, 8), away(node("gpu", second, 1, gpu, 8), gpu)},
			demand:  Demand{Intent: vf(1), Pod: gpuPod}, want: []corev1.ResourceName{second}, outcome: Waits},
		"a pod must not wait for nodes whose kubelet keeps the processors that it lacks": {
			objects: []any{keeping(node("n1", first, 8), corev1.ResourceCPU, "64", "62"), node("n2", second, 1), pod("p", "n2", second, 1)},
			demand:  Demand{Intent: vf(1), Pod: pod("new", "", corev1.ResourceCPU, 63)}, want: []corev1.ResourceName{second}, outcome: Waits},
		"a pod must not wait for nodes whose kubelet keeps the memory that it lacks": {
			objects: []any{keeping(node("n1", first, 8), corev1.ResourceMemory, "512Gi", "500Gi"), node("n2", second, 1), pod("p", "n2", second, 1)},
			demand:  Demand{Intent: vf(1), Pod: pod("new", "", corev1.ResourceMemory, 501<<30)}, want: []corev1.ResourceName{second}, outcome: Waits},
		"a pod must not wait for nodes whose kubelet keeps the disk that it lacks": {
			objects: []any{keeping(node("n1", first, 8), corev1.ResourceEphemeralStorage, "100Gi", "90Gi"), node("n2", second, 1, corev1.ResourceEphemeralStorage, 100<<30), pod("p", "n2", second, 1)},
			demand:  Demand{Intent: vf(1), Pod: pod("new", "", corev1.ResourceEphemeralStorage, 95<<30)}, want: []corev1.ResourceName{second}, outcome: Waits},
		"a pod must not wait for nodes that have its huge pages in their capacity alone": {
			objects: []any{keeping(node("n1", first, 8), "hugepages-1Gi", "8Gi", "0"), node("n2", second, 1, corev1.ResourceName("hugepages-1Gi"), 8<<30), pod("p", "n2", second, 1)},
			demand:  Demand{Intent: vf(1), Pod: pod("new", "", corev1.ResourceName("hugepages-1Gi"), 8<<30)}, want: []corev1.ResourceName{second}, outcome: Waits},
		"the node selector decides which nodes count": {
			objects: []any{node("n1", first, 8), node("n2", second, 8)},
			demand:  Demand{Intent: vf(1), Pod: onN2}, want: []corev1.ResourceName{second}, outcome: Room},
		"required affinity decides which nodes count": {
			objects: []any{node("n1", first, 8), node("n2", second, 8)},
			demand:  Demand{Intent: vf(1), Pod: affine}, want: []corev1.ResourceName{second}, outcome: Room},
		"a taint that the pod does not tolerate rules a node out": {
			objects: []any{tainted(node("n1", first, 8)), node("n2", second, 8)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{second}, outcome: Room},
		"a taint that the pod tolerates does not": {
			objects: []any{tainted(node("n1", first, 8)), node("n2", second, 8)},
			demand:  Demand{Intent: vf(1), Pod: tolerant}, want: []corev1.ResourceName{first}, outcome: Room},
		"a pool of another type is never taken": {
			objects: []any{node("n1", first, 8)}, demand: demand(0, rdma.Intent{{Type: rdma.PF, Count: 1}}),
			want: []corev1.ResourceName{phys}, outcome: NoNode},
		"without any node that offers a pool the first of the type is waited for": {
			objects: []any{node("n1")}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{first}, outcome: NoNode},
		"a device plugin that is away does not make its pool impossible": {
			objects: []any{away(node("n1", second, 8), second)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{second}, outcome: Waits},
		"a cordoned node has no room but can serve later": {
			objects: []any{cordoned(node("n1", second, 8))}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{second}, outcome: Waits},
		"vf and pf are taken on one node": {
			objects: []any{node("n1", first, 8), node("n2", second, 8, phys, 1)}, demand: demand(0, vfAndPf),
			want: []corev1.ResourceName{second, phys}, outcome: Room},
		"vf and pf may come from one pool that serves both": {
			pools: "a.com/first", objects: []any{node("n1", first, 2)}, demand: demand(0, vfAndPf),
			want: []corev1.ResourceName{first, first}, outcome: Room},
		"vf and pf of one pool are added up": {
			pools: "a.com/first", objects: []any{node("n1", first, 1)}, demand: demand(0, vfAndPf),
			want: []corev1.ResourceName{first, first}, outcome: NoNode},
		"a shared pool serves one device": {
			pools: "a.com/first shared=true\nb.com/second", objects: []any{node("n1", first, 100, second, 4)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{first}, outcome: Room},
		"a shared pool does not serve two devices": {
			pools: "a.com/first shared=true\nb.com/second", objects: []any{node("n1", first, 100, second, 4)}, demand: demand(0, vf(2)),
			want: []corev1.ResourceName{second}, outcome: Room},
		"a shared pool does not serve both types of a pod": {
			pools: "a.com/first shared=true\nb.com/second", objects: []any{node("n1", first, 100, second, 4)}, demand: demand(0, vfAndPf),
			want: []corev1.ResourceName{first, second}, outcome: Room},
		"two devices are refused when all pools are shared": {
			pools: "a.com/first shared=true", objects: []any{node("n1", first, 100)}, demand: demand(0, vf(2)),
			refused: `all pools of type vf are shared, and a shared device serves one adapter however many are asked for; accepted is "1"`},
		"a type that no pool serves is refused": {
			pools: "a.com/first type=pf", objects: []any{node("n1", first, 1)}, demand: demand(0, vf(1)),
			refused: "no configured pool serves type vf; accepted are the types of the pools that an administrator configured"},
		"a pinned pool is kept though it is full": {
			objects: []any{node("n1", first, 8, second, 1), pod("p", "n1", second, 1)},
			demand:  Demand{Intent: vf(1), Pod: pod("new", "", second, 1), Pinned: map[rdma.Type]corev1.ResourceName{rdma.VF: second}},
			want:    []corev1.ResourceName{second}, outcome: Waits},
		"a request for a pool of another type must be on the node, too": {
			objects: []any{node("n1", first, 8), node("n2", second, 8, phys, 1)},
			demand:  Demand{Intent: vf(1), Pod: pod("new", "", phys, 1)}, want: []corev1.ResourceName{second}, outcome: Room},
		"a pinned shared pool must not serve two devices": {
			pools: "a.com/first shared=true\nb.com/second", objects: []any{node("n1", first, 100, second, 4)},
			demand:  Demand{Intent: vf(2), Pod: pod("new", "", first, 2), Pinned: map[rdma.Type]corev1.ResourceName{rdma.VF: first}},
			refused: `pool a.com/first is shared, and a shared device serves one adapter however many are asked for; accepted is "1"`},
		"under reject a pod that only has to wait is admitted": {
			policy: "whenFull: reject", objects: []any{node("n1", first, 1), pod("p", "n1", first, 1)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{first}, outcome: Waits},
		"under reject a pod that exceeds every node is refused": {
			policy: "whenFull: reject", objects: []any{node("n1", first, 8, second, 4)}, demand: demand(0, vf(9)),
			refused: "no node can hold the pod with 9 of a.com/first or b.com/second, even when it is empty; accepted is what fits on one node"},
		"under reject a pod that needs what every kubelet keeps for itself is refused": {
			policy: "whenFull: reject", objects: []any{keeping(node("n1", first, 8), corev1.ResourceCPU, "64", "62")},
			demand:  Demand{Intent: vf(1), Pod: pod("new", "", corev1.ResourceCPU, 63)},
			refused: "no node can hold the pod with 1 of a.com/first or b.com/second, even when it is empty; accepted is what fits on one node"},
		"gated pods count as waiting": {
			objects: []any{node("n1", first, 1, second, 1), gatedPod("p", first)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{second}, outcome: Room},
		"gated pods do not count when the policy says so": {
			policy: "gatedPods: ignore", objects: []any{node("n1", first, 1, second, 1), gatedPod("p", first)}, demand: demand(0, vf(1)),
			want: []corev1.ResourceName{first}, outcome: Room},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.pools == "" {
				tc.pools = threePools
			}
			l := NewLedger(nil)
			set(l, tc.objects...)
			choice, err := l.Choose(mustConfig(tc.pools, tc.policy), tc.demand)
			if tc.refused != "" {
				var refusal *RefusalError
				require.ErrorAs(t, err, &refusal)
				require.Equal(t, tc.refused, err.Error())
				return
			}
			require.NoError(t, err)
			var got []corev1.ResourceName
			for _, e := range choice.Assignment {
				got = append(got, e.Pool)
			}
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.outcome, choice.Outcome)
		})
	}
}

func gatedPod(uid string, pool corev1.ResourceName) *corev1.Pod {
	p := pod(uid, "", pool, 1)
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gate"}}
	return p
}

// A burst in which the informer shows nothing at all, some pods, or everything at once: 200 devices and 300.
func TestABurstIsSplitInOrderWhateverTheInformersLag(t *testing.T) {
	for _, lag := range []int{0, 1, 7, 100, 500} {
		t.Run(fmt.Sprintf("the informer is %d pods behind", lag), func(t *testing.T) {
			l := NewLedger(nil)
			for i := range 10 {
				set(l, node(fmt.Sprintf("n%d", i), first, 20, second, 30))
			}
			cfg := mustConfig(threePools)
			got := map[corev1.ResourceName]int{}
			var admitted []*corev1.Pod
			for i := range 500 {
				choice, err := l.Choose(cfg, demand(i, vf(1)))
				require.NoError(t, err)
				require.Equal(t, Room, choice.Outcome)
				got[choice.Assignment[0].Pool]++
				if i < 200 {
					require.Equal(t, first, choice.Assignment[0].Pool, "pod %d", i)
				}
				admitted = append(admitted, injected(fmt.Sprintf("p%d", i), "", fmt.Sprintf("id%d", i), choice.Assignment[0].Pool))
				if shown := len(admitted) - 1 - lag; shown >= 0 {
					set(l, admitted[shown])
				}
			}
			require.Equal(t, map[corev1.ResourceName]int{first: 200, second: 300}, got)
			choice, err := l.Choose(cfg, demand(500, vf(1)))
			require.NoError(t, err)
			require.Equal(t, Waits, choice.Outcome)
		})
	}
}

func TestReservations(t *testing.T) {
	now := time.Unix(1000, 0)
	fresh := func() (*Ledger, *Config) {
		l := NewLedger(func() time.Time { return now })
		set(l, node("n1", first, 1, second, 1))
		return l, mustConfig(threePools)
	}
	choose := func(t *testing.T, l *Ledger, cfg *Config, d Demand) corev1.ResourceName {
		t.Helper()
		choice, err := l.Choose(cfg, d)
		require.NoError(t, err)
		return choice.Assignment[0].Pool
	}
	t.Run("a second pass of one admission does not count against itself", func(t *testing.T) {
		l, cfg := fresh()
		require.Equal(t, first, choose(t, l, cfg, demand(1, vf(1))))
		require.Equal(t, first, choose(t, l, cfg, demand(1, vf(1))))
		require.Equal(t, int64(1), l.UsageOf(first).Reserved)
	})
	t.Run("a demand without an admission id reserves nothing", func(t *testing.T) {
		l, cfg := fresh()
		require.Equal(t, first, choose(t, l, cfg, Demand{Intent: vf(1), Pod: pod("new", "")}))
		require.Equal(t, int64(0), l.UsageOf(first).Reserved)
	})
	t.Run("a refused demand reserves nothing", func(t *testing.T) {
		l, _ := fresh()
		_, err := l.Choose(mustConfig(threePools, "whenFull: reject"), demand(1, vf(9)))
		require.Error(t, err)
		require.Equal(t, int64(0), l.UsageOf(first).Reserved)
	})
	t.Run("the pod's appearance replaces the reservation and is not counted twice", func(t *testing.T) {
		l, cfg := fresh()
		choose(t, l, cfg, demand(1, vf(1)))
		set(l, injected("p", "", "id1", first))
		usage := l.UsageOf(first)
		require.Equal(t, int64(0), usage.Reserved)
		require.Equal(t, int64(1), usage.Unbound)
		require.True(t, l.KnowsAdmission("id1"))
	})
	t.Run("a reservation ends by itself", func(t *testing.T) {
		l, cfg := fresh()
		choose(t, l, cfg, demand(1, vf(1)))
		now = now.Add(29 * time.Second)
		require.Equal(t, second, choose(t, l, cfg, Demand{Intent: vf(1), Pod: pod("new", "")}))
		now = now.Add(time.Second)
		require.Equal(t, first, choose(t, l, cfg, Demand{Intent: vf(1), Pod: pod("new", "")}))
		require.Equal(t, int64(0), l.UsageOf(first).Reserved)
	})
	t.Run("a renewed reservation does not prolong the others", func(t *testing.T) {
		l, cfg := fresh()
		choose(t, l, cfg, demand(1, vf(1)))
		now = now.Add(time.Second)
		choose(t, l, cfg, demand(2, vf(1)))
		now = now.Add(20 * time.Second)
		choose(t, l, cfg, demand(1, vf(1)))
		now = now.Add(10 * time.Second)
		require.Equal(t, int64(1), l.UsageOf(first).Reserved+l.UsageOf(second).Reserved)
		now = now.Add(20 * time.Second)
		require.Zero(t, l.UsageOf(first).Reserved+l.UsageOf(second).Reserved)
	})
	named := func(id int, name string) Demand {
		d := demand(id, vf(1))
		d.Name = name
		return d
	}
	reserved := func(l *Ledger) int64 { return l.UsageOf(first).Reserved + l.UsageOf(second).Reserved }
	t.Run("a new attempt under the same name replaces the one before", func(t *testing.T) {
		l, cfg := fresh()
		for id := range 100 {
			require.Equal(t, first, choose(t, l, cfg, named(id, "tenant-a/p")), "its predecessor does not count against it")
		}
		require.Equal(t, int64(1), reserved(l))
	})
	t.Run("a new attempt that is refused gives the one before back as well", func(t *testing.T) {
		l, cfg := fresh()
		choose(t, l, cfg, named(1, "tenant-a/p"))
		tooBig := named(2, "tenant-a/p")
		tooBig.Intent = vf(9)
		_, err := l.Choose(mustConfig(threePools, "whenFull: reject"), tooBig)
		require.Error(t, err)
		require.Zero(t, reserved(l))
	})
	t.Run("a new attempt is not bound by the group of the one before", func(t *testing.T) {
		l, cfg := fresh()
		set(l, pod("other", "", first, 1))
		d := named(1, "tenant-a/p")
		d.Group = Group{Namespace: "tenant-a", Key: "a", Name: "g"}
		require.Equal(t, second, choose(t, l, cfg, d))
		l.DeletePod("other")
		d.AdmissionID = "id2"
		require.Equal(t, first, choose(t, l, cfg, d))
	})
	t.Run("attempts under other names, or without one, must not replace each other", func(t *testing.T) {
		l, cfg := fresh()
		for id, name := range []string{"tenant-a/p", "tenant-b/p", "tenant-a/q", "", ""} {
			choose(t, l, cfg, named(id, name))
		}
		require.Equal(t, int64(5), reserved(l))
	})
	t.Run("a dry run must not replace the attempt before", func(t *testing.T) {
		l, cfg := fresh()
		choose(t, l, cfg, named(1, "tenant-a/p"))
		d := named(2, "tenant-a/p")
		d.AdmissionID = ""
		require.Equal(t, second, choose(t, l, cfg, d))
		require.Equal(t, int64(1), reserved(l))
	})
	t.Run("the appearance of a replaced attempt's pod must not end the one that replaced it", func(t *testing.T) {
		l, cfg := fresh()
		choose(t, l, cfg, named(1, "tenant-a/p"))
		choose(t, l, cfg, named(2, "tenant-a/p"))
		set(l, injected("p", "", "id1", first))
		require.Equal(t, int64(1), reserved(l))
		set(l, injected("p2", "", "id2", second))
		require.Zero(t, reserved(l))
		require.Empty(t, l.byName)
	})
	t.Run("a reservation that is cancelled is gone, and cancelling twice does nothing", func(t *testing.T) {
		l, cfg := fresh()
		choose(t, l, cfg, named(1, "tenant-a/p"))
		l.CancelReservation("id1")
		l.CancelReservation("id1")
		l.CancelReservation("unknown")
		require.Zero(t, reserved(l))
		require.Equal(t, first, choose(t, l, cfg, named(2, "tenant-a/p")))
	})
	t.Run("an admission is not known any more when its pod is gone", func(t *testing.T) {
		l, _ := fresh()
		set(l, injected("p", "", "id1", first))
		l.DeletePod("p")
		require.False(t, l.KnowsAdmission("id1"))
	})
}

func TestGroups(t *testing.T) {
	cfg := mustConfig(threePools)
	group := Group{Namespace: "tenant-a", Key: "scheduling.x-k8s.io/pod-group", Name: "train"}
	member := func(uid string, pool corev1.ResourceName) *corev1.Pod {
		p := injected(uid, "", uid, pool)
		p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "train"}
		return p
	}
	choose := func(t *testing.T, l *Ledger, d Demand) Choice {
		t.Helper()
		choice, err := l.Choose(cfg, d)
		require.NoError(t, err)
		return choice
	}
	inGroup := func(n int) Demand {
		d := demand(n, vf(1))
		d.Group = group
		return d
	}
	t.Run("later members get the first one's pool even when it is full", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, node("n1", first, 1, second, 8))
		require.Equal(t, first, choose(t, l, inGroup(1)).Assignment[0].Pool)
		later := choose(t, l, inGroup(2))
		require.Equal(t, first, later.Assignment[0].Pool)
		require.True(t, later.FromGroup)
		require.Equal(t, Waits, later.Outcome)
	})
	t.Run("members under reject wait as well", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, node("n1", first, 1, second, 8), member("p", second))
		l.DeleteNode("n1")
		reject := mustConfig(threePools, "whenFull: reject")
		choice, err := l.Choose(reject, inGroup(2))
		require.NoError(t, err)
		require.Equal(t, second, choice.Assignment[0].Pool)
	})
	t.Run("a pod of another group or namespace is free to choose", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, node("n1", first, 8, second, 8), member("p", second))
		for _, other := range []Group{{}, {Namespace: "tenant-b", Key: group.Key, Name: "train"}, {Namespace: "tenant-a", Key: "other", Name: "train"}} {
			d := demand(3, vf(1))
			d.Group = other
			require.Equal(t, first, choose(t, l, d).Assignment[0].Pool, "%+v", other)
		}
	})
	t.Run("members that are being deleted do not bind a new gang of the name", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, node("n1", first, 8, second, 8), deleting(member("p", second)))
		require.Equal(t, first, choose(t, l, inGroup(4)).Assignment[0].Pool)
	})
	t.Run("members that disagree give the pool of higher priority", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, node("n1", first, 8, second, 8), member("p", second), member("q", first), member("r", second))
		require.Equal(t, first, choose(t, l, inGroup(5)).Assignment[0].Pool)
	})
	t.Run("a later member must not get two devices of the group's shared pool", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, node("n1", first, 8, second, 8), member("p", first))
		d := inGroup(7)
		d.Intent = vf(2)
		_, err := l.Choose(mustConfig("a.com/first shared=true\nb.com/second"), d)
		require.EqualError(t, err, `pool a.com/first is shared, and a shared device serves one adapter however many are asked for; accepted is "1"`)
	})
	t.Run("a pool taken out of the configuration is still served to its group", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, node("n1", first, 8), member("p", "old.com/pool"))
		require.Equal(t, corev1.ResourceName("old.com/pool"), choose(t, l, inGroup(6)).Assignment[0].Pool)
	})
}
