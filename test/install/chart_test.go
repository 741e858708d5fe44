package install

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"tenant.network/tenant-webhook/internal/devcluster"
)

// helm runs helm in the repository, from its own module.
func helm(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=hack/helm/go.mod", "helm"}, args...)...)
	cmd.Dir = repository
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), errors.Join(err, errors.New(errs.String()))
	}
	return out.String(), nil
}

func template(t *testing.T, values ...string) (string, error) {
	t.Helper()
	args := []string{"template", "tenant-webhook", "charts/tenant-webhook", "--namespace", "webhook-system"}
	for _, value := range values {
		args = append(args, "--set-json", value)
	}
	return helm(t, args...)
}

func kustomize(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bin/controlplane", "kubectl", "kustomize", dir)
	cmd.Dir = repository
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, errs.String())
	return string(out)
}

// decode returns objects by kind, namespace and name.
func decode(t *testing.T, stream string) map[string]map[string]any {
	t.Helper()
	objects := map[string]map[string]any{}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader([]byte(stream))))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)
		object := map[string]any{}
		require.NoError(t, yaml.Unmarshal(document, &object))
		if len(object) == 0 {
			continue
		}
		u := unstructured.Unstructured{Object: object}
		key := u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
		require.NotContains(t, objects, key, "twice")
		objects[key] = object
	}
}

func TestChartRendersWhatKustomizeRenders(t *testing.T) {
	for name, tc := range map[string]struct {
		dir    string
		values []string
	}{
		"the base":                           {dir: "manifests"},
		"certificates by cert-manager":       {dir: "deploy/overlays/cert-manager", values: []string{"certManager.enabled=true"}},
		"the mock":                           {dir: "deploy/overlays/mock", values: []string{"mock.enabled=true"}},
		"beside the cluster's own scheduler": {dir: "deploy/overlays/scheduler-beside", values: []string{`scheduler.mode="beside"`}},
		"as the cluster's only scheduler":    {dir: "deploy/overlays/scheduler-only", values: []string{`scheduler.mode="only"`}},
	} {
		t.Run(name, func(t *testing.T) {
			rendered, err := template(t, append(tc.values, "createNamespace=true")...)
			require.NoError(t, err)
			objects := decode(t, rendered)
			// What scripts/deploy.sh sees to, after kubectl apply.
			require.NotEmpty(t, takeChecksum(t, objects))
			require.Equal(t, decode(t, kustomize(t, tc.dir)), objects)
		})
	}
}

const schedulerDeployment = "Deployment webhook-system/tenant-scheduler"

// takeChecksum removes from the scheduler's Deployment what makes new Pods of a new configuration, and returns it.
func takeChecksum(t *testing.T, objects map[string]map[string]any) string {
	t.Helper()
	path := []string{"spec", "template", "metadata", "annotations"}
	sum, _, err := unstructured.NestedString(objects[schedulerDeployment], append(path, "checksum/scheduler-config")...)
	require.NoError(t, err)
	unstructured.RemoveNestedField(objects[schedulerDeployment], path...)
	return sum
}

func TestChartMakesNewSchedulerPodsForANewConfiguration(t *testing.T) {
	sums := map[string]string{}
	for _, mode := range []string{"own", "beside", "only"} {
		rendered, err := template(t, fmt.Sprintf("scheduler.mode=%q", mode))
		require.NoError(t, err)
		sums[mode] = takeChecksum(t, decode(t, rendered))
	}
	require.Equal(t, sums["own"], sums["beside"], "they have the same configuration")
	require.NotEqual(t, sums["own"], sums["only"])
}

func TestChartLetsTheOnlyReplicaBeEvicted(t *testing.T) {
	rendered, err := template(t, "webhook.replicas=1")
	require.NoError(t, err)
	objects := decode(t, rendered)
	require.NotContains(t, objects, "PodDisruptionBudget webhook-system/tenant-webhook")
	require.Contains(t, objects, "PodDisruptionBudget webhook-system/tenant-scheduler")
}

func TestChartRendersTheSameEachTime(t *testing.T) {
	first, err := template(t, "mock.enabled=true")
	require.NoError(t, err)
	second, err := template(t, "mock.enabled=true")
	require.NoError(t, err)
	require.Equal(t, first, second)
}

func TestChartLintsClean(t *testing.T) {
	out, err := helm(t, "lint", "--strict", "charts/tenant-webhook", "--namespace", "webhook-system")
	require.NoError(t, err, out)
	require.Contains(t, out, "0 chart(s) failed")
}

func TestChartValuesReachTheObjects(t *testing.T) {
	rendered, err := template(t, `tenantControllerURL="https://networks.example:443"`, `pools="example.com/vf type=vf"`,
		`webhook.extraArgs=["--refresh-interval=10s"]`, `scheduler.image="registry.example/s:1"`, `networkPolicy.enabled=false`,
		`webhook.tolerations=[{"key":"a","operator":"Exists"}]`, `imagePullSecrets=[{"name":"pull"}]`, `scheduler.replicas=3`)
	require.NoError(t, err)
	objects := decode(t, rendered)
	for _, name := range []string{"tenant-webhook", "tenant-scheduler"} {
		pod := podSpec(t, objects["Deployment webhook-system/"+name])
		require.Contains(t, container(t, pod)["env"], map[string]any{"name": "TENANT_CONTROLLER_URL", "value": "https://networks.example:443"})
		require.Equal(t, []any{map[string]any{"name": "pull"}}, pod["imagePullSecrets"])
	}
	webhook, scheduler := objects["Deployment webhook-system/tenant-webhook"], objects[schedulerDeployment]
	require.Contains(t, container(t, podSpec(t, webhook))["args"], "--refresh-interval=10s")
	require.Equal(t, []any{map[string]any{"key": "a", "operator": "Exists"}}, podSpec(t, webhook)["tolerations"])
	require.Equal(t, "registry.example/s:1", container(t, podSpec(t, scheduler))["image"])
	replicas, _, err := unstructured.NestedFieldNoCopy(scheduler, "spec", "replicas")
	require.NoError(t, err)
	require.EqualValues(t, 3, replicas)
	pools, _, err := unstructured.NestedString(objects["ConfigMap webhook-system/resource-pool-config"], "data", "resource-pools")
	require.NoError(t, err)
	require.Equal(t, "example.com/vf type=vf", pools)
	for key := range objects {
		require.NotContains(t, key, "NetworkPolicy ")
	}
}

func TestChartKeepsTheOnlySchedulersTolerations(t *testing.T) {
	rendered, err := template(t, `scheduler.mode="only"`, `scheduler.tolerations=[{"key":"a","operator":"Exists"}]`)
	require.NoError(t, err)
	tolerations, ok := podSpec(t, decode(t, rendered)[schedulerDeployment])["tolerations"].([]any)
	require.True(t, ok)
	require.Contains(t, tolerations, map[string]any{"key": "a", "operator": "Exists"})
	require.Contains(t, tolerations, map[string]any{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"})
}

func podSpec(t *testing.T, deployment map[string]any) map[string]any {
	t.Helper()
	spec, found, err := unstructured.NestedMap(deployment, "spec", "template", "spec")
	require.NoError(t, err)
	require.True(t, found)
	return spec
}

func container(t *testing.T, pod map[string]any) map[string]any {
	t.Helper()
	containers, ok := pod["containers"].([]any)
	require.True(t, ok)
	first, ok := containers[0].(map[string]any)
	require.True(t, ok)
	return first
}

func TestChartMustNotAccept(t *testing.T) {
	for name, tc := range map[string]struct{ value, want string }{
		"a misspelled value":           {`webhook.replica=2`, "replica"},
		"no replica":                   {`webhook.replicas=0`, "/webhook/replicas"},
		"an unknown mode":              {`scheduler.mode="both"`, "/scheduler/mode"},
		"a URL without scheme":         {`tenantControllerURL="tenant-controller:8088"`, "/tenantControllerURL"},
		"an argument that is no flag":  {`scheduler.extraArgs=["v=4"]`, "/scheduler/extraArgs/0"},
		"a pull policy of its own":     {`webhook.imagePullPolicy="Sometimes"`, "/webhook/imagePullPolicy"},
		"a switch that is not boolean": {`certManager.enabled="yes"`, "/certManager/enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template(t, tc.value)
			require.ErrorContains(t, err, tc.want)
		})
	}
	t.Run("another namespace", func(t *testing.T) {
		_, err := helm(t, "template", "tenant-webhook", "charts/tenant-webhook", "--namespace", "default")
		require.ErrorContains(t, err, `namespace "default": install into webhook-system`)
	})
}

// TestEveryObjectIsAcceptedAndLabelled asks the real API server. scripts/deploy.sh --uninstall goes by the label.
func TestEveryObjectIsAcceptedAndLabelled(t *testing.T) {
	w := newWorld(t, devcluster.Config{Without: []string{devcluster.Kwok, devcluster.KubeScheduler}, Nodes: []devcluster.Node{}})
	w.do("kubectl create namespace webhook-system && kubectl create namespace tenant-a")
	w.do(certManagerCRD("issuers", "Issuer") + certManagerCRD("certificates", "Certificate"))
	w.do("kubectl wait --for=condition=Established crd issuers.cert-manager.io certificates.cert-manager.io --timeout=60s")
	overlays, err := filepath.Glob(filepath.Join(repository, "deploy/overlays/*"))
	require.NoError(t, err)
	require.NotEmpty(t, overlays)
	for _, dir := range append(overlays, filepath.Join(repository, "manifests")) {
		relative, err := filepath.Rel(repository, dir)
		require.NoError(t, err)
		t.Run(relative, func(t *testing.T) {
			w := w.in(t)
			w.do("kubectl apply --dry-run=server --validate=strict -k " + relative)
			for key, object := range decode(t, kustomize(t, relative)) {
				u := unstructured.Unstructured{Object: object}
				require.Equal(t, "tenant-webhook", u.GetLabels()["app.kubernetes.io/part-of"], key)
			}
		})
	}
	t.Run("the examples", func(t *testing.T) {
		w.in(t).do("kubectl apply --dry-run=server --validate=strict -f deploy")
	})
	t.Run("the chart", func(t *testing.T) {
		rendered, err := template(t, "createNamespace=true", "mock.enabled=true")
		require.NoError(t, err)
		w.in(t).do("kubectl apply --dry-run=server --validate=strict -f - <<'EOF'\n" + rendered + "\nEOF")
	})
}

// certManagerCRD is a line of shell that makes a kind of cert-manager's known, with any fields.
func certManagerCRD(plural, kind string) string {
	return fmt.Sprintf(`kubectl create -f - <<'EOF'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {plural: %[1]s, kind: %[2]s}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
EOF
`, plural, kind)
}
