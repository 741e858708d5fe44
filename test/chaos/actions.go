package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// eventAnnotation tells whether a pod that is there already is the one that an earlier attempt created.
const eventAnnotation = "chaos/event"

const gate = "chaos/gate"

// pod is one that was asked for by itself. It stays in the model, whatever became of it, until its deletion is decided.
type pod struct {
	corev1.Pod
	gated bool
}

func (p *pod) key() string { return p.Namespace + "/" + p.Name }

// actions with their weights. Those that find nothing to act on create a pod instead.
var actions = []struct {
	weight int
	do     func(*driver, context.Context) bool
}{
	{34, (*driver).createPod},
	{4, (*driver).openGate},
	{13, (*driver).deletePod},
	{4, (*driver).forceDeletePod},
	{7, (*driver).recreatePod},
	{5, (*driver).evictPod},
	{4, (*driver).createSet},
	{9, (*driver).scaleSet},
	{5, (*driver).deleteSetPod},
	{2, (*driver).deleteSet},
	{4, (*driver).flapNode},
	{2, (*driver).cordonNode},
	{1, (*driver).deleteNode},
	{4, (*driver).resizeNode},
	{1, (*driver).unlabel},
	{1, (*driver).editPools},
}

func (d *driver) act(ctx context.Context) {
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	draw := d.rng.IntN(total)
	for _, a := range actions {
		if draw -= a.weight; draw < 0 {
			if !a.do(d, ctx) {
				d.createPod(ctx)
			}
			return
		}
	}
}

// draw returns a number from low to high.
func (d *driver) draw(low, high int) int { return low + d.rng.IntN(high-low+1) }

// chance is true in percent of 100 cases.
func (d *driver) chance(percent int) bool { return d.rng.IntN(100) < percent }

// createPod creates one of all sorts: three of four end by themselves, one in eight is gated.
func (d *driver) createPod(ctx context.Context) bool {
	p := &pod{}
	p.Namespace, p.Name = namespaces[d.rng.IntN(len(namespaces))], fmt.Sprintf("p%04d", d.now)
	p.Annotations = map[string]string{"devcluster/stop-seconds": strconv.Itoa(d.draw(0, 3))}
	switch draw := d.rng.IntN(20); {
	case draw < 10:
		p.Annotations[rdma.VFAnnotation] = "1"
	case draw < 13:
		p.Annotations[rdma.VFAnnotation] = strconv.Itoa(d.draw(2, 3))
	case draw < 16:
		p.Annotations[rdma.PFAnnotation] = "1"
	case draw < 19:
		p.Annotations[rdma.VFAnnotation], p.Annotations[rdma.PFAnnotation] = "1", "1"
	default: // a plain pod
	}
	switch d.rng.IntN(8) {
	case 0:
		p.Annotations[rdma.NetworksAnnotation] = "mine, other/theirs@user0"
	case 1:
		p.Annotations[rdma.NetworksAnnotation] = `[{"name":"mine","mac":"00:11:22:33:44:55"}]`
	}
	if d.chance(75) {
		p.Annotations["devcluster/run-seconds"] = strconv.Itoa(d.draw(1, 8))
		p.Annotations["devcluster/exit"] = strconv.Itoa(d.rng.IntN(2))
	}
	p.Spec = corev1.PodSpec{
		Containers: []corev1.Container{{Name: "app", Image: "app"}}, RestartPolicy: corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: new(int64(d.draw(1, 5))),
	}
	if p.gated = d.chance(12); p.gated {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gate}}
	}
	d.pods = append(d.pods, p)
	d.create(ctx, p)
	return true
}

func (d *driver) create(ctx context.Context, p *pod) {
	object := p.DeepCopy()
	object.Annotations[eventAnnotation] = strconv.Itoa(d.now)
	d.do(ctx, p.key(), fmt.Sprintf("create %v", object.Annotations), func(ctx context.Context) error {
		// Asked first: each create that fails after its admission keeps devices reserved for a while.
		have, err := d.client.CoreV1().Pods(object.Namespace).Get(ctx, object.Name, metav1.GetOptions{})
		switch {
		case err == nil && have.Annotations[eventAnnotation] == object.Annotations[eventAnnotation]:
			return nil // the answer was lost
		case err == nil:
			return errors.Join(fmt.Errorf("its predecessor is there, phase %s", have.Status.Phase), d.repeatLastWord(ctx, []corev1.Pod{*have}))
		case !apierrors.IsNotFound(err):
			return err
		}
		_, err = d.client.CoreV1().Pods(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

// takePod draws a pod of the model, and takes it out.
func (d *driver) takePod(keep bool) *pod {
	if len(d.pods) == 0 {
		return nil
	}
	i := d.rng.IntN(len(d.pods))
	p := d.pods[i]
	if !keep {
		d.pods = append(d.pods[:i:i], d.pods[i+1:]...)
	}
	return p
}

func (d *driver) remove(ctx context.Context, p *pod, grace int64, text string) {
	d.do(ctx, p.key(), fmt.Sprintf("%s, grace %ds", text, grace), func(ctx context.Context) error {
		return d.deleteNamed(ctx, p.Namespace, p.Name, grace)
	})
}

func (d *driver) deleteNamed(ctx context.Context, namespace, name string, grace int64) error {
	err := d.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (d *driver) deletePod(ctx context.Context) bool {
	p, grace := d.takePod(false), int64(d.draw(1, 5))
	if p != nil {
		d.remove(ctx, p, grace, "delete")
	}
	return p != nil
}

func (d *driver) forceDeletePod(ctx context.Context) bool {
	p := d.takePod(false)
	if p != nil {
		d.remove(ctx, p, 0, "delete by force")
	}
	return p != nil
}

// recreatePod deletes a pod and creates it again under its name, as soon as that is free.
func (d *driver) recreatePod(ctx context.Context) bool {
	p, grace := d.takePod(true), int64(d.draw(0, 3))
	if p == nil {
		return false
	}
	d.remove(ctx, p, grace, "delete to create again")
	p.gated = len(p.Spec.SchedulingGates) > 0
	d.create(ctx, p)
	return true
}

func (d *driver) evictPod(ctx context.Context) bool {
	p := d.takePod(false)
	if p == nil {
		return false
	}
	d.do(ctx, p.key(), "evict", func(ctx context.Context) error {
		err := d.client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return true
}

// openGate ungates the first pod that is gated.
func (d *driver) openGate(ctx context.Context) bool {
	for _, p := range d.pods {
		if p.gated {
			d.ungate(ctx, p)
			return true
		}
	}
	return false
}

func (d *driver) ungate(ctx context.Context, p *pod) {
	p.gated = false
	d.do(ctx, p.key(), "remove the scheduling gate", func(ctx context.Context) error {
		err := d.patchPod(ctx, p, map[string]any{"spec": map[string]any{"schedulingGates": []any{}}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (d *driver) patchPod(ctx context.Context, p *pod, change any) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = d.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// unlabel takes a namespace out for a few events: pods created there meanwhile are plain ones.
func (d *driver) unlabel(ctx context.Context) bool {
	namespace := namespaces[d.rng.IntN(len(namespaces))]
	if _, is := d.unlabelled[namespace]; is {
		return false
	}
	d.label(ctx, namespace, false)
	d.after(d.draw(5, 15), func() { d.label(ctx, namespace, true) })
	return true
}

func (d *driver) label(ctx context.Context, namespace string, on bool) {
	var value any
	var from time.Time
	if on {
		value, from = rdma.NamespaceLabelValue, d.unlabelled[namespace]
		delete(d.unlabelled, namespace)
	} else {
		d.unlabelled[namespace] = time.Now()
	}
	d.do(ctx, namespace, fmt.Sprintf("label %s=%v", rdma.NamespaceLabel, value), func(ctx context.Context) error {
		err := d.labelNamespace(ctx, namespace, map[string]any{rdma.NamespaceLabel: value})
		if err == nil && on {
			d.add(event{Kind: unlabelled, Source: fromDriver, From: from, To: time.Now(), Pod: namespace})
		}
		return err
	})
}

func (d *driver) labelNamespace(ctx context.Context, namespace string, labels map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	_, err = d.client.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// editPools changes the pool configuration for a while, or makes an edit that is refused.
func (d *driver) editPools(ctx context.Context) bool {
	if d.poolsMoved {
		return false
	}
	d.poolsMoved = true
	d.setPools(ctx, poolOrders[d.draw(1, len(poolOrders)-1)])
	d.after(d.draw(10, 40), func() { d.setPools(ctx, poolOrders[0]); d.poolsMoved = false })
	return true
}

func (d *driver) setPools(ctx context.Context, text string) {
	const namespace, name, key = "webhook-system", "resource-pool-config", "resource-pools"
	d.do(ctx, namespace+"/"+name, fmt.Sprintf("set %q", text), func(ctx context.Context) error {
		patch, err := json.Marshal(map[string]any{"data": map[string]any{key: text}})
		if err != nil {
			return err
		}
		_, err = d.client.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}
