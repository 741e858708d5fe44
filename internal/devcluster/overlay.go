package devcluster

import (
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// WriteOverlay writes a kustomization for installing the project on this cluster, and returns its directory. It builds
// on the kustomization in the directory base, and the components in other directories, and says what nobody knew before
// the cluster ran: the port of the balancer in front of the webhook. The API server reaches it as in exposeBalancer.
func (c *Cluster) WriteOverlay(base string, components ...string) (string, error) {
	dir := c.path("overlay")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(dir) // as kustomize does, which takes no absolute paths
	if err != nil {
		return "", err
	}
	relative := make([]string, 1+len(components))
	for i, path := range append([]string{base}, components...) {
		abs, err := filepath.Abs(path)
		if err == nil {
			abs, err = filepath.EvalSymlinks(abs)
		}
		if err == nil {
			relative[i], err = filepath.Rel(resolved, abs)
		}
		if err != nil {
			return "", fmt.Errorf("overlay on %s: %w", path, err)
		}
	}
	patch := fmt.Sprintf("- {op: replace, path: /webhooks/0/clientConfig/service/port, value: %d}\n", c.port.balancer)
	data, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1",
		"kind":       "Kustomization",
		"resources":  relative[:1],
		"components": relative[1:],
		"patches":    []any{map[string]any{"target": map[string]string{"kind": "MutatingWebhookConfiguration"}, "patch": patch}},
	})
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), data, 0o644)
}
