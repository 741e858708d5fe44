package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// endings sees pods stop and go.
type endings struct {
	expected int

	mu      sync.Mutex
	stopped map[types.UID]time.Time
	waits   map[string][]time.Duration
	gone    int
	last    time.Time
	all     chan struct{} // closed when the expected number is gone
}

var errUnsynced = errors.New("the pods could not be read")

// watchEndings watches until ctx ends.
func watchEndings(ctx context.Context, client kubernetes.Interface, expected int) (*endings, error) {
	e := &endings{expected: expected, stopped: map[types.UID]time.Time{}, waits: map[string][]time.Duration{}, all: make(chan struct{})}
	factory := informers.NewSharedInformerFactory(client, 0)
	registration, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, object any) { e.changed(object) },
		DeleteFunc: e.deleted,
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil, errUnsynced
	}
	return e, nil
}

// changed notes when a pod has stopped: its phase is terminal.
func (e *endings) changed(object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.stopped[pod.UID]; !known {
		e.stopped[pod.UID] = time.Now()
	}
}

func (e *endings) deleted(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = time.Now()
	if stopped, known := e.stopped[pod.UID]; known {
		e.waits[pod.Namespace] = append(e.waits[pod.Namespace], e.last.Sub(stopped))
	}
	if e.gone++; e.gone == e.expected {
		close(e.all)
	}
}

// wait returns when all pods are gone: how long each waited after it had stopped, and when the last was gone.
func (e *endings) wait(ctx context.Context) (map[string][]time.Duration, time.Time, error) {
	select {
	case <-e.all:
		return e.waits, e.last, nil
	case <-ctx.Done():
		e.mu.Lock()
		defer e.mu.Unlock()
		return nil, e.last, fmt.Errorf("%d of %d pods are gone: %w", e.gone, e.expected, ctx.Err())
	}
}
