package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clocktesting "k8s.io/utils/clock/testing"

	"tenant.network/tenant-webhook/pkg/tenant"
)

const podUID = types.UID("7d3b5d32-9c6e-4c1c-8f6e-0b8f6f3f3a52")

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ask(change ...func(*tenant.EnsureRequest)) tenant.EnsureRequest {
	a := tenant.EnsureRequest{
		Cluster: "c1", Namespace: "team-a", Pod: "train-0", Tenant: "blue", Node: "n1",
		Requests: []tenant.Request{{Type: "vf", Pool: "nvidia.com/vf", Count: 2}, {Type: "pf", Pool: "nvidia.com/pf", Count: 1}},
	}
	for _, c := range change {
		c(&a)
	}
	return a
}

func onNode(node string) func(*tenant.EnsureRequest) {
	return func(a *tenant.EnsureRequest) { a.Node = node }
}

func generation(n int64) func(*tenant.EnsureRequest) {
	return func(a *tenant.EnsureRequest) { a.Generation = n }
}

// served is an engine behind HTTP with the real client in front; the client asks once.
func served(t *testing.T, options Options) (*Engine, *tenant.Client) {
	t.Helper()
	e := New(options)
	server := httptest.NewServer(e.Handler())
	t.Cleanup(func() {
		_ = e.SetFaults(nil) // lets go of what a failed test holds
		server.Close()
	})
	client, err := tenant.New(tenant.Config{URL: server.URL, Timeout: time.Minute, Retries: -1})
	require.NoError(t, err)
	return e, client
}

func TestEnsureKeepsTheContract(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	_, client := served(t, Options{Clock: clock})
	ctx := t.Context()
	first, err := client.Ensure(ctx, podUID, ask())
	require.NoError(t, err)

	t.Run("networks follow the requests, in the pod's namespace, with names that are valid and short", func(t *testing.T) {
		var pools []string
		for _, n := range first.Networks {
			pools = append(pools, n.Pool)
			assert.Equal(t, "team-a", n.Namespace)
			assert.Empty(t, validation.IsDNS1123Label(n.Name))
			assert.Regexp(t, `^nad-[0-9a-f]{12}-\d$`, n.Name)
		}
		assert.Equal(t, []string{"nvidia.com/vf", "nvidia.com/vf", "nvidia.com/pf"}, pools)
	})
	t.Run("the same ask gets the same answer, with generation 0 and with the present one", func(t *testing.T) {
		for _, g := range []int64{0, first.Generation} {
			again, err := client.Ensure(ctx, podUID, ask(generation(g)))
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(first, again))
		}
	})
	t.Run("the age counts from the last ensure, and reading must not touch it", func(t *testing.T) {
		clock.Step(90*time.Second + 900*time.Millisecond)
		for range 2 {
			got, err := client.Get(ctx, "c1", podUID)
			require.NoError(t, err)
			assert.EqualValues(t, 90, got.AgeSeconds, "rounded down")
		}
		again, err := client.Ensure(ctx, podUID, ask())
		require.NoError(t, err)
		assert.Zero(t, again.AgeSeconds)
	})
	t.Run("another tenant label must not move the allocation", func(t *testing.T) {
		again, err := client.Ensure(ctx, podUID, ask(func(a *tenant.EnsureRequest) { a.Tenant = "red" }))
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(first, again))
	})
	t.Run("another node changes the node and the generation and must not change the list", func(t *testing.T) {
		moved, err := client.Ensure(ctx, podUID, ask(onNode("n2"), generation(first.Generation)))
		require.NoError(t, err)
		assert.Equal(t, "n2", moved.Node)
		assert.Greater(t, moved.Generation, first.Generation)
		assert.Empty(t, cmp.Diff(first.Networks, moved.Networks))
	})
	t.Run("who has seen no allocation must not move one", func(t *testing.T) {
		_, err := client.Ensure(ctx, podUID, ask(onNode("n1")))
		require.True(t, tenant.IsConflict(err), "%v", err)
		present, err := client.Get(ctx, "c1", podUID)
		require.NoError(t, err)
		assert.Equal(t, "n2", present.Node)
	})
	t.Run("a stale generation must not change anything, not even the age", func(t *testing.T) {
		clock.Step(10 * time.Second)
		present, err := client.Get(ctx, "c1", podUID)
		require.NoError(t, err)
		_, err = client.Ensure(ctx, podUID, ask(onNode("n3"), generation(first.Generation)))
		require.True(t, tenant.IsConflict(err), "%v", err)
		var conflict *tenant.Error
		require.ErrorAs(t, err, &conflict)
		assert.Empty(t, cmp.Diff(present, conflict.Current))
		after, err := client.Get(ctx, "c1", podUID)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(present, after))
	})
	t.Run("a generation without an allocation is stale", func(t *testing.T) {
		_, err := client.Ensure(ctx, "unknown", ask(generation(5)))
		assert.True(t, tenant.IsConflict(err), "%v", err)
		_, err = client.Get(ctx, "c1", "unknown")
		assert.True(t, tenant.IsNotFound(err), "and makes none")
	})
	t.Run("the same pod UID in another cluster is another pod", func(t *testing.T) {
		other, err := client.Ensure(ctx, podUID, ask(func(a *tenant.EnsureRequest) { a.Cluster = "c2" }))
		require.NoError(t, err)
		assert.NotEqual(t, first.Networks[0].Name, other.Networks[0].Name)
	})
}

func TestEnsureRefuses(t *testing.T) {
	_, client := served(t, Options{})
	known, err := client.Ensure(t.Context(), podUID, ask())
	require.NoError(t, err)
	tests := []struct {
		name   string
		podUID types.UID
		change func(*tenant.EnsureRequest)
		want   string
	}{
		{"other counts for a known UID", podUID, func(a *tenant.EnsureRequest) {
			a.Requests = []tenant.Request{{Type: "vf", Pool: "nvidia.com/vf", Count: 3}}
		}, "422 PodChanged"},
		{"another namespace for a known UID", podUID, func(a *tenant.EnsureRequest) { a.Namespace = "team-b" }, "422 PodChanged"},
		{"another name for a known UID", podUID, func(a *tenant.EnsureRequest) { a.Pod = "train-1" }, "422 PodChanged"},
		{"no node", "new", func(a *tenant.EnsureRequest) { a.Node = "" }, "400 Invalid: node is missing"},
		{"no tenant", "new", func(a *tenant.EnsureRequest) { a.Tenant = "" }, "400 Invalid: tenant is missing"},
		{"no requests", "new", func(a *tenant.EnsureRequest) { a.Requests = nil }, "400 Invalid: requests are missing"},
		{"an unknown type", "new", func(a *tenant.EnsureRequest) { a.Requests = []tenant.Request{{Type: "sf", Pool: "p", Count: 1}} }, `400 Invalid: requests[0].type is vf or pf, not "sf"`},
		{"no pool", "new", func(a *tenant.EnsureRequest) { a.Requests = []tenant.Request{{Type: "vf", Count: 1}} }, "400 Invalid: requests[0].pool is missing"},
		{"a count of 0", "new", func(a *tenant.EnsureRequest) { a.Requests = []tenant.Request{{Type: "vf", Pool: "p"}} }, "400 Invalid: requests[0].count"},
		{"a count past all reason", "new", func(a *tenant.EnsureRequest) { a.Requests = []tenant.Request{{Type: "vf", Pool: "p", Count: 1 << 62}} }, "422 Invalid: requests[0].count"},
		{"many requests past all reason", "new", func(a *tenant.EnsureRequest) {
			a.Requests = []tenant.Request{{Type: "vf", Pool: "p", Count: 400}, {Type: "pf", Pool: "p", Count: 400}}
		}, "422 Invalid: requests: 800"},
		{"a negative generation", "new", generation(-1), "400 Invalid: generation"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := client.Ensure(t.Context(), test.podUID, ask(test.change))
			require.ErrorContains(t, err, test.want)
			assert.True(t, tenant.IsFinal(err))
		})
	}
	all, err := client.List(t.Context(), "c1")
	require.NoError(t, err)
	require.Len(t, all, 1, "a refusal must not leave an allocation")
	assert.Empty(t, cmp.Diff(known.Networks, all[0].Networks))
}

func TestRelease(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	_, client := served(t, Options{Clock: clock})
	ctx := t.Context()
	first, err := client.Ensure(ctx, podUID, ask())
	require.NoError(t, err)
	second, err := client.Ensure(ctx, podUID, ask(onNode("n2"), generation(first.Generation)))
	require.NoError(t, err)

	err = client.Release(ctx, "c1", podUID, first.Generation)
	require.True(t, tenant.IsConflict(err), "must not release what was ensured since")
	var conflict *tenant.Error
	require.ErrorAs(t, err, &conflict)
	assert.Empty(t, cmp.Diff(second, conflict.Current))
	require.NoError(t, client.Release(ctx, "c2", podUID, 0))
	_, err = client.Get(ctx, "c1", podUID)
	require.NoError(t, err, "must not release another cluster's pod")

	clock.Step(300 * time.Second)
	_, err = client.Ensure(ctx, podUID, ask(onNode("n2")))
	require.NoError(t, err)
	clock.Step(299 * time.Second)
	err = client.ReleaseUnused(ctx, "c1", podUID, second.Generation, 300*time.Second)
	require.True(t, tenant.IsConflict(err), "must not release what was asked for again since: %v", err)
	clock.Step(time.Second)
	require.NoError(t, client.ReleaseUnused(ctx, "c1", podUID, second.Generation, 300*time.Second))
	require.NoError(t, client.Release(ctx, "c1", podUID, second.Generation), "gone already is success")
	require.NoError(t, client.Release(ctx, "c1", "unknown", 0))
	again, err := client.Ensure(ctx, podUID, ask())
	require.NoError(t, err)
	assert.Greater(t, again.Generation, second.Generation, "a generation must not come back with the UID")
	require.NoError(t, client.Release(ctx, "c1", podUID, 0), "generation 0 is unconditional")
}

func TestListIsPagedAndFiltered(t *testing.T) {
	_, client := served(t, Options{})
	const pods = 2*maxPage + 3
	want := map[types.UID]bool{}
	for i := range pods {
		uid := types.UID(fmt.Sprintf("pod-%d", i))
		_, err := client.Ensure(t.Context(), uid, ask())
		require.NoError(t, err)
		want[uid] = true
	}
	_, err := client.Ensure(t.Context(), "foreign", ask(func(a *tenant.EnsureRequest) { a.Cluster = "c2" }))
	require.NoError(t, err)
	all, err := client.List(t.Context(), "c1")
	require.NoError(t, err)
	assert.Len(t, all, pods)
	for _, a := range all {
		assert.True(t, want[a.PodUID])
		delete(want, a.PodUID)
	}
	assert.Empty(t, want)
}

// blocking is Networks that reports each creation and holds it until it is told to go on.
type blocking struct {
	NoNetworks
	begun chan types.UID
	goOn  chan struct{}
	fail  error
}

func (b *blocking) Create(_ context.Context, a tenant.Allocation) error {
	b.begun <- a.PodUID
	<-b.goOn
	return b.fail
}

func TestOnePodsCreationMustNotHoldUpAnother(t *testing.T) {
	networks := &blocking{begun: make(chan types.UID), goOn: make(chan struct{})}
	e := New(Options{Networks: networks})
	var wg sync.WaitGroup
	for _, uid := range []types.UID{"a", "b"} {
		wg.Go(func() {
			_, err := e.Ensure(t.Context(), uid, ask())
			assert.NoError(t, err)
		})
	}
	<-networks.begun
	<-networks.begun // the second has begun while the first is not done
	page, _ := e.List("c1", "", 10)
	assert.Len(t, page, 2, "reading does not wait either")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := e.Release(ctx, "c1", "a", 0)
	require.ErrorIs(t, err, context.Canceled, "the same pod waits for its turn, as long as its caller")
	close(networks.goOn)
	wg.Wait()
	assert.Empty(t, e.keys.locks, "no lock must stay behind")
}

func TestCreationThatFailedIsDoneAgain(t *testing.T) {
	networks := &blocking{begun: make(chan types.UID, 9), goOn: make(chan struct{}), fail: errors.New("no API server")}
	close(networks.goOn)
	_, client := served(t, Options{Networks: networks})
	_, err := client.Ensure(t.Context(), podUID, ask())
	require.True(t, tenant.IsUnavailable(err), "%v", err)
	var e *tenant.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, time.Second, e.RetryAfter)
	networks.fail = nil
	_, err = client.Ensure(t.Context(), podUID, ask())
	require.NoError(t, err)
	_, err = client.Ensure(t.Context(), podUID, ask())
	require.NoError(t, err)
	assert.Len(t, networks.begun, 2, "what has been made is not made a third time")
}
