package feed

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// podInformer runs an informer of pods over what the source has.
func podInformer(t *testing.T, source *fcache.FakeControllerSource) cache.SharedIndexInformer {
	t.Helper()
	informer := NewInformer(podLists(source), &corev1.Pod{}, 0, cache.Indexers{})
	require.NoError(t, informer.SetTransform(TrimPod))
	go informer.RunWithContext(t.Context())
	require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
	return informer
}

// podLists lists pods as the API server does; the fake returns a list of anything.
func podLists(source *fcache.FakeControllerSource) cache.ListerWatcher {
	return &cache.ListWatch{
		WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return source.Watch(options)
		},
		ListWithContextFunc: func(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
			all, err := source.List(options)
			if err != nil {
				return nil, err
			}
			listed, err := meta.ListAccessor(all)
			if err != nil {
				return nil, err
			}
			list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: listed.GetResourceVersion()}}
			return list, meta.EachListItem(all, func(object runtime.Object) error {
				list.Items = append(list.Items, *object.(*corev1.Pod))
				return nil
			})
		},
	}
}

func becomesShown(t *testing.T, informer cache.SharedIndexInformer, keys ...string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.ElementsMatch(c, keys, informer.GetStore().ListKeys())
	}, within, often)
}

func plain(name string) *corev1.Pod {
	p := pod(name, name, "n1", "cpu", 1)
	p.Finalizers, p.Annotations = nil, nil
	return p
}

func TestTheInformerShowsOnlyPodsThatMatter(t *testing.T) {
	holder, foreign, finalized := pod("holder", "1", "n1", poolA, 1), pod("foreign", "2", "", poolB, 1), plain("finalized")
	foreign.Finalizers = nil
	foreign.Spec.InitContainers, foreign.Spec.Containers = foreign.Spec.Containers, plain("x").Spec.Containers
	finalized.Finalizers = []string{rdma.Finalizer}
	for _, order := range []string{"listed", "watched"} {
		t.Run(order, func(t *testing.T) {
			source := fcache.NewFakeControllerSource()
			var informer cache.SharedIndexInformer
			if order == "watched" {
				informer = podInformer(t, source)
			}
			for _, p := range []*corev1.Pod{plain("plain"), holder, plain("other"), foreign, finalized} {
				source.Add(p.DeepCopy())
			}
			if order == "listed" {
				informer = podInformer(t, source)
			}
			becomesShown(t, informer, "ns/holder", "ns/foreign", "ns/finalized")

			source.Modify(plain("plain"))
			source.Delete(plain("other"))
			released := finalized.DeepCopy()
			released.Finalizers = nil
			source.Modify(released)
			becomesShown(t, informer, "ns/holder", "ns/foreign")

			late := plain("plain")
			late.Finalizers = []string{rdma.Finalizer}
			source.Modify(late)
			source.Delete(holder.DeepCopy())
			becomesShown(t, informer, "ns/plain", "ns/foreign")
			source.Delete(late.DeepCopy())
			becomesShown(t, informer, "ns/foreign")
		})
	}
}

func TestPodsThatSomethingMayBeWrongWithAreShown(t *testing.T) {
	source := fcache.NewFakeControllerSource()
	informer := podInformer(t, source)
	asking, waiting := plain("asking"), plain("waiting")
	asking.Annotations = map[string]string{rdma.PFAnnotation: "1"}
	waiting.Spec.SchedulerName = rdma.SchedulerName
	for _, p := range []*corev1.Pod{plain("plain"), asking, waiting} {
		source.Add(p.DeepCopy())
	}
	becomesShown(t, informer, "ns/asking", "ns/waiting")

	source.Modify(plain("asking"))
	becomesShown(t, informer, "ns/waiting")
	source.Delete(waiting.DeepCopy())
	becomesShown(t, informer)
}

func TestEventsOfPlainPodsMustNotReachAnyHandler(t *testing.T) {
	r := &relevance{}
	for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		_, keep := r.filter(watch.Event{Type: kind, Object: plain("plain")})
		assert.False(t, keep, kind)
	}
	for _, event := range []watch.Event{{Type: watch.Bookmark, Object: &corev1.Pod{}}, {Type: watch.Error, Object: &metav1.Status{}}} {
		got, keep := r.filter(event)
		assert.True(t, keep)
		assert.Equal(t, event, got)
	}
}

func TestAnInformerOfOtherObjectsShowsAll(t *testing.T) {
	source := fcache.NewFakeControllerSource()
	source.Add(node("n1", poolA, 1))
	informer := NewInformer(source, &corev1.Node{}, 0, cache.Indexers{})
	go informer.RunWithContext(t.Context())
	becomesShown(t, informer, "n1")
}

func TestAListThatFailsIsHandedOn(t *testing.T) {
	source := cache.ToListerWatcherWithContext(relevantPods(&cache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, errBroken },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, errBroken },
	}))
	_, err := source.ListWithContext(t.Context(), metav1.ListOptions{})
	require.ErrorIs(t, err, errBroken)
	_, err = source.WatchWithContext(t.Context(), metav1.ListOptions{})
	require.ErrorIs(t, err, errBroken)
}
