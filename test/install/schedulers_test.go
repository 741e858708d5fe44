package install

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/internal/devcluster"
)

const vfPool = corev1.ResourceName(devcluster.DefaultVFResource)

func TestOneSchedulerPlacesAllPods(t *testing.T) {
	w := newWorld(t, devcluster.Config{Without: []string{devcluster.KubeScheduler}, Nodes: devcluster.DefaultNodes(1)}, "scheduler-only")
	w.do("scripts/deploy.sh " + w.overlay)
	w.optIn()
	holder := w.do("kubectl -n kube-system get lease kube-scheduler -o jsonpath='{.spec.holderIdentity}'")
	require.NotEmpty(t, holder, "the lease of the stock scheduler is ours")
	w.sharesTheNode()

	w.do("scripts/deploy.sh " + w.overlay)
	own, err := w.WriteOverlay(filepath.Join(repository, "deploy/overlays/devcluster")) // in its place
	require.NoError(t, err)
	for _, line := range []string{"scripts/deploy.sh " + own, "scripts/deploy.sh --uninstall --force"} {
		out, err := w.bash(line)
		require.Error(t, err, "nobody would place plain pods any more")
		require.Contains(t, out, "tenant-scheduler is this cluster's only scheduler")
	}
	w.do("scripts/deploy.sh --dry-run --stock-scheduler-runs " + own)
	w.do("kubectl -n tenant-a delete pods --all --wait")
	w.do(`kubectl create -f - <<EOF
apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler-node-1, namespace: kube-system, labels: {component: kube-scheduler}}
spec: {nodeName: node-1, containers: [{name: kube-scheduler, image: kube-scheduler}]}
EOF
kubectl -n kube-system wait --for=condition=Ready pod/kube-scheduler-node-1 --timeout=120s`)
	w.do("scripts/deploy.sh --uninstall")
	w.nothingOfOurs()
}

func TestSchedulerStandsByWhileTheStockOneHoldsTheLease(t *testing.T) {
	w := newWorld(t, devcluster.Config{Nodes: devcluster.DefaultNodes(1)}, "scheduler-only")
	// Renewed for longer than the test, as a stock scheduler would.
	w.do(`kubectl create -f - <<EOF
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: kube-scheduler, namespace: kube-system}
spec: {holderIdentity: stock, leaseDurationSeconds: 600, renewTime: "$(date -u +%Y-%m-%dT%H:%M:%S.000000Z)", acquireTime: "$(date -u +%Y-%m-%dT%H:%M:%S.000000Z)"}
EOF`)
	w.do("scripts/deploy.sh " + w.overlay)
	w.optIn()
	w.create("waits", corev1.DefaultSchedulerName, map[string]string{"rdma.vf": "1"}, 0)
	w.create("plain", corev1.DefaultSchedulerName, nil, 0)
	w.awaitRunning("plain") // by the stock one
	require.Empty(t, w.pod("waits").Spec.NodeName)
	w.do("kubectl -n kube-system delete lease kube-scheduler") // it stops
	w.awaitRunning("waits")
}

func TestTwoSchedulersShareTheNodes(t *testing.T) {
	w := newWorld(t, devcluster.Config{Nodes: devcluster.DefaultNodes(1)}, "scheduler-beside")
	w.do("scripts/deploy.sh " + w.overlay)
	w.optIn()
	w.sharesTheNode()
}

func TestMockInTheWebhooksOwnPod(t *testing.T) {
	w := newWorld(t, devcluster.Config{})
	dir, err := w.WriteOverlay(filepath.Join(repository, "deploy/overlays/mock-sidecar"), filepath.Join(repository, "deploy/components/devcluster"))
	require.NoError(t, err)
	w.do("scripts/deploy.sh " + dir)
	require.Empty(t, w.do("kubectl -n webhook-system get deployment tenant-controller --ignore-not-found -o name"))
	w.optIn()
	w.create("pod", corev1.DefaultSchedulerName, map[string]string{"rdma.vf": "1"}, 0)
	w.awaitRunning("pod")
}

// sharesTheNode has pods that ask for devices by annotation, and others that ask for them in their own requests, through
// the default scheduler, use up the 4 devices of one node: each side counts the other's.
func (w *world) sharesTheNode() {
	w.t.Helper()
	w.create("raw", corev1.DefaultSchedulerName, nil, 2)
	w.awaitRunning("raw")
	w.create("annotated", corev1.DefaultSchedulerName, map[string]string{"rdma.vf": "2"}, 0)
	require.NotEmpty(w.t, w.awaitRunning("annotated").Annotations["k8s.v1.cni.cncf.io/networks"])
	w.create("raw-too-many", corev1.DefaultSchedulerName, nil, 1)
	w.create("annotated-too-many", corev1.DefaultSchedulerName, map[string]string{"rdma.vf": "1"}, 0)
	w.awaitUnschedulable("raw-too-many")
	w.awaitUnschedulable("annotated-too-many")
	w.do("kubectl -n tenant-a delete pod raw")
	w.awaitRunning("raw-too-many")
	w.awaitRunning("annotated-too-many")
	w.create("plain", corev1.DefaultSchedulerName, nil, 0)
	w.awaitRunning("plain")
}

// create creates a pod, with devices in its own requests if there are any.
func (w *world) create(name, scheduler string, annotations map[string]string, devices int64) {
	w.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec:       corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
	if devices > 0 {
		list := corev1.ResourceList{vfPool: *resource.NewQuantity(devices, resource.DecimalSI)}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	}
	_, err := w.client.CoreV1().Pods("tenant-a").Create(w.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	pod, err := w.client.CoreV1().Pods("tenant-a").Get(w.t.Context(), name, metav1.GetOptions{})
	require.NoError(w.t, err)
	return pod
}

func (w *world) awaitRunning(name string) *corev1.Pod {
	w.t.Helper()
	return w.awaitPod(name, func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pod %s is %s: %+v", name, pod.Status.Phase, pod.Status.Conditions)
		}
		return nil
	})
}

func (w *world) awaitUnschedulable(name string) {
	w.t.Helper()
	w.awaitPod(name, func(pod *corev1.Pod) error {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("pod %s is on node %q: %+v", name, pod.Spec.NodeName, pod.Status.Conditions)
	})
}

func (w *world) awaitPod(name string, condition func(*corev1.Pod) error) *corev1.Pod {
	w.t.Helper()
	var pod *corev1.Pod
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		var err error
		pod, err = w.client.CoreV1().Pods("tenant-a").Get(w.t.Context(), name, metav1.GetOptions{})
		require.NoError(c, err)
		require.NoError(c, condition(pod))
	}, patience, 100*time.Millisecond)
	return pod
}
