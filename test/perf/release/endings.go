package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// endings watches pods stop and go.
type endings struct {
	watch   watch.Interface
	stopped map[types.UID]time.Time
	waits   map[string][]time.Duration
	gone    int
	last    time.Time
}

var errWatchEnded = errors.New("the watch of pods ended")

func watchEndings(ctx context.Context, client kubernetes.Interface) (*endings, error) {
	pods := client.CoreV1().Pods(metav1.NamespaceAll)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	return &endings{watch: w, stopped: map[types.UID]time.Time{}, waits: map[string][]time.Duration{}}, nil
}

// wait returns when so many pods are gone: how long each waited after it had stopped, and when the last was gone.
func (e *endings) wait(ctx context.Context, pods int) (map[string][]time.Duration, time.Time, error) {
	defer e.watch.Stop()
	for e.gone < pods {
		select {
		case <-ctx.Done():
			return nil, e.last, fmt.Errorf("%d of %d pods are gone: %w", e.gone, pods, ctx.Err())
		case event, ok := <-e.watch.ResultChan():
			pod, isPod := event.Object.(*corev1.Pod)
			if !ok || !isPod {
				return nil, e.last, fmt.Errorf("%d of %d pods are gone: %w: %v", e.gone, pods, errWatchEnded, event.Object)
			}
			e.see(event.Type, pod)
		}
	}
	return e.waits, e.last, nil
}

// see notes one event. A pod has stopped when its phase is terminal.
func (e *endings) see(kind watch.EventType, pod *corev1.Pod) {
	now := time.Now()
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		if _, known := e.stopped[pod.UID]; !known {
			e.stopped[pod.UID] = now
		}
	}
	if kind == watch.Deleted {
		e.gone++
		e.last = now
		e.waits[pod.Namespace] = append(e.waits[pod.Namespace], now.Sub(e.stopped[pod.UID]))
	}
}
