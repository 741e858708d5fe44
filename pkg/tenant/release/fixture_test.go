package release

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// networks is a tenant-controller that keeps allocations.
type networks struct {
	mu   sync.Mutex
	held map[types.UID]bool
	// broken is the answer while it is set.
	broken error
	// before is called at each release.
	before func()
	// takes is how long a release takes, for a caller that waits so long.
	takes time.Duration
}

func (n *networks) Release(ctx context.Context, cluster string, podUID types.UID, generation int64) error {
	if n.before != nil {
		n.before()
	}
	if err := passes(ctx, n.takes); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if cluster != "cluster" || generation != 0 {
		return fmt.Errorf("unexpected cluster %q or generation %d", cluster, generation)
	}
	if n.broken != nil {
		return n.broken
	}
	delete(n.held, podUID)
	return nil
}

// passes waits for a time, or until the caller gives up.
func passes(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// events keeps the Events by the pod they are on.
type events struct {
	mu  sync.Mutex
	all []string
	// notes are their texts alone.
	notes []string
}

func (e *events) Eventf(regarding, _ runtime.Object, eventtype, reason, action, note string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pod, _ := regarding.(*corev1.Pod)
	text := fmt.Sprintf(note, args...)
	e.notes = append(e.notes, text)
	e.all = append(e.all, fmt.Sprintf("%s %s %s %s: %s", pod.UID, eventtype, reason, action, text))
}

// fixture has an API server, the memory of an informer that can be behind it, and a tenant-controller.
type fixture struct {
	t          *testing.T
	live       client.WithWatch
	memory     client.WithWatch
	networks   *networks
	events     *events
	registry   *prometheus.Registry
	clock      *clocktesting.FakePassiveClock
	controller *Controller
	// beforePatch is called before each patch reaches the API server; an error of its is the answer.
	beforePatch func() error
	// patchTakes is how long a patch takes, for a caller that waits so long.
	patchTakes time.Duration
}

// invalid is what an API server says to a patch whose test fails (apiserver, handlers/patch.go).
func invalid(err error) error {
	return apierrors.NewGenericServerResponse(422, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

// newFixture has the live objects in the memory, too, unless the memory is given.
func newFixture(t *testing.T, live []client.Object, memory ...client.Object) *fixture {
	t.Helper()
	if memory == nil {
		memory = live
	}
	f := &fixture{t: t, networks: &networks{held: map[types.UID]bool{}}, events: &events{}, registry: prometheus.NewRegistry(),
		clock: clocktesting.NewFakePassiveClock(now)}
	build := func(objects []client.Object, funcs interceptor.Funcs) client.WithWatch {
		b := fake.NewClientBuilder().WithIndex(&corev1.Pod{}, nodeIndex, indexByNode).WithInterceptorFuncs(funcs)
		for _, object := range objects {
			b.WithObjects(object.DeepCopyObject().(client.Object))
			if pod, ok := object.(*corev1.Pod); ok {
				f.networks.held[pod.UID] = true
			}
		}
		return b.Build()
	}
	f.live = build(live, interceptor.Funcs{})
	f.memory = build(memory, interceptor.Funcs{
		Patch: func(ctx context.Context, _ client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := passes(ctx, f.patchTakes); err != nil {
				return err
			}
			if f.beforePatch != nil {
				if err := f.beforePatch(); err != nil {
					return err
				}
			}
			err := f.live.Patch(ctx, object, patch, opts...)
			if err != nil && apierrors.ReasonForError(err) == "" {
				return invalid(err)
			}
			return err
		},
	})
	var err error
	f.controller, err = New(Config{Client: f.memory, Live: f.live, Releaser: f.networks, Recorder: f.events, Cluster: "cluster",
		Clock: f.clock, Registerer: f.registry})
	require.NoError(t, err)
	return f
}

// reconcile is what the work queue does with the pod that the memory shows.
func (f *fixture) reconcile() (reconcile.Result, error) {
	f.t.Helper()
	pod := &corev1.Pod{}
	require.NoError(f.t, f.memory.Get(f.t.Context(), client.ObjectKey{Namespace: "ns", Name: "p"}, pod))
	return f.controller.Reconcile(f.t.Context(), pod)
}

// finalizers are those of the live pod, "gone" if there is none.
func (f *fixture) finalizers() []string {
	f.t.Helper()
	pod := &corev1.Pod{}
	err := f.live.Get(f.t.Context(), client.ObjectKey{Namespace: "ns", Name: "p"}, pod)
	if apierrors.IsNotFound(err) {
		return []string{"gone"}
	}
	require.NoError(f.t, err)
	return pod.Finalizers
}

func (f *fixture) change(change func(*corev1.Pod)) {
	f.t.Helper()
	pod := &corev1.Pod{}
	require.NoError(f.t, f.live.Get(f.t.Context(), client.ObjectKey{Namespace: "ns", Name: "p"}, pod))
	change(pod)
	require.NoError(f.t, f.live.Update(f.t.Context(), pod))
}

func (f *fixture) counted(released, failed int) {
	f.t.Helper()
	assert.InDelta(f.t, released, testutil.ToFloat64(f.controller.released.WithLabelValues("released")), 0)
	assert.InDelta(f.t, failed, testutil.ToFloat64(f.controller.released.WithLabelValues("failed")), 0)
}

func finalizers(list ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Finalizers = list }
}

var succeeded = phase(corev1.PodSucceeded)

const ours = rdma.Finalizer
