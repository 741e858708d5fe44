package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	netclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/internal/devnode"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

const (
	tenantA = "tenant-a"
	tenantB = "tenant-b"
	nodeOne = "node-1"

	vfPool = corev1.ResourceName(devcluster.DefaultVFResource)
	pfPool = corev1.ResourceName(devcluster.DefaultPFResource)

	// patience bounds every wait: the machine may be busy.
	patience = 2 * time.Minute
	interval = 100 * time.Millisecond
)

// world is the cluster, its node, and what a scenario needs to act and to look.
type world struct {
	*devcluster.Cluster
	node   *devnode.Node
	client kubernetes.Interface
	nads   netclient.Interface
	mock   *tenant.Client
	id     string // of the cluster, as the tenant-controller knows it
	seen   *seen
	gate   *bindingGate

	inspections sync.WaitGroup
}

func newWorld(ctx context.Context, cluster *devcluster.Cluster, node *devnode.Node, gate *bindingGate) (*world, error) {
	w := &world{Cluster: cluster, node: node, seen: newSeen(), gate: gate}
	fast := rest.CopyConfig(cluster.AdminConfig())
	fast.QPS, fast.Burst = 1000, 2000
	var err error
	if w.client, err = kubernetes.NewForConfig(fast); err != nil {
		return nil, err
	}
	if w.nads, err = netclient.NewForConfig(fast); err != nil {
		return nil, err
	}
	if w.mock, err = tenant.New(tenant.Config{URL: cluster.MockURL()}); err != nil {
		return nil, err
	}
	system, err := w.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	w.id = string(system.UID)
	return w, w.makeOwnNetwork(ctx)
}

// ownNetwork is a network that the tenant itself made.
const ownNetwork = "own"

func (w *world) makeOwnNetwork(ctx context.Context) error {
	_, err := w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(tenantA).Create(ctx, &netv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: ownNetwork},
		Spec: netv1.NetworkAttachmentDefinitionSpec{Config: `{"cniVersion":"0.3.1","name":"own","type":"bridge","bridge":"own0",` +
			`"ipam":{"type":"host-local","subnet":"10.99.0.0/16"}}`},
	}, metav1.CreateOptions{})
	return err
}

// eventually waits for a condition, which may say why it does not hold yet.
func eventually(ctx context.Context, what string, condition func(context.Context) error) error {
	return advancing(ctx, what, func(ctx context.Context) (int32, error) { return 0, condition(ctx) })
}

// advancing is eventually for what takes many steps: the condition says how many are done, and patience bounds the time
// without another one.
func advancing(ctx context.Context, what string, condition func(context.Context) (int32, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	impatience := time.AfterFunc(patience, cancel)
	defer impatience.Stop()
	last, furthest := errors.New("never asked"), int32(0)
	for {
		done, err := condition(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if done > furthest {
			furthest = done
			impatience.Reset(patience)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, last)
		case <-time.After(interval):
		}
	}
}

// holds checks a condition for a while: it must be true all the time.
func holds(ctx context.Context, what string, during time.Duration, condition func(context.Context) error) error {
	end := time.After(during)
	for {
		if err := condition(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}

// workload is a pod's container that does nothing but exist.
func workload(args ...string) corev1.Container {
	return corev1.Container{Name: "main", Image: devnode.Image, Args: args}
}

type change func(*corev1.Pod)

// newPod is a pod of tenant A that runs until it is deleted, changed as the scenario needs it.
func newPod(name string, changes ...change) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: tenantA, Annotations: map[string]string{}, Labels: map[string]string{}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{workload()}, RestartPolicy: corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(3)),
		},
	}
	for _, c := range changes {
		c(pod)
	}
	return pod
}

func ask(t rdma.Type, count string) change {
	return func(p *corev1.Pod) { p.Annotations[t.Annotation()] = count }
}

func args(list ...string) change {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Args = list }
}

func grace(seconds int64) change {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

func of(namespace string) change { return func(p *corev1.Pod) { p.Namespace = namespace } }

// requests has the first container ask for devices itself, in both lists as the API wants it.
func requests(pool corev1.ResourceName, count int64) change {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources = devices(pool, count) }
}

func devices(pool corev1.ResourceName, count int64) corev1.ResourceRequirements {
	list := corev1.ResourceList{pool: *resource.NewQuantity(count, resource.DecimalSI)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func (w *world) create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return w.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
}

func (w *world) get(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return w.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
}

func (w *world) remove(ctx context.Context, pods ...*corev1.Pod) error {
	for _, pod := range pods {
		err := w.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// phase waits until the pod is in a phase.
func (w *world) phase(ctx context.Context, pod *corev1.Pod, want corev1.PodPhase) error {
	return eventually(ctx, fmt.Sprintf("pod %s is %s", pod.Name, want), func(ctx context.Context) error {
		now, err := w.get(ctx, pod)
		if err == nil && now.Status.Phase != want {
			err = fmt.Errorf("it is %s: %s %v", now.Status.Phase, now.Status.Message, now.Status.Conditions)
		}
		return err
	})
}

// started creates pods and waits until all run.
func (w *world) started(ctx context.Context, pods ...*corev1.Pod) error {
	for _, pod := range pods {
		if _, err := w.create(ctx, pod); err != nil {
			return err
		}
	}
	for _, pod := range pods {
		if err := w.phase(ctx, pod, corev1.PodRunning); err != nil {
			return err
		}
	}
	return nil
}

// waits makes sure that the pod was looked at and not placed, for a while.
func (w *world) waits(ctx context.Context, pod *corev1.Pod, during time.Duration) error {
	unplaced := func(ctx context.Context) error { return w.unplaced(ctx, pod) }
	if err := eventually(ctx, "pod "+pod.Name+" waits", unplaced); err != nil {
		return err
	}
	return holds(ctx, "pod "+pod.Name+" waits", during, unplaced)
}

// unplaced says whether the pod was looked at and not placed.
func (w *world) unplaced(ctx context.Context, pod *corev1.Pod) error {
	now, err := w.get(ctx, pod)
	if err != nil {
		return err
	}
	if now.Spec.NodeName != "" {
		return fmt.Errorf("it was placed on %s", now.Spec.NodeName)
	}
	refused := slices.ContainsFunc(now.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
	})
	if !refused {
		return errors.New("the scheduler has not said anything")
	}
	return nil
}

func (w *world) allocated(ctx context.Context, pod *corev1.Pod) error {
	now, err := w.get(ctx, pod)
	if err != nil {
		return err
	}
	allocation, err := w.mock.Get(ctx, w.id, now.UID)
	if err == nil && len(allocation.Networks) == 0 {
		err = errors.New("it has no networks")
	}
	return err
}

// gone waits until the object is away, and with it the finalizer.
func (w *world) gone(ctx context.Context, pod *corev1.Pod) error {
	return eventually(ctx, "pod "+pod.Name+" is gone", func(ctx context.Context) error {
		now, err := w.get(ctx, pod)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is %s with finalizers %v", now.Status.Phase, now.Finalizers)
		}
		return err
	})
}

// clear deletes all workloads and pods, as a user of a test that failed would.
func (w *world) clear(ctx context.Context) error {
	background := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	for _, namespace := range []string{tenantA, tenantB, metav1.NamespaceDefault} {
		err := errors.Join(
			w.client.AppsV1().Deployments(namespace).DeleteCollection(ctx, background, metav1.ListOptions{}),
			w.client.AppsV1().ReplicaSets(namespace).DeleteCollection(ctx, background, metav1.ListOptions{}),
			w.client.BatchV1().Jobs(namespace).DeleteCollection(ctx, background, metav1.ListOptions{}),
			w.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		)
		if err != nil {
			return err
		}
	}
	return w.allGone(ctx)
}

// allGone waits until no pod is left, on the API server and on the node, and no allocation.
func (w *world) allGone(ctx context.Context) error {
	return eventually(ctx, "nothing is left", func(ctx context.Context) error {
		for _, namespace := range []string{tenantA, tenantB, metav1.NamespaceDefault} {
			pods, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			if len(pods.Items) > 0 {
				return fmt.Errorf("%d pods are there, among them %s (%s)", len(pods.Items), pods.Items[0].Name, pods.Items[0].Status.Phase)
			}
		}
		allocations, err := w.mock.List(ctx, w.id)
		if err == nil && len(allocations) > 0 {
			err = fmt.Errorf("%d allocations are left, among them that of pod %s", len(allocations), allocations[0].Pod)
		}
		if err != nil {
			return err
		}
		return w.nodeEmpty(ctx)
	})
}

func (w *world) nodeEmpty(ctx context.Context) error {
	running, err := w.node.Running(ctx)
	if err == nil && len(running) > 0 {
		err = fmt.Errorf("containers of %d pods still run", len(running))
	}
	return err
}

func template(changes ...change) corev1.PodTemplateSpec {
	pod := newPod("", changes...)
	pod.Labels["app"] = "it"
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
}

func (w *world) createJob(ctx context.Context, namespace, name string, pods int32, changes ...change) (*batchv1.Job, error) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		Completions: &pods, Parallelism: &pods, Template: template(changes...),
	}}
	return w.client.BatchV1().Jobs(namespace).Create(ctx, job, metav1.CreateOptions{})
}

// jobsDone waits until jobs have had all their pods, and deletes them. They may share devices, so that a pod of one is
// what another waits for.
func (w *world) jobsDone(ctx context.Context, jobs ...*batchv1.Job) error {
	err := advancing(ctx, "jobs are complete", func(ctx context.Context) (succeeded int32, err error) {
		var missing []error
		for _, job := range jobs {
			now, err := w.client.BatchV1().Jobs(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
			if err != nil {
				return 0, err
			}
			succeeded += now.Status.Succeeded
			if now.Status.Failed > 0 {
				missing = append(missing, fmt.Errorf("%d pods of %s failed", now.Status.Failed, job.Name))
			}
			if want := *job.Spec.Completions; now.Status.Succeeded < want {
				missing = append(missing, fmt.Errorf("%d of %d pods of %s have succeeded", now.Status.Succeeded, want, job.Name))
			}
		}
		return succeeded, errors.Join(missing...)
	})
	if err != nil {
		return err
	}
	background := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	for _, job := range jobs {
		if err := w.client.BatchV1().Jobs(job.Namespace).Delete(ctx, job.Name, background); err != nil {
			return err
		}
	}
	return nil
}

func deployment(name string, replicas int32, changes ...change) *appsv1.Deployment {
	changes = append(changes, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways })
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: tenantA}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "it"}}, Template: template(changes...),
	}}
}
