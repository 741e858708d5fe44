package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"tenant.network/tenant-webhook/pkg/tenant"
)

const (
	// pause is long enough for a busy machine to fill the queue while a breaker is open, where time is real.
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
	t       *testing.T
	mu      sync.Mutex
	gone    map[string]bool
	allGone bool
}

// inBubble runs the test in a time of its own: the circuits have no clock that could be set.
func inBubble(t *testing.T, test func(t *testing.T, f *breakerFixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newBreakerFixture(t)
		defer func() {
			f.remove(nil)
			pass(4 * idlePauses * pause) // the breakers come to rest, and their timers end
		}()
		test(t, f)
	})
}

// pass lets a bubble's time go by, and what is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
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
	return !f.gone[pod.Name] && !f.allGone
}

// remove ends a pod, or all if it is nil.
func (f *breakerFixture) remove(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if pod == nil {
		f.allGone = true
		return
	}
	f.gone[pod.Name] = true
}

// call makes one call that ends with the error.
func (f *breakerFixture) call(tenantName string, err error) {
	f.t.Helper()
	done, refusal := f.allow(f.t.Context(), tenantName)
	require.NoError(f.t, refusal)
	done(err)
}

// waitsFor has a pod that belongs to no gang tried, and returns why it has to wait.
func (f *breakerFixture) waitsFor(tenantName string, pod *corev1.Pod) string {
	return f.blocked(tenantName, string(pod.UID), pod)
}

// refusesCall reports why a call must not be made now.
func (f *breakerFixture) refusesCall(tenantName string) error {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Millisecond)
	defer cancel()
	done, err := f.allow(ctx, tenantName)
	if err == nil {
		done(errNoVerdict)
	}
	return err
}

// afterThePause lets the breakers be half open, and returns the pods that were woken by then.
func (f *breakerFixture) afterThePause() []string {
	f.t.Helper()
	before := len(f.names())
	pass(pause + pause/4)
	return f.names()[before:]
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
	return f.waitsFor(tenantName, pod) != ""
}

func podNamed(name string) *corev1.Pod { return plainPod(teamA, name) }

// queue lets pods wait, which they must.
func (f *breakerFixture) queue(tenantName string, names ...string) {
	f.t.Helper()
	for _, name := range names {
		require.NotEmpty(f.t, f.waitsFor(tenantName, podNamed(name)), name)
	}
}

func TestBreakerOpensAfterFailuresInARow(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures-1, unavailable())
		require.False(t, f.open(acme))
		f.call(acme, nil) // a success starts the count again
		f.calls(acme, failures-1, unavailable())
		require.False(t, f.open(acme))
		f.call(acme, unavailable())
		require.True(t, f.open(acme))
		require.ErrorContains(t, f.refusesCall(acme), "503")
	})
}

// TestBreakerOfOneTenant: cases S10, S11 of docs/cases.md.
func TestBreakerOfOneTenant(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, refused("no addresses left"))

		reason := f.waitsFor(acme, podNamed("p"))
		require.Contains(t, reason, "does not serve tenant acme")
		require.Contains(t, reason, "no addresses left")
		require.ErrorContains(t, f.refusesCall(acme), "does not serve tenant acme")

		require.False(t, f.open(bravo), "a tenant must not wait for another's refusals")
		f.calls(bravo, 2*failures, nil)
		require.True(t, f.open(acme), "another's success must not close it")
	})
}

func TestBreakerOfATenantMustNotOpenForOnePodsFault(t *testing.T) {
	for _, reason := range []string{tenant.ReasonPodChanged, tenant.ReasonInvalid} {
		inBubble(t, func(t *testing.T, f *breakerFixture) {
			f.calls(acme, 2*failures, &tenant.Error{Status: 422, Reason: reason})
			require.False(t, f.open(acme), reason)
		})
	}
}

func TestBreakerOfATenantIsFedByAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures-1, unavailable())
		f.call(acme, refused("full")) // for all of them it is an answer, for the tenant one more failure
		require.True(t, f.open(acme))
		require.False(t, f.open(bravo))
	})
}

// TestBreakerOfAll: cases S10 of docs/cases.md.
func TestBreakerOfAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.call(acme, unavailable())
		f.call(bravo, unavailable())
		f.call("charlie", unavailable())
		for _, name := range []string{acme, bravo, "delta"} {
			require.Contains(t, f.waitsFor(name, podNamed("p-"+name)), "the tenant-controller does not answer")
		}
	})
}

func TestBreakerTakesAConflictForHealth(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		for range 3 {
			f.calls(acme, failures-1, unavailable())
			f.call(acme, &tenant.Error{Op: "ensure", Status: http.StatusConflict, Reason: tenant.ReasonStaleGeneration})
		}
		require.False(t, f.open(acme))
	})
}

func TestBreakerDoesNotCountCallsThatTheCallerCancelled(t *testing.T) {
	cancelled := cancelledCall(t)
	require.ErrorIs(t, cancelled, context.Canceled)
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, 3*failures, cancelled)
		require.False(t, f.open(acme), "nobody is to blame for them")

		f.calls(acme, failures-1, unavailable())
		f.call(acme, cancelled)
		require.False(t, f.open(acme))
		f.call(acme, unavailable())
		require.True(t, f.open(acme), "and they must not hide failures either")
	})
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

	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.call(acme, unavailable())
		f.call(bravo, unavailable())
		f.call("charlie", unsent) // nothing was sent, so nobody answered
		f.call("charlie", unavailable())
		require.True(t, f.open("delta"))
	})
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

	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, late)
		require.True(t, f.open(bravo))
	})
}

func TestBreakerTriesAllThatWaitAndTheFirstWithANodeIsTheProbe(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, refused("full"))
		names := []string{"a", "b", "c", "d", "e"}
		f.queue(acme, names...)
		require.ElementsMatch(t, names, f.afterThePause())
		for _, name := range names[:3] { // these pass here and fit no node
			require.Empty(t, f.waitsFor(acme, podNamed(name)))
		}
		f.claim(acme, string(podNamed("c").UID))
		f.queue(acme, "d", "e")
		require.Empty(t, f.waitsFor(acme, podNamed("c")), "the probe may be tried again")

		f.call(acme, nil)
		synctest.Wait()
		require.ElementsMatch(t, []string{"d", "e"}, f.names()[len(names):], "those that waited are woken when it closes")
		require.False(t, f.open(acme))
	})
}

// TestBreakerMustNotWaitForPodsThatFitNowhere: hundreds wait for devices when the tenant-controller is back, and one has
// a node.
func TestBreakerMustNotWaitForPodsThatFitNowhere(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, unavailable())
		fits := "p-150"
		for i := range 300 {
			f.queue(acme, fmt.Sprintf("p-%d", i))
		}
		began := time.Now()
		for !f.closed(acme) {
			for _, name := range f.afterThePause() {
				if pod := podNamed(name); f.waitsFor(acme, pod) == "" && name == fits {
					f.claim(acme, string(pod.UID))
					f.call(acme, nil)
				}
			}
		}
		require.Less(t, time.Since(began), 3*pause)
	})
}

func TestBreakerOpensAgainWhenTheProbeFails(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, refused("full"))
		f.queue(acme, "a")
		require.Equal(t, []string{"a"}, f.afterThePause())
		require.Empty(t, f.waitsFor(acme, podNamed("a")))
		f.claim(acme, string(podNamed("a").UID))
		f.call(acme, refused("still full"))
		f.yield(acme, string(podNamed("a").UID))

		require.Contains(t, f.waitsFor(acme, podNamed("a")), "still full")
		require.Error(t, f.refusesCall(acme))
		require.Equal(t, []string{"a"}, f.afterThePause(), "it is tried again")
	})
}

func TestBreakerGoesOnWithoutAProbeThatNeverCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, refused("full"))
		f.queue(acme, "a", "b")
		f.afterThePause()
		f.claim(acme, string(podNamed("a").UID)) // and is held up by another plugin
		f.queue(acme, "b")
		require.Equal(t, []string{"b"}, f.afterThePause())
		require.Empty(t, f.waitsFor(acme, podNamed("b")))
		f.claim(acme, string(podNamed("b").UID))
		f.queue(acme, "a")
		f.call(acme, nil)
		require.False(t, f.open(acme))
	})
}

func TestBreakerProbeThatGivesUpMakesRoomForAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, refused("full"))
		f.queue(acme, "a")
		f.afterThePause()
		f.claim(acme, string(podNamed("a").UID))
		f.queue(acme, "b")
		f.yield(acme, string(podNamed("b").UID))
		f.queue(acme, "b") // only the probe itself gives up
		f.yield(acme, string(podNamed("a").UID))
		require.Empty(t, f.waitsFor(acme, podNamed("b")))
	})
}

func TestBreakerLetsAGangBeItsProbe(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, unavailable())
		f.queue(acme, "a")
		f.afterThePause()
		const gang = "team-a/gang"
		for _, name := range []string{"g-1", "g-2", "g-3"} {
			require.Empty(t, f.blocked(acme, gang, podNamed(name)))
			f.claim(acme, gang)
		}
		f.queue(acme, "a")

		// The first calls, and the others wait for how it goes.
		done, err := f.allow(t.Context(), acme)
		require.NoError(t, err)
		results := make(chan error, 2)
		for range cap(results) {
			go func() {
				next, err := f.allow(t.Context(), acme)
				if err == nil {
					next(nil)
				}
				results <- err
			}()
		}
		synctest.Wait()
		require.Empty(t, results)
		done(nil)
		for range cap(results) {
			require.NoError(t, <-results)
		}
	})
}

func TestBreakerLetsOnePodAPausePreempt(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		low, high, higher := plainPod(teamA, "low"), plainPod(teamA, "high", withPriority(10)), plainPod(teamA, "higher", withPriority(20))
		require.Empty(t, f.mayPreempt(acme, low), "a closed breaker has no say")
		f.calls(acme, failures, unavailable())
		for _, pod := range []*corev1.Pod{low, high, higher} {
			require.Contains(t, f.mayPreempt(acme, pod), "503")
		}
		require.Equal(t, []string{"higher"}, f.afterThePause(), "one is woken, the first by priority")
		require.Empty(t, f.mayPreempt(acme, higher))
		require.NotEmpty(t, f.mayPreempt(bravo, plainPod(teamB, "b")))
		require.Equal(t, []string{"high"}, f.afterThePause())
		f.call(acme, nil)
		synctest.Wait()
		require.ElementsMatch(t, []string{"low", "b"}, f.names()[2:], "when it closes, all are")
	})
}

func TestBreakerMustNotMultiplyItsTimers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		before := timers() // of other tests
		f.calls(acme, failures, refused("full"))
		for range 20 { // it closes and opens again within a pause
			f.queue(acme, "a")
			f.afterThePause()
			f.call(acme, nil)
			f.calls(acme, failures, refused("full"))
			synctest.Wait()
		}
		require.LessOrEqual(t, timers()-before, 2, "at most one of the tenant and one of all")
	})
}

// timers counts the goroutines in which a breaker waits.
func timers() int {
	buffer := make([]byte, 4<<20)
	return bytes.Count(buffer[:runtime.Stack(buffer, true)], []byte("(*breaker).arm.func1"))
}

func TestBreakerDoesNotWaitForPodsThatAreGone(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, refused("full"))
		for i := range 50 {
			pod := podNamed(fmt.Sprintf("deleted-%d", i))
			f.queue(acme, pod.Name)
			f.remove(pod)
		}
		f.queue(acme, "alive")
		require.Equal(t, []string{"alive"}, f.afterThePause())
	})
}

func TestBreakerOfAllAndOfItsTenantsRecoverTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		tenants := []string{acme, bravo, "charlie"}
		// Calls that were under way when the breaker for all opened feed those of the tenants as well.
		var under []func(error)
		for range failures {
			for _, name := range tenants {
				done, err := f.allow(t.Context(), name)
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
		for range 2 {
			for _, name := range f.afterThePause() {
				if pod := podNamed(name); f.waitsFor(waiting[name], pod) == "" {
					f.claim(waiting[name], string(pod.UID))
					f.call(waiting[name], nil)
					delete(waiting, name)
				}
			}
		}
		require.Empty(t, waiting)
	})
}

func TestBreakerProbeThatWasCancelledMayCallAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, refused("full"))
		f.queue(acme, "a")
		f.afterThePause()
		for range 3 {
			require.Empty(t, f.waitsFor(acme, podNamed("a")))
			f.call(acme, fmt.Errorf("preempted: %w", context.Canceled))
		}
		f.call(acme, nil)
		require.False(t, f.open(acme))
	})
}

// TestBreakerOfATenantIsForgotten: a tenant is a namespace, and namespaces come and go.
func TestBreakerOfATenantIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		before := openBreakers(t, scopeTenant)
		pod := podNamed("a")
		f.calls(acme, failures, refused("full"))
		f.queue(acme, "a")
		f.call(bravo, nil)
		require.InDelta(t, before+1, openBreakers(t, scopeTenant), 0)

		for range 2 * idlePauses {
			require.Equal(t, []string{"a"}, f.afterThePause(), "not while a pod waits")
			f.claim(acme, string(pod.UID))
			f.call(acme, refused("full"))
			f.yield(acme, string(pod.UID))
			f.queue(acme, "a")
		}
		require.InDelta(t, before+1, openBreakers(t, scopeTenant), 0)

		f.remove(pod)
		pass(2 * idlePauses * pause)
		require.InDelta(t, before, openBreakers(t, scopeTenant), 0)
		f.call("charlie", nil)
		f.mu.Lock() // of the fixture; the breakers are at rest
		defer f.mu.Unlock()
		require.Len(t, f.byTenant, 1, "nor is a breaker kept that never opened")
	})
}

func TestBreakerRefusalByTheTenantsDoesNotUseUpTheProbeOfAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		f.calls(acme, failures, refused("full"))
		for range 3 {
			require.ErrorContains(t, f.refusesCall(acme), "does not serve tenant acme")
		}
		f.calls(bravo, failures, unavailable()) // the count of all was not disturbed
		require.True(t, f.open("charlie"))
	})
}

func TestBreakerGauge(t *testing.T) {
	inBubble(t, func(t *testing.T, f *breakerFixture) {
		all, one := openBreakers(t, scopeAll), openBreakers(t, scopeTenant)
		f.calls(acme, failures, unavailable())
		require.InDelta(t, all+1, openBreakers(t, scopeAll), 0)
		require.InDelta(t, one+1, openBreakers(t, scopeTenant), 0)

		f.afterThePause()
		require.Empty(t, f.waitsFor(acme, podNamed("p")))
		require.InDelta(t, all+1, openBreakers(t, scopeAll), 0, "half open is not closed")
		f.call(acme, unavailable())
		require.InDelta(t, all+1, openBreakers(t, scopeAll), 0, "opening again is no second breaker")

		f.afterThePause()
		f.call(acme, nil)
		require.InDelta(t, all, openBreakers(t, scopeAll), 0)
		require.InDelta(t, one, openBreakers(t, scopeTenant), 0)
	})
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
