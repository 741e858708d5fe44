package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// pod is a pod of one container with the given annotations, a YAML flow map.
func podYAML(name, annotations string) string {
	return fmt.Sprintf("metadata: {name: %s, annotations: %s}\nspec: {containers: [{name: app, image: app}]}", name, annotations)
}

func TestMainJob(t *testing.T) {
	w := newWorld(t, devcluster.Config{})

	t.Run("the example pod gets everything, and leaves nothing behind", func(t *testing.T) {
		w := w.in(t)
		data, err := tenantwebhook.Manifests.ReadFile("deploy/example-test-pod.yaml")
		require.NoError(t, err)
		_, podText, _ := strings.Cut(string(data), "\n---\n") // its namespace comes first
		example := &corev1.Pod{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(podText), example))
		_, err = w.client.CoreV1().Pods(example.Namespace).Create(t.Context(), example, metav1.CreateOptions{})
		require.NoError(t, err)
		pod := w.running(example.Name)
		require.Equal(t, "2", pod.Spec.Containers[0].Resources.Requests.Name(vfPool, "").String())
		require.Equal(t, "2", pod.Spec.Containers[0].Resources.Limits.Name(vfPool, "").String())
		require.Equal(t, "vf", pod.Annotations[rdma.ResourceTypeAnnotation])
		require.Equal(t, string(vfPool), pod.Annotations[rdma.ResourcePoolAnnotation])
		require.Contains(t, pod.Finalizers, rdma.Finalizer)
		require.Equal(t, rdma.SchedulerName, pod.Spec.SchedulerName)
		require.Len(t, w.networksOf(pod), 2)
		allocations := w.allocations()
		require.Len(t, allocations, 1)
		require.Equal(t, pod.UID, allocations[0].PodUID)
		require.Equal(t, pod.Spec.NodeName, allocations[0].Node)
		w.gone(example.Name)
		w.nothingLeft()
	})

	t.Run("the user's networks come first, unchanged", func(t *testing.T) {
		for name, tc := range map[string]struct{ networks, wantPrefix string }{
			"short": {"mine", "mine,"},
			"json":  {`[ {"name":"mine", "mac":"00:11:22:33:44:55"} ]`, `[ {"name":"mine", "mac":"00:11:22:33:44:55"} ,`},
		} {
			w := w.in(t)
			w.create(podYAML(name, fmt.Sprintf("{rdma.vf: \"1\", k8s.v1.cni.cncf.io/networks: '%s'}", tc.networks)))
			pod := w.running(name)
			require.Len(t, w.networksOf(pod), 2)
			require.True(t, strings.HasPrefix(pod.Annotations[rdma.NetworksAnnotation], tc.wantPrefix), pod.Annotations[rdma.NetworksAnnotation])
			w.gone(name)
		}
		w.in(t).nothingLeft()
	})

	t.Run("vf and pf together get networks of both pools on one node", func(t *testing.T) {
		w := w.in(t)
		w.create(podYAML("both", `{rdma.vf: "1", rdma.pf: "1"}`))
		pod := w.running("both")
		require.Equal(t, "vf,pf", pod.Annotations[rdma.ResourceTypeAnnotation])
		require.Len(t, w.networksOf(pod), 2)
		w.gone("both")
		w.nothingLeft()
	})

	t.Run("a pod that no node can hold waits with the figures in its condition, and leaves without a trace", func(t *testing.T) {
		w := w.in(t)
		w.create(podYAML("large", `{rdma.vf: "9"}`))
		w.eventually("the pod is unschedulable", func(ctx context.Context) error {
			pod, err := w.client.CoreV1().Pods(tenantA).Get(ctx, "large", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, condition := range pod.Status.Conditions {
				if condition.Type == corev1.PodScheduled && strings.Contains(condition.Message,
					"4 Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 4, requested 0, need 9)") {
					return nil
				}
			}
			return fmt.Errorf("conditions: %+v", pod.Status.Conditions)
		})
		w.gone("large")
		w.nothingLeft()
	})

	t.Run("what cannot be served is refused with the reason", func(t *testing.T) {
		w := w.in(t)
		for annotations, want := range map[string]string{
			`{rdma.vf: "1.5"}`: `metadata.annotations[rdma.vf]: Invalid value: "1.5"`,
			`{rdma.vf: "1", k8s.v1.cni.cncf.io/networks: "a,,b"}`: `metadata.annotations[k8s.v1.cni.cncf.io/networks]`,
		} {
			_, err := w.client.CoreV1().Pods(tenantA).Create(t.Context(), w.parse(podYAML("bad", annotations)), metav1.CreateOptions{})
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, want)
		}
	})

	t.Run("a pod in a namespace without the label is left alone, and speaks up", func(t *testing.T) {
		w := w.in(t)
		pod := w.parse(podYAML("elsewhere", `{rdma.vf: "1"}`))
		pod.Spec.SchedulerName = rdma.SchedulerName
		created, err := w.client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Empty(t, created.Finalizers)
		w.eventually("an Event says so", func(ctx context.Context) error {
			events, err := w.client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=RDMANotInjected"})
			if err == nil && len(events.Items) == 0 {
				err = fmt.Errorf("no Event RDMANotInjected")
			}
			return err
		})
	})

	t.Run("a plain pod is created and placed while tenant-webhook is down", func(t *testing.T) {
		w := w.in(t)
		replicas := []string{devcluster.WebhookReplica(0), devcluster.WebhookReplica(1)}
		for _, replica := range replicas {
			require.NoError(t, w.Stop(replica))
		}
		w.create(podYAML("plain", `{}`))
		pod := w.running("plain")
		require.Equal(t, rdma.DefaultSchedulerName, pod.Spec.SchedulerName)
		require.Empty(t, pod.Finalizers)
		_, err := w.client.CoreV1().Pods(tenantA).Create(t.Context(), w.parse(podYAML("early", `{rdma.vf: "1"}`)), metav1.CreateOptions{})
		require.Error(t, err, "an RDMA pod must not slip in without its networks")
		for _, replica := range replicas {
			require.NoError(t, w.StartComponent(t.Context(), replica))
		}
		w.gone("plain")
	})
}

// in is the world as a subtest sees it.
func (w *world) in(t *testing.T) *world {
	t.Helper()
	sub := *w
	sub.t = t
	return &sub
}

func TestThePlacementIsOneWrite(t *testing.T) {
	for _, expectation := range []bool{false, true} {
		t.Run(fmt.Sprintf("NominatedNodeNameForExpectation=%v", expectation), func(t *testing.T) {
			w := newWorld(t, devcluster.Config{AuditLog: true,
				SchedulerFeatureGates: map[string]bool{"NominatedNodeNameForExpectation": expectation}})
			const pods = 8
			for i := range pods {
				w.create(podYAML(fmt.Sprintf("p%d", i), `{rdma.vf: "1"}`))
			}
			want := []string{"create pods/binding 201"}
			if expectation {
				want = []string{"patch pods/status 200", "create pods/binding 201"}
			}
			for i := range pods {
				w.running(fmt.Sprintf("p%d", i))
			}
			w.eventually("the audit log shows all writes", func(context.Context) error {
				all := w.writesBy(schedulerUser)
				if len(all) < pods {
					return fmt.Errorf("writes to %d pods", len(all))
				}
				for pod, writes := range all {
					if len(writes) < len(want) {
						return fmt.Errorf("writes to pod %s: %v", pod, writes)
					}
				}
				return nil
			})
			for pod, writes := range w.writesBy(schedulerUser) {
				require.Equal(t, want, writes, pod)
			}
		})
	}
}

// TestAKilledSchedulerFindsThePodsAllocationAgain: cases W77, S13 of docs/cases.md.
func TestAKilledSchedulerFindsThePodsAllocationAgain(t *testing.T) {
	w := newWorld(t, devcluster.Config{})
	// Every ensure acts and its answer is lost, until the networks are there; then the scheduler is held in the next one.
	w.faults(engine.Fault{Operation: "ensure", DropReply: true})
	w.create(podYAML("p", `{rdma.vf: "2"}`))
	w.eventually("the tenant-controller has allocated", func(context.Context) error {
		if all := w.allocations(); len(all) != 1 || len(all[0].Networks) != 2 {
			return fmt.Errorf("allocations: %+v", all)
		}
		return nil
	})
	before := w.allocations()[0]
	w.faults(engine.Fault{Operation: "ensure", Hold: true})
	w.eventually("PreBind waits for the tenant-controller", w.inPreBind)
	require.Empty(t, w.get("p").Spec.NodeName)
	require.NoError(t, w.Kill(devcluster.TenantScheduler))
	w.faults()
	pod := w.running("p")
	allocations := w.allocations()
	require.Len(t, allocations, 1)
	require.Equal(t, pod.UID, allocations[0].PodUID)
	require.Equal(t, pod.Spec.NodeName, allocations[0].Node)
	require.Equal(t, before.Networks, allocations[0].Networks, "the list of a UID never changes")
	require.Len(t, w.networksOf(pod), 2)
	w.gone("p")
	w.nothingLeft()
}

// TestABurstGoesToThePoolsInOrder: cases W60, W81 of docs/cases.md.
func TestABurstGoesToThePoolsInOrder(t *testing.T) {
	var nodes []devcluster.Node
	for i := range 10 {
		nodes = append(nodes, devcluster.Node{Name: fmt.Sprintf("node-%d", i),
			Extended: map[string]string{string(vfPool): "20", string(vfPool2): "30"}})
	}
	w := newWorld(t, devcluster.Config{Nodes: nodes})
	w.eventually("the pools are known", func(ctx context.Context) error { return w.poolHas(ctx, vfPool, 200) })
	require.NoError(t, w.Stop(devcluster.TenantScheduler))
	names := make(chan string)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]int{}
	for range 16 {
		wg.Go(func() {
			for name := range names {
				pod, err := w.client.CoreV1().Pods(tenantA).Create(t.Context(), w.parse(podYAML(name, `{rdma.vf: "1"}`)), metav1.CreateOptions{})
				if err != nil {
					t.Errorf("creating %s: %v", name, err)
					continue
				}
				mu.Lock()
				got[pod.Annotations[rdma.ResourcePoolAnnotation]]++
				mu.Unlock()
			}
		})
	}
	for i := range 500 {
		names <- fmt.Sprintf("p%d", i)
	}
	close(names)
	wg.Wait()
	require.Equal(t, map[string]int{string(vfPool): 200, string(vfPool2): 300}, got)
	require.NoError(t, w.StartComponent(t.Context(), devcluster.TenantScheduler))
	w.eventually("all 500 pods run", func(ctx context.Context) error {
		list, err := w.client.CoreV1().Pods(tenantA).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		if err == nil && len(list.Items) != 500 {
			err = fmt.Errorf("%d pods run", len(list.Items))
		}
		return err
	})
	require.Len(t, w.allocations(), 500)
	require.NoError(t, w.client.CoreV1().Pods(tenantA).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	w.eventually("all 500 pods are gone", func(ctx context.Context) error {
		list, err := w.client.CoreV1().Pods(tenantA).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != 0 {
			err = fmt.Errorf("%d pods are left", len(list.Items))
		}
		return err
	})
	w.nothingLeft()
}

func TestAGPUPodGetsThePoolOfTheGPUNodes(t *testing.T) {
	w := newWorld(t, devcluster.Config{Nodes: []devcluster.Node{
		{Name: "cpu", Extended: map[string]string{string(vfPool): "8"}},
		{Name: "gpu", Extended: map[string]string{string(vfPool2): "8", "nvidia.com/gpu": "8"}},
	}})
	w.eventually("the pools are known", func(ctx context.Context) error { return w.poolHas(ctx, vfPool2, 8) })
	w.create(`
metadata: {name: p, annotations: {rdma.vf: "1"}}
spec:
  containers:
  - name: app
    image: app
    resources: {limits: {nvidia.com/gpu: "8"}}`)
	pod := w.running("p")
	require.Equal(t, string(vfPool2), pod.Annotations[rdma.ResourcePoolAnnotation])
	require.Equal(t, "gpu", pod.Spec.NodeName)
}
