package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// reasonNotInjected is the reason of the Event on a pod that wanted devices and is bound without.
const reasonNotInjected = "RDMANotInjected"

// lookTimeout bounds the read that finds out how a failed binding went.
const lookTimeout = 5 * time.Second

// Bind writes node and networks in one call: POST pods/binding merges the binding's annotations into the pod in the
// transaction that sets the node (k8s.io/kubernetes v1.37.2, pkg/registry/core/pod/storage/storage.go:213-273). So no
// pod is ever bound without its networks, or annotated but unbound.
func (p *TenantNetwork) Bind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	c, err := bindingCycle(state, pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if c == nil {
		p.reportNotInjected(pod)
		return fwk.NewStatus(fwk.Skip)
	}
	if c.ensured.asked.IsZero() || c.ensured.node != node {
		return fwk.AsStatus(fmt.Errorf("the pod has no networks for node %s; is plugin %s enabled at preBind?", node, Name))
	}
	timeout, err := p.bindTimeout(c.ensured.asked)
	if err != nil {
		return fwk.AsStatus(err)
	}
	bindCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: map[string]string{rdma.NetworksAnnotation: c.ensured.networks}},
		Target: corev1.ObjectReference{Kind: "Node", Name: node},
	}
	klog.FromContext(ctx).V(3).Info("binding pod with its networks", "pod", klog.KObj(pod), "node", node)
	if err := util.BindPod(bindCtx, p.handle.ClientSet(), binding); err != nil {
		if err := p.lookAfter(ctx, pod, node, c.ensured.networks, err); err != nil {
			return fwk.AsStatus(err)
		}
	}
	p.inFlight.remove(pod.UID)
	return nil
}

// bindTimeout is the time for the binding call. util.BindPod repeats it: the last call, too, has to be made while the
// networks are the pod's for sure.
func (p *TenantNetwork) bindTimeout(asked time.Time) (time.Duration, error) {
	age := p.clock.Since(asked)
	if age >= maxEnsureAge {
		return 0, fmt.Errorf("the pod's networks were given %v ago, not less than %v; they are asked for again", age.Round(time.Second), maxEnsureAge)
	}
	return min(p.args.BindTimeout.Duration, maxEnsureAge-age), nil
}

// lookAfter finds out whether a binding that failed was made all the same: its answer may have been lost, or a
// repetition met the first one's success. nil means: bound, by us, to this node.
func (p *TenantNetwork) lookAfter(ctx context.Context, pod *corev1.Pod, node, networks string, bindErr error) error {
	// Not the caller's deadline: it may be what cut the call short.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	current, err := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return errors.Join(bindErr, fmt.Errorf("whether the pod is bound is not known: %w", err))
	}
	if current.UID == pod.UID && current.Spec.NodeName == node && current.Annotations[rdma.NetworksAnnotation] == networks {
		klog.FromContext(ctx).Info("binding was answered with an error but is in place", "pod", klog.KObj(pod), "node", node, "err", bindErr)
		return nil
	}
	return bindErr
}

// reportNotInjected speaks up for a pod that wants devices and is bound as a plain one: the webhook was bypassed or the
// namespace is not labelled.
func (p *TenantNetwork) reportNotInjected(pod *corev1.Pod) {
	if !rdma.HasIntent(pod.Annotations) {
		return
	}
	_, reason := rdma.ReadAssignment(pod)
	p.metrics.notInjected.Inc()
	if recorder := p.handle.EventRecorder(); recorder != nil {
		recorder.Eventf(pod, nil, corev1.EventTypeWarning, reasonNotInjected, "Binding",
			"The pod asks for RDMA devices but gets none: %v. Is its namespace labelled %s=%s, and was tenant-webhook running when the pod was created?",
			reason, rdma.NamespaceLabel, rdma.NamespaceLabelValue)
	}
}
