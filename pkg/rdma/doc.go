// Package rdma is the vocabulary of the product: the words that users, admission, the scheduler and the release
// controller write on a Pod, and the codecs that read and write them. It does no I/O.
//
// Log keys are fixed for the whole project: "pod" (namespace/name), "podUID", "node", "pool", "type", "tenant",
// "allocation" (the pod UID an allocation is keyed by), "generation".
package rdma
