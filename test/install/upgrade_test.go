package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// TestUpgradeLosesNothing replaces both programs by another version, one process after the other, while pods come and
// go: every creation is served, every pod gets its networks, all are given back.
func TestUpgradeLosesNothing(t *testing.T) {
	next := t.TempDir()
	w := newWorld(t, devcluster.Config{})
	w.do("go build -ldflags '-s -w -X main.version=next' -o " + next + "/tenant-webhook ./cmd/webhook")
	w.do("go build -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=v1.37.99' -o " + next + "/tenant-scheduler ./cmd/scheduler")
	w.do("scripts/deploy.sh " + w.overlay)
	w.optIn()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	made := 0
	go func() {
		var err error
		made, err = w.keepCreating(ctx)
		done <- err
	}()
	w.podsRunning(3)
	for _, name := range []string{devcluster.WebhookReplica(0), devcluster.TenantScheduler, devcluster.WebhookReplica(1)} {
		require.NoError(t, w.Upgrade(t.Context(), name, next))
		// Old and new work side by side for a while.
		w.podsRunning(3)
	}
	stop()
	require.NoError(t, <-done, "after %d pods", made)
	require.Greater(t, made, 10)
	for name, want := range map[string]string{
		devcluster.WebhookReplica(0): `version="next"`, devcluster.WebhookReplica(1): `version="next"`, devcluster.TenantScheduler: `version="v1.37.99"`,
	} {
		log, err := os.ReadFile(w.LogPath(name))
		require.NoError(t, err)
		require.Contains(t, string(log), want, name)
	}

	w.allRun()
	w.do("kubectl -n tenant-a delete pods --all --timeout=180s")
	api, err := tenant.New(tenant.Config{URL: w.MockURL()})
	require.NoError(t, err)
	system, err := w.client.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		left, err := api.List(t.Context(), string(system.UID))
		require.NoError(c, err)
		require.Empty(c, left)
	}, patience, 100*time.Millisecond)
	require.Empty(t, w.do("kubectl -n tenant-a get network-attachment-definitions.k8s.cni.cncf.io -o name"))
}

// keepCreating creates a pod every now and then, keeps a few, and checks what it deletes: a pod that ran has its own
// networks. It ends with the context, or with the first failure.
func (w *world) keepCreating(ctx context.Context) (made int, err error) {
	pods := w.client.CoreV1().Pods("tenant-a")
	owners := map[string]string{} // of networks
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for ; ; made++ {
		select {
		case <-ctx.Done():
			return made, nil
		case <-ticker.C:
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", made), Annotations: map[string]string{"rdma.vf": "1"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		}
		created, err := pods.Create(context.WithoutCancel(ctx), pod, metav1.CreateOptions{})
		if err != nil {
			return made, fmt.Errorf("pod %d was not created: %w", made, err)
		}
		if created.Spec.SchedulerName != rdma.SchedulerName {
			return made, fmt.Errorf("pod %d was not admitted as an RDMA pod", made)
		}
		if made < keep {
			continue
		}
		if err := w.retire(context.WithoutCancel(ctx), fmt.Sprintf("pod-%d", made-keep), owners); err != nil {
			return made, err
		}
	}
}

// keep is how many pods live at a time; the nodes have more devices.
const keep = 8

// retire waits until a pod runs, sees that nobody else had its network while it lived, and deletes it.
func (w *world) retire(ctx context.Context, name string, owners map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := w.client.CoreV1().Pods("tenant-a")
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Status.Phase == corev1.PodRunning {
			network := pod.Annotations[rdma.NetworksAnnotation]
			if network == "" || owners[network] != "" {
				return fmt.Errorf("%s runs with network %q, which %q had", name, network, owners[network])
			}
			owners[network] = name
			err := pods.Delete(ctx, name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), fmt.Errorf("%s is %s: %+v", name, pod.Status.Phase, pod.Status.Conditions))
		case <-ticker.C:
		}
	}
}

// allRun waits until every pod that is not being deleted runs.
func (w *world) allRun() {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		pods, err := w.client.CoreV1().Pods("tenant-a").List(w.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		for i := range pods.Items {
			pod := &pods.Items[i]
			require.True(c, pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodRunning, "%s is %s", pod.Name, pod.Status.Phase)
		}
	}, patience, 100*time.Millisecond)
}

// podsRunning waits until so many more pods have been created, and run.
func (w *world) podsRunning(more int) {
	w.t.Helper()
	begun := metav1.Now()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		pods, err := w.client.CoreV1().Pods("tenant-a").List(w.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		running := 0
		for i := range pods.Items {
			pod := &pods.Items[i]
			if !pod.CreationTimestamp.Before(&begun) && pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		require.GreaterOrEqual(c, running, more)
	}, patience, 100*time.Millisecond)
}
