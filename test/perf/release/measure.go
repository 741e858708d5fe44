package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// The tenants' namespaces.
const (
	large = "tenant-large"
	small = "tenant-small"
)

// result is the line of the output.
type result struct {
	settings
	// took is from the first deletion to the last finalizer.
	took time.Duration
	// waits are from the moment a pod had stopped until its finalizer was gone, by namespace.
	waits map[string][]time.Duration
	// calls are the API server's requests from tenant-webhook, but for watches and leases.
	calls, throttled int
}

func (r result) String() string {
	return fmt.Sprintf("release: pods=%d latency=%dms took=%.1fs rate=%.0f/s after_stop_p50=%v after_stop_p99=%v after_stop_max=%v small_pods=%d small_after_stop_p50=%v small_after_stop_max=%v calls_per_pod=%.3f throttled=%d",
		r.pods, r.latencyMillis, r.took.Seconds(), float64(r.pods)/r.took.Seconds(),
		quantile(r.waits[large], 50), quantile(r.waits[large], 99), quantile(r.waits[large], 100),
		r.small, quantile(r.waits[small], 50), quantile(r.waits[small], 100), float64(r.calls)/float64(r.pods), r.throttled)
}

var errCostly = errors.New("releasing costs too much")

// verify is for what does not depend on the machine's speed. Every now and then a patch meets a pod that has changed, and
// is made again.
func (r result) verify() error {
	if perPod := float64(r.calls) / float64(r.pods); perPod > 1.5 || r.throttled > 0 {
		return fmt.Errorf("%w: %.2f calls a pod, %d held back", errCostly, perPod, r.throttled)
	}
	return nil
}

// quantile sorts the times and rounds the one asked for to milliseconds.
func quantile(times []time.Duration, percent int) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[(len(times)-1)*percent/100].Round(time.Millisecond)
}

// measure creates the pods, waits until all run, deletes them, and waits until they are gone.
func (s settings) measure(ctx context.Context, cluster *devcluster.Cluster) (result, error) {
	config := cluster.AdminConfig()
	config.QPS, config.Burst = -1, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return result{}, err
	}
	if err := s.create(ctx, client); err != nil {
		return result{}, err
	}
	if err := slowReleases(ctx, cluster.MockURL(), s.latencyMillis); err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an API server that stops waits for watches
	endings, err := watchEndings(ctx, client, s.pods)
	if err != nil {
		return result{}, err
	}
	began := time.Now()
	for _, namespace := range []string{large, small} {
		if err := client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return result{}, fmt.Errorf("deleting the pods of %s: %w", namespace, err)
		}
	}
	waits, last, err := endings.wait(ctx)
	if err != nil {
		return result{}, err
	}
	r := result{settings: s, took: last.Sub(began), waits: waits}
	r.calls, err = callsSince(cluster.AuditLogPath(), began)
	if err != nil {
		return result{}, err
	}
	r.throttled, err = throttled(cluster)
	return r, err
}

// create makes all pods and returns when they run.
func (s settings) create(ctx context.Context, client kubernetes.Interface) error {
	errs := make([]error, s.pods)
	workqueue.ParallelizeUntil(ctx, 8, s.pods, func(i int) {
		namespace := large
		if i < s.small {
			namespace = small
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i), Annotations: map[string]string{rdma.VFAnnotation: "1"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		}
		_, errs[i] = client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	running := 0
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running", ResourceVersion: "0"})
		if err != nil {
			return false, err
		}
		running = len(list.Items)
		return running == s.pods, nil
	})
	if err != nil {
		return fmt.Errorf("%d of %d pods run: %w", running, s.pods, err)
	}
	return nil
}
