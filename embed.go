// Package tenantwebhook holds the files that users apply, so that the development cluster and the tests apply the same.
package tenantwebhook

import "embed"

// Manifests has manifests/, the mock's manifest and the example pods, by their paths in this repository.
//
//go:embed manifests/*.yaml mock/tenant-controller.yaml deploy/*.yaml
var Manifests embed.FS
