package release

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// verdict says whether a pod still uses its networks.
type verdict struct {
	stopped bool
	// reason is why it is taken as stopped, or what is waited for.
	reason string
	// after is when to look again although nothing happens; 0 means never.
	after time.Duration
}

// policy holds what stopped needs to know besides the pod and its node.
type policy struct {
	// sandboxWait bounds how long a terminal pod's sandbox is waited for.
	sandboxWait time.Duration
	// forceAfter is how long after a deletion's grace period the networks are given back whatever the node says; 0 is
	// never.
	forceAfter time.Duration
}

// stopped decides whether the pod's containers, and the sandbox that holds its networks, are gone. node is nil if the
// node object does not exist. A deletion that has only begun does not count: the containers use their grace period, and
// on a node that is cut off they go on running.
func (p policy) stopped(pod *corev1.Pod, node *corev1.Node, now time.Time) verdict {
	switch {
	case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		// The API server refuses to bind a pod that is being deleted (registry/core/pod/storage, assignPod).
		return verdict{stopped: true, reason: "the pod was never bound"}
	case terminal(pod):
		return p.sandboxGone(pod, now)
	case pod.Spec.NodeName == "":
		return verdict{reason: "the pod is not bound yet"}
	case pod.DeletionTimestamp == nil:
		return verdict{reason: whyNotDeleted(node)}
	case node == nil:
		return verdict{stopped: true, reason: "the node is gone"}
	case outOfService(node):
		return verdict{stopped: true, reason: "the node is out of service"}
	}
	if p.overdue(pod, now) {
		return verdict{stopped: true, reason: "the time of --force-release-after is over"}
	}
	v := verdict{reason: "the containers are stopping"}
	if p.forceAfter > 0 {
		v.after = pod.DeletionTimestamp.Add(p.forceAfter).Sub(now)
	}
	return v
}

// whyNotDeleted tells why a bound pod that nobody deletes keeps its networks whatever became of its node: no state of the
// node ends such a pod. A node object can be deleted and registered again while the node's containers run on; if the node
// stays away the pod garbage collector deletes the pod. A pod that tolerates the taint of a node out of service is not
// evicted: it may run on there, and starts again when the node is back.
func whyNotDeleted(node *corev1.Node) string {
	switch {
	case node == nil:
		return "the node is gone; the pod is not deleted yet"
	case outOfService(node):
		return "the node is out of service; the pod is not deleted yet"
	}
	return "the pod runs"
}

// overdue reports whether the pod has been deleted for longer than an administrator allows.
func (p policy) overdue(pod *corev1.Pod, now time.Time) bool {
	// The deletion timestamp is the end of the grace period.
	return p.forceAfter > 0 && pod.DeletionTimestamp != nil && !now.Before(pod.DeletionTimestamp.Add(p.forceAfter))
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// refusedByNode reports whether the kubelet did not admit the pod: it writes a reason, such as UnexpectedAdmissionError, and
// no container (kubelet.go, rejectPod). A pod that failed or was evicted later has containers.
func refusedByNode(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" && pod.Spec.NodeName != "" &&
		len(pod.Status.ContainerStatuses) == 0
}

// sandboxGone goes by the condition PodReadyToStartContainers (GA in Kubernetes 1.37): while it is True the sandbox, and
// with it the network, is still there. A pod that the kubelet refused at admission never had one.
func (p policy) sandboxGone(pod *corev1.Pod, now time.Time) verdict {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers
	})
	if i < 0 || pod.Status.Conditions[i].Status != corev1.ConditionTrue {
		return verdict{stopped: true, reason: "the pod is terminal"}
	}
	// Older kubelets, and other ones, may never turn the condition; the wait is counted from the last container's end.
	ended := lastEnd(pod)
	if left := ended.Add(p.sandboxWait).Sub(now); left > 0 && !ended.IsZero() {
		return verdict{reason: "the pod's sandbox is being taken down", after: left}
	}
	return verdict{stopped: true, reason: "the pod is terminal and its sandbox was waited for"}
}

func lastEnd(pod *corev1.Pod) time.Time {
	var last time.Time
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			if t := status.State.Terminated; t != nil && t.FinishedAt.After(last) {
				last = t.FinishedAt.Time
			}
		}
	}
	return last
}

// outOfService is what upstream's pod garbage collector goes by when it ends pods that are being deleted (gcTerminating in
// pkg/controller/podgc): the node is not Ready and an administrator has said, by the taint, that it is down. NotReady alone
// is not enough: on a partitioned node the containers run on.
func outOfService(node *corev1.Node) bool {
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return !ready && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}
