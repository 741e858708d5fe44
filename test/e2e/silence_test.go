package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// warnings keeps what the API server warns about.
type warnings struct {
	mu  sync.Mutex
	all []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

// take returns what came since the last time.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.all
	w.all = nil
	return all
}

// TestWhatHasNoEffectIsWarnedAbout: nobody is refused, and whoever asks for devices in vain hears of it.
func TestWhatHasNoEffectIsWarnedAbout(t *testing.T) {
	w := newWorld(t, devcluster.Config{Without: []string{devcluster.TenantScheduler, devcluster.Mock}})
	heard := &warnings{}
	as := func(config *rest.Config) dynamic.Interface {
		config.WarningHandler = heard
		client, err := dynamic.NewForConfig(config)
		require.NoError(t, err)
		return client
	}
	admin := as(w.AdminConfig())
	w.patch("namespace", metav1.NamespaceSystem, `{"metadata":{"labels":{"rdma-type":"vpc"}}}`)
	controllerConfig, err := w.UserConfig("system:serviceaccount:kube-system:replicaset-controller", "system:masters")
	require.NoError(t, err)
	controller := as(controllerConfig)
	create := func(client dynamic.Interface, namespace, apiVersion, resource, text string) error {
		object := &unstructured.Unstructured{Object: map[string]any{}}
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), &object.Object))
		gv, err := schema.ParseGroupVersion(apiVersion)
		require.NoError(t, err)
		object.SetAPIVersion(apiVersion)
		_, err = client.Resource(gv.WithResource(resource)).Namespace(namespace).Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	const (
		pod   = "kind: Pod\nmetadata: {name: x, annotations: %s}\nspec: {containers: [{name: app, image: app}]}"
		apps  = "kind: %s\nmetadata: {name: x, annotations: %s}\nspec: {%s selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}, annotations: %s}, spec: {containers: [{name: app, image: app}]}}}"
		job   = "kind: Job\nmetadata: {name: x, annotations: %s}\nspec: {template: {metadata: {annotations: %s}, spec: {restartPolicy: Never, containers: [{name: app, image: app}]}}}"
		cron  = "kind: CronJob\nmetadata: {name: x, annotations: %s}\nspec: {schedule: '0 0 * * *', jobTemplate: {spec: {template: {metadata: {annotations: %s}, spec: {restartPolicy: Never, containers: [{name: app, image: app}]}}}}}"
		vf    = `{rdma.vf: "1"}`
		pf    = `{rdma.pf: "1"}`
		none  = `{}`
		other = metav1.NamespaceDefault

		misplaced  = "annotation rdma.vf has no effect on the object itself"
		unlabelled = "namespace default is not labelled rdma-type: vpc"
	)
	w.eventually("the policies are in force", func(context.Context) error {
		err := errors.Join(create(admin, other, "v1", "pods", fmt.Sprintf(pod, vf)), create(admin, tenantA, "batch/v1", "jobs", fmt.Sprintf(job, vf, none)))
		if got := heard.take(); err == nil && len(got) != 2 {
			err = fmt.Errorf("warnings: %q", got)
		}
		return err
	})
	for _, tc := range []struct {
		name                            string
		client                          dynamic.Interface
		namespace, apiVersion, resource string
		text                            string
		want                            string
	}{
		{"a pod in a namespace without the label", admin, other, "v1", "pods", fmt.Sprintf(pod, vf), unlabelled},
		{"a pod that wants a physical function there", admin, other, "v1", "pods", fmt.Sprintf(pod, pf), unlabelled},
		{"a template in a system namespace, whatever its label", admin, metav1.NamespaceSystem, "apps/v1", "deployments", fmt.Sprintf(apps, "Deployment", none, "", vf), "namespace kube-system is not labelled rdma-type: vpc, or belongs to the system"},
		{"a Deployment's own metadata", admin, tenantA, "apps/v1", "deployments", fmt.Sprintf(apps, "Deployment", vf, "", none), misplaced},
		{"a StatefulSet's own metadata", admin, tenantA, "apps/v1", "statefulsets", fmt.Sprintf(apps, "StatefulSet", vf, "serviceName: x,", none), misplaced},
		{"a DaemonSet's own metadata", admin, tenantA, "apps/v1", "daemonsets", fmt.Sprintf(apps, "DaemonSet", vf, "", none), misplaced},
		{"a ReplicaSet's own metadata", admin, tenantA, "apps/v1", "replicasets", fmt.Sprintf(apps, "ReplicaSet", vf, "", none), misplaced},
		{"a Job's own metadata", admin, tenantA, "batch/v1", "jobs", fmt.Sprintf(job, vf, none), misplaced},
		{"a CronJob's own metadata", admin, tenantA, "batch/v1", "cronjobs", fmt.Sprintf(cron, vf, none), misplaced},
		{"one word at each place", admin, tenantA, "batch/v1", "cronjobs", fmt.Sprintf(cron, vf, pf), misplaced},
		{"a template in a namespace without the label", admin, other, "apps/v1", "deployments", fmt.Sprintf(apps, "Deployment", none, "", vf), unlabelled},
		{"a CronJob's template in a namespace without the label", admin, other, "batch/v1", "cronjobs", fmt.Sprintf(cron, none, pf), unlabelled},

		{"not a plain pod", admin, other, "v1", "pods", fmt.Sprintf(pod, none), ""},
		{"not a pod that is served", admin, tenantA, "v1", "pods", fmt.Sprintf(pod, vf), ""},
		{"not a template where it belongs", admin, tenantA, "apps/v1", "deployments", fmt.Sprintf(apps, "Deployment", none, "", vf), ""},
		{"not a CronJob's template where it belongs", admin, tenantA, "batch/v1", "cronjobs", fmt.Sprintf(cron, none, vf), ""},
		{"not a word at both places", admin, tenantA, "batch/v1", "jobs", fmt.Sprintf(job, vf, vf), ""},
		{"not a plain Deployment", admin, other, "apps/v1", "deployments", fmt.Sprintf(apps, "Deployment", none, "", none), ""},
		{"not a controller, which hears nothing", controller, tenantA, "apps/v1", "replicasets", fmt.Sprintf(apps, "ReplicaSet", vf, "", none), ""},
		{"not a controller's pod", controller, other, "v1", "pods", fmt.Sprintf(pod, vf), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			heard.take()
			require.NoError(t, create(tc.client, tc.namespace, tc.apiVersion, tc.resource, tc.text))
			got := heard.take()
			if tc.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], tc.want)
		})
	}
}

// speaks waits for an Event on a pod.
func (w *world) speaks(pod, reason string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("Event %s is on pod %s", reason, pod), func(ctx context.Context) error {
		events, err := w.client.CoreV1().Events(tenantA).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.name=" + pod})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
}

// TestSilentFailuresSpeak: case W50 of docs/cases.md.
func TestSilentFailuresSpeak(t *testing.T) {
	w := newWorld(t, devcluster.Config{})
	hooks := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations()

	t.Run("a pod that ran past the webhook", func(t *testing.T) {
		w := w.in(t)
		shipped, err := hooks.Get(t.Context(), hookConfig, metav1.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, hooks.Delete(t.Context(), hookConfig, metav1.DeleteOptions{}))
		w.eventually("the webhook is not called any more", func(ctx context.Context) error {
			pod, err := w.client.CoreV1().Pods(tenantA).Create(ctx, w.parse(podYAML("probe", `{rdma.vf: "1"}`)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil && pod.Spec.SchedulerName == rdma.SchedulerName {
				err = errors.New("it is")
			}
			return err
		})
		w.create(podYAML("bypassed", `{rdma.vf: "1"}`))
		w.speaks("bypassed", "RDMANotInjected")
		require.Equal(t, rdma.DefaultSchedulerName, w.running("bypassed").Spec.SchedulerName)

		shipped.ObjectMeta = metav1.ObjectMeta{Name: shipped.Name, Labels: shipped.Labels}
		for i := range shipped.Webhooks {
			shipped.Webhooks[i].ClientConfig.CABundle = nil // as in the manifests
		}
		_, err = hooks.Create(t.Context(), shipped, metav1.CreateOptions{})
		require.NoError(t, err)
		w.bundleHolds(w.certData()["ca.crt"])
	})

	t.Run("a cluster without the CRD of networks", func(t *testing.T) {
		w := w.in(t)
		crds, err := dynamic.NewForConfig(w.AdminConfig())
		require.NoError(t, err)
		require.NoError(t, crds.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
			Delete(t.Context(), nadResource.GroupResource().String(), metav1.DeleteOptions{}))
		for _, program := range []string{devcluster.WebhookReplica(0), devcluster.WebhookReplica(1), devcluster.TenantScheduler} {
			require.NoError(t, w.Stop(program))
			require.NoError(t, w.StartComponent(t.Context(), program), "it starts without the CRD")
		}
		w.create(podYAML("p", `{rdma.vf: "1"}`))
		w.speaks("p", "NoNetworkAttachmentDefinitions")
		require.Empty(t, w.get("p").Spec.NodeName)
	})
}

// TestTheWebhookIsCalledForWhatIsItsBusinessAlone reads the shipped configuration: what is left out there would be a
// default, and defaults have changed before (cases W49, W51, W58 of docs/cases.md).
func TestTheWebhookIsCalledForWhatIsItsBusinessAlone(t *testing.T) {
	manifest, err := tenantwebhook.Manifests.ReadFile("manifests/webhook-config-tenant.yaml")
	require.NoError(t, err)
	object := map[string]any{}
	require.NoError(t, yaml.UnmarshalStrict(manifest, &object))
	hooks, ok, err := unstructured.NestedSlice(object, "webhooks")
	require.True(t, ok && err == nil && len(hooks) == 1)
	hook := hooks[0].(map[string]any)
	for key, want := range map[string]any{
		"admissionReviewVersions": []any{"v1"}, "sideEffects": "None", "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded", "matchPolicy": "Equivalent",
		"namespaceSelector": map[string]any{
			"matchLabels":      map[string]any{"rdma-type": "vpc"},
			"matchExpressions": []any{map[string]any{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": []any{"kube-system", "webhook-system"}}}},
		"rules": []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "resources": []any{"pods"}, "operations": []any{"CREATE"}, "scope": "Namespaced"}},
	} {
		require.Equal(t, want, hook[key], key)
	}
	require.LessOrEqual(t, hook["timeoutSeconds"], float64(5))
	conditions, err := yaml.Marshal(hook["matchConditions"])
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(conditions), "has("), "each hop is guarded")
	_, ok, err = unstructured.NestedFieldNoCopy(hook, "clientConfig", "caBundle")
	require.True(t, !ok && err == nil, "applying it again must not touch the caBundle")
}
