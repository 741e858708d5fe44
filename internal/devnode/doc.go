// Package devnode adds a real node to a development cluster, as root on Linux and without container engine or hardware:
// the kubelet, containerd, runc and the CNI plugins of the distribution, Multus, and a device plugin without devices.
//
// The node is a set of namespaces: processes, mounts, network, host name and IPC are its own, and so are its bridges, pod
// networks and container file systems. They all end with the first process in there (init), which ends with the process
// that called Start, be it killed. What lies on the disk is in one directory, and its cgroups are below one name: see
// Clean. Nothing of the host is changed but for that cgroup.
package devnode
