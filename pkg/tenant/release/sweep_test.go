package release

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// book is a tenant-controller's memory.
type book struct {
	mu  sync.Mutex
	all map[types.UID]tenant.Allocation
	// beforeRelease is called before each release is looked at.
	beforeRelease func()
	// other makes Ensure hand out other networks than before.
	other bool
	// broken is the answer to Get and Ensure while it is set.
	broken error
	// takes is how long the calls about one pod take, by namespace, for a caller that waits so long; Get knows none.
	takes map[string]time.Duration
	// underWay and most are the numbers of Ensures at a time, now and at most.
	underWay, most int
}

func (b *book) List(context.Context, string) ([]tenant.Allocation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.all)), nil
}

func (b *book) Get(_ context.Context, _ string, podUID types.UID) (*tenant.Allocation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return nil, b.broken
	}
	a, ok := b.all[podUID]
	if !ok {
		return nil, &tenant.Error{Status: 404, Reason: tenant.ReasonNotFound}
	}
	return &a, nil
}

func (b *book) count(change int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underWay += change
	b.most = max(b.most, b.underWay)
}

func (b *book) Ensure(ctx context.Context, podUID types.UID, ask tenant.EnsureRequest) (*tenant.Allocation, error) {
	b.count(1)
	defer b.count(-1)
	if err := passes(ctx, b.takes[ask.Namespace]); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return nil, b.broken
	}
	a, ok := b.all[podUID]
	if ask.Generation != a.Generation {
		return nil, &tenant.Error{Status: 409, Reason: tenant.ReasonStaleGeneration, Current: &a}
	}
	if !ok {
		a = tenant.Allocation{PodUID: podUID, Namespace: ask.Namespace, Pod: ask.Pod, Tenant: ask.Tenant, Networks: networksOf(podUID)}
		if b.other {
			a.Networks = networksOf("other")
		}
	}
	a.Node, a.AgeSeconds = ask.Node, 0
	a.Generation++
	b.all[podUID] = a
	return &a, nil
}

func (b *book) ReleaseUnused(ctx context.Context, _ string, podUID types.UID, generation int64, minAge time.Duration) error {
	if b.beforeRelease != nil {
		b.beforeRelease()
	}
	b.mu.Lock()
	a := b.all[podUID]
	b.mu.Unlock()
	if err := passes(ctx, b.takes[a.Namespace]); err != nil {
		return err
	}
	if a.Generation != generation || a.Age() < minAge {
		return &tenant.Error{Status: 409, Current: &a}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, podUID)
	return nil
}

func networksOf(podUID types.UID) []tenant.Network {
	return []tenant.Network{{Namespace: "ns", Name: "nad-" + string(podUID), Pool: "a.com/vf"}}
}

// allocation is old unless said otherwise.
func allocation(podUID types.UID, pod, node string, change ...func(*tenant.Allocation)) tenant.Allocation {
	a := tenant.Allocation{PodUID: podUID, Namespace: "ns", Pod: pod, Tenant: "ns", Node: node, Generation: 7, AgeSeconds: 3600, Networks: networksOf(podUID)}
	for _, f := range change {
		f(&a)
	}
	return a
}

func aged(d time.Duration) func(*tenant.Allocation) {
	return func(a *tenant.Allocation) { a.AgeSeconds = int64(d / time.Second) }
}

func devices(n int64) corev1.ResourceList {
	return corev1.ResourceList{"a.com/vf": *resource.NewQuantity(n, resource.DecimalSI)}
}

// rdmaPod is a pod of ours with one device.
func rdmaPod(name string, uid types.UID, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	assignment := rdma.Assignment{{Type: rdma.VF, Pool: "a.com/vf", Count: 1}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, Finalizers: []string{rdma.Finalizer}, Annotations: assignment.Annotations()},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: devices(1), Limits: devices(1)}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	pod.Annotations[rdma.NetworksAnnotation] = "ns/nad-" + string(uid) + "@rdma0"
	if node == "" {
		pod.Status.Phase = corev1.PodPending
		delete(pod.Annotations, rdma.NetworksAnnotation)
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func withoutFinalizer(pod *corev1.Pod) { pod.Finalizers = nil }
func hasSucceeded(pod *corev1.Pod)     { pod.Status.Phase = corev1.PodSucceeded }

func outOfServiceNode(name string) *corev1.Node {
	node := nodeWith(corev1.ConditionUnknown, corev1.TaintNodeOutOfService)
	node.Name = name
	return node
}

type sweepFixture struct {
	*Sweeper
	book   *book
	events *events
	memory client.Client
	live   client.Client
}

// newSweep has the same objects in memory and live, but for those that are live only.
func newSweep(t *testing.T, allocations []tenant.Allocation, memory []client.Object, liveOnly []client.Object, change ...func(*SweepConfig)) *sweepFixture {
	t.Helper()
	f := &sweepFixture{book: &book{all: map[types.UID]tenant.Allocation{}}, events: &events{}}
	for _, a := range allocations {
		f.book.all[a.PodUID] = a
	}
	base := []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "many"}}}
	f.memory = fake.NewClientBuilder().WithObjects(append(slices.Clone(base), memory...)...).Build()
	f.live = fake.NewClientBuilder().WithObjects(append(append(slices.Clone(base), memory...), liveOnly...)...).Build()
	cfg := SweepConfig{Client: f.memory, Live: f.live, Allocations: f.book, Recorder: f.events, Cluster: "cluster",
		Repair: true, Clock: clocktesting.NewFakeClock(now), Registerer: prometheus.NewRegistry()}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	f.Sweeper, err = NewSweeper(cfg)
	require.NoError(t, err)
	return f
}

func TestSweepReleases(t *testing.T) {
	for name, tc := range map[string]struct {
		allocation tenant.Allocation
		memory     []client.Object
		live       []client.Object
		want       bool
	}{
		"an allocation whose pod does not exist": {allocation("u1", "p", "n1"), nil, nil, true},
		"an allocation whose pod was replaced by another of its name (S15, S17)": {
			allocation("u1", "p", "n1"), []client.Object{rdmaPod("p", "u2", "n1")}, nil, true},
		"an allocation that was made after its pod had ended and lost its finalizer": {
			allocation("u1", "p", "n1"), []client.Object{rdmaPod("p", "u1", "n1", withoutFinalizer, hasSucceeded)}, nil, true},
		"an allocation whose pod is not bound for more than five minutes": {
			allocation("u1", "p", "n1", aged(5*time.Minute)), []client.Object{rdmaPod("p", "u1", "")}, nil, true},
		"an allocation whose node is gone along with the deleted pod's finalizer": {
			allocation("u1", "p", "n9"), []client.Object{rdmaPod("p", "u1", "n9", func(pod *corev1.Pod) {
				pod.Finalizers, pod.DeletionTimestamp = []string{"example.com/theirs"}, &metav1.Time{Time: now}
			})}, nil, true},
		"an allocation whose node is out of service and whose deleted pod has no finalizer of ours": {
			allocation("u1", "p", "n2"), []client.Object{rdmaPod("p", "u1", "n2", func(pod *corev1.Pod) {
				pod.Finalizers, pod.DeletionTimestamp = []string{"example.com/theirs"}, &metav1.Time{Time: now}
			}), outOfServiceNode("n2")}, nil, true},

		"not one of a running pod": {allocation("u1", "p", "n1"), []client.Object{rdmaPod("p", "u1", "n1")}, nil, false},
		"not one of a running pod whose finalizer was removed by hand": {
			allocation("u1", "p", "n1"), []client.Object{rdmaPod("p", "u1", "n1", withoutFinalizer)}, nil, false},
		"not one of a pod that nobody deletes although its node is gone": {
			allocation("u1", "p", "n9"), []client.Object{rdmaPod("p", "u1", "n9", withoutFinalizer)}, nil, false},
		"not one of a pod that nobody deletes although its node is out of service": {
			allocation("u1", "p", "n2"), []client.Object{rdmaPod("p", "u1", "n2", withoutFinalizer), outOfServiceNode("n2")}, nil, false},
		"not one of a pod that memory does not show yet (S25)": {
			allocation("u1", "p", "n1"), nil, []client.Object{rdmaPod("p", "u1", "n1")}, false},
		"not one that is younger than the grace": {allocation("u1", "p", "n1", aged(59*time.Second)), nil, nil, false},
		"not one whose pod is not bound for less than five minutes": {
			allocation("u1", "p", "n1", aged(299*time.Second)), []client.Object{rdmaPod("p", "u1", "")}, nil, false},
		"not one of an ended pod that still has its finalizer": {
			allocation("u1", "p", "n1"), []client.Object{rdmaPod("p", "u1", "n1", hasSucceeded)}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSweep(t, []tenant.Allocation{tc.allocation}, tc.memory, tc.live)
			require.NoError(t, f.sweep(t.Context()))
			_, held := f.book.all["u1"]
			require.Equal(t, tc.want, !held)
		})
	}
}

func TestSweepMustNotReleaseWhatIsAskedForAgainMeanwhile(t *testing.T) {
	f := newSweep(t, []tenant.Allocation{allocation("u1", "p", "n1", aged(5*time.Minute))}, []client.Object{rdmaPod("p", "u1", "")}, nil)
	f.book.beforeRelease = func() {
		_, err := f.book.Ensure(t.Context(), "u1", tenant.EnsureRequest{Node: "n1", Generation: 7})
		require.NoError(t, err)
	}
	require.NoError(t, f.sweep(t.Context()))
	require.Contains(t, f.book.all, types.UID("u1"))
}

func TestSweepStopsBeforeItTakesAClustersNetworksAway(t *testing.T) {
	many := func(orphans, inUse int) (all []tenant.Allocation, pods []client.Object) {
		for i := range orphans {
			all = append(all, allocation(types.UID(fmt.Sprintf("orphan-%d", i)), fmt.Sprintf("gone-%d", i), "n1"))
		}
		for i := range inUse {
			uid, name := types.UID(fmt.Sprintf("used-%d", i)), fmt.Sprintf("p-%d", i)
			all = append(all, allocation(uid, name, "n1"))
			pods = append(pods, rdmaPod(name, uid, "n1"))
		}
		return all, pods
	}
	for name, tc := range map[string]struct {
		orphans, inUse, confirm, wantLeft int
		wantBlocked                       bool
	}{
		"ten are released even when they are all there are":           {10, 0, 0, 0, false},
		"eleven of a few are not":                                     {11, 0, 0, 11, true},
		"eleven of many are":                                          {11, 44, 0, 44, false},
		"more than a fifth of many are not":                           {12, 43, 0, 55, true},
		"as many as were confirmed are":                               {30, 5, 30, 5, false},
		"more than were confirmed are not":                            {31, 5, 30, 36, true},
		"nothing is left to release after an etcd that lost its pods": {100, 0, 0, 100, true},
	} {
		t.Run(name, func(t *testing.T) {
			all, pods := many(tc.orphans, tc.inUse)
			f := newSweep(t, all, pods, nil, func(c *SweepConfig) { c.Confirm = tc.confirm })
			err := f.sweep(t.Context())
			if tc.wantBlocked {
				require.ErrorContains(t, err, fmt.Sprintf("restart tenant-webhook with --sweep-confirm=%d", tc.orphans))
			} else {
				require.NoError(t, err)
			}
			require.Len(t, f.book.all, tc.wantLeft)
			require.Equal(t, tc.wantBlocked, testutil.ToFloat64(f.metrics.blocked) == 1)
		})
	}
}
