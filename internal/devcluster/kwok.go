package devcluster

import (
	"bytes"
	"embed"
	"os"
)

//go:embed stages/*.yaml
var stageFiles embed.FS

//go:embed rbac/kwok.yaml
var kwokRBAC []byte

// kwokOptions are those that have no flag. The parallelism is what lets 500 pods start within seconds.
const kwokOptions = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
metadata:
  name: kwok
options:
  podPlayStageParallelism: 32
  nodePlayStageParallelism: 8
  nodeLeaseParallelism: 8
`

// kwokConfig is kwok's --config: options and Stages in one stream of documents.
func kwokConfig() ([]byte, error) {
	documents := [][]byte{[]byte(kwokOptions)}
	for _, name := range []string{"stages/nodes.yaml", "stages/pods.yaml"} {
		data, err := stageFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		documents = append(documents, data)
	}
	return bytes.Join(documents, []byte("---\n")), nil
}

func (c *Cluster) writeKwokConfig() error {
	config, err := kwokConfig()
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("config", "kwok.yaml"), config, 0o644)
}
