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

// startedAnnotation is put on the pods of webhook-system by the follower once the programs run that they stand for.
const startedAnnotation = "devcluster/started"

// podRunning is the beginning of the Stage that lets a pod run.
const podRunning = `  name: pod-running
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
`

// held keeps those pods from running before: whoever waits for a rollout waits for the programs.
const held = `      - key: 'select(.metadata.namespace == "` + systemNamespace + `" and .metadata.annotations["` + startedAnnotation + `"] == null) | .metadata.name'
        operator: DoesNotExist
`

func (c *Cluster) writeKwokConfig() error {
	config, err := kwokConfig()
	if err != nil {
		return err
	}
	if c.config.FollowDeployments {
		config = bytes.Replace(config, []byte(podRunning), []byte(podRunning+held), 1)
	}
	return os.WriteFile(c.path("config", "kwok.yaml"), config, 0o644)
}
