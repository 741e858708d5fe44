package devcluster

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: tenant-scheduler, namespace: webhook-system}
spec:
  template:
    spec:
      containers:
        - name: tenant-scheduler
          args: [--config=/etc/x.yaml, "--feature-gates=A=false,B=true"]
`

const schedulerConfig = `apiVersion: v1
kind: ConfigMap
metadata: {name: tenant-scheduler-config, namespace: webhook-system}
data:
  scheduler-config.yaml: |
    apiVersion: kubescheduler.config.k8s.io/v1
    kind: KubeSchedulerConfiguration
    leaderElection: {leaderElect: true, resourceName: tenant-scheduler}
    profiles: [{schedulerName: tenant-scheduler}]
`

const webhookConfig = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: tenant-webhook}
webhooks:
  - name: pods.tenant.network
    clientConfig: {service: {name: tenant-webhook, namespace: webhook-system, path: /mutate-pod}}
    failurePolicy: Fail
`

func files(contents map[string]string) fstest.MapFS {
	fs := fstest.MapFS{}
	for name, text := range contents {
		fs[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fs
}

func TestManifestsComeWithNamespacesFirst(t *testing.T) {
	set, err := loadManifests(files(map[string]string{
		"manifests/a.yaml":         schedulerConfig + "---\n# only a comment\n---\n" + deployment,
		"manifests/namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: webhook-system}\n",
		"mock/controller.yaml":     "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: tenant-controller}\n",
		"deploy/example.yaml":      "kind: not looked at",
		"manifests/README.md":      "not looked at",
	}))
	require.NoError(t, err)
	var kinds []string
	for _, object := range set {
		kinds = append(kinds, object.GetKind())
	}
	require.Equal(t, []string{"Namespace", "ConfigMap", "Deployment", "ServiceAccount"}, kinds)
}

func TestABadManifestIsRefusedByName(t *testing.T) {
	for name, text := range map[string]string{
		"has a key twice":         "apiVersion: v1\nkind: A\nkind: B\n",
		"has no kind":             "apiVersion: v1\nmetadata: {name: x}\n",
		"is no YAML":              "{",
		"is a list at the top":    "- a\n",
		"is bad in the second":    deployment + "---\nfoo: bar\n",
		"has tabs for whitespace": "apiVersion: v1\n\tkind: A\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadManifests(files(map[string]string{"manifests/bad.yaml": text}))
			require.ErrorContains(t, err, "bad.yaml")
		})
	}
	_, err := loadManifests(fstest.MapFS{})
	require.ErrorContains(t, err, "no manifests")
}

func TestTheShippedFeatureGatesAreFound(t *testing.T) {
	set, err := loadManifests(files(map[string]string{"manifests/scheduler-deploy.yaml": deployment}))
	require.NoError(t, err)
	require.Equal(t, "A=false,B=true", set.schedulerFeatureGates())
	require.Equal(t, "A=true,B=false", formatGates(map[string]bool{"B": false, "A": true}))
}

func TestAWebhookIsRedirectedToTheBalancerAtItsPath(t *testing.T) {
	ca, err := newAuthority()
	require.NoError(t, err)
	c := &Cluster{ca: ca, port: portPlan{balancer: 4711}, config: Config{WebhookCertFiles: true}}
	objects, err := decode([]byte(webhookConfig))
	require.NoError(t, err)
	require.NoError(t, c.redirect(objects[0]))
	webhooks, _, err := unstructured.NestedSlice(objects[0].Object, "webhooks")
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"name": "pods.tenant.network", "failurePolicy": "Fail",
		"clientConfig": map[string]any{
			"url": "https://127.0.0.1:4711/mutate-pod", "caBundle": base64.StdEncoding.EncodeToString(ca.pem),
		},
	}, webhooks[0])
}

func TestAWebhookThatMakesItsCertificateIsCalledAsAService(t *testing.T) {
	c := &Cluster{port: portPlan{balancer: 4711}}
	objects, err := decode([]byte(webhookConfig))
	require.NoError(t, err)
	require.NoError(t, c.redirect(objects[0]))
	webhooks, _, err := unstructured.NestedSlice(objects[0].Object, "webhooks")
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"name": "pods.tenant.network", "failurePolicy": "Fail",
		"clientConfig": map[string]any{"service": map[string]any{
			"name": "tenant-webhook", "namespace": "webhook-system", "path": "/mutate-pod", "port": int64(4711),
		}},
	}, webhooks[0], "the caBundle is not ours to write")
}

func TestTheSchedulerConfigurationIsMadeToWorkOutsideAPod(t *testing.T) {
	set, err := loadManifests(files(map[string]string{"manifests/scheduler-config.yaml": schedulerConfig}))
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		config          Config
		wantLeaderElect bool
		wantPatched     any
	}{
		"leader election is off":         {config: Config{}},
		"leader election stays if asked": {config: Config{LeaderElect: true}, wantLeaderElect: true},
		"the patch has the last word": {
			config: Config{SchedulerConfigPatch: func(config map[string]any) error {
				config["parallelism"] = float64(1)
				return unstructured.SetNestedField(config, true, "leaderElection", "leaderElect")
			}},
			wantLeaderElect: true, wantPatched: float64(1),
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.config.Dir = t.TempDir()
			c := &Cluster{config: tc.config}
			file := filepath.Join(tc.config.Dir, "out.yaml")
			require.NoError(t, c.writeSchedulerConfig(set, file))
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			got := map[string]any{}
			require.NoError(t, yaml.Unmarshal(data, &got))
			require.Equal(t, map[string]any{"kubeconfig": filepath.Join(tc.config.Dir, "kubeconfigs", TenantScheduler)}, got["clientConnection"])
			require.Equal(t, map[string]any{"leaderElect": tc.wantLeaderElect, "resourceName": "tenant-scheduler"}, got["leaderElection"])
			require.Equal(t, tc.wantPatched, got["parallelism"])
			require.NotEmpty(t, got["profiles"])
		})
	}
	_, err = manifestSet{}.schedulerConfig()
	require.ErrorContains(t, err, "no ConfigMap")
}
