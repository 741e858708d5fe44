// Package admission proves what becomes of a pod at CREATE: the real API server with the project's manifests, and the
// real tenant-webhook. No scheduler, controller or node runs: what a pod is after its creation is all that is looked at.
package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/pools"
)

// patience bounds every wait: the machine may be busy, the system is not slow.
const patience = 60 * time.Second

const (
	tenantA = "tenant-a"
	// elsewhere is a namespace that tenant-webhook has no say in.
	elsewhere = "elsewhere"
)

// testPools has every kind of pool. The order is the order of priority.
const testPools = `
mellanox.com/mlnx_sriov_rdma  type=vf
mellanox.com/other_vf         type=vf
rdma/hca_shared_devices_a     type=vf
mellanox.com/mlnx_pf_rdma     type=pf
rdma/hca_shared_devices_b     type=pf
example.com/both
example.com/scarce            type=vf
`

// devicesOfTheNode are enough for all pods of the table at once, but for the pool that is scarce.
var devicesOfTheNode = map[corev1.ResourceName]string{
	corev1.ResourceCPU: "64", corev1.ResourceMemory: "512Gi", corev1.ResourceEphemeralStorage: "1Ti", corev1.ResourcePods: "250",
	"mellanox.com/mlnx_sriov_rdma": "5000", "mellanox.com/other_vf": "5000", "rdma/hca_shared_devices_a": "5000",
	"mellanox.com/mlnx_pf_rdma": "5000", "rdma/hca_shared_devices_b": "5000", "example.com/both": "5000", "example.com/scarce": "1",
}

// world is the cluster, and what is seen of it.
type world struct {
	*devcluster.Cluster
	client kubernetes.Interface
	// warnings are those of the last request.
	warnings *[]string
}

type collector struct{ texts *[]string }

func (c collector) HandleWarningHeader(_ int, _, text string) { *c.texts = append(*c.texts, text) }

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster, err := devcluster.Start(t.Context(), devcluster.Config{
		Dir: t.TempDir(), BinDir: "../../bin", Manifests: tenantwebhook.Manifests, Log: os.Stderr,
		Nodes: []devcluster.Node{}, WebhookReplicas: 1, Transform: withTestPools,
		Without: []string{devcluster.ControllerManager, devcluster.KubeScheduler, devcluster.Kwok, devcluster.TenantScheduler, devcluster.Mock},
	})
	require.NoError(t, err)
	w := &world{Cluster: cluster, warnings: &[]string{}}
	t.Cleanup(func() {
		if t.Failed() {
			if log, err := os.ReadFile(w.LogPath(devcluster.WebhookReplica(0))); err == nil {
				t.Logf("end of tenant-webhook's log:\n%s", log[max(0, len(log)-4000):])
			}
		}
		if err := cluster.Shutdown(); err != nil {
			t.Errorf("stopping the cluster: %v", err)
		}
	})
	config := cluster.AdminConfig()
	config.QPS, config.Burst = 1000, 2000
	config.WarningHandler = collector{w.warnings}
	w.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	objects, err := os.ReadFile("testdata/cluster.yaml")
	require.NoError(t, err)
	require.NoError(t, cluster.Apply(t.Context(), objects, nil))
	require.NoError(t, w.client.CoreV1().RESTClient().Delete().
		AbsPath("/apis/k8s.cni.cncf.io/v1/namespaces/tenant-a/network-attachment-definitions/dying").Do(t.Context()).Error())
	w.createNode(t)
	w.awaitKnowledge(t)
	return w
}

func withTestPools(object *unstructured.Unstructured) (bool, error) {
	if object.GetKind() != "ConfigMap" || object.GetName() != "resource-pool-config" {
		return true, nil
	}
	// A reservation that is not given back must show, and not end by itself while it is waited for.
	return true, unstructured.SetNestedStringMap(object.Object, map[string]string{
		pools.PoolsKey: testPools, pools.PolicyKey: "reservationSeconds: 600"}, "data")
}

// createNode makes a node that is Ready for good: nobody is there who could say otherwise.
func (w *world) createNode(t *testing.T) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{}, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	for name, text := range devicesOfTheNode {
		node.Status.Allocatable[name] = resource.MustParse(text)
	}
	node.Status.Capacity = node.Status.Allocatable
	_, err := w.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	require.NoError(t, err)
	// The API server taints every new node, and a controller would take the taint off.
	_, err = w.client.CoreV1().Nodes().Patch(t.Context(), "node-1", types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

// awaitKnowledge waits until tenant-webhook has seen the node and the networks, and the policies are in force.
func (w *world) awaitKnowledge(t *testing.T) {
	t.Helper()
	pod := func(annotations string) []byte {
		return fmt.Appendf(nil, `{"metadata":{"name":"probe","annotations":{%s}},"spec":{"containers":[{"name":"app","image":"app"}]}}`, annotations)
	}
	for _, probe := range []struct{ what, namespace, annotations, want string }{
		{"the last network is known", tenantA, `"rdma.vf":"1","k8s.v1.cni.cncf.io/networks":"zz-last"`, "takes a device of the pool"},
		{"the guard is in force", elsewhere, `"tenant.network/resource-pool":"x"`, "is written by tenant-webhook alone"},
	} {
		eventually(t, probe.what, func(ctx context.Context) error {
			_, err := w.create(ctx, probe.namespace, pod(probe.annotations), true)
			if err == nil || !strings.Contains(err.Error(), probe.want) {
				return fmt.Errorf("answered with %w", err)
			}
			return nil
		})
	}
	eventually(t, "the node is known", func(ctx context.Context) error {
		_, err := w.create(ctx, tenantA, pod(`"rdma.vf":"1"`), true)
		if err == nil && len(*w.warnings) > 0 {
			err = errors.New(strings.Join(*w.warnings, "\n"))
		}
		return err
	})
}

// eventually waits for a condition that may also say why it does not hold.
func eventually(t *testing.T, what string, condition func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			require.NoError(t, last, "waiting until %s", what)
			return
		case <-ticker.C:
		}
	}
}

// object is any object, as JSON has it.
type object = map[string]any

// create sends a pod as it is, byte by byte, and returns the answer.
func (w *world) create(ctx context.Context, namespace string, body []byte, dryRun bool) (object, error) {
	*w.warnings = nil
	request := w.client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(body)
	if dryRun {
		request.Param("dryRun", metav1.DryRunAll)
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	raw, err := result.Raw()
	if err != nil {
		return nil, err
	}
	var pod object
	return pod, json.Unmarshal(raw, &pod)
}

// remove takes a pod away; admins may remove the finalizer.
func (w *world) remove(t *testing.T, namespace, name string) {
	t.Helper()
	pods := w.client.CoreV1().Pods(namespace)
	_, err := pods.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// reserved is how many devices tenant-webhook has promised to pods that it does not see yet.
func (w *world) reserved(ctx context.Context) (int64, error) {
	body, err := w.page(ctx, "/pools")
	if err != nil {
		return 0, err
	}
	var page struct{ Pools []pools.Usage }
	var total int64
	err = json.Unmarshal(body, &page)
	for _, usage := range page.Pools {
		total += usage.Reserved
	}
	return total, err
}

var reviewsLine = regexp.MustCompile(`(?m)^rdma_admission_reviews_total\{result="(\w+)"\} (\d+)$`)

// reviews counts the reviews by result.
func (w *world) reviews(t *testing.T) map[string]int {
	t.Helper()
	body, err := w.page(t.Context(), "/metrics")
	require.NoError(t, err)
	counts := map[string]int{}
	for _, match := range reviewsLine.FindAllSubmatch(body, -1) {
		counts[string(match[1])], err = strconv.Atoi(string(match[2]))
		require.NoError(t, err)
	}
	return counts
}

func (w *world) page(ctx context.Context, path string) ([]byte, error) {
	url := strings.TrimSuffix(w.MetricsURL(devcluster.WebhookReplica(0)), "/metrics") + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	return body, errors.Join(err, response.Body.Close())
}

var _ rest.WarningHandler = collector{}
