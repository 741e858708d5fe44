package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"tenant.network/tenant-webhook/pkg/tenant"
)

const (
	// pause is real time: the circuits have no clock that could be set. It is long enough for a busy machine to fill the
	// queue while a breaker is open.
	pause = 250 * time.Millisecond
	// soon is long after anything that should happen, also on a machine that is busy.
	soon  = 10 * time.Second
	often = 2 * time.Millisecond
	// failures open a breaker.
	failures = 3
	bravo    = "bravo"
)

type breakerFixture struct {
	*breakers
	activator
	t    *testing.T
	mu   sync.Mutex
	gone map[string]bool
}

func newBreakerFixture(t *testing.T) *breakerFixture {
	t.Helper()
	f := &breakerFixture{t: t, gone: map[string]bool{}}
	args := BreakerArgs{Failures: failures, Pause: metav1.Duration{Duration: pause}}
	f.breakers = newBreakers(args, clock.RealClock{}, f.waits, f.wake)
	return f
}

func (f *breakerFixture) waits(pod *corev1.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.gone[pod.Name]
}

func (f *breakerFixture) remove(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[pod.Name] = true
}

// call makes one call that ends with the error.
func (f *breakerFixture) call(tenantName string, err error) {
	f.t.Helper()
	done, refusal := f.allow(tenantName)
	require.NoError(f.t, refusal)
	done(err)
}

func (f *breakerFixture) calls(tenantName string, count int, err error) {
	f.t.Helper()
	for range count {
		f.call(tenantName, err)
	}
}

// open reports whether a new pod of the tenant would have to wait. It leaves that pod out of those that wait.
func (f *breakerFixture) open(tenantName string) bool {
	pod := plainPod(teamA, "onlooker")
	f.remove(pod)
	return f.blocked(tenantName, pod) != ""
}

func podNamed(name string) *corev1.Pod { return plainPod(teamA, name) }

// queue lets pods wait, which they must.
func (f *breakerFixture) queue(tenantName string, names ...string) {
	f.t.Helper()
	for _, name := range names {
		require.NotEmpty(f.t, f.blocked(tenantName, podNamed(name)), name)
	}
}

func TestBreakerOpensAfterFailuresInARow(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures-1, unavailable())
	require.False(t, f.open(acme))
	f.call(acme, nil) // a success starts the count again
	f.calls(acme, failures-1, unavailable())
	require.False(t, f.open(acme))
	f.call(acme, unavailable())
	require.True(t, f.open(acme))
	_, err := f.allow(acme)
	require.ErrorContains(t, err, "503")
}

// TestBreakerOfOneTenant: cases S10, S11 of docs/cases.md.
func TestBreakerOfOneTenant(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures, refused("no addresses left"))

	reason := f.blocked(acme, podNamed("p"))
	require.Contains(t, reason, "does not serve tenant acme")
	require.Contains(t, reason, "no addresses left")
	_, err := f.allow(acme)
	require.ErrorContains(t, err, "does not serve tenant acme")

	require.False(t, f.open(bravo), "a tenant must not wait for another's refusals")
	f.calls(bravo, 2*failures, nil)
	require.True(t, f.open(acme), "another's success must not close it")
}

func TestBreakerOfATenantMustNotOpenForOnePodsFault(t *testing.T) {
	for _, reason := range []string{tenant.ReasonPodChanged, tenant.ReasonInvalid} {
		f := newBreakerFixture(t)
		f.calls(acme, 2*failures, &tenant.Error{Status: 422, Reason: reason})
		require.False(t, f.open(acme), reason)
	}
}

func TestBreakerOfATenantIsFedByAll(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures-1, unavailable())
	f.call(acme, refused("full")) // for all of them it is an answer, for the tenant one more failure
	require.True(t, f.open(acme))
	require.False(t, f.open(bravo))
}

// TestBreakerOfAll: cases S10 of docs/cases.md.
func TestBreakerOfAll(t *testing.T) {
	f := newBreakerFixture(t)
	f.call(acme, unavailable())
	f.call(bravo, unavailable())
	f.call("charlie", unavailable())
	for _, name := range []string{acme, bravo, "delta"} {
		require.Contains(t, f.blocked(name, podNamed("p-"+name)), "the tenant-controller does not answer")
	}
}

func TestBreakerTakesAConflictForHealth(t *testing.T) {
	f := newBreakerFixture(t)
	for range 3 {
		f.calls(acme, failures-1, unavailable())
		f.call(acme, &tenant.Error{Op: "ensure", Status: http.StatusConflict, Reason: tenant.ReasonStaleGeneration})
	}
	require.False(t, f.open(acme))
}

func TestBreakerDoesNotCountCallsThatTheCallerCancelled(t *testing.T) {
	f := newBreakerFixture(t)
	cancelled := cancelledCall(t)
	require.ErrorIs(t, cancelled, context.Canceled)

	f.calls(acme, 3*failures, cancelled)
	require.False(t, f.open(acme), "nobody is to blame for them")

	f.calls(acme, failures-1, unavailable())
	f.call(acme, cancelled)
	require.False(t, f.open(acme))
	f.call(acme, unavailable())
	require.True(t, f.open(acme), "and they must not hide failures either")
}

// cancelledCall is what the real client returns when a preemptor cancels PreBind.
func cancelledCall(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		hang(r)
	}))
	t.Cleanup(server.Close)
	client, err := tenant.New(tenant.Config{URL: server.URL})
	require.NoError(t, err)
	_, err = client.Ensure(ctx, "uid", tenant.EnsureRequest{Cluster: "c", Namespace: teamA, Pod: "p", Tenant: acme, Node: node1,
		Requests: []tenant.Request{{Type: "vf", Pool: string(vfPool), Count: 1}}})
	return err
}

// hang returns when the client has gone away, which the server only notices behind the body.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func TestBreakerTakesARefusalByTheClientForNoAnswer(t *testing.T) {
	client, err := tenant.New(tenant.Config{URL: "http://127.0.0.1:1"})
	require.NoError(t, err)
	_, unsent := client.Ensure(t.Context(), "", tenant.EnsureRequest{})
	require.True(t, tenant.IsFinal(unsent))

	f := newBreakerFixture(t)
	f.call(acme, unavailable())
	f.call(bravo, unavailable())
	f.call("charlie", unsent) // nothing was sent, so nobody answered
	f.call("charlie", unavailable())
	require.True(t, f.open("delta"))
}

func TestBreakerDeadlineIsTheTenantControllersFault(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hang(r) }))
	t.Cleanup(server.Close)
	client, err := tenant.New(tenant.Config{URL: server.URL, Retries: -1, Timeout: time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, late := client.Ensure(ctx, "uid", tenant.EnsureRequest{Cluster: "c", Namespace: teamA, Pod: "p", Tenant: acme, Node: node1,
		Requests: []tenant.Request{{Type: "vf", Pool: string(vfPool), Count: 1}}})
	require.ErrorIs(t, late, context.DeadlineExceeded)

	f := newBreakerFixture(t)
	f.calls(acme, failures, late)
	require.True(t, f.open(bravo))
}

func TestBreakerWakesOnePodAsTheProbe(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures, refused("full"))
	names := []string{"a", "b", "c", "d", "e"}
	f.queue(acme, names...)
	require.Empty(t, f.names())
	require.Eventually(t, func() bool { return len(f.names()) > 0 }, soon, often)

	probe := f.names()[0]
	require.Empty(t, f.blocked(acme, podNamed(probe)))
	done, err := f.allow(acme)
	require.NoError(t, err)
	_, err = f.allow(acme)
	require.Error(t, err, "there is one probe at a time")
	for _, name := range names {
		if name != probe {
			f.queue(acme, name)
		}
	}

	done(nil)
	require.Eventually(t, func() bool { return len(f.names()) >= len(names) }, soon, often)
	require.Subset(t, f.names(), names, "all that waited are woken when it closes")
	require.False(t, f.open(acme))
}

func TestBreakerOpensAgainWhenTheProbeFails(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures, refused("full"))
	f.queue(acme, "a")
	require.Eventually(t, func() bool { return len(f.names()) == 1 }, soon, often)
	require.Empty(t, f.blocked(acme, podNamed("a")))
	f.call(acme, refused("still full"))

	require.Contains(t, f.blocked(acme, podNamed("a")), "still full")
	_, err := f.allow(acme)
	require.Error(t, err)
	require.Eventually(t, func() bool { return len(f.names()) == 2 }, soon, often, "it is tried again")
}

func TestBreakerGoesOnWithoutAProbeThatNeverCalls(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures, refused("full"))
	f.queue(acme, "a", "b", "c")
	// Every one of them is woken, and none comes back.
	require.Eventually(t, func() bool { return len(f.names()) >= 3 }, soon, often)
	require.ElementsMatch(t, []string{"a", "b", "c"}, f.names()[:3])
	// Nobody is left to be woken: the next pod that comes is the probe.
	require.Eventually(t, func() bool { return f.blocked(acme, podNamed("new")) == "" }, soon, often)
	f.call(acme, nil)
	require.False(t, f.open(acme))
}

func TestBreakerDoesNotWaitForPodsThatAreGone(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures, refused("full"))
	for i := range 50 {
		pod := podNamed(fmt.Sprintf("deleted-%d", i))
		f.queue(acme, pod.Name)
		f.remove(pod)
	}
	f.queue(acme, "alive")
	require.Eventually(t, func() bool { return len(f.names()) > 0 }, soon, often)
	require.Equal(t, []string{"alive"}, f.names())
}

func TestBreakerOfAllAndOfItsTenantsRecoverTogether(t *testing.T) {
	f := newBreakerFixture(t)
	tenants := []string{acme, bravo, "charlie"}
	// Calls that were under way when the breaker for all opened feed those of the tenants as well.
	var under []func(error)
	for range failures {
		for _, name := range tenants {
			done, err := f.allow(name)
			require.NoError(t, err)
			under = append(under, done)
		}
	}
	for _, done := range under {
		done(unavailable())
	}
	waiting := map[string]string{}
	for i := range 60 {
		name := fmt.Sprintf("p-%d", i)
		waiting[name] = tenants[i%len(tenants)]
		f.queue(waiting[name], name)
	}

	// If the breakers chose their probes each for itself, they would hardly ever choose the same pod.
	require.Eventually(t, func() bool { return len(f.names()) > 0 }, soon, often)
	probe := f.names()[0]
	require.Empty(t, f.blocked(waiting[probe], podNamed(probe)), "the first pod that is woken must pass both breakers")
	f.call(waiting[probe], nil)

	// From now on each tenant's breaker lets one of its pods ahead.
	handled := 0
	require.Eventually(t, func() bool {
		woken := f.names()
		for ; handled < len(woken); handled++ {
			name := woken[handled]
			if f.blocked(waiting[name], podNamed(name)) == "" {
				f.call(waiting[name], nil)
				delete(waiting, name)
			}
		}
		return len(waiting) == 0
	}, soon, often)
}

func TestBreakerProbeThatWasCancelledMayCallAgain(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures, refused("full"))
	f.queue(acme, "a")
	require.Eventually(t, func() bool { return len(f.names()) == 1 }, soon, often)
	for range 3 {
		require.Empty(t, f.blocked(acme, podNamed("a")))
		f.call(acme, fmt.Errorf("preempted: %w", context.Canceled))
	}
	f.call(acme, nil)
	require.False(t, f.open(acme))
}

func TestBreakerRefusalByTheTenantsDoesNotUseUpTheProbeOfAll(t *testing.T) {
	f := newBreakerFixture(t)
	f.calls(acme, failures, refused("full"))
	for range 3 {
		_, err := f.allow(acme)
		require.ErrorContains(t, err, "does not serve tenant acme")
	}
	f.calls(bravo, failures, unavailable()) // the count of all was not disturbed
	require.True(t, f.open("charlie"))
}

func TestBreakerGauge(t *testing.T) {
	all, one := openBreakers(t, scopeAll), openBreakers(t, scopeTenant)

	f := newBreakerFixture(t)
	f.calls(acme, failures, unavailable())
	require.InDelta(t, all+1, openBreakers(t, scopeAll), 0)
	require.InDelta(t, one+1, openBreakers(t, scopeTenant), 0)

	require.Eventually(t, func() bool { return f.blocked(acme, podNamed("p")) == "" }, soon, often)
	require.InDelta(t, all+1, openBreakers(t, scopeAll), 0, "half open is not closed")
	f.call(acme, unavailable())
	require.InDelta(t, all+1, openBreakers(t, scopeAll), 0, "opening again is no second breaker")

	require.Eventually(t, func() bool { return f.blocked(acme, podNamed("p")) == "" }, soon, often)
	f.call(acme, nil)
	require.InDelta(t, all, openBreakers(t, scopeAll), 0)
	require.InDelta(t, one, openBreakers(t, scopeTenant), 0)
}

func openBreakers(t *testing.T, scope string) float64 {
	t.Helper()
	value, err := testutil.GetGaugeMetricValue(sharedMetrics().breakers.WithLabelValues(scope))
	require.NoError(t, err)
	return value
}

func TestPluginWakesPodsThatWaitedForTheBreaker(t *testing.T) {
	f := newFixture(t, setup{args: Args{Breaker: BreakerArgs{Failures: 1, Pause: metav1.Duration{Duration: pause}}}})
	f.allocator.fail = once(unavailable())
	first := vfPod("first", 1)
	stays, deleted, bound := vfPod("stays", 1), vfPod("deleted", 1), vfPod("bound", 1)
	f.create(first, stays, deleted, bound)
	_, status := f.prepared(first)
	requireFault(t, status, "503")
	for _, pod := range []*corev1.Pod{stays, deleted, bound} {
		_, status := f.preFilter(pod)
		require.True(t, status.IsRejected())
	}
	seen(deleting)(f, deleted)
	seen(onNode(node1))(f, bound)

	require.Eventually(t, func() bool {
		f.clock.Step(pause) // the plugin's clock; the circuit goes by the real one
		return len(f.activated.names()) > 0
	}, soon, often)
	require.Equal(t, []string{"stays"}, f.activated.names())
	requireSuccess(t, f.bound(stays))
}

func TestAnswered(t *testing.T) {
	require.NoError(t, answered(refused("full")))
	require.NoError(t, answered(errors.New("not from the client")))
	require.ErrorIs(t, answered(&tenant.Error{Op: "ensure"}), errNoVerdict)
}
