package feed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	within = 20 * time.Second
	often  = 2 * time.Millisecond
)

// fixture is a Feed whose cache has not started.
type fixture struct {
	*Feed
	t       *testing.T
	sources *sources
	ledger  *pools.Ledger
	config  atomic.Pointer[pools.Config]
	clock   *clocktesting.FakeClock
	log     *output
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, sources: newSources(), ledger: pools.NewLedger(nil), clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), log: &output{}}
	f.config.Store(config(t, ""))
	var err error
	f.Feed, err = New(t.Context(), Config{Cache: f.sources, Ledger: f.ledger, Pools: f.config.Load, Clock: f.clock, Metrics: NewMetrics(f.ledger)})
	require.NoError(t, err)
	return f
}

// run starts the cache and, if that is wished, the recounts.
func (f *fixture) run(recounts bool) {
	ctx, cancel := context.WithCancel(klog.NewContext(f.t.Context(), f.log.logger()))
	f.sources.start(ctx)
	done := make(chan error, 1)
	go func() {
		if recounts {
			done <- f.Start(ctx)
			return
		}
		done <- nil
	}()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-done)
	})
	f.eventually(f.Synced)
}

func (f *fixture) eventually(condition func() bool) {
	f.t.Helper()
	require.Eventually(f.t, condition, within, often)
}

// becomes waits until the ledger shows these allocatable, requested and free devices of poolA.
func (f *fixture) becomes(allocatable, requested, free int64) {
	f.t.Helper()
	assert.EventuallyWithT(f.t, func(c *assert.CollectT) {
		u := f.ledger.UsageOf(poolA)
		assert.Equal(c, []int64{allocatable, requested, free}, []int64{u.Allocatable, u.Requested, u.Free})
	}, within, often)
}

func TestEventsReachTheLedger(t *testing.T) {
	f := newFixture(t)
	f.sources.nodes.Add(node("n1", poolA, 4))
	f.sources.pods.Add(pod("p", "1", "n1", poolA, 1))
	f.run(false)
	f.becomes(4, 1, 3)

	f.sources.pods.Add(pod("q", "2", "", poolA, 2))
	f.becomes(4, 3, 1)
	f.sources.pods.Modify(pod("q", "2", "n1", poolA, 2))
	f.eventually(func() bool { return f.ledger.UsageOf(poolA).Unbound == 0 })

	ending := pod("q", "2", "n1", poolA, 2)
	ending.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	f.sources.pods.Modify(ending)
	f.eventually(func() bool { return f.ledger.UsageOf(poolA).Releasing == 2 })
	ended := ending.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	f.sources.pods.Modify(ended)
	f.becomes(4, 1, 3)
	f.sources.pods.Delete(ended)

	f.sources.nodes.Modify(node("n1", poolA, 2))
	f.becomes(2, 1, 1)
	f.sources.nodes.Delete(node("n1", poolA, 2))
	f.becomes(0, 0, 0)
}

// TestAPodThatTakesAnothersNameAsAnUpdateTakesNothingOver: cases S15, S17 of docs/cases.md.
func TestAPodThatTakesAnothersNameAsAnUpdateTakesNothingOver(t *testing.T) {
	f := newFixture(t)
	f.sources.nodes.Add(node("n1", poolA, 4))
	f.sources.pods.Add(pod("p", "1", "n1", poolA, 3))
	f.run(false)
	f.becomes(4, 3, 1)
	f.sources.pods.Modify(pod("p", "2", "n1", poolA, 1))
	f.becomes(4, 1, 3)
	f.sources.pods.Modify(pod("p", "3", "n1", poolB, 1))
	f.becomes(4, 0, 4)
	f.sources.pods.Delete(pod("p", "3", "n1", poolB, 1))
	f.eventually(func() bool { return f.ledger.UsageOf(poolB).Requested == 0 })
	f.becomes(4, 0, 4)
}

// TestTombstones: cases S15, S18 of docs/cases.md.
func TestTombstones(t *testing.T) {
	f := newFixture(t)
	nodes, podsHandler := handler(f.setNode, f.deleteNode), handler(f.setPod, f.deletePod)
	nodes.OnAdd(node("n1", poolA, 4), true)
	podsHandler.OnAdd(pod("p", "1", "n1", poolA, 3), true)
	f.becomes(4, 3, 1)

	// The last state that the informer knew can lack everything but the identity.
	podsHandler.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/p", Obj: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1"}}})
	f.becomes(4, 0, 4)
	nodes.OnDelete(cache.DeletedFinalStateUnknown{Key: "n1", Obj: node("n1", poolA, 4)})
	f.becomes(0, 0, 0)
	require.Empty(t, f.ledger.Usage())

	for _, odd := range []any{nil, "text", cache.DeletedFinalStateUnknown{Key: "ns/p"}, &corev1.ConfigMap{}, node("n1", poolA, 4)} {
		podsHandler.OnAdd(odd, false)
		podsHandler.OnUpdate(odd, odd)
		podsHandler.OnDelete(odd)
	}
	require.Empty(t, f.ledger.Usage(), "what is no pod must not count")
	podsHandler.OnUpdate(nil, pod("p", "1", "", poolA, 1))
	assert.Len(t, f.ledger.Usage(), 1, "an update counts even when what it replaces is unknown")
}

// TestSyncedMustNotBeTrueBeforeTheLedgerHasSeenEverything: cases S25 of docs/cases.md.
func TestSyncedMustNotBeTrueBeforeTheLedgerHasSeenEverything(t *testing.T) {
	f := newFixture(t)
	for i := range 50 {
		f.sources.pods.Add(pod(fmt.Sprint("p", i), fmt.Sprint(i), "", poolA, 1))
	}
	require.False(t, f.Synced())
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), f.log.logger()))
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	f.eventually(f.clock.HasWaiters)
	f.clock.Step(DefaultInterval)
	f.clock.Step(DefaultInterval)
	assert.NotContains(t, f.log.String(), "Refreshed", "figures before the first list are wrong and must not be shown")
	go f.sources.podsInformer.RunWithContext(ctx)
	require.False(t, f.Synced(), "pods alone are not everything")
	go f.sources.nodesInformer.RunWithContext(ctx)
	f.eventually(f.Synced)
	assert.Equal(t, int64(50), f.ledger.UsageOf(poolA).Requested)
	f.eventually(func() bool {
		f.clock.Step(DefaultInterval)
		return strings.Contains(f.log.String(), "Refreshed")
	})
	cancel()
	require.NoError(t, <-done)
	assert.False(t, f.NeedLeaderElection(), "every replica needs a ledger")
}

func TestRecountsMendTheLedgerAndSayWhatWasWrong(t *testing.T) {
	f := newFixture(t)
	f.sources.nodes.Add(node("n1", poolA, 4))
	f.sources.pods.Add(pod("p", "1", "n1", poolA, 1))
	f.run(true)
	f.becomes(4, 1, 3)
	f.ledger.DeletePod("1") // as if the event had been another one
	f.ledger.SetPod(pools.Charge{UID: "ghost", Node: "n1", Devices: pools.Counts{poolA: 2}})
	missed := f.metrics.drift.WithLabelValues("missed")
	f.eventually(func() bool {
		f.clock.Step(DefaultInterval)
		return testutil.ToFloat64(missed) == 2
	})
	f.becomes(4, 1, 3)
	f.eventually(func() bool {
		return strings.Contains(f.log.String(), `"resource pools had drifted and were mended" sums=0 missed=2`)
	})
	assert.Zero(t, testutil.ToFloat64(f.metrics.drift.WithLabelValues("sums")))
}

func TestReloadPutsPodsIntoTheGroupsOfTheNewConfiguration(t *testing.T) {
	f := newFixture(t)
	member := pod("p", "1", "", poolB, 1)
	member.Labels = map[string]string{"gang": "g"}
	f.sources.nodes.Add(node("n1", poolA, 4))
	f.sources.pods.Add(member)
	f.run(false)
	f.eventually(func() bool { return f.ledger.UsageOf(poolB).Requested == 1 })
	demand := pools.Demand{Pod: &corev1.Pod{}, Group: pools.Group{Namespace: "ns", Key: "gang", Name: "g"}, Intent: rdma.Intent{{Type: rdma.VF, Count: 1}}}
	chosen := func() corev1.ResourceName {
		choice, err := f.ledger.Choose(f.config.Load(), demand)
		require.NoError(t, err)
		return choice.Assignment[0].Pool
	}
	require.Equal(t, poolA, chosen())
	f.config.Store(config(t, "groupKeys: [{label: gang}]"))
	require.NoError(t, f.Reload(t.Context()))
	assert.Equal(t, poolB, chosen(), "the member that is there already decides")
	f.config.Store(config(t, "groupKeys: []"))
	require.NoError(t, f.Reload(t.Context()))
	assert.Equal(t, poolA, chosen())
}

func TestReloadMustNotBringBackAPodThatIsGone(t *testing.T) {
	f := newFixture(t)
	f.sources.pods.Add(pod("p", "1", "", poolA, 1))
	f.run(false)
	f.becomes(0, 1, 0)
	f.ledger.DeletePod("1") // its event came while Reload was at work on what the store had shown
	require.NoError(t, f.Reload(t.Context()))
	assert.Empty(t, f.ledger.Usage())
}

// broken is a cache that cannot answer.
type broken struct{ ctrlcache.Cache }

var errBroken = errors.New("broken")

func (broken) GetInformer(context.Context, client.Object, ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return nil, errBroken
}

func TestNewMustNotHideACacheThatCannotAnswer(t *testing.T) {
	_, err := New(t.Context(), Config{Cache: broken{}, Ledger: pools.NewLedger(nil)})
	require.ErrorIs(t, err, errBroken)
	require.ErrorContains(t, err, "informer of *v1.Node")
}
