package watchdog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"tenant.network/tenant-webhook/pkg/rdma"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// events keeps the reasons of the Events.
type events struct{ all []string }

func (e *events) Eventf(_, _ runtime.Object, eventtype, reason, _, note string, args ...any) {
	e.all = append(e.all, eventtype+" "+reason)
	if text := fmt.Sprintf(note, args...); strings.Contains(text, "%!") {
		e.all = append(e.all, "badly formatted: "+text)
	}
}

type fixture struct {
	*Watchdog
	events   *events
	clock    *clocktesting.FakePassiveClock
	registry *prometheus.Registry
	absent   bool
	// broken is the answer to reads of namespaces while it is set.
	broken error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	namespace := func(name string, labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	f := &fixture{events: &events{}, clock: clocktesting.NewFakePassiveClock(now), registry: prometheus.NewRegistry()}
	live := interceptor.NewClient(fake.NewClientBuilder().WithObjects(
		namespace("tenant-a", map[string]string{rdma.NamespaceLabel: rdma.NamespaceLabelValue}),
		namespace("kube-system", map[string]string{rdma.NamespaceLabel: rdma.NamespaceLabelValue}),
		namespace("other", map[string]string{rdma.NamespaceLabel: "no"})).Build(),
		interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if f.broken != nil {
				return f.broken
			}
			return c.Get(ctx, key, object, opts...)
		}})
	var err error
	f.Watchdog, err = New(Config{Live: live, Recorder: f.events, NetworksAbsent: func() bool { return f.absent },
		Excluded: []string{"kube-system"}, Clock: f.clock, Registerer: f.registry})
	require.NoError(t, err)
	return f
}

func newPod(change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "p", UID: "uid", CreationTimestamp: metav1.NewTime(now)},
		Spec: corev1.PodSpec{SchedulerName: rdma.DefaultSchedulerName}}
	if change != nil {
		change(pod)
	}
	return pod
}

func intent(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, rdma.VFAnnotation, "1") }

// admitted is a pod that went through tenant-webhook.
func admitted(p *corev1.Pod) {
	intent(p)
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, rdma.ResourcePoolAnnotation, "a.com/vf")
	p.Finalizers = []string{rdma.Finalizer}
	p.Spec.SchedulerName = rdma.SchedulerName
}

func TestIntentThatWasNeverMutatedSpeaks(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*corev1.Pod)
		want   bool
	}{
		{"a pod that is placed", func(p *corev1.Pod) { intent(p); p.Spec.NodeName = "n" }, true},
		{"a pod that waits", intent, true},
		{"a pod that wants a physical function", func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, rdma.PFAnnotation, "1") }, true},
		{"not a plain pod", nil, false},
		{"not a pod that was admitted", admitted, false},
		{"not a pod whose finalizer was removed in an emergency", func(p *corev1.Pod) { admitted(p); p.Finalizers = nil; p.Spec.SchedulerName = "default-scheduler" }, false},
		{"not a pod in a namespace that is labelled otherwise", func(p *corev1.Pod) { intent(p); p.Namespace = "other" }, false},
		{"not a pod in a namespace that is gone", func(p *corev1.Pod) { intent(p); p.Namespace = "gone" }, false},
		{"not a pod that the webhook is never called for", func(p *corev1.Pod) { intent(p); p.Namespace = "kube-system" }, false},
		{"not a mirror pod", func(p *corev1.Pod) {
			intent(p)
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, corev1.MirrorPodAnnotationKey, "x")
		}, false},
		{"not a pod that is over", func(p *corev1.Pod) { intent(p); p.Status.Phase = corev1.PodSucceeded }, false},
		{"not a pod that goes", func(p *corev1.Pod) { intent(p); p.DeletionTimestamp = new(metav1.NewTime(now)) }, false},
		{"not a pod that tenant-scheduler speaks about", func(p *corev1.Pod) { intent(p); p.Spec.SchedulerName = rdma.SchedulerName; p.Spec.NodeName = "n" }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			var want []string
			if tc.want {
				want = []string{"Warning " + reasonNotInjected}
			}
			for range 2 { // once a pod
				_, err := f.Reconcile(t.Context(), newPod(tc.change))
				require.NoError(t, err)
				require.Equal(t, want, f.events.all)
			}
			require.InDelta(t, len(want), testutil.ToFloat64(f.found.WithLabelValues(reasonNotInjected)), 0)
		})
	}
	t.Run("a namespace that cannot be read is tried again", func(t *testing.T) {
		f := newFixture(t)
		f.broken = errors.New("no route")
		_, err := f.Reconcile(t.Context(), newPod(intent))
		require.EqualError(t, err, "reading the pod's namespace: no route")
		f.broken = nil
		_, err = f.Reconcile(t.Context(), newPod(intent))
		require.NoError(t, err)
		require.Len(t, f.events.all, 1)
	})
	t.Run("a pod that takes another one's name speaks for itself", func(t *testing.T) {
		f := newFixture(t)
		for _, uid := range []types.UID{"1", "2"} {
			_, err := f.Reconcile(t.Context(), newPod(func(p *corev1.Pod) { intent(p); p.UID = uid }))
			require.NoError(t, err)
		}
		require.Len(t, f.events.all, 2)
	})
}

func TestASilentSchedulerSpeaks(t *testing.T) {
	condition := func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse})
	}
	for _, tc := range []struct {
		name   string
		change func(*corev1.Pod)
		after  time.Duration
		wait   time.Duration
		want   bool
	}{
		{name: "after a minute", change: admitted, after: patience, want: true},
		{name: "for a plain pod of that scheduler too", change: func(p *corev1.Pod) { p.Spec.SchedulerName = rdma.SchedulerName }, after: time.Hour, want: true},
		{name: "not before", change: admitted, after: patience - 1, wait: 1},
		{name: "not for a new pod", change: admitted, wait: patience},
		{name: "not for a pod that a scheduler has looked at", change: func(p *corev1.Pod) { admitted(p); condition(p) }, after: time.Hour},
		{name: "not for a gated pod", change: func(p *corev1.Pod) { admitted(p); p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }, after: time.Hour},
		{name: "not for a pod that is bound", change: func(p *corev1.Pod) { admitted(p); p.Spec.NodeName = "n" }, after: time.Hour},
		{name: "not for a pod that goes", change: func(p *corev1.Pod) { admitted(p); p.DeletionTimestamp = new(metav1.NewTime(now)) }, after: time.Hour},
		{name: "not for a pod of another scheduler", after: time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			f.clock.SetTime(now.Add(tc.after))
			var want []string
			if tc.want {
				want = []string{"Warning " + reasonNotScheduled}
			}
			for range 2 {
				result, err := f.Reconcile(t.Context(), newPod(tc.change))
				require.NoError(t, err)
				require.Equal(t, tc.wait, result.RequeueAfter)
				require.Equal(t, want, f.events.all)
			}
		})
	}
}

func TestAClusterWithoutNetworksSpeaks(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		absent bool
		want   []string
	}{
		"on a pod that waits for them":       {admitted, true, []string{"Warning " + reasonNoNetworks}},
		"not where the CRD is there":         {admitted, false, nil},
		"not on a plain pod":                 {func(p *corev1.Pod) { p.Spec.SchedulerName = rdma.SchedulerName }, true, nil},
		"not on a pod that has its networks": {func(p *corev1.Pod) { admitted(p); p.Spec.NodeName = "n" }, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.absent = tc.absent
			for range 2 {
				_, err := f.Reconcile(t.Context(), newPod(tc.change))
				require.NoError(t, err)
				require.Equal(t, tc.want, f.events.all)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	f := newFixture(t)
	problems, err := testutil.GatherAndLint(f.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
	_, err = New(Config{Registerer: f.registry})
	require.ErrorContains(t, err, "registering metrics of the watchdog")
}
