// Package e2e proves the main job on a development cluster: the real API server, etcd and kube-scheduler, the
// project's own binaries with the manifests' permissions, the mock tenant-controller, and fake nodes.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// patience bounds every wait: the machine may be busy, the system is not slow.
const patience = 150 * time.Second

const (
	tenantA = "tenant-a"
	vfPool  = corev1.ResourceName("mellanox.com/mlnx_sriov_rdma")
	vfPool2 = corev1.ResourceName("rdma/hca_shared_devices_a")
)

var nadResource = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// world is one cluster with what a test needs to look at it.
type world struct {
	*devcluster.Cluster
	t      *testing.T
	client kubernetes.Interface
	nads   metadata.Interface
	mock   *tenant.Client
	id     string
}

// otherAPIServer is set by make skew.
var otherAPIServer = flag.String("api-server", "", "path of a kube-apiserver to test with instead of the one of this release")

// withoutTaintRules keeps a program of 1.37 from waiting for an API that an API server of 1.36 does not serve.
const withoutTaintRules = "--feature-gates=DRADeviceTaintRules=false"

// newWorld starts a cluster that ends with the test.
func newWorld(t *testing.T, config devcluster.Config) *world {
	t.Helper()
	config.Dir = t.TempDir()
	config.BinDir = "../../bin"
	config.Manifests = tenantwebhook.Manifests
	config.Log = os.Stderr
	if config.APIServerBinary = *otherAPIServer; config.APIServerBinary != "" {
		config.SchedulerArgs = append(config.SchedulerArgs, withoutTaintRules)
		config.KubeSchedulerArgs = append(config.KubeSchedulerArgs, withoutTaintRules)
		config.ControllerManagerArgs = append(config.ControllerManagerArgs, withoutTaintRules)
	}
	cluster, err := devcluster.Start(t.Context(), config)
	require.NoError(t, err)
	w := &world{Cluster: cluster, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			w.dumpLogs()
		}
		if err := cluster.Shutdown(); err != nil {
			t.Errorf("stopping the cluster: %v", err)
		}
	})
	fast := rest.CopyConfig(cluster.AdminConfig())
	fast.QPS, fast.Burst = 1000, 2000
	w.client, err = kubernetes.NewForConfig(fast)
	require.NoError(t, err)
	w.nads, err = metadata.NewForConfig(fast)
	require.NoError(t, err)
	w.mock, err = tenant.New(tenant.Config{URL: cluster.MockURL()})
	require.NoError(t, err)
	system, err := w.client.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(t, err)
	w.id = string(system.UID)
	return w
}

// dumpLogs shows the ends of the project's own logs.
func (w *world) dumpLogs() {
	for _, name := range []string{devcluster.WebhookReplica(0), devcluster.WebhookReplica(1), devcluster.TenantScheduler, devcluster.Mock} {
		data, err := os.ReadFile(w.LogPath(name))
		if err != nil {
			continue
		}
		w.t.Logf("end of %s:\n%s", name, data[max(0, len(data)-4000):])
	}
}

// eventually waits for a condition that may also say why it does not hold.
func (w *world) eventually(what string, condition func(ctx context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
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
			require.NoError(w.t, last, "waiting until %s", what)
			return
		case <-ticker.C:
		}
	}
}

func (w *world) parse(text string) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{}
	require.NoError(w.t, yaml.UnmarshalStrict([]byte(text), pod))
	return pod
}

// create creates a pod from YAML in the tenant's namespace.
func (w *world) create(text string) *corev1.Pod {
	w.t.Helper()
	pod, err := w.client.CoreV1().Pods(tenantA).Create(w.t.Context(), w.parse(text), metav1.CreateOptions{})
	require.NoError(w.t, err)
	return pod
}

func (w *world) get(name string) *corev1.Pod {
	w.t.Helper()
	pod, err := w.client.CoreV1().Pods(tenantA).Get(w.t.Context(), name, metav1.GetOptions{})
	require.NoError(w.t, err)
	return pod
}

// running waits until the pod runs.
func (w *world) running(name string) *corev1.Pod {
	w.t.Helper()
	var pod *corev1.Pod
	w.eventually(name+" runs", func(ctx context.Context) error {
		var err error
		pod, err = w.client.CoreV1().Pods(tenantA).Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("pod %s is %s: %+v", name, pod.Status.Phase, pod.Status.Conditions)
		}
		return err
	})
	return pod
}

// gone deletes the pod and waits until the object is away.
func (w *world) gone(name string) {
	w.t.Helper()
	err := w.client.CoreV1().Pods(tenantA).Delete(w.t.Context(), name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(w.t, err)
	}
	w.podGone(name)
}

func (w *world) allocations() []tenant.Allocation {
	w.t.Helper()
	all, err := w.mock.List(w.t.Context(), w.id)
	require.NoError(w.t, err)
	return all
}

// networksOf returns the pod's additional networks and makes sure that those of ours exist and were made for it.
func (w *world) networksOf(pod *corev1.Pod) []rdma.Network {
	w.t.Helper()
	networks, err := rdma.ParseNetworks(pod.Annotations[rdma.NetworksAnnotation], pod.Namespace)
	require.NoError(w.t, err)
	for _, network := range networks.Elements() {
		if network.Name == "mine" {
			continue
		}
		nad, err := w.nads.Resource(nadResource).Namespace(network.Namespace).Get(w.t.Context(), network.Name, metav1.GetOptions{})
		require.NoError(w.t, err)
		require.Equal(w.t, string(pod.UID), nad.Labels[rdma.PodUIDLabel])
	}
	return networks.Elements()
}

// nothingLeft makes sure that neither the tenant-controller nor the cluster keeps anything.
func (w *world) nothingLeft() {
	w.t.Helper()
	require.Empty(w.t, w.allocations())
	left, err := w.nads.Resource(nadResource).List(w.t.Context(), metav1.ListOptions{LabelSelector: rdma.PodUIDLabel})
	require.NoError(w.t, err)
	require.Empty(w.t, left.Items)
}

// faults makes the mock misbehave; none makes it behave again.
func (w *world) faults(rules ...engine.Fault) {
	w.t.Helper()
	if rules == nil {
		rules = []engine.Fault{}
	}
	w.tellMock(http.MethodPut, "/mock/faults", rules)
}

// forget makes the mock lose its memory of a pod; the networks stay.
func (w *world) forget(uid types.UID) {
	w.t.Helper()
	w.tellMock(http.MethodPost, "/mock/forget", map[string]any{"podUID": uid})
}

func (w *world) tellMock(method, path string, content any) {
	w.t.Helper()
	body, err := json.Marshal(content)
	require.NoError(w.t, err)
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.MockURL()+path, bytes.NewReader(body))
	require.NoError(w.t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	require.NoError(w.t, response.Body.Close())
	require.Less(w.t, response.StatusCode, 300)
}

// poolHas asks the webhook replicas' /pools page: the ledger must know of the nodes.
func (w *world) poolHas(ctx context.Context, pool corev1.ResourceName, allocatable int64) error {
	for _, replica := range []string{devcluster.WebhookReplica(0), devcluster.WebhookReplica(1)} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(w.MetricsURL(replica), "/metrics")+"/pools", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		var page struct{ Pools []pools.Usage }
		err = errors.Join(json.NewDecoder(response.Body).Decode(&page), response.Body.Close())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(page.Pools, func(u pools.Usage) bool { return u.Pool == pool })
		if i < 0 || page.Pools[i].Allocatable != allocatable {
			return fmt.Errorf("%s shows %+v", replica, page.Pools)
		}
	}
	return nil
}

// inPreBind asks tenant-scheduler's metrics whether a pod is between Reserve and the end of its binding.
func (w *world) inPreBind(ctx context.Context) error {
	client, err := rest.HTTPClientFor(w.AdminConfig())
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.MetricsURL(devcluster.TenantScheduler), nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	page, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if !bytes.Contains(page, []byte("\nrdma_scheduler_in_flight_pods 1\n")) {
		return fmt.Errorf("no pod is in flight (status %d)", response.StatusCode)
	}
	return nil
}
