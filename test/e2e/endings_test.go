package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// cutOff turns a node NotReady and freezes all fake kubelets: pods stay as they are, whatever happens in the API. The
// function that it returns ends that.
func (w *world) cutOff(node string) (reconnect func()) {
	w.t.Helper()
	w.patch("node", node, `{"metadata":{"annotations":{"devcluster/not-ready":"true"}}}`)
	w.nodeReady(node, false)
	require.NoError(w.t, w.Signal(devcluster.Kwok, syscall.SIGSTOP))
	w.t.Cleanup(func() { _ = w.Signal(devcluster.Kwok, syscall.SIGCONT) }) // whatever becomes of the test
	return func() {
		require.NoError(w.t, w.Signal(devcluster.Kwok, syscall.SIGCONT))
		w.patch("node", node, `{"metadata":{"annotations":{"devcluster/not-ready":null}}}`)
		w.nodeReady(node, true)
	}
}

func (w *world) patch(kind, name, patch string, subresources ...string) {
	w.t.Helper()
	var err error
	switch kind {
	case "pod":
		_, err = w.client.CoreV1().Pods(tenantA).Patch(w.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	case "node":
		_, err = w.client.CoreV1().Nodes().Patch(w.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	case "namespace":
		_, err = w.client.CoreV1().Namespaces().Patch(w.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	}
	require.NoError(w.t, err)
}

// optedIn waits until the API server knows of a namespace's label: for a moment after it was written, pods still go past
// the webhook. A count of 0 is refused by the webhook and by nobody else.
func (w *world) optedIn(namespace string) {
	w.t.Helper()
	probe := w.parse(`{apiVersion: v1, kind: Pod, metadata: {name: probe, annotations: {rdma.vf: "0"}}, spec: {containers: [{name: app, image: app}]}}`)
	w.eventually("the webhook is asked about "+namespace, func(ctx context.Context) error {
		_, err := w.client.CoreV1().Pods(namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), rdma.VFAnnotation) {
			return nil
		}
		return fmt.Errorf("a count of 0 is answered by %v", err) //nolint:errorlint // it may be nil
	})
}

// allocated waits until the tenant-controller has exactly that many allocations, each with its networks made.
func (w *world) allocated(count int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("there are %d allocations", count), func(context.Context) error {
		all := w.allocations()
		halfMade := slices.ContainsFunc(all, func(a tenant.Allocation) bool { return len(a.Networks) == 0 })
		if len(all) != count || halfMade {
			return fmt.Errorf("%d allocations: %+v", len(all), all)
		}
		return nil
	})
}

// kept makes sure that the allocation outlives several rounds of everything that could release it.
func (w *world) kept() {
	w.t.Helper()
	require.Never(w.t, func() bool { return len(w.allocations()) == 0 }, 3*time.Second, 300*time.Millisecond)
}

// keptUntilItsEnd makes sure that the allocation is there for as long as the pod's containers run.
func (w *world) keptUntilItsEnd(name string) {
	w.t.Helper()
	w.eventually(name+" has ended", func(ctx context.Context) error {
		// In this order: what is missing before the pod is seen to run is missing too early.
		allocations := w.allocations()
		pod, err := w.client.CoreV1().Pods(tenantA).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return nil
		}
		require.NotEmpty(w.t, allocations, "the pod is %s", pod.Status.Phase)
		return fmt.Errorf("it is %s", pod.Status.Phase)
	})
}

func (w *world) delete(name string, options metav1.DeleteOptions) {
	w.t.Helper()
	require.NoError(w.t, w.client.CoreV1().Pods(tenantA).Delete(w.t.Context(), name, options))
}

func (w *world) podGone(name string) {
	w.t.Helper()
	w.eventually(name+" is gone", func(ctx context.Context) error {
		_, err := w.client.CoreV1().Pods(tenantA).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("pod %s is there: %w", name, err)
	})
}

func TestEveryWayAPodEnds(t *testing.T) {
	w := newWorld(t, devcluster.Config{Nodes: devcluster.DefaultNodes(3),
		WebhookArgs: []string{"--sweep-period=1s", "--sweep-grace=1s"}})
	plain := podYAML("p", `{rdma.vf: "1"}`)

	t.Run("deleted while Pending (W61)", func(t *testing.T) {
		w := w.in(t)
		w.create(podYAML("p", `{rdma.vf: "9"}`))
		w.gone("p")
		w.nothingLeft()
	})
	t.Run("deleted while gated (W61)", func(t *testing.T) {
		w := w.in(t)
		w.create("metadata: {name: p, annotations: {rdma.vf: \"1\"}}\nspec: {schedulingGates: [{name: example.com/gate}], containers: [{name: app, image: app}]}")
		w.gone("p")
		w.nothingLeft()
	})
	t.Run("running, with grace that its containers use: the release waits for their end (W73)", func(t *testing.T) {
		w := w.in(t)
		w.create(podYAML("p", `{rdma.vf: "1", devcluster/stop-seconds: "5"}`))
		w.running("p")
		begun := time.Now()
		w.delete("p", metav1.DeleteOptions{})
		w.keptUntilItsEnd("p")
		require.Greater(t, time.Since(begun), 5*time.Second, "the containers use their grace")
		w.podGone("p")
		w.nothingLeft()
	})
	t.Run("finished and kept: the networks go at once (W64)", func(t *testing.T) {
		w := w.in(t)
		w.create("metadata: {name: p, annotations: {rdma.vf: \"1\", devcluster/run-seconds: \"1\"}}\nspec: {restartPolicy: Never, containers: [{name: app, image: app}]}")
		w.eventually("the pod has succeeded and lost its finalizer", func(ctx context.Context) error {
			pod, err := w.client.CoreV1().Pods(tenantA).Get(ctx, "p", metav1.GetOptions{})
			if err == nil && (pod.Status.Phase != corev1.PodSucceeded || len(pod.Finalizers) > 0) {
				err = fmt.Errorf("phase %s, finalizers %v", pod.Status.Phase, pod.Finalizers)
			}
			return err
		})
		w.nothingLeft()
		w.gone("p")
	})
	t.Run("failed by the kubelet at admission, without a sandbox (S34)", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		w.running("p")
		w.patch("pod", "p", `{"status":{"phase":"Failed","reason":"UnexpectedAdmissionError","conditions":[{"type":"PodReadyToStartContainers","status":"False"}]}}`, "status")
		w.allocated(0)
		w.gone("p")
		w.nothingLeft()
	})
	t.Run("force-deleted (S38)", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		w.running("p")
		w.delete("p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		w.podGone("p")
		w.nothingLeft()
	})
	t.Run("evicted", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		w.running("p")
		require.NoError(t, w.client.PolicyV1().Evictions(tenantA).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: tenantA, Name: "p"}}))
		w.podGone("p")
		w.nothingLeft()
	})
	t.Run("finalizer removed by hand: the sweep gives back what is left", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		w.running("p")
		w.patch("pod", "p", `{"metadata":{"finalizers":null}}`)
		w.kept()
		w.gone("p")
		w.allocated(0)
		w.nothingLeft()
	})
	t.Run("annotations removed by hand: the UID is enough (W70)", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		w.running("p")
		none := map[string]any{}
		for key := range w.get("p").Annotations {
			none[key] = nil
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": none}})
		require.NoError(t, err)
		w.patch("pod", "p", string(patch))
		w.gone("p")
		w.nothingLeft()
	})
	t.Run("recreated under its name: the networks are new, and the old ones are gone", func(t *testing.T) {
		w := w.in(t)
		var before []rdma.Network
		for range 3 {
			w.create(plain)
			pod := w.running("p")
			require.NotEqual(t, before, w.networksOf(pod))
			before = w.networksOf(pod)
			require.Len(t, w.allocations(), 1)
			w.gone("p")
		}
		w.nothingLeft()
	})
	t.Run("label taken off the namespace: what runs is still given back", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		w.running("p")
		w.patch("namespace", tenantA, `{"metadata":{"labels":{"rdma-type":null}}}`)
		w.gone("p")
		w.nothingLeft()
		w.patch("namespace", tenantA, `{"metadata":{"labels":{"rdma-type":"vpc"}}}`)
		w.optedIn(tenantA)
	})
	t.Run("node cut off with the pod running: nothing is released until the node is back", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		node := w.running("p").Spec.NodeName
		reconnect := w.cutOff(node)
		w.delete("p", metav1.DeleteOptions{})
		w.kept()
		reconnect()
		w.podGone("p")
		w.nothingLeft()
	})
	t.Run("node out of service: an administrator's word releases", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		node := w.running("p").Spec.NodeName
		reconnect := w.cutOff(node)
		w.delete("p", metav1.DeleteOptions{})
		w.kept()
		w.patch("node", node, `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`)
		w.allocated(0)
		w.nothingLeft()
		w.patch("node", node, `{"spec":{"taints":null}}`)
		reconnect()
		w.podGone("p")
	})
	t.Run("node deleted with the pod running (W63)", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		node := w.running("p").Spec.NodeName
		require.NoError(t, w.client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}))
		w.kept() // the node may register again, with the pod still running
		w.delete("p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		w.podGone("p")
		w.nothingLeft()
	})
	t.Run("namespace deleted", func(t *testing.T) {
		w := w.in(t)
		_, err := w.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short-lived",
			Labels: map[string]string{rdma.NamespaceLabel: rdma.NamespaceLabelValue}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		w.optedIn("short-lived")
		w.eventually("pods run there", func(ctx context.Context) error {
			_, err := w.client.CoreV1().Pods("short-lived").Create(ctx, w.parse(plain), metav1.CreateOptions{})
			return err
		})
		w.allocated(1)
		require.NoError(t, w.client.CoreV1().Namespaces().Delete(t.Context(), "short-lived", metav1.DeleteOptions{}))
		w.eventually("the namespace is gone", func(ctx context.Context) error {
			_, err := w.client.CoreV1().Namespaces().Get(ctx, "short-lived", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("the namespace is there: %w", err)
		})
		w.nothingLeft()
	})
	t.Run("a tenant-controller that is down delays only what it must (W72)", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		w.running("p")
		w.create(podYAML("q", `{}`))
		require.NoError(t, w.Stop(devcluster.Mock))
		w.delete("p", metav1.DeleteOptions{})
		w.gone("q")
		w.eventually("an Event says so", func(ctx context.Context) error {
			events, err := w.client.CoreV1().Events(tenantA).List(ctx, metav1.ListOptions{FieldSelector: "reason=NetworkReleaseFailed"})
			if err == nil && len(events.Items) == 0 {
				err = fmt.Errorf("no Event NetworkReleaseFailed")
			}
			return err
		})
		require.Contains(t, w.get("p").Finalizers, rdma.Finalizer)
		require.NoError(t, w.StartComponent(t.Context(), devcluster.Mock))
		w.podGone("p")
		w.nothingLeft()
	})
	t.Run("an allocation that nobody made for a pod is swept", func(t *testing.T) {
		w := w.in(t)
		_, err := w.mock.Ensure(t.Context(), "11111111-2222-3333-4444-555555555555", tenant.EnsureRequest{Cluster: w.id, Namespace: tenantA, Pod: "never",
			Tenant: tenantA, Node: "node-1", Requests: []tenant.Request{{Type: "vf", Pool: string(vfPool), Count: 1}}})
		require.NoError(t, err)
		w.allocated(0)
		w.nothingLeft()
	})
	t.Run("a tenant-controller that forgot a running pod is told again (W79)", func(t *testing.T) {
		w := w.in(t)
		w.create(plain)
		pod := w.running("p")
		before := w.allocations()[0].Networks
		w.forget(pod.UID)
		w.allocated(1)
		require.Equal(t, before, w.allocations()[0].Networks)
		w.gone("p")
		w.nothingLeft()
	})
}

// nodeReady waits until the node is Ready, or is not.
func (w *world) nodeReady(name string, want bool) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("node %s Ready=%v", name, want), func(ctx context.Context) error {
		node, err := w.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && (condition.Status == corev1.ConditionTrue) == want {
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v", node.Status.Conditions)
	})
}
