package release

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func podOf(namespace string, n int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("p", n)}}
}

func TestATenantThatEndsManyPodsMustNotKeepOthersWaiting(t *testing.T) {
	queue := newQueue("test-fair", newRateLimiter())
	defer queue.ShutDown()
	for i := range 1000 {
		queue.Add(podOf("many", i))
	}
	queue.Add(podOf("few", 0))
	queue.Add(podOf("few", 1))
	var order []string
	for range 4 {
		item, _ := queue.Get()
		order = append(order, item.String())
		queue.Done(item)
	}
	require.Equal(t, []string{"many/p0", "few/p0", "many/p1", "few/p1"}, order)
}

func TestAPodIsQueuedOnceHoweverOftenItChanges(t *testing.T) {
	queue := newQueue("test-once", newRateLimiter())
	defer queue.ShutDown()
	for range 3 {
		queue.Add(podOf("a", 0))
	}
	require.Equal(t, 1, queue.Len())
}

// TestRoundRobin: nothing is lost or made up, a namespace keeps its order, and nobody is served twice while another waits.
func TestRoundRobin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		queue := &roundRobin{waiting: map[string][]reconcile.Request{}}
		pushed, popped := map[string]int{}, map[string]int{}
		waitedFor := map[string]int{}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				namespace := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace")
				queue.Push(podOf(namespace, pushed[namespace]))
				pushed[namespace]++
			},
			"pop": func(t *rapid.T) {
				if queue.Len() == 0 {
					return
				}
				item := queue.Pop()
				require.Equal(t, podOf(item.Namespace, popped[item.Namespace]), item)
				popped[item.Namespace]++
				for namespace := range pushed {
					if namespace == item.Namespace || pushed[namespace] == popped[namespace] {
						waitedFor[namespace] = 0
						continue
					}
					waitedFor[namespace]++
					require.Less(t, waitedFor[namespace], 3, "%s waits although there are three namespaces", namespace)
				}
			},
			"": func(t *rapid.T) {
				left := 0
				for namespace, n := range pushed {
					left += n - popped[namespace]
				}
				require.Equal(t, left, queue.Len())
			},
		})
	})
}
