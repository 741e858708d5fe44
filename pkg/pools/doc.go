// Package pools is the arithmetic of device pools: which extended resources exist, how many devices of each are taken,
// and which pool a pod should get. It does no I/O; package feed brings it what the API server knows.
//
// The admission webhook and the scheduler plugin count with the same functions, so that they cannot disagree.
package pools
