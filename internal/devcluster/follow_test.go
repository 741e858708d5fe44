package devcluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func installed(account string, containers ...string) appsv1.Deployment {
	d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	d.Spec.Template.Spec.ServiceAccountName = account
	for _, name := range containers {
		d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: name})
	}
	return d
}

func TestProgramsAreWantedWhileTheirDeploymentsAre(t *testing.T) {
	scaledDown, deleted := installed("a", "scheduler"), installed("a", "scheduler")
	scaledDown.Spec.Replicas = new(int32)
	deleted.DeletionTimestamp = &metav1.Time{}
	for name, tc := range map[string]struct {
		deployments []appsv1.Deployment
		want        map[string]program
	}{
		"none is wanted on an empty cluster":          {nil, map[string]program{}},
		"a program runs as its Pod's service account": {[]appsv1.Deployment{installed("a", "webhook")}, map[string]program{Webhook: {"a", 3}}},
		"two programs may share a Pod":                {[]appsv1.Deployment{installed("a", "webhook", "tenant-controller")}, map[string]program{Webhook: {"a", 3}, Mock: {"a", 3}}},
		"what is scaled down must not run":            {[]appsv1.Deployment{scaledDown}, map[string]program{}},
		"what is being deleted must not run":          {[]appsv1.Deployment{deleted}, map[string]program{}},
		"somebody else's containers must not be ours": {[]appsv1.Deployment{installed("a", "nginx")}, map[string]program{}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, wantedPrograms(tc.deployments)) })
	}
}

func TestTheOverlayNamesDirectoriesFromWhereItLies(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"cluster", "repo/base", "repo/extra"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	c := &Cluster{config: Config{Dir: filepath.Join(root, "cluster")}, port: portPlan{balancer: 4711}}
	dir, err := c.WriteOverlay(filepath.Join(root, "repo/base"), filepath.Join(root, "repo/extra"))
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	require.NoError(t, err)
	got := map[string]any{}
	require.NoError(t, yaml.Unmarshal(data, &got))
	require.Equal(t, []any{"../../repo/base"}, got["resources"])
	require.Equal(t, []any{"../../repo/extra"}, got["components"])
	require.Contains(t, string(data), "value: 4711")
	_, err = c.WriteOverlay(filepath.Join(root, "nowhere"))
	require.ErrorContains(t, err, "nowhere")
}
