package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/internal/devnode"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// offer has the device plugin offer this many virtual functions, some of them unhealthy, and waits until the node says so.
func (w *world) offer(ctx context.Context, devices, unhealthy int) error {
	err := w.node.SetPools(ctx,
		devnode.Pool{Name: string(vfPool), Devices: devices, Unhealthy: unhealthy},
		devnode.Pool{Name: string(pfPool), Devices: pools[string(pfPool)]},
		devnode.Pool{Name: sharedPool, Devices: pools[sharedPool]})
	if err != nil {
		return err
	}
	return w.allocatable(ctx, int64(devices-unhealthy))
}

func (w *world) allocatable(ctx context.Context, want int64) error {
	return eventually(ctx, fmt.Sprintf("the node has %d of %s", want, vfPool), func(ctx context.Context) error {
		node, err := w.client.CoreV1().Nodes().Get(ctx, nodeOne, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if have := node.Status.Allocatable[vfPool]; have.Value() != want {
			return fmt.Errorf("it has %d", have.Value())
		}
		return nil
	})
}

// watched waits until the kubelet listens to all of the device plugin's pools, or to none.
func (w *world) watched(ctx context.Context, want bool) error {
	return eventually(ctx, fmt.Sprintf("a kubelet listens to the device plugin: %t", want), func(ctx context.Context) error {
		pools, err := w.node.WatchedPools(ctx)
		if err != nil {
			return err
		}
		for _, watched := range pools {
			if watched != want {
				return fmt.Errorf("it listens to %v", pools)
			}
		}
		return nil
	})
}

// allocatableAnew is allocatable after the kubelet's start: before, the node's status is what the dead one wrote.
func (w *world) allocatableAnew(ctx context.Context, want int64) error {
	if err := w.watched(ctx, true); err != nil {
		return err
	}
	return w.allocatable(ctx, want)
}

func unhealthyDevice(ctx context.Context, w *world) error {
	pod := newPod("holder", ask(rdma.VF, "2"))
	if err := w.started(ctx, pod); err != nil {
		return err
	}
	if err := w.offer(ctx, 4, 1); err != nil {
		return err
	}
	next := newPod("next", ask(rdma.VF, "2"), requests(vfPool, 2))
	if _, err := w.create(ctx, next); err != nil {
		return err
	}
	if err := w.waits(ctx, next, time.Second); err != nil {
		return err
	}
	if err := w.offer(ctx, 4, 0); err != nil {
		return err
	}
	if err := w.phase(ctx, next, corev1.PodRunning); err != nil {
		return err
	}
	return w.remove(ctx, pod, next)
}

// devicePluginRestarts: a pod keeps its devices while the plugin is away and when it comes back with fewer than are held.
func devicePluginRestarts(ctx context.Context, w *world) error {
	pod := newPod("holder", ask(rdma.VF, "4"), requests(vfPool, 4))
	if err := w.started(ctx, pod); err != nil {
		return err
	}
	err := errors.Join(w.Stop(devnode.DevicePlugin), w.allocatable(ctx, 0),
		w.StartComponent(ctx, devnode.DevicePlugin), w.offer(ctx, 3, 0))
	if err != nil {
		return err
	}
	next := newPod("next", ask(rdma.VF, "1"), requests(vfPool, 1))
	if _, err := w.create(ctx, next); err != nil {
		return err
	}
	if err := w.waits(ctx, next, time.Second); err != nil {
		return err
	}
	now, err := w.get(ctx, pod)
	if err != nil || now.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("the holder is %s: %w", now.Status.Phase, err)
	}
	if err := w.offer(ctx, 6, 0); err != nil {
		return err
	}
	if err := w.phase(ctx, next, corev1.PodRunning); err != nil {
		return err
	}
	if err := w.remove(ctx, pod, next); err != nil {
		return err
	}
	if err := errors.Join(w.gone(ctx, pod), w.gone(ctx, next)); err != nil {
		return err
	}
	return w.offer(ctx, 4, 0)
}

// boundBehindOurBack: while our pod's binding is on its way, somebody binds another pod by hand to the same last device.
// The kubelet refuses ours, whose networks are given back, and its owner's next one runs when there is room again.
func boundBehindOurBack(ctx context.Context, w *world) error {
	open := w.gate.shut()
	defer open()
	replicas := int32(1)
	owner := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "owner"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "it"}},
		Template: template(ask(rdma.VF, "4"), requests(vfPool, 4), func(p *corev1.Pod) {
			p.Spec.RestartPolicy, p.Labels[provokedLabel] = corev1.RestartPolicyAlways, "true"
		}),
	}}
	sets := w.client.AppsV1().ReplicaSets(tenantA)
	if _, err := sets.Create(ctx, owner, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := eventually(ctx, "our pod is being bound", w.gate.holding); err != nil {
		return err
	}
	thief := newPod("thief", of(metav1.NamespaceDefault), requests(vfPool, 1), func(p *corev1.Pod) { p.Spec.NodeName = nodeOne })
	if err := w.admitted(ctx, thief); err != nil {
		return err
	}
	open()
	if err := errors.Join(w.refusalIsReported(ctx), w.remove(ctx, thief)); err != nil {
		return err
	}
	err := eventually(ctx, "the owner's next pod runs", func(ctx context.Context) error {
		set, err := sets.Get(ctx, owner.Name, metav1.GetOptions{})
		if err == nil && set.Status.ReadyReplicas != 1 {
			err = fmt.Errorf("its status is %+v", set.Status)
		}
		return err
	})
	if err != nil {
		return err
	}
	return w.clear(ctx)
}

// admitted creates a pod and waits until the kubelet has given it its devices, which is well before it runs.
func (w *world) admitted(ctx context.Context, pod *corev1.Pod) error {
	if _, err := w.create(ctx, pod); err != nil {
		return err
	}
	return eventually(ctx, "the kubelet admits pod "+pod.Name, func(ctx context.Context) error {
		now, err := w.get(ctx, pod)
		if err == nil && (now.Status.StartTime == nil || now.Status.Phase == corev1.PodFailed) {
			err = fmt.Errorf("it is %s since %v: %s", now.Status.Phase, now.Status.StartTime, now.Status.Message)
		}
		return err
	})
}

// refusalIsReported waits until a pod of ours that the kubelet refused has lost its networks, and somebody said so.
func (w *world) refusalIsReported(ctx context.Context) error {
	return eventually(ctx, "the refused pod is released and reported", func(ctx context.Context) error {
		pods, err := w.client.CoreV1().Pods(tenantA).List(ctx, metav1.ListOptions{LabelSelector: provokedLabel})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return refusedByNode(&p) })
		if i < 0 {
			return errors.New("no pod was refused by the kubelet")
		}
		pod := &pods.Items[i]
		if err := w.allocated(ctx, pod); err == nil {
			return fmt.Errorf("pod %s (%s) still has its networks", pod.Name, pod.Status.Reason)
		}
		events, err := w.client.EventsV1().Events(tenantA).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Regarding.UID == pod.UID && event.Reason == "RefusedByNode" {
				return nil
			}
		}
		return fmt.Errorf("no event about pod %s (%s: %s)", pod.Name, pod.Status.Reason, pod.Status.Message)
	})
}

func killedUnderPods(ctx context.Context, w *world) error {
	pods := []*corev1.Pod{newPod("survivor-1", ask(rdma.VF, "2")), newPod("survivor-2", ask(rdma.VF, "1"), ask(rdma.PF, "1"))}
	if err := w.started(ctx, pods...); err != nil {
		return err
	}
	for _, name := range []string{devnode.Kubelet, devnode.Containerd} {
		if err := errors.Join(w.Kill(name), w.WaitReady(ctx, name)); err != nil {
			return err
		}
	}
	// Its successor waits until the device plugin has noticed: what listens to the plugin then is not the dead one.
	if err := errors.Join(w.Crash(devnode.Kubelet), w.watched(ctx, false), w.StartComponent(ctx, devnode.Kubelet)); err != nil {
		return err
	}
	if err := w.allocatableAnew(ctx, 4); err != nil {
		return err
	}
	next := newPod("next", ask(rdma.VF, "1"), requests(vfPool, 1))
	if err := w.started(ctx, next); err != nil {
		return err
	}
	for _, pod := range pods {
		now, err := w.get(ctx, pod)
		if err != nil {
			return err
		}
		if now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount > 0 {
			return fmt.Errorf("pod %s is %s, restarted %d times", pod.Name, now.Status.Phase, now.Status.ContainerStatuses[0].RestartCount)
		}
		if err := w.allocated(ctx, pod); err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return w.remove(ctx, append(pods, next)...)
}

func (w *world) notReady(ctx context.Context) error {
	return eventually(ctx, "the node is not ready", func(ctx context.Context) error {
		node, err := w.client.CoreV1().Nodes().Get(ctx, nodeOne, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable }) {
			return fmt.Errorf("its taints are %v", node.Spec.Taints)
		}
		return nil
	})
}

// isKept makes sure that a deleted pod and its networks stay, for a while.
func (w *world) isKept(ctx context.Context, pod *corev1.Pod, during time.Duration) error {
	return holds(ctx, "pod "+pod.Name+" keeps its networks", during, func(ctx context.Context) error {
		return w.allocated(ctx, pod)
	})
}

// partition: without its kubelet nobody knows whether the containers have ended. They have not.
func partition(ctx context.Context, w *world) error {
	pod := newPod("cut-off", ask(rdma.VF, "2"))
	if err := w.started(ctx, pod); err != nil {
		return err
	}
	if err := w.Crash(devnode.Kubelet); err != nil {
		return err
	}
	if err := errors.Join(w.remove(ctx, pod), w.notReady(ctx), w.isKept(ctx, pod, 5*time.Second)); err != nil {
		return err
	}
	running, err := w.node.Running(ctx)
	if err != nil || len(running) == 0 {
		return fmt.Errorf("the container should run on: %w", err)
	}
	if err := w.StartComponent(ctx, devnode.Kubelet); err != nil {
		return err
	}
	return errors.Join(w.gone(ctx, pod), w.allocatableAnew(ctx, 4), w.schedulable(ctx))
}

// schedulable waits until the node has no taints.
func (w *world) schedulable(ctx context.Context) error {
	return eventually(ctx, "the node takes pods", func(ctx context.Context) error {
		node, err := w.client.CoreV1().Nodes().Get(ctx, nodeOne, metav1.GetOptions{})
		if err == nil && len(node.Spec.Taints) > 0 {
			err = fmt.Errorf("its taints are %v", node.Spec.Taints)
		}
		return err
	})
}

// powerCut: the containers have ended, but only a human can know that: by the taint.
func powerCut(ctx context.Context, w *world) error {
	pod := newPod("powerless", ask(rdma.VF, "2"))
	if err := w.started(ctx, pod); err != nil {
		return err
	}
	if err := w.node.PowerOff(); err != nil {
		return err
	}
	if err := errors.Join(w.remove(ctx, pod), w.notReady(ctx), w.isKept(ctx, pod, 5*time.Second)); err != nil {
		return err
	}
	if err := w.taint(ctx, true); err != nil {
		return err
	}
	if err := errors.Join(w.gone(ctx, pod), w.node.PowerOn(ctx), w.taint(ctx, false)); err != nil {
		return err
	}
	if err := errors.Join(w.allocatableAnew(ctx, 4), w.schedulable(ctx)); err != nil {
		return err
	}
	next := newPod("next", ask(rdma.VF, "4"))
	if err := w.started(ctx, next); err != nil {
		return err
	}
	return w.remove(ctx, next)
}

// taint puts the taint on that says that the node's containers have ended, or takes it off.
func (w *world) taint(ctx context.Context, on bool) error {
	nodes := w.client.CoreV1().Nodes()
	return eventually(ctx, "the taint is changed", func(ctx context.Context) error {
		node, err := nodes.Get(ctx, nodeOne, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
		if on {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
		}
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}
