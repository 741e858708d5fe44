package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func interfacesAreThere(ctx context.Context, w *world) error {
	pods := []*corev1.Pod{
		newPod("one-vf", ask(rdma.VF, "1")),
		newPod("two-vfs", ask(rdma.VF, "2")),
		newPod("vf-and-pf", ask(rdma.VF, "1"), ask(rdma.PF, "1")),
		newPod("shared", ask(rdma.VF, "1"), requests(sharedPool, 1)),
	}
	if err := w.started(ctx, pods...); err != nil {
		return err
	}
	// All virtual functions are taken now.
	next := newPod("next", ask(rdma.VF, "4"), requests(vfPool, 4))
	if _, err := w.create(ctx, next); err != nil {
		return err
	}
	if err := w.waits(ctx, next, time.Second); err != nil {
		return err
	}
	if err := w.remove(ctx, pods...); err != nil {
		return err
	}
	if err := w.phase(ctx, next, corev1.PodRunning); err != nil {
		return err
	}
	return w.remove(ctx, next)
}

func own(text string, count int) change {
	return func(p *corev1.Pod) {
		p.Annotations[rdma.NetworksAnnotation] = text
		p.Labels[ownNetworksLabel] = strconv.Itoa(count)
	}
}

func ownNetworksStay(ctx context.Context, w *world) error {
	pods := []*corev1.Pod{
		newPod("short", ask(rdma.VF, "1"), own("own@mine, own", 2)),
		newPod("json", ask(rdma.VF, "2"), own(`[{"name":"own","interface":"mine","mac":"02:00:00:00:00:0a"}]`, 1)),
	}
	if err := w.started(ctx, pods...); err != nil {
		return err
	}
	return w.remove(ctx, pods...)
}

func tenantsSideBySide(ctx context.Context, w *world) error {
	pods := []*corev1.Pod{
		newPod("ours", ask(rdma.VF, "2")),
		newPod("theirs", of(tenantB), ask(rdma.VF, "2")),
	}
	if err := w.started(ctx, pods...); err != nil {
		return err
	}
	if err := w.remove(ctx, pods[0]); err != nil {
		return err
	}
	if err := w.gone(ctx, pods[0]); err != nil {
		return err
	}
	if err := w.allocated(ctx, pods[1]); err != nil {
		return fmt.Errorf("the other tenant's pod: %w", err)
	}
	return w.remove(ctx, pods[1])
}

// initContainersAndSidecars: an init container's devices are used again by the containers; a sidecar's are its own.
func initContainersAndSidecars(ctx context.Context, w *world) error {
	withInit := newPod("with-init", ask(rdma.VF, "2"), func(p *corev1.Pod) {
		init := workload("-run", "200ms")
		init.Name, init.Resources = "init", devices(vfPool, 1)
		p.Spec.InitContainers = []corev1.Container{init}
	})
	withSidecar := newPod("with-sidecar", ask(rdma.VF, "2"), func(p *corev1.Pod) {
		sidecar := workload()
		sidecar.Name, sidecar.Resources = "sidecar", devices(vfPool, 1)
		sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		p.Spec.InitContainers = []corev1.Container{sidecar}
	})
	if err := w.started(ctx, withInit, withSidecar); err != nil {
		return err
	}
	for _, pod := range []*corev1.Pod{withInit, withSidecar} {
		now, err := w.get(ctx, pod)
		if err != nil {
			return err
		}
		if total := rdma.Requests(now)[vfPool]; total.Value() != 2 {
			return fmt.Errorf("pod %s is charged %s devices", pod.Name, total.String())
		}
	}
	return w.remove(ctx, withInit, withSidecar)
}

// endsByItself: a finished pod's networks are given back although nobody deletes the pod.
func endsByItself(ctx context.Context, w *world) error {
	pod := newPod("finite", ask(rdma.VF, "4"), args("-run", "1s"))
	if _, err := w.create(ctx, pod); err != nil {
		return err
	}
	if err := w.phase(ctx, pod, corev1.PodSucceeded); err != nil {
		return err
	}
	err := eventually(ctx, "its networks are given back", func(ctx context.Context) error {
		if err := w.allocated(ctx, pod); err == nil {
			return errors.New("the allocation is there")
		}
		return nil
	})
	if err != nil {
		return err
	}
	next := newPod("next", ask(rdma.VF, "4"))
	if err := w.started(ctx, next); err != nil {
		return err
	}
	return w.remove(ctx, pod, next)
}

// lingering: the container goes on for 10 s of its 20 s of grace, and with it devices and networks are taken.
func lingering(ctx context.Context, w *world) error {
	const linger = 10 * time.Second
	pod := newPod("lingering", ask(rdma.VF, "4"), grace(20), args("-linger", linger.String()))
	if err := w.started(ctx, pod); err != nil {
		return err
	}
	next := newPod("next", ask(rdma.VF, "4"), requests(vfPool, 4))
	if _, err := w.create(ctx, next); err != nil {
		return err
	}
	unplaced := func(ctx context.Context) error { return w.unplaced(ctx, next) }
	if err := eventually(ctx, "pod next waits", unplaced); err != nil {
		return err
	}
	placed, err := w.get(ctx, pod)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := w.remove(ctx, pod); err != nil {
		return err
	}
	if err := w.keepsUntilItsEnd(ctx, placed, unplaced); err != nil {
		return err
	}
	if took := time.Since(begun); took < linger {
		return fmt.Errorf("its container ended after %s, not after %s", took, linger)
	}
	if err := w.phase(ctx, next, corev1.PodRunning); err != nil {
		return err
	}
	return w.remove(ctx, next)
}

// keepsUntilItsEnd makes sure that a pod has its networks, and that something else is so, for as long as the node runs a
// container of it.
func (w *world) keepsUntilItsEnd(ctx context.Context, pod *corev1.Pod, others func(context.Context) error) error {
	var early error
	err := eventually(ctx, "the container of pod "+pod.Name+" ends", func(ctx context.Context) error {
		// In this order: what is missing before the container is seen to run is missing too early.
		missing := errors.Join(others(ctx), w.allocated(ctx, pod))
		running, err := w.node.Running(ctx)
		if err != nil {
			return err
		}
		if !running[pod.UID] {
			return nil
		}
		if missing != nil {
			early = fmt.Errorf("while its container runs: %w", missing)
			return nil
		}
		return errors.New("it runs")
	})
	return errors.Join(err, early)
}

// rollingOver: each new pod needs a device that an old one still holds while it ends.
func rollingOver(ctx context.Context, w *world) error {
	deployments := w.client.AppsV1().Deployments(tenantA)
	object := deployment("rolling", 4, ask(rdma.VF, "1"), requests(vfPool, 1), grace(5), args("-linger", "2s"))
	if _, err := deployments.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	for round := range 3 {
		if err := w.rolledOut(ctx, object.Name); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"labels":{"round":"%d"}}}}}`, round)
		if _, err := deployments.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	if err := w.rolledOut(ctx, object.Name); err != nil {
		return err
	}
	return deployments.Delete(ctx, object.Name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
}

func (w *world) rolledOut(ctx context.Context, name string) error {
	return eventually(ctx, "deployment "+name+" is rolled out", func(ctx context.Context) error {
		now, err := w.client.AppsV1().Deployments(tenantA).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s, want := now.Status, *now.Spec.Replicas
		if s.ObservedGeneration < now.Generation || s.UpdatedReplicas != want || s.AvailableReplicas != want || s.Replicas != want {
			return fmt.Errorf("its status is %+v", s)
		}
		return nil
	})
}

func jobs(ctx context.Context, w *world) error {
	fifty, err := w.createJob(ctx, tenantA, "fifty", 50, ask(rdma.VF, "1"), requests(vfPool, 1), args("-run", "300ms"))
	if err != nil {
		return err
	}
	twenty, err := w.createJob(ctx, tenantB, "twenty", 20, ask(rdma.VF, "1"), requests(vfPool, 1), args("-run", "300ms"))
	if err != nil {
		return err
	}
	return w.jobsDone(ctx, fifty, twenty)
}
