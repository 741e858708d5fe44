package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// mustNotBind says that a pod has been left alone.
func (f *fixture) mustNotBind(pod *corev1.Pod) {
	f.t.Helper()
	stored := f.stored(pod)
	require.Empty(f.t, stored.Spec.NodeName)
	require.Equal(f.t, pod.Annotations, stored.Annotations)
	require.Empty(f.t, podWrites(f.client))
}

func TestPreBindAsksForWhatAdmissionDecided(t *testing.T) {
	f := newFixture(t, setup{})
	pod := injected(plainPod(teamA, "p"), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 2}, {Type: rdma.PF, Pool: pfPool, Count: 1}})
	f.create(pod)
	_, status := f.prepared(pod)
	requireSuccess(t, status)
	require.Empty(t, cmp.Diff([]tenant.EnsureRequest{{
		Cluster: clusterUID, Namespace: teamA, Pod: "p", Tenant: acme, Node: node1,
		Requests: []tenant.Request{{Type: "vf", Pool: string(vfPool), Count: 2}, {Type: "pf", Pool: string(pfPool), Count: 1}},
	}}, f.allocator.asked()))
	f.mustNotBind(pod)
}

func TestPreBindFindsTheOwnerOfANamespaceThatTheInformerDoesNotShow(t *testing.T) {
	f := newFixture(t, setup{})
	const fresh = "fresh"
	require.NoError(t, f.client.Tracker().Add(newNamespace(fresh, acme)))
	pod := injected(plainPod(fresh, "p"), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}})
	f.create(pod)
	_, status := f.prepared(pod)
	requireSuccess(t, status)
	require.Equal(t, acme, f.allocator.holds(pod.UID).Tenant)

	lost := injected(plainPod("unknown", "p"), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}})
	f.create(lost)
	_, status = f.prepared(lost)
	requireFault(t, status, "owns namespace unknown")
	require.Nil(t, f.allocator.holds(lost.UID), "the tenant must not be guessed")
}

// TestPreBindRefusesAnswers: cases W7, W8, W17, W80, S5 of docs/cases.md.
func TestPreBindRefusesAnswers(t *testing.T) {
	// nad changes the first NAD that was handed out.
	type change = func(f *fixture, answer *tenant.Allocation)
	nad := func(spoil func(*metav1.PartialObjectMetadata)) change {
		return func(f *fixture, answer *tenant.Allocation) {
			object := newNAD(teamA, answer.Networks[0].Name, answer.PodUID, corev1.ResourceName(answer.Networks[0].Pool))
			spoil(object)
			require.NoError(f.t, f.nads.Tracker().Update(nadResource, object, teamA))
		}
	}
	network := func(spoil func(*tenant.Network)) change {
		return func(_ *fixture, answer *tenant.Allocation) { spoil(&answer.Networks[0]) }
	}
	for name, tc := range map[string]struct {
		change change
		want   []string
	}{
		"no networks":              {func(_ *fixture, a *tenant.Allocation) { a.Networks = nil }, []string{"gave 0 networks", "asked for 2"}},
		"too few networks":         {func(_ *fixture, a *tenant.Allocation) { a.Networks = a.Networks[:1] }, []string{"gave 1 networks", "asked for 2"}},
		"too many networks":        {func(_ *fixture, a *tenant.Allocation) { a.Networks = append(a.Networks, a.Networks...) }, []string{"gave 4 networks", "asked for 2"}},
		"a network twice":          {func(_ *fixture, a *tenant.Allocation) { a.Networks[1] = a.Networks[0] }, []string{"p-0 was given twice"}},
		"another namespace's":      {network(func(n *tenant.Network) { n.Namespace = teamB }), []string{"team-b/p-0 is not in the pod's namespace team-a"}},
		"no namespace":             {network(func(n *tenant.Network) { n.Namespace = "" }), []string{"not in the pod's namespace"}},
		"a pool not asked for":     {network(func(n *tenant.Network) { n.Pool = string(pfPool) }), []string{"gave 1 networks of pool " + string(vfPool), "has 2 devices"}},
		"a NAD that is missing":    {network(func(n *tenant.Network) { n.Name = "nobody" }), []string{"team-a/nobody does not exist"}},
		"a NAD of another pod":     {nad(func(n *metav1.PartialObjectMetadata) { n.Labels[rdma.PodUIDLabel] = "other" }), []string{`tenant.network/pod-uid="other"`, "not this pod's UID"}},
		"a NAD without a label":    {nad(func(n *metav1.PartialObjectMetadata) { n.Labels = nil }), []string{`tenant.network/pod-uid=""`}},
		"a NAD of another pool":    {nad(func(n *metav1.PartialObjectMetadata) { n.Annotations[rdma.ResourceNameAnnotation] = string(pfPool) }), []string{`="` + string(pfPool) + `"`, `want "` + string(vfPool) + `"`}},
		"a NAD without a resource": {nad(func(n *metav1.PartialObjectMetadata) { n.Annotations = nil }), []string{`resourceName=""`, `want "` + string(vfPool) + `"`}},
		"another node":             {func(_ *fixture, a *tenant.Allocation) { a.Node = node2 }, []string{`answered for node "node-2", asked was "node-1"`}},
		"an interface that is no name": {network(func(n *tenant.Network) { n.Interface = "longer-than-15-bytes" }),
			[]string{"longer-than-15-bytes"}},
		"an interface that the pod has": {network(func(n *tenant.Network) { n.Interface = "eth0" }), []string{`"eth0" is taken`}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := vfPod("p", 2)
			f.create(pod)
			f.allocator.change = func(answer *tenant.Allocation) { tc.change(f, answer) }
			state, status := f.prepared(pod)
			for _, want := range tc.want {
				requireFault(t, status, want)
			}
			requireFault(t, f.framework.RunBindPlugins(f.context(), state, assumed(pod, node1), node1), "no networks for node")
			f.mustNotBind(pod)
		})
	}
}

func TestPreBindReportsAllFaultsOfAnAnswer(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 2)
	f.create(pod)
	f.allocator.change = func(answer *tenant.Allocation) {
		answer.Networks[0].Name = "nobody"
		answer.Networks[1].Pool = string(pfPool)
	}
	_, status := f.prepared(pod)
	requireFault(t, status, "team-a/nobody does not exist")
	requireFault(t, status, "gave 1 networks of pool")
}

// TestPreBindReadsSharedAndRetiredPools: cases W30 of docs/cases.md.
func TestPreBindReadsSharedAndRetiredPools(t *testing.T) {
	for name, tc := range map[string]struct {
		pool corev1.ResourceName
		fed  corev1.ResourceName
		want string
	}{
		"a shared pool's NAD without a resource passes":  {pool: sharedPool},
		"a shared pool's NAD must not feed devices":      {pool: sharedPool, fed: sharedPool, want: "is shared"},
		"a shared pool's NAD must not feed another pool": {pool: sharedPool, fed: vfPool, want: "is shared"},
		"a retired pool's NAD with its resource passes":  {pool: retiredPool, fed: retiredPool},
		"a retired pool's NAD without resource passes":   {pool: retiredPool},
		"a retired pool's NAD must not feed another":     {pool: retiredPool, fed: vfPool, want: `want "mellanox.com/retired"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := injected(plainPod(teamA, "p"), rdma.Assignment{{Type: rdma.VF, Pool: tc.pool, Count: 1}})
			f.create(pod)
			f.allocator.change = func(answer *tenant.Allocation) {
				require.NoError(t, f.nads.Tracker().Update(nadResource, newNAD(teamA, answer.Networks[0].Name, pod.UID, tc.fed), teamA))
			}
			_, status := f.prepared(pod)
			if tc.want == "" {
				requireSuccess(t, status)
			} else {
				requireFault(t, status, tc.want)
			}
		})
	}
}

// TestPreBindReadsManyNetworksAtOnce: the client's rate is shared by all pods that are about to be bound.
func TestPreBindReadsManyNetworksAtOnce(t *testing.T) {
	for _, networks := range []int64{1, 2, 16} {
		f := newFixture(t, setup{nodes: []*corev1.Node{newNode(node1, vfPool, 16)}})
		f.seeNode(newNode(node1, vfPool, 16))
		pod := vfPod("p", networks)
		f.create(pod)
		f.nads.ClearActions()
		requireSuccess(t, f.bound(pod))
		require.Len(t, f.nads.Actions(), 1, "%d networks", networks)
	}
}

// TestPreBindQueuesWhatIsTooMuchAtOnce: what waits for its turn is not late.
func TestPreBindQueuesWhatIsTooMuchAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, setup{args: Args{TenantController: TenantController{MaxConcurrent: 1}}})
		pod := vfPod("p", 1)
		f.create(pod)
		state := f.passed(pod)
		require.NoError(t, f.asking.Acquire(t.Context(), 1)) // another pod is being asked for

		result := make(chan *fwk.Status, 1)
		go func() { result <- f.framework.RunPreBindPlugins(f.context(), state, assumed(pod, node1), node1) }()
		pass(2 * f.args.PreBindTimeout.Duration)
		require.Empty(t, f.allocator.asked())
		f.asking.Release(1)
		requireSuccess(t, <-result)
		require.NoError(t, f.asking.Acquire(t.Context(), 1), "it has made room for the next one")
	})
}

// TestPreBindOfAGangMustNotTakeTheTurnOfOthers: while its first pod tries whether the tenant-controller is back, the others
// of a gang wait for that, and need no place for it.
func TestPreBindOfAGangMustNotTakeTheTurnOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, setup{nodes: []*corev1.Node{newNode(node1, vfPool, 8)}, args: Args{
			TenantController: TenantController{MaxConcurrent: 2}, Breaker: BreakerArgs{Failures: 1, Pause: metav1.Duration{Duration: pause}}}})
		defer f.restBreakers()
		f.seeNode(newNode(node1, vfPool, 8))
		f.allocator.fail = once(refused("full"))
		first := vfPod("first", 1)
		f.create(first)
		requireFault(t, f.bound(first), "full")
		pass(2 * pause)

		answered := make(chan struct{})
		f.allocator.during = func() { <-answered }
		results := make(chan *fwk.Status, 4)
		for i := range cap(results) {
			pod := vfPod(fmt.Sprintf("gang-%d", i), 1, labelled("jobset.sigs.k8s.io/jobset-name", "job"))
			f.create(pod)
			state := f.passed(pod)
			requireSuccess(t, f.framework.RunReservePluginsReserve(f.context(), state, pod, node1))
			go func() { results <- f.framework.RunPreBindPlugins(f.context(), state, assumed(pod, node1), node1) }()
			synctest.Wait()
		}
		require.True(t, f.asking.TryAcquire(1), "another tenant's pod can be asked for")
		f.asking.Release(1)
		require.Empty(t, results)
		close(answered)
		for range cap(results) {
			requireSuccess(t, <-results)
		}
		require.True(t, f.asking.TryAcquire(2), "all places are free again")
	})
}

// restBreakers lets their timers end.
func (f *fixture) restBreakers() {
	f.t.Helper()
	synctest.Wait()
	f.clock.Step(2 * idlePauses * f.args.Breaker.Pause.Duration)
	synctest.Wait()
}

func TestPreBindMustNotAskATenantControllerThatBecameSickInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, setup{args: Args{TenantController: TenantController{MaxConcurrent: 1},
			Breaker: BreakerArgs{Failures: 1, Pause: metav1.Duration{Duration: time.Hour}}}})
		defer f.restBreakers()
		pod := vfPod("p", 1)
		f.create(pod)
		state := f.passed(pod)
		require.NoError(t, f.asking.Acquire(t.Context(), 1))
		result := make(chan *fwk.Status, 1)
		go func() { result <- f.framework.RunPreBindPlugins(f.context(), state, assumed(pod, node1), node1) }()
		synctest.Wait()
		done, err := f.breakers.allow(t.Context(), acme)
		require.NoError(t, err)
		done(unavailable())
		f.asking.Release(1)
		requireFault(t, <-result, "became sick")
		require.Empty(t, f.allocator.asked())
		require.True(t, f.asking.TryAcquire(1))
	})
}

func TestPreBindMustNotQueueForAPodThatWasGivenUp(t *testing.T) {
	f := newFixture(t, setup{args: Args{TenantController: TenantController{MaxConcurrent: 1}}})
	pod := vfPod("p", 1)
	f.create(pod)
	require.NoError(t, f.asking.Acquire(t.Context(), 1))
	ctx, cancel := context.WithCancel(f.context())
	cancel()
	status := f.framework.RunPreBindPlugins(ctx, f.passed(pod), assumed(pod, node1), node1)
	requireFault(t, status, "context canceled")
	require.Empty(t, f.allocator.asked())
}

func TestPreBindFailsWhenNADsCannotBeRead(t *testing.T) {
	for verb, networks := range map[string]int64{"get": 1, "list": 2} {
		t.Run(verb, func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := vfPod("p", networks)
			f.create(pod)
			f.nads.PrependReactor(verb, "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("etcd is away")
			})
			_, status := f.prepared(pod)
			requireFault(t, status, "etcd is away")
			f.mustNotBind(pod)
		})
	}
}

// TestPreBindAsksOnceMoreAfterAConflict: cases S9 of docs/cases.md.
func TestPreBindAsksOnceMoreAfterAConflict(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	f.create(pod)
	current := tenant.Allocation{Generation: 7}
	f.allocator.fail = func(ask tenant.EnsureRequest) error {
		if ask.Generation == current.Generation {
			return nil
		}
		return &tenant.Error{Op: "ensure", Status: 409, Reason: tenant.ReasonStaleGeneration, Current: &current}
	}
	f.allocator.allocations[pod.UID] = f.allocator.make(pod.UID, tenant.EnsureRequest{Namespace: teamA, Pod: "p", Node: node2,
		Requests: []tenant.Request{{Type: "vf", Pool: string(vfPool), Count: 1}}})
	f.allocator.allocations[pod.UID].Generation = 7

	_, status := f.prepared(pod)
	requireSuccess(t, status)
	asks := f.allocator.asked()
	require.Len(t, asks, 2)
	require.Equal(t, int64(0), asks[0].Generation)
	require.Equal(t, int64(7), asks[1].Generation)
	require.Equal(t, node1, f.allocator.holds(pod.UID).Node)
}

func TestPreBindStartsAnewAfterAConflictWithoutAnAllocation(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	f.create(pod)
	f.allocator.fail = once(&tenant.Error{Op: "ensure", Status: 409, Reason: tenant.ReasonStaleGeneration})
	_, status := f.prepared(pod)
	requireSuccess(t, status)
	require.Len(t, f.allocator.asked(), 2)
}

func TestPreBindMustNotAskAThirdTime(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	f.create(pod)
	f.allocator.fail = always(&tenant.Error{Op: "ensure", Status: 409, Reason: tenant.ReasonStaleGeneration})
	_, status := f.prepared(pod)
	requireFault(t, status, "StaleGeneration")
	require.Len(t, f.allocator.asked(), 2)
	f.mustNotBind(pod)
}

func TestPreBindReadsThePodAgainAfterAConflict(t *testing.T) {
	for name, tc := range map[string]struct {
		now  func(*corev1.Pod)
		want string
	}{
		"a pod that is being deleted":          {deleting, "is being deleted"},
		"a pod that is bound":                  {onNode(node2), "bound to node node-2 already"},
		"a pod that was replaced":              {func(p *corev1.Pod) { p.UID = "another" }, "replaced by another"},
		"a pod that lost what admission wrote": {func(p *corev1.Pod) { p.Finalizers = nil }, "was changed"},
	} {
		t.Run(name+" is not asked for again", func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := vfPod("p", 1)
			f.create(pod)
			changed := pod.DeepCopy()
			tc.now(changed)
			f.store(changed) // the informer lags behind
			f.allocator.fail = always(&tenant.Error{Op: "ensure", Status: 409, Reason: tenant.ReasonStaleGeneration})
			_, status := f.prepared(pod)
			requireFault(t, status, tc.want)
			require.Len(t, f.allocator.asked(), 1)
		})
	}
	t.Run("a pod that is gone is not asked for again", func(t *testing.T) {
		f := newFixture(t, setup{})
		pod := vfPod("p", 1)
		f.see(pod)
		f.allocator.fail = always(&tenant.Error{Op: "ensure", Status: 409, Reason: tenant.ReasonStaleGeneration})
		_, status := f.prepared(pod)
		requireFault(t, status, "not found")
		require.Len(t, f.allocator.asked(), 1)
	})
}

// TestPreBindGivesUpOnAPodThatChanged: cases W75, S7 of docs/cases.md.
func TestPreBindGivesUpOnAPodThatChanged(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*fixture, *corev1.Pod)
		want   string
	}{
		"gone":             {func(f *fixture, p *corev1.Pod) { f.unsee(p) }, "the pod is gone"},
		"being deleted":    {seen(deleting), "is being deleted"},
		"bound":            {seen(onNode(node2)), "bound to node node-2 already"},
		"replaced":         {seen(func(p *corev1.Pod) { p.UID = "another" }), "replaced by another of its name, with UID another"},
		"stripped":         {seen(func(p *corev1.Pod) { p.Annotations = nil }), "was changed"},
		"without cleanup":  {seen(func(p *corev1.Pod) { p.Finalizers = nil }), "finalizer tenant.network/cleanup is missing"},
		"moved to another": {seen(annotated(rdma.ResourceTypeAnnotation, "pf")), "was changed"},
	} {
		t.Run(name+" before the call", func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := vfPod("p", 1)
			f.create(pod)
			tc.change(f, pod)
			_, status := f.prepared(pod)
			requireFault(t, status, tc.want)
			require.Empty(t, f.allocator.asked())
			f.mustNotBind(pod)
		})
		t.Run(name+" during the call", func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := vfPod("p", 1)
			f.create(pod)
			f.allocator.during = func() { tc.change(f, pod) }
			_, status := f.prepared(pod)
			requireFault(t, status, tc.want)
			f.mustNotBind(pod)
			require.NotNil(t, f.allocator.holds(pod.UID), "the release controller gives the networks back, not the plugin")
		})
	}
}

// seen lets the informer show the pod changed.
func seen(change func(*corev1.Pod)) func(*fixture, *corev1.Pod) {
	return func(f *fixture, pod *corev1.Pod) {
		changed := pod.DeepCopy()
		change(changed)
		f.see(changed)
	}
}

func TestPreBindKeepsTheUsersNetworks(t *testing.T) {
	for name, tc := range map[string]struct{ user, want string }{
		"none":         {"", "team-a/p-0@rdma0,team-a/p-1@rdma1"},
		"short":        {"storage, infra/logs@log0", "storage, infra/logs@log0,team-a/p-0@rdma0,team-a/p-1@rdma1"},
		"a taken name": {"storage@rdma0", "storage@rdma0,team-a/p-0@rdma1,team-a/p-1@rdma2"},
		"JSON with a field that nobody knows": {
			`[ {"name": "storage", "x-vendor": {"a": [1]}} ]`,
			`[ {"name": "storage", "x-vendor": {"a": [1]}} ,{"name":"p-0","namespace":"team-a","interface":"rdma0"},{"name":"p-1","namespace":"team-a","interface":"rdma1"}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			pod := vfPod("p", 2)
			if tc.user != "" {
				annotated(rdma.NetworksAnnotation, tc.user)(pod)
			}
			f.create(pod)
			requireSuccess(t, f.bound(pod))
			require.Equal(t, tc.want, f.stored(pod).Annotations[rdma.NetworksAnnotation])
		})
	}
}

func TestPreBindRefusesWhatTheUserMustNotWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		key, text string
		want      []string
	}{
		"a broken list":                      {rdma.NetworksAnnotation, "storage,,logs", []string{rdma.NetworksAnnotation, "comma too many"}},
		"a device by its name":               {rdma.NetworksAnnotation, `[{"name":"storage","deviceID":"0000:03:02.0"}]`, []string{"deviceID", "0000:03:02.0"}},
		"a NAD that feeds from a pool":       {rdma.NetworksAnnotation, "greedy", []string{"team-a/greedy", string(pfPool)}},
		"a NAD of the pod's retired pool":    {rdma.NetworksAnnotation, "retired", []string{"team-a/retired", string(retiredPool)}},
		"a default network from a pool":      {rdma.DefaultNetworkAnnotation, "greedy", []string{rdma.DefaultNetworkAnnotation, string(pfPool)}},
		"a default network that is a list":   {rdma.DefaultNetworkAnnotation, "a,b", []string{rdma.DefaultNetworkAnnotation, "exactly one"}},
		"a NAD that cannot be read just now": {rdma.NetworksAnnotation, "unreadable", []string{"team-a/unreadable", "etcd is away"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			f.createNAD(newNAD(teamA, "greedy", "", pfPool))
			f.createNAD(newNAD(metav1.NamespaceSystem, "greedy", "", pfPool))
			f.createNAD(newNAD(teamA, "retired", "", retiredPool))
			f.nads.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				get, ok := action.(clienttesting.GetAction)
				return ok && get.GetName() == "unreadable", nil, errors.New("etcd is away")
			})
			pod := injected(plainPod(teamA, "p"), rdma.Assignment{{Type: rdma.VF, Pool: retiredPool, Count: 1}}, annotated(tc.key, tc.text))
			f.create(pod)
			_, status := f.prepared(pod)
			for _, want := range tc.want {
				requireFault(t, status, want)
			}
			f.mustNotBind(pod)
		})
	}
}

func TestPreBindLeavesNetworksOfNoPoolToTheUser(t *testing.T) {
	f := newFixture(t, setup{})
	f.createNAD(newNAD(teamA, "other-vendor", "", "intel.com/sriov"))
	pod := vfPod("p", 1, annotated(rdma.NetworksAnnotation, "other-vendor,missing"), annotated(rdma.DefaultNetworkAnnotation, "calico"))
	f.create(pod)
	requireSuccess(t, f.bound(pod))
}

func TestPreBindRefusesAnnotationsThatNoUpdateWouldPass(t *testing.T) {
	const limit = apivalidation.TotalAnnotationSizeLimitB
	require.Equal(t, 262144, limit)
	merged := "team-a/p-0@rdma0"
	// filled returns a pod whose annotations have the given size once ours are in.
	filled := func(size int) *corev1.Pod {
		pod := vfPod("p", 1)
		size -= len(rdma.NetworksAnnotation) + len(merged) + len("filler")
		for key, value := range pod.Annotations {
			size -= len(key) + len(value)
		}
		pod.Annotations["filler"] = strings.Repeat("x", size)
		return pod
	}
	t.Run("the last byte passes", func(t *testing.T) {
		f := newFixture(t, setup{})
		pod := filled(limit)
		f.create(pod)
		requireSuccess(t, f.bound(pod))
		require.Equal(t, merged, f.stored(pod).Annotations[rdma.NetworksAnnotation])
	})
	t.Run("one byte more is refused", func(t *testing.T) {
		f := newFixture(t, setup{})
		pod := filled(limit + 1)
		f.create(pod)
		_, status := f.prepared(pod)
		requireFault(t, status, "Too long")
		f.mustNotBind(pod)
	})
}

func TestPreBindPreFlight(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 1)
	result, status := f.PreBindPreFlight(f.context(), f.passed(pod), pod, node1)
	requireSuccess(t, status)
	require.False(t, result.AllowParallel, "nothing may dawdle between the networks and the binding")

	plain := plainPod(teamA, "plain")
	_, status = f.PreBindPreFlight(f.context(), f.passed(plain), plain, node1)
	require.True(t, status.IsSkip(), "anything else costs a PATCH")

	_, status = f.PreBindPreFlight(f.context(), framework.NewCycleState(), pod, node1)
	requireFault(t, status, "cycle state of an RDMA pod was lost")
}

// hangingAllocator answers when its caller's time is up.
type hangingAllocator struct{ remaining chan time.Duration }

func (a hangingAllocator) Ensure(ctx context.Context, _ podUID, _ tenant.EnsureRequest) (*tenant.Allocation, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil, errors.New("no deadline")
	}
	a.remaining <- time.Until(deadline)
	return nil, fmt.Errorf("asked in vain: %w", context.DeadlineExceeded)
}

// TestPreBindBoundsTheCall: cases S33 of docs/cases.md.
func TestPreBindBoundsTheCall(t *testing.T) {
	f := newFixture(t, setup{args: Args{PreBindTimeout: metav1.Duration{Duration: 3 * time.Second}}})
	hanging := hangingAllocator{remaining: make(chan time.Duration, 1)}
	f.TenantNetwork.allocator = hanging
	pod := vfPod("p", 1)
	f.create(pod)
	_, status := f.prepared(pod)
	requireFault(t, status, "asked in vain")
	remaining := <-hanging.remaining
	require.LessOrEqual(t, remaining, 3*time.Second)
	require.Positive(t, remaining)
}

// TestCloneSharesNoNetworks: cases S27 of docs/cases.md.
func TestCloneSharesNoNetworks(t *testing.T) {
	c := &cycle{assignment: rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}}, ensured: ensured{node: node1, networks: "a", asked: time.Unix(1, 0)}}
	clone, ok := c.Clone().(*cycle)
	require.True(t, ok)
	require.Equal(t, c.assignment, clone.assignment)
	require.Equal(t, ensured{}, clone.ensured, "what was got for one node must not bind in a simulation of another")
	var _ fwk.StateData = clone
}

// networksOf reads the names from an annotation in JSON.
func networksOf(t *testing.T, text string) []string {
	t.Helper()
	var list []struct{ Name string }
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	names := make([]string, len(list))
	for i, network := range list {
		names[i] = network.Name
	}
	return names
}

func TestPreBindWritesJSONWhereANameNeedsIt(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("dotted.name", 1)
	f.create(pod)
	requireSuccess(t, f.bound(pod))
	require.Equal(t, []string{"dotted.name-0"}, networksOf(t, f.stored(pod).Annotations[rdma.NetworksAnnotation]))
}
