// Package plugin is the scheduler framework plugin TenantNetwork: it places RDMA pods by the devices that each node has
// left, gets their networks from the tenant-controller before they are bound, and binds node and networks in one write.
//
// One pod's way through it: prefilter.go decides once whether the pod is ours and leaves that in the cycle state, and
// names the nodes worth looking at, which candidates.go finds; filter.go and score.go look at nodes; reserve.go remembers in memory; prebind.go talks to the tenant-controller;
// bind.go writes. The last three also run for pods that are not ours, whose cycle state is missing.
package plugin
