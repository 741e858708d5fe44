// Package devcluster runs a whole cluster as processes of this machine, without root, container engine or hardware: etcd,
// the API server with RBAC, the controller manager, the stock scheduler, kwok in the role of the kubelets, and the
// project's own programs as they are shipped, with the manifests' own permissions.
//
// It links none of that: the programs come from a directory of binaries (see controlplane for the Kubernetes ones), and
// each is a process of its own, so that a test can kill, stop or freeze a single one. Everything listens on loopback, on
// ports found free at start; two clusters run side by side. Nothing outlives the process that called Start.
package devcluster
