// Command previous is the API server of the Kubernetes release before the one that everything else here is built with. A
// module of its own, since one build can have only one Kubernetes.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) }
