package release

import (
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// newQueue is client-go's queue with a fair order: a tenant that ends a thousand pods at once, or whose networks take
// long to be given back, does not keep the pods of others waiting.
func newQueue(controllerName string, rateLimiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(rateLimiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{
		Name: controllerName,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{
			Name: controllerName,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{
				Name:  controllerName,
				Queue: &roundRobin{waiting: map[string][]reconcile.Request{}},
			}),
		}),
	})
}

// roundRobin serves the namespaces by turns, and the pods of one namespace in the order of their coming. The workqueue
// that it is the order of holds a lock and asks for nothing while it is empty.
type roundRobin struct {
	// turns has the namespaces with waiting pods, the next one first.
	turns   []string
	waiting map[string][]reconcile.Request
	length  int
}

var _ workqueue.Queue[reconcile.Request] = &roundRobin{}

// Touch implements workqueue.Queue.
func (q *roundRobin) Touch(reconcile.Request) {}

// Push implements workqueue.Queue.
func (q *roundRobin) Push(item reconcile.Request) {
	pods := q.waiting[item.Namespace]
	if len(pods) == 0 {
		q.turns = append(q.turns, item.Namespace)
	}
	q.waiting[item.Namespace] = append(pods, item)
	q.length++
}

// Len implements workqueue.Queue.
func (q *roundRobin) Len() int { return q.length }

// Pop implements workqueue.Queue.
func (q *roundRobin) Pop() reconcile.Request {
	namespace := q.turns[0]
	q.turns = q.turns[1:]
	pods := q.waiting[namespace]
	q.length--
	if len(pods) == 1 {
		delete(q.waiting, namespace)
	} else {
		q.waiting[namespace] = pods[1:]
		q.turns = append(q.turns, namespace)
	}
	return pods[0]
}
