package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// user returns a client of a user with these rules in the whole cluster.
func (w *world) user(name string, rules ...rbacv1.PolicyRule) kubernetes.Interface {
	w.t.Helper()
	ctx := w.t.Context()
	_, err := w.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
	require.NoError(w.t, err)
	_, err = w.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}}, metav1.CreateOptions{})
	require.NoError(w.t, err)
	config, err := w.UserConfig(name)
	require.NoError(w.t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(w.t, err)
	return client
}

func annotations(pairs map[string]any) string {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": pairs}})
	if err != nil {
		panic(err)
	}
	return string(patch)
}

// manyAnnotations have keys that are short enough for the 262,144 bytes that all annotations of a pod may have together.
func manyAnnotations(n int) map[string]string {
	all := make(map[string]string, n)
	for i := range n {
		all[strconv.FormatInt(int64(i), 36)] = ""
	}
	return all
}

func TestNobodyElseWritesOurWords(t *testing.T) {
	w := newWorld(t, devcluster.Config{})
	everything := rbacv1.PolicyRule{APIGroups: []string{"", "policy"}, Resources: []string{"*"}, Verbs: []string{"*"}}
	tenantUser := w.user("mallory", everything)
	rescuer := w.user("rescuer", everything, rbacv1.PolicyRule{APIGroups: []string{"tenant.network"}, Resources: []string{"pods"}, Verbs: []string{"force-release"}})
	w.create(podYAML("p", `{rdma.vf: "1"}`))
	pod := w.running("p")
	patch := func(t *testing.T, client kubernetes.Interface, text string, subresources ...string) error {
		t.Helper()
		_, err := client.CoreV1().Pods(tenantA).Patch(t.Context(), "p", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	// The policy takes a moment to be in force.
	w.eventually("the guard is in force", func(context.Context) error {
		if err := patch(t, tenantUser, annotations(map[string]any{rdma.AdmissionIDAnnotation: "probe"})); !apierrors.IsForbidden(err) {
			return fmt.Errorf("the patch was answered with: %w", err)
		}
		return nil
	})

	for name, tc := range map[string]struct {
		patch       string
		subresource []string
		want        string
	}{
		"the networks":                      {annotations(map[string]any{rdma.NetworksAnnotation: "tenant-b/theirs"}), nil, "annotation " + rdma.NetworksAnnotation},
		"the networks, taken away":          {annotations(map[string]any{rdma.NetworksAnnotation: nil}), nil, "annotation " + rdma.NetworksAnnotation},
		"a default network":                 {annotations(map[string]any{rdma.DefaultNetworkAnnotation: "tenant-b/theirs"}), nil, "annotation " + rdma.DefaultNetworkAnnotation},
		"the pool":                          {annotations(map[string]any{rdma.ResourcePoolAnnotation: "a.com/better"}), nil, "annotation " + rdma.ResourcePoolAnnotation},
		"the type":                          {annotations(map[string]any{rdma.ResourceTypeAnnotation: "pf"}), nil, "annotation " + rdma.ResourceTypeAnnotation},
		"the count":                         {annotations(map[string]any{rdma.ResourceCountAnnotation: "7"}), nil, "annotation " + rdma.ResourceCountAnnotation},
		"the admission's id, taken away":    {annotations(map[string]any{rdma.AdmissionIDAnnotation: nil}), nil, "annotation " + rdma.AdmissionIDAnnotation},
		"the finalizer, taken away":         {`{"metadata":{"finalizers":null}}`, nil, "finalizer tenant.network/cleanup is removed by tenant-webhook"},
		"the networks, through pods/status": {annotations(map[string]any{rdma.NetworksAnnotation: "tenant-b/theirs"}), []string{"status"}, "annotation " + rdma.NetworksAnnotation},
	} {
		t.Run("must not change "+name, func(t *testing.T) {
			err := patch(t, tenantUser, tc.patch, tc.subresource...)
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, tc.want)
		})
	}
	for name, tc := range map[string]struct {
		patch       string
		subresource []string
	}{
		"labels": {`{"metadata":{"labels":{"a":"b"}}}`, nil},
		"annotations of their own, the intent included": {annotations(map[string]any{"a": "b", rdma.VFAnnotation: "7"}), nil},
		"a key of our domain that nobody reads":         {annotations(map[string]any{rdma.Domain + "unknown": "x"}), nil},
		"Multus' network-status, through pods/status":   {annotations(map[string]any{"k8s.v1.cni.cncf.io/network-status": "[]"}), []string{"status"}},
		"a kubelet's status":                            {`{"status":{"message":"fine"}}`, []string{"status"}},
	} {
		t.Run("may change "+name, func(t *testing.T) {
			require.NoError(t, patch(t, tenantUser, tc.patch, tc.subresource...))
		})
	}
	t.Run("may add another finalizer beside ours, and take it away", func(t *testing.T) {
		require.NoError(t, patch(t, tenantUser, `{"metadata":{"finalizers":["example.com/theirs","tenant.network/cleanup"]}}`))
		require.NoError(t, patch(t, tenantUser, `{"metadata":{"finalizers":["tenant.network/cleanup"]}}`))
	})
	t.Run("may debug", func(t *testing.T) {
		current := w.get("p")
		current.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox"}}}
		_, err := tenantUser.CoreV1().Pods(tenantA).UpdateEphemeralContainers(t.Context(), "p", current, metav1.UpdateOptions{})
		require.NoError(t, err)
	})
	t.Run("however many annotations a pod has, its kubelet reports what becomes of it, and its networks are given back", func(t *testing.T) {
		w := w.in(t)
		many := w.parse(podYAML("many", `{rdma.vf: "1"}`))
		maps.Copy(many.Annotations, manyAnnotations(30_000))
		_, err := tenantUser.CoreV1().Pods(tenantA).Create(t.Context(), many, metav1.CreateOptions{})
		require.NoError(t, err)
		w.running("many")
		patchMany := func(text string, subresources ...string) error {
			_, err := tenantUser.CoreV1().Pods(tenantA).Patch(t.Context(), "many", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
			return err
		}
		require.NoError(t, patchMany(`{"status":{"message":"fine"}}`, "status"))
		err = patchMany(annotations(map[string]any{rdma.NetworksAnnotation: "tenant-b/theirs"}))
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, "annotation "+rdma.NetworksAnnotation)
		w.gone("many")
	})
	t.Run("what was granted is still there", func(t *testing.T) {
		require.Equal(t, pod.Annotations[rdma.NetworksAnnotation], w.get("p").Annotations[rdma.NetworksAnnotation])
	})
	t.Run("may evict, and the pod goes", func(t *testing.T) {
		w := w.in(t)
		require.NoError(t, tenantUser.PolicyV1().Evictions(tenantA).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: tenantA, Name: "p"}}))
		w.podGone("p")
		w.nothingLeft()
	})

	create := func(t *testing.T, namespace, text string) error {
		t.Helper()
		_, err := tenantUser.CoreV1().Pods(namespace).Create(t.Context(), w.parse(text), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for name, tc := range map[string]struct{ namespace, pod, want string }{
		"our words in a namespace without the label": {metav1.NamespaceDefault, podYAML("q", `{rdma.vf: "1", tenant.network/resource-pool: a.com/b}`), "annotation tenant.network/resource-pool"},
		"our words without intent":                   {tenantA, podYAML("q", `{tenant.network/resource-pool: a.com/b}`), "annotation tenant.network/resource-pool"},
		"our finalizer without intent": {tenantA, "metadata: {name: q, finalizers: [tenant.network/cleanup]}\nspec: {containers: [{name: app, image: app}]}",
			"finalizer tenant.network/cleanup is set by tenant-webhook alone"},
	} {
		t.Run("must not create a pod with "+name, func(t *testing.T) {
			err := create(t, tc.namespace, tc.pod)
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, tc.want)
		})
	}
	for name, tc := range map[string]struct{ namespace, pod string }{
		"no word at all": {metav1.NamespaceDefault, podYAML("q", `{}`)},
		"no annotations": {tenantA, "metadata: {name: q}\nspec: {containers: [{name: app, image: app}]}"},
		"intent, and copies that are written anew":    {tenantA, podYAML("q", `{rdma.vf: "1", tenant.network/resource-pool: a.com/b}`)},
		"a container named although nothing is asked": {tenantA, podYAML("q", `{tenant.network/container: app}`)},
		"a key of our domain that nobody reads":       {tenantA, podYAML("q", `{tenant.network/unknown: x}`)},
	} {
		t.Run("may create a pod with "+name, func(t *testing.T) {
			require.NoError(t, create(t, tc.namespace, tc.pod))
		})
	}

	t.Run("however many annotations a plain pod has, it may be created", func(t *testing.T) {
		plain := w.parse(podYAML("q", `{}`))
		plain.Annotations = manyAnnotations(60_000)
		_, err := tenantUser.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), plain, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err)
		plain.Annotations[rdma.ResourcePoolAnnotation] = "a.com/b"
		_, err = tenantUser.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), plain, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.ErrorContains(t, err, "annotation "+rdma.ResourcePoolAnnotation+" is written by tenant-webhook alone", "nor do they hide our words")
	})

	t.Run("force-release works while tenant-webhook is down", func(t *testing.T) {
		w := w.in(t)
		w.create(podYAML("p", `{rdma.vf: "1"}`))
		w.running("p")
		for _, replica := range []string{devcluster.WebhookReplica(0), devcluster.WebhookReplica(1)} {
			require.NoError(t, w.Stop(replica))
		}
		require.True(t, apierrors.IsForbidden(patch(t, tenantUser, `{"metadata":{"finalizers":null}}`)))
		require.NoError(t, patch(t, rescuer, `{"metadata":{"finalizers":null}}`))
		require.Empty(t, w.get("p").Finalizers)
	})
}
