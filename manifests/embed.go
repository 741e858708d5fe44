// Package manifests holds the files that users apply, so that the development cluster and the tests apply the same.
package manifests

import "embed"

// FS has the base: namespace, pool configuration, RBAC, workloads and webhook configuration.
//
//go:embed *.yaml
var FS embed.FS
