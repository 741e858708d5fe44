package pools

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// matcher decides which nodes a pod could run on, by what does not change from moment to moment: node selector,
// required affinity, taints, and whether the whole node could hold the pod's other requests. Otherwise a pod that needs
// GPUs would be tied for ever to a pool that only nodes without GPUs have.
type matcher struct {
	affinity    nodeaffinity.RequiredNodeAffinity
	constrained bool
	tolerations []corev1.Toleration
	requests    corev1.ResourceList
}

// newMatcher leaves out the requests for pools that are among the options: those are weighed by count. What the pod
// requests of other pools by itself is a request like any other.
func newMatcher(pod *corev1.Pod, options [][]rdma.Entry) matcher {
	m := newOpenMatcher(pod)
	m.requests = rdma.Requests(pod)
	for _, entries := range options {
		for _, e := range entries {
			delete(m.requests, e.Pool)
		}
	}
	return m
}

// newOpenMatcher looks at no requests.
func newOpenMatcher(pod *corev1.Pod) matcher {
	m := matcher{tolerations: pod.Spec.Tolerations}
	affinity := pod.Spec.Affinity
	m.constrained = len(pod.Spec.NodeSelector) > 0 || affinity != nil && affinity.NodeAffinity != nil
	if m.constrained {
		m.affinity = nodeaffinity.GetRequiredNodeAffinity(pod)
	}
	return m
}

// NodeMatcher returns a check whether a node is open to the pod by node selector, required affinity and taints, whatever
// resources it has. It is made once a pod.
func NodeMatcher(pod *corev1.Pod) func(*corev1.Node) bool {
	m := newOpenMatcher(pod)
	return func(node *corev1.Node) bool { return m.matches(node, false) }
}

// matches reports whether the pod could run on the node. With ever set, states that pass are overlooked: taints that
// Kubernetes itself sets and removes, and device plugins that are away just now.
func (m matcher) matches(node *corev1.Node, ever bool) bool {
	if !m.fits(node, ever) {
		return false
	}
	if len(node.Spec.Taints) > 0 {
		_, untolerated := v1helper.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, m.tolerations,
			func(t *corev1.Taint) bool {
				hard := t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
				return hard && (!ever || !strings.HasPrefix(t.Key, "node.kubernetes.io/"))
			}, true)
		if untolerated {
			return false
		}
	}
	if !m.constrained {
		return true
	}
	// A malformed term matches no node, as in kube-scheduler; the API server's validation speaks to the user.
	ok, err := m.affinity.Match(node)
	return err == nil && ok
}

// fits goes by the capacity of extended resources alone: there it differs from the allocatable only while a device plugin
// is away. Of the native ones, such as cpu and memory, the difference is what the kubelet keeps for itself for ever.
func (m matcher) fits(node *corev1.Node, ever bool) bool {
	for name, want := range m.requests {
		has := node.Status.Allocatable[name]
		if ever && IsExtendedResource(name) {
			if capacity := node.Status.Capacity[name]; capacity.Cmp(has) > 0 {
				has = capacity
			}
		}
		if want.Cmp(has) > 0 {
			return false
		}
	}
	return true
}
