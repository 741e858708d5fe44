package admission

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const vfPool = "mellanox.com/mlnx_sriov_rdma"

func wantsTwo(name string) object {
	return object{"metadata": object{"name": name, "annotations": object{"rdma.vf": "2"}},
		"spec": object{"containers": []any{object{"name": "app", "image": "app", "resources": object{"limits": object{"cpu": "1"}}}}}}
}

func (w *world) testLife(t *testing.T) {
	t.Run("W47: a dry run is answered in full, and neither reserves nor counts as an admission", w.testDryRun)
	t.Run("W9: an update, an ephemeral container and a resize must not be changed by us", w.testUpdates)
	t.Run("W13: intent on a Deployment's own metadata must not do anything", w.testDeployment)
	t.Run("W32: a creation that a quota refuses is tried again and again and reserves once", w.testQuota)
}

func (w *world) testDryRun(t *testing.T) {
	reviews := w.reviews(t)
	before, err := w.reserved(t.Context())
	require.NoError(t, err)
	pod, err := w.create(t.Context(), tenantA, marshal(t, wantsTwo("dry")), true)
	require.NoError(t, err)
	assert.Contains(t, finalizersOf(pod), rdma.Finalizer)
	assert.Equal(t, vfPool, annotationsOf(pod)[rdma.ResourcePoolAnnotation])
	w.checkReviews(t, want{Reviews: map[string]int{"dry_run": 1}}, reviews)
	after, err := w.reserved(t.Context())
	require.NoError(t, err)
	assert.Equal(t, before, after)
	_, err = w.client.CoreV1().Pods(tenantA).Get(t.Context(), "dry", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	bad := wantsTwo("dry")
	set(bad, "two", "metadata", "annotations", "rdma.vf")
	_, err = w.create(t.Context(), tenantA, marshal(t, bad), true)
	require.True(t, apierrors.IsInvalid(err), "a dry run is refused like a creation: %v", err)
}

func (w *world) testUpdates(t *testing.T) {
	_, err := w.create(t.Context(), tenantA, marshal(t, wantsTwo("updated")), false)
	require.NoError(t, err)
	defer w.remove(t, tenantA, "updated")
	reviews := w.reviews(t)
	pods := w.client.CoreV1().Pods(tenantA)
	want, err := pods.Get(t.Context(), "updated", metav1.GetOptions{})
	require.NoError(t, err)

	_, err = pods.Patch(t.Context(), "updated", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"},"annotations":{"rdma.vf":"x"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	want.Labels = map[string]string{"a": "b"}
	want.Annotations["rdma.vf"] = "x"

	debugged := want.DeepCopy()
	debugged.ResourceVersion = ""
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: "busybox", ImagePullPolicy: corev1.PullAlways, TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile}}}
	_, err = pods.UpdateEphemeralContainers(t.Context(), "updated", debugged, metav1.UpdateOptions{})
	require.NoError(t, err)
	want.Spec.EphemeralContainers = debugged.Spec.EphemeralContainers

	_, err = pods.Patch(t.Context(), "updated", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"2"}}}]}}`), metav1.PatchOptions{}, "resize")
	require.NoError(t, err)
	app := &want.Spec.Containers[0].Resources
	app.Requests[corev1.ResourceCPU], app.Limits[corev1.ResourceCPU] = resource.MustParse("2"), resource.MustParse("2")

	got, err := pods.Get(t.Context(), "updated", metav1.GetOptions{})
	require.NoError(t, err)
	got.ResourceVersion, got.Generation, got.ManagedFields = want.ResourceVersion, want.Generation, want.ManagedFields
	assert.Equal(t, marshalled(t, want), marshalled(t, got))
	w.checkReviews(t, noReviews, reviews)
}

// noReviews: the local name want hides the type in one test.
var noReviews = want{}

func marshalled(t *testing.T, content any) string {
	t.Helper()
	return string(marshal(t, content))
}

func (w *world) testDeployment(t *testing.T) {
	reviews := w.reviews(t)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Annotations: map[string]string{"rdma.vf": "x", "tenant.network/resource-pool": "a.com/b"}, Finalizers: []string{rdma.Finalizer}},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}}}}
	created, err := w.client.AppsV1().Deployments(tenantA).Create(t.Context(), deployment, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, deployment.Annotations, created.Annotations)
	assert.Equal(t, deployment.Finalizers, created.Finalizers)
	assert.Equal(t, corev1.DefaultSchedulerName, created.Spec.Template.Spec.SchedulerName)
	w.checkReviews(t, noReviews, reviews)
}

func (w *world) testQuota(t *testing.T) {
	name := corev1.ResourceName("requests." + vfPool)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: resource.MustParse("1")}}}
	quotas := w.client.CoreV1().ResourceQuotas("with-quota")
	quota, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{})
	require.NoError(t, err)
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{name: resource.MustParse("0")}} // as its controller does
	_, err = quotas.UpdateStatus(t.Context(), quota, metav1.UpdateOptions{})
	require.NoError(t, err)
	before, err := w.reserved(t.Context())
	require.NoError(t, err)
	for range 20 {
		_, err := w.create(t.Context(), "with-quota", marshal(t, wantsTwo("greedy")), false)
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.EqualError(t, err, fmt.Sprintf(`pods "greedy" is forbidden: exceeded quota: q, requested: %s=2, used: %s=0, limited: %s=1`, name, name, name))
	}
	after, err := w.reserved(t.Context())
	require.NoError(t, err)
	assert.Equal(t, before+2, after, "devices reserved after 20 attempts")
}
