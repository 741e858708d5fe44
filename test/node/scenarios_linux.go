package main

import "context"

// scenario is something that happens on a node, named as a sentence.
type scenario struct {
	name string
	run  func(context.Context, *world) error
}

// scenarios in the order in which they run: what everybody does first, and what breaks the node last.
func scenarios() []scenario {
	return []scenario{
		{"pods get the interfaces that they asked for", interfacesAreThere},
		{"a user's own networks stay, in both forms", ownNetworksStay},
		{"two tenants work side by side", tenantsSideBySide},
		{"init containers and sidecars may ask for the pool too", initContainersAndSidecars},
		{"a pod that ends by itself gives its networks back", endsByItself},
		{"a container that lingers keeps its devices and networks", lingering},
		{"a deployment rolls over while all devices are taken", rollingOver},
		{"jobs of 50 and 20 pods go through 4 devices", jobs},
		{"a device turns unhealthy and recovers", unhealthyDevice},
		{"the device plugin comes back with fewer devices, then with more", devicePluginRestarts},
		{"a pod bound behind our back takes the last device", boundBehindOurBack},
		{"kubelet and containerd are killed under running pods", killedUnderPods},
		{"a node that is cut off keeps its pods' networks until it is back", partition},
		{"a node without power keeps its pods' networks until it is out of service", powerCut},
	}
}
