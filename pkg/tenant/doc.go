// Package tenant is the contract with the tenant-controller, the external program that owns the tenants' networks:
// its OpenAPI description, the types on the wire, a client, its errors and its metrics.
//
// An allocation is keyed by cluster and pod UID and lives exactly as long as its pod. Ensure is idempotent: the same
// ask gets the same answer, and the list of networks handed out for a UID never changes.
package tenant

import _ "embed"

// OpenAPI is the contract as an OpenAPI 3.1 document in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
