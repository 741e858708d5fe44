// Package engine is the mock tenant-controller: a state machine that keeps the contract of pkg/tenant, behind an
// http.Handler that breaks it on request. Unit tests, end-to-end tests and the demo use the same one.
package engine
