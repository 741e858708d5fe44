package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// outage is how long the tenant-controller is away; OUTAGE sets it, such as 2m.
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("OUTAGE")
	if text == "" {
		return 15 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "OUTAGE")
	return d
}

// TestATenantControllerThatIsAwayHurtsOnlyItsOwnPods stops the mock under 50 RDMA pods while plain pods keep coming,
// through the same scheduler.
func TestATenantControllerThatIsAwayHurtsOnlyItsOwnPods(t *testing.T) {
	const rdmaPods, plainPods = 50, 100
	w := newWorld(t, devcluster.Config{Nodes: []devcluster.Node{
		{Name: "node-1", Extended: map[string]string{string(vfPool): "30"}},
		{Name: "node-2", Extended: map[string]string{string(vfPool): "30"}},
	}})
	w.eventually("the pool is known", func(ctx context.Context) error { return w.poolHas(ctx, vfPool, 60) })
	before := w.plainRate("before", plainPods)

	require.NoError(t, w.Stop(devcluster.Mock))
	stopped := time.Now()
	for i := range rdmaPods {
		w.create(podYAML(fmt.Sprintf("rdma-%d", i), `{rdma.vf: "1"}`))
	}
	w.eventually("a pod says whose fault it is", func(ctx context.Context) error {
		list, err := w.client.CoreV1().Events(tenantA).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			return err
		}
		for _, event := range list.Items {
			if strings.Contains(event.Message, "the tenant-controller does not answer") {
				return nil
			}
		}
		return fmt.Errorf("%d Events, none says it", len(list.Items))
	})
	during := w.plainRate("during", plainPods)
	w.eventually("the outage is over", func(context.Context) error {
		if left := outage(t) - time.Since(stopped); left > 0 {
			return fmt.Errorf("%v left", left)
		}
		return nil
	})
	require.Zero(t, w.runningRDMA(t.Context()), "no pod may run without its networks")
	require.NoError(t, w.StartComponent(t.Context(), devcluster.Mock))
	back := time.Now()
	w.eventually("all RDMA pods run", func(ctx context.Context) error {
		if n := w.runningRDMA(ctx); n != rdmaPods {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	took := time.Since(back)
	// The slower of two measurements: the machine may have been busy with something else during one of them.
	undisturbed := min(before, w.plainRate("after", plainPods))
	t.Logf("outage %v: all %d pods ran %.1fs after its end; plain pods %.0f/s undisturbed, %.0f/s during it (ratio %.2f)",
		time.Since(stopped).Round(time.Second), rdmaPods, took.Seconds(), undisturbed, during, during/undisturbed)
	require.Less(t, took, time.Minute)
	require.Greater(t, during/undisturbed, 0.2, "plain pods must not wait for the tenant-controller")
	require.Len(t, w.allocations(), rdmaPods)
}

// plainRate creates plain pods for tenant-scheduler and returns how many were bound a second.
func (w *world) plainRate(prefix string, count int) float64 {
	w.t.Helper()
	start := time.Now()
	for i := range count {
		pod := w.parse(podYAML(fmt.Sprintf("%s-%d", prefix, i), `{}`))
		pod.Spec.SchedulerName = rdma.SchedulerName
		pod.Labels = map[string]string{"plain": prefix}
		_, err := w.client.CoreV1().Pods(tenantA).Create(w.t.Context(), pod, metav1.CreateOptions{})
		require.NoError(w.t, err)
	}
	w.eventually("plain pods are bound", func(ctx context.Context) error {
		list, err := w.client.CoreV1().Pods(tenantA).List(ctx, metav1.ListOptions{LabelSelector: "plain=" + prefix})
		if err != nil {
			return err
		}
		bound := 0
		for i := range list.Items {
			if list.Items[i].Spec.NodeName != "" {
				bound++
			}
		}
		if bound != count {
			return fmt.Errorf("%d of %d are bound", bound, count)
		}
		return nil
	})
	return float64(count) / time.Since(start).Seconds()
}

func (w *world) runningRDMA(ctx context.Context) int {
	w.t.Helper()
	list, err := w.client.CoreV1().Pods(tenantA).List(ctx, metav1.ListOptions{})
	require.NoError(w.t, err)
	n := 0
	for i := range list.Items {
		if _, ours := rdma.Ours(&list.Items[i]); ours && list.Items[i].Status.Phase == corev1.PodRunning {
			n++
		}
	}
	return n
}
