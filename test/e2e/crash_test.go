package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// call is one external call of a program for a pod, with what differs from life to life taken out.
type call struct {
	component string
	what      string
	// nth counts equal calls within one life, from 1.
	nth int
}

// point is a moment at which a program can die: before a call is passed on, or after it acted but before the answer.
type point struct {
	call
	after bool
}

func (p point) String() string {
	side := "before"
	if p.after {
		side = "after"
	}
	return fmt.Sprintf("%s %s: %s (%d)", side, p.component, p.what, p.nth)
}

// tap records the calls for the pod, and kills the caller at one point.
type tap struct {
	kill func(component string)

	mu      sync.Mutex
	calls   []call
	armed   *point
	reached bool
}

type callKey struct{}

var (
	nadName = regexp.MustCompile(`nad-[0-9a-f]+-`)
	uuid    = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
)

// about says what a request does for the pod named p, if it does anything for it.
func about(r *http.Request) (string, bool) {
	if r.URL.Query().Get("watch") != "" {
		return "", false
	}
	path := r.URL.Path
	// The scheduler reads the networks of a pod that has several by the pod's label.
	ofOnePod := strings.HasSuffix(path, "/network-attachment-definitions") && r.URL.Query().Get("labelSelector") != ""
	for _, part := range []string{"/pods/p/", "/nad-", "/v1/allocations/"} {
		if ofOnePod || strings.Contains(path, part) || strings.HasSuffix(path, "/pods/p") {
			return r.Method + " " + uuid.ReplaceAllString(nadName.ReplaceAllString(r.URL.Path, "NAD-"), "UID"), true
		}
	}
	return "", false
}

// Before implements devcluster.Wiretap.
func (t *tap) Before(component string, r *http.Request) bool {
	what, ok := about(r)
	if !ok {
		return true
	}
	c := t.record(component, what)
	*r = *r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	return !t.die(point{c, false})
}

// After implements devcluster.Wiretap.
func (t *tap) After(_ string, r *http.Request, _ int) bool {
	c, ok := r.Context().Value(callKey{}).(call)
	return !ok || !t.die(point{c, true})
}

func (t *tap) record(component, what string) call {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := call{component: component, what: what, nth: 1}
	for _, before := range t.calls {
		if before.component == component && before.what == what {
			c.nth++
		}
	}
	t.calls = append(t.calls, c)
	return c
}

// die kills the program if this is the point, which is reached when the program is dead: whoever waits for a successor
// must not find the one that is about to die.
func (t *tap) die(p point) bool {
	t.mu.Lock()
	hit := t.armed != nil && *t.armed == p
	if hit {
		t.armed = nil
	}
	t.mu.Unlock()
	if hit {
		t.kill(p.component)
		t.mu.Lock()
		t.reached = true
		t.mu.Unlock()
	}
	return hit
}

// begin starts a new life; nil kills nobody.
func (t *tap) begin(armed *point) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls, t.armed, t.reached = nil, armed, false
}

func (t *tap) seen() (calls []call, reached bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.calls), t.reached
}

// TestCrashPoints lets a program die at every external call of one pod's life in turn. The points are found from the
// calls that an undisturbed life makes.
//
// Cases W12, W66, W76, W77, S13 of docs/cases.md.
func TestCrashPoints(t *testing.T) {
	tap := &tap{}
	w := newWorld(t, devcluster.Config{Wiretap: tap, WebhookReplicas: 1,
		// Without an election a successor need not wait for the dead one's lease.
		WebhookArgs: []string{"--leader-elect=false", "--sweep-period=1s", "--sweep-grace=2s"}})
	tap.kill = func(component string) {
		if component == devcluster.Webhook {
			component = devcluster.WebhookReplica(0)
		}
		if err := w.Kill(component); err != nil {
			t.Errorf("killing %s: %v", component, err)
		}
	}
	var points []point
	for _, c := range w.usualCalls(tap) {
		for _, after := range []bool{false, true} {
			points = append(points, point{c, after})
		}
	}
	for _, needed := range []string{
		"PUT /v1/allocations/UID",
		"GET /apis/k8s.cni.cncf.io/v1/namespaces/tenant-a/network-attachment-definitions",
		"POST /api/v1/namespaces/tenant-a/pods/p/binding",
		"DELETE /v1/allocations/UID",
		"PATCH /api/v1/namespaces/tenant-a/pods/p",
	} {
		require.True(t, slices.ContainsFunc(points, func(p point) bool { return p.what == needed }), "no point at %s in %v", needed, points)
	}
	passed := 0
	for _, p := range points {
		if t.Run(p.String(), func(t *testing.T) {
			w := w.in(t)
			tap.begin(&p)
			w.life()
			// The last call's effect ends the life, before its answer comes by.
			w.eventually("the program has died at this point", func(context.Context) error {
				if _, reached := tap.seen(); !reached {
					return errors.New("it made no such call in this life")
				}
				return nil
			})
			w.ready()
		}) {
			passed++
		}
	}
	t.Logf("crash points: %d of %d passed", passed, len(points))
}

// usualCalls are those that every undisturbed life makes, in their order. Some are made in some lives only: the sweep
// looks at what is there when its time comes.
func (w *world) usualCalls(tap *tap) []call {
	var usual []call
	for i := range 4 {
		tap.begin(nil)
		w.life()
		calls, _ := tap.seen()
		if i == 0 {
			continue // the first life finds everything cold
		}
		if i == 1 {
			usual = calls
		}
		usual = slices.DeleteFunc(usual, func(c call) bool { return !slices.Contains(calls, c) })
	}
	return usual
}

// ready waits until the programs that were killed are back.
func (w *world) ready() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for _, component := range []string{devcluster.TenantScheduler, devcluster.WebhookReplica(0)} {
		require.NoError(w.t, w.WaitReady(ctx, component))
	}
}

// life is that of one pod, from its creation until nothing of it is left, with what must hold on the way.
func (w *world) life() {
	w.t.Helper()
	w.create(podYAML("p", `{rdma.vf: "2"}`))
	pod := w.running("p")
	networks := w.networksOf(pod)
	require.Len(w.t, networks, 2)
	require.Contains(w.t, pod.Finalizers, rdma.Finalizer)
	allocations := w.allocations()
	require.Len(w.t, allocations, 1)
	require.Equal(w.t, pod.UID, allocations[0].PodUID)
	require.Equal(w.t, pod.Spec.NodeName, allocations[0].Node)
	for i, network := range networks {
		require.Equal(w.t, allocations[0].Networks[i].Name, network.Name)
	}
	err := w.client.CoreV1().Pods(tenantA).Delete(w.t.Context(), "p", metav1.DeleteOptions{})
	require.NoError(w.t, err)
	w.gone("p")
	w.eventually("the allocation is gone", func(context.Context) error {
		if left := w.allocations(); len(left) > 0 {
			return fmt.Errorf("allocations: %+v", left)
		}
		return nil
	})
	w.nothingLeft()
}
