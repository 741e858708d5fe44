package release

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Unix(100_000, 0)

// podWith returns a pod on node n1 with our finalizer.
func podWith(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-1", Finalizers: []string{"tenant.network/cleanup"},
		Annotations: map[string]string{"tenant.network/resource-pool": "a.com/b"}},
		Spec:   corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func unbound(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending }

// deleted says when the grace period ends, which is what a deletion timestamp says.
func deleted(ends time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now.Add(ends)} }
}

func phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func sandbox(status corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: status})
	}
}

// ended adds containers that ended so long ago.
func ended(ago ...time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, d := range ago {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: now.Add(-d)}}}})
		}
	}
}

func nodeWith(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: ready}}}}
	for _, taint := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: taint, Effect: corev1.TaintEffectNoExecute})
	}
	return n
}

func TestStopped(t *testing.T) {
	const (
		running     = "the pod runs"
		stopping    = "the containers are stopping"
		outOfServ   = corev1.TaintNodeOutOfService
		unreachable = "node.kubernetes.io/unreachable"
	)
	healthy, cutOff := nodeWith(corev1.ConditionTrue), nodeWith(corev1.ConditionUnknown, unreachable)
	for _, tc := range []struct {
		name  string
		pod   *corev1.Pod
		node  *corev1.Node
		force time.Duration
		want  verdict
	}{
		{"a pod that runs must not be released", podWith(), healthy, 0, verdict{reason: running}},
		{"a pod that runs must not be released by force", podWith(), healthy, time.Second, verdict{reason: running}},
		{"a pod that waits for its node must not be released", podWith(unbound), nil, 0, verdict{reason: "the pod is not bound yet"}},
		{"a pod that waits must not be released by force", podWith(unbound), nil, time.Second, verdict{reason: "the pod is not bound yet"}},
		{"a pod deleted before it was bound is over", podWith(unbound, deleted(30*time.Second)), nil, 0, verdict{stopped: true, reason: "the pod was never bound"}},
		{"a gated pod deleted is over", podWith(unbound, deleted(0), func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue"}} }), nil, 0,
			verdict{stopped: true, reason: "the pod was never bound"}},

		{"a deletion that has begun must not release: the grace period runs", podWith(deleted(60 * time.Second)), healthy, 0, verdict{reason: stopping}},
		{"a grace period that is over must not release: the kubelet has not spoken", podWith(deleted(-time.Hour)), healthy, 0, verdict{reason: stopping}},
		{"a bound pod whose containers have not started must not be released", podWith(phase(corev1.PodPending), deleted(-time.Hour)), healthy, 0, verdict{reason: stopping}},
		{"a phase that is not known must not release", podWith(phase(corev1.PodUnknown), deleted(-time.Hour)), healthy, 0, verdict{reason: stopping}},
		{"a sandbox that is gone must not release while the pod is not terminal", podWith(deleted(-time.Hour), sandbox(corev1.ConditionFalse)), healthy, 0, verdict{reason: stopping}},

		{"a partition must not release", podWith(), cutOff, 0, verdict{reason: running}},
		{"a partition must not release a deleted pod", podWith(deleted(-time.Hour)), cutOff, 0, verdict{reason: stopping}},
		{"a node without a Ready condition must not release", podWith(deleted(-time.Hour)), &corev1.Node{}, 0, verdict{reason: stopping}},
		{"out-of-service alone must not release while the node is Ready", podWith(deleted(-time.Hour)), nodeWith(corev1.ConditionTrue, outOfServ), 0, verdict{reason: stopping}},
		{"NotReady and out-of-service releases", podWith(deleted(60 * time.Second)), nodeWith(corev1.ConditionUnknown, unreachable, outOfServ), 0, verdict{stopped: true, reason: "the node is out of service"}},
		{"Ready=False and out-of-service must not release a pod that nobody deletes: it tolerates the taint and may run on", podWith(), nodeWith(corev1.ConditionFalse, outOfServ), 0,
			verdict{reason: "the node is out of service; the pod is not deleted yet"}},
		{"a node out of service must not release a pod that nobody deletes by force", podWith(), nodeWith(corev1.ConditionFalse, outOfServ), time.Second,
			verdict{reason: "the node is out of service; the pod is not deleted yet"}},
		{"no Ready condition and out-of-service releases a deleted pod", podWith(deleted(0)), &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: outOfServ}}}}, 0,
			verdict{stopped: true, reason: "the node is out of service"}},
		{"a node that is gone must not release a pod that nobody deletes: the node may register again", podWith(), nil, 0, verdict{reason: "the node is gone; the pod is not deleted yet"}},
		{"a node that is gone releases a deleted pod", podWith(deleted(time.Minute)), nil, 0, verdict{stopped: true, reason: "the node is gone"}},

		{"a job that succeeded is over at once", podWith(phase(corev1.PodSucceeded), sandbox(corev1.ConditionFalse), ended(0)), healthy, 0, verdict{stopped: true, reason: "the pod is terminal"}},
		{"a pod that failed is over at once", podWith(phase(corev1.PodFailed), sandbox(corev1.ConditionFalse)), healthy, 0, verdict{stopped: true, reason: "the pod is terminal"}},
		{"a sandbox of which nothing is known does not hold", podWith(phase(corev1.PodSucceeded), sandbox(corev1.ConditionUnknown), ended(0)), healthy, 0, verdict{stopped: true, reason: "the pod is terminal"}},
		{"a pod that the kubelet refused never had a sandbox", podWith(phase(corev1.PodFailed)), healthy, 0, verdict{stopped: true, reason: "the pod is terminal"}},
		{"a terminal pod that was never bound is over", podWith(unbound, phase(corev1.PodFailed)), nil, 0, verdict{stopped: true, reason: "the pod is terminal"}},
		{"a terminal pod's sandbox must be waited for", podWith(phase(corev1.PodSucceeded), sandbox(corev1.ConditionTrue), ended(10*time.Second)), healthy, 0,
			verdict{reason: "the pod's sandbox is being taken down", after: 50 * time.Second}},
		{"the wait counts from the last container's end", podWith(phase(corev1.PodSucceeded), sandbox(corev1.ConditionTrue), ended(10*time.Minute, 59*time.Second, time.Hour)), healthy, 0,
			verdict{reason: "the pod's sandbox is being taken down", after: time.Second}},
		{"the wait is bounded", podWith(phase(corev1.PodSucceeded), sandbox(corev1.ConditionTrue), ended(time.Minute)), healthy, 0,
			verdict{stopped: true, reason: "the pod is terminal and its sandbox was waited for"}},
		{"without any container's end there is nothing to wait from", podWith(phase(corev1.PodFailed), sandbox(corev1.ConditionTrue)), healthy, 0,
			verdict{stopped: true, reason: "the pod is terminal and its sandbox was waited for"}},
		{"an end that says no time is none", podWith(phase(corev1.PodFailed), sandbox(corev1.ConditionTrue), func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown"}}}}
		}), healthy, 0, verdict{stopped: true, reason: "the pod is terminal and its sandbox was waited for"}},

		{"force is not before its time", podWith(deleted(-9 * time.Second)), cutOff, 10 * time.Second, verdict{reason: stopping, after: time.Second}},
		{"force is counted from the end of the grace period", podWith(deleted(30 * time.Second)), cutOff, 10 * time.Second, verdict{reason: stopping, after: 40 * time.Second}},
		{"force is when its time is over", podWith(deleted(-10 * time.Second)), cutOff, 10 * time.Second, verdict{stopped: true, reason: "the time of --force-release-after is over"}},
		{"force must not shorten the wait for a sandbox", podWith(phase(corev1.PodSucceeded), deleted(-time.Hour), sandbox(corev1.ConditionTrue), ended(10*time.Second)), healthy, time.Second,
			verdict{reason: "the pod's sandbox is being taken down", after: 50 * time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := policy{sandboxWait: time.Minute, forceAfter: tc.force}
			assert.Equal(t, tc.want, p.stopped(tc.pod, tc.node, now))
		})
	}
}
