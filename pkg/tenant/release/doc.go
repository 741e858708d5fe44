// Package release is the end of a pod's life: when a pod has really stopped, its networks are given back to the
// tenant-controller, and then the finalizer goes. It runs on the leader of tenant-webhook only.
package release
