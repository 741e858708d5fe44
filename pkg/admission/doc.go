// Package admission is the moment a pod is created: it reads what the user wants, chooses the pools, and writes requests,
// limits, annotations, finalizer and schedulerName into the pod. It works from memory alone and has no side effect
// outside this process.
package admission
