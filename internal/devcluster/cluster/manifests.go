package main

import tenantwebhook "tenant.network/tenant-webhook"

// shipped are the project's manifests.
var shipped = tenantwebhook.Manifests
