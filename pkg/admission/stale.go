package admission

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// stripStale removes what a copy of another pod carries: networks that the tenant-controller made for that pod, and the
// status of its networks. It returns a warning if there were such networks.
//
// Such a network is known by its label. If it is gone with its pod, as after the restore of a backup, what is left is its
// place: ours come last, as many as the copied annotations claim, each with an interface name. The copied status tells
// that the other pod had been bound and had them; on a second pass it is gone, and the annotations are of our making.
func (i *Injector) stripStale(pod *corev1.Pod, namespace string) []string {
	_, hadNetworks := pod.Annotations[rdma.NetworkStatusAnnotation]
	delete(pod.Annotations, rdma.NetworkStatusAnnotation)
	text := pod.Annotations[rdma.NetworksAnnotation]
	networks, err := rdma.ParseNetworks(text, namespace)
	if err != nil {
		return nil // validateNetworks refuses it, with the reason
	}
	ours := networks.Len()
	if hadNetworks {
		ours -= claimedDevices(pod.Annotations)
	}
	position := 0
	var dropped []string
	kept, changed, err := rdma.StripNetworks(text, namespace, func(n rdma.Network) bool {
		last := position >= ours
		position++
		nad, known := i.Attachments(n.Namespace, n.Name)
		stale := known && (nad.PodUID != "" || nad.Missing && last && n.Interface != "")
		if stale {
			dropped = append(dropped, n.Namespace+"/"+n.Name)
		}
		return stale
	})
	if err != nil || !changed {
		return nil
	}
	if pod.Annotations[rdma.NetworksAnnotation] = kept; kept == "" {
		delete(pod.Annotations, rdma.NetworksAnnotation)
	}
	return []string{fmt.Sprintf("%s: left out what was made for another pod: %s",
		annotationPath(rdma.NetworksAnnotation), short(strings.Join(dropped, ", ")))}
}

// claimedDevices is the number of networks that the annotations say the pod was given, 0 if they say nothing readable.
func claimedDevices(annotations map[string]string) int {
	total := 0
	for text := range strings.SplitSeq(annotations[rdma.ResourceCountAnnotation], ",") {
		count, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return 0
		}
		total += int(count)
	}
	return total
}
