package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// set is a workload: a Deployment, a StatefulSet or a Job.
type set struct {
	kind, namespace, name string
	replicas              int32
}

const (
	deployment  = "Deployment"
	statefulSet = "StatefulSet"
	job         = "Job"
)

// most is the number of workloads at a time.
const most = 8

func (s *set) key() string { return s.kind + " " + s.namespace + "/" + s.name }

func (d *driver) createSet(ctx context.Context) bool {
	if len(d.sets) >= most {
		return false
	}
	s := &set{
		kind: []string{deployment, statefulSet, job}[d.rng.IntN(3)], namespace: namespaces[d.rng.IntN(len(namespaces))],
		replicas: int32(d.draw(1, 6)), name: fmt.Sprintf("w%04d", d.now),
	}
	annotations := map[string]string{rdma.VFAnnotation: strconv.Itoa(d.draw(1, 2)), "devcluster/stop-seconds": strconv.Itoa(d.draw(0, 3))}
	if s.kind == job {
		annotations["devcluster/run-seconds"] = strconv.Itoa(d.draw(1, 6))
	}
	d.sets = append(d.sets, s)
	replicas := s.replicas
	d.do(ctx, s.key(), fmt.Sprintf("create with %d replicas, %v", replicas, annotations), func(ctx context.Context) error {
		return ignore(apierrors.IsAlreadyExists, d.createWorkload(ctx, s, replicas, annotations))
	})
	return true
}

func ignore(what func(error) bool, err error) error {
	if what(err) {
		return nil
	}
	return err
}

func (d *driver) createWorkload(ctx context.Context, s *set, replicas int32, annotations map[string]string) error {
	meta := metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}
	labels := map[string]string{"app": s.name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}, TerminationGracePeriodSeconds: new(int64(4))}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	var err error
	switch s.kind {
	case deployment:
		_, err = d.client.AppsV1().Deployments(s.namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template}}, metav1.CreateOptions{})
	case statefulSet:
		_, err = d.client.AppsV1().StatefulSets(s.namespace).Create(ctx, &appsv1.StatefulSet{ObjectMeta: meta,
			Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: template, ServiceName: s.name,
				PodManagementPolicy: appsv1.ParallelPodManagement}}, metav1.CreateOptions{})
	default:
		template.Labels = nil
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		_, err = d.client.BatchV1().Jobs(s.namespace).Create(ctx, &batchv1.Job{ObjectMeta: meta,
			Spec: batchv1.JobSpec{Parallelism: &replicas, Completions: new(2 * replicas), Template: template}}, metav1.CreateOptions{})
	}
	return err
}

// scaleSet changes the number of replicas, or how many of a Job's pods run at a time.
func (d *driver) scaleSet(ctx context.Context) bool {
	if len(d.sets) == 0 {
		return false
	}
	s := d.sets[d.rng.IntN(len(d.sets))]
	s.replicas = int32(d.draw(0, 8))
	field := "replicas"
	if s.kind == job {
		field = "parallelism"
	}
	change, err := json.Marshal(map[string]any{"spec": map[string]any{field: s.replicas}})
	if err != nil {
		return false
	}
	d.do(ctx, s.key(), fmt.Sprintf("scale to %d", s.replicas), func(ctx context.Context) error {
		var err error
		switch s.kind {
		case deployment:
			_, err = d.client.AppsV1().Deployments(s.namespace).Patch(ctx, s.name, types.MergePatchType, change, metav1.PatchOptions{})
		case statefulSet:
			_, err = d.client.AppsV1().StatefulSets(s.namespace).Patch(ctx, s.name, types.MergePatchType, change, metav1.PatchOptions{})
		default:
			_, err = d.client.BatchV1().Jobs(s.namespace).Patch(ctx, s.name, types.MergePatchType, change, metav1.PatchOptions{})
		}
		return err
	})
	return true
}

// deleteSetPod deletes a pod of a StatefulSet, which then makes another of the same name.
func (d *driver) deleteSetPod(ctx context.Context) bool {
	var candidates []*set
	for _, s := range d.sets {
		if s.kind == statefulSet && s.replicas > 0 {
			candidates = append(candidates, s)
		}
	}
	if len(candidates) == 0 {
		return false
	}
	s := candidates[d.rng.IntN(len(candidates))]
	name, grace := fmt.Sprintf("%s-%d", s.name, d.rng.IntN(int(s.replicas))), int64(d.draw(0, 4))
	d.do(ctx, s.namespace+"/"+name, fmt.Sprintf("delete a StatefulSet's pod, grace %ds", grace), func(ctx context.Context) error {
		return d.deleteNamed(ctx, s.namespace, name, grace)
	})
	return true
}

func (d *driver) deleteSet(ctx context.Context) bool {
	if len(d.sets) == 0 {
		return false
	}
	i := d.rng.IntN(len(d.sets))
	s := d.sets[i]
	d.sets = append(d.sets[:i:i], d.sets[i+1:]...)
	d.removeSet(ctx, s)
	return true
}

func (d *driver) removeSet(ctx context.Context, s *set) {
	options := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	d.do(ctx, s.key(), "delete", func(ctx context.Context) error {
		var err error
		switch s.kind {
		case deployment:
			err = d.client.AppsV1().Deployments(s.namespace).Delete(ctx, s.name, options)
		case statefulSet:
			err = d.client.AppsV1().StatefulSets(s.namespace).Delete(ctx, s.name, options)
		default:
			err = d.client.BatchV1().Jobs(s.namespace).Delete(ctx, s.name, options)
		}
		return ignore(apierrors.IsNotFound, err)
	})
}

// removeEverything deletes all workloads and all pods.
func (d *driver) removeEverything(ctx context.Context) error {
	d.now++
	for _, s := range d.sets {
		d.removeSet(ctx, s)
	}
	d.sets, d.pods = nil, nil
	d.pending.Wait()
	return d.until(ctx, "all pods are gone", settleLimit, func(ctx context.Context) error {
		left := 0
		for _, namespace := range namespaces {
			list, err := d.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			left += len(list.Items)
			for i := range list.Items {
				if list.Items[i].DeletionTimestamp == nil {
					if err := d.deleteNamed(ctx, namespace, list.Items[i].Name, 2); err != nil {
						return err
					}
				}
			}
			if err := d.repeatLastWord(ctx, list.Items); err != nil {
				return err
			}
		}
		if left > 0 {
			return fmt.Errorf("%d pods are left", left)
		}
		return nil
	})
}

// repeatLastWord deletes again what the API server had half deleted when its store went away: grace 0 and no finalizer,
// and the object still there. A kubelet repeats its DELETE until the object is gone, kwok's stage does not.
func (d *driver) repeatLastWord(ctx context.Context, pods []corev1.Pod) error {
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp == nil || len(pod.Finalizers) > 0 || !terminal(pod) || pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds != 0 {
			continue
		}
		if err := d.deleteNamed(ctx, pod.Namespace, pod.Name, 0); err != nil {
			return err
		}
	}
	return nil
}
