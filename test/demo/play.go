package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/yaml"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

const namespace = "tenant-a"

var nads = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// play is the demonstration, with what it saw.
type play struct {
	cluster  *devcluster.Cluster
	client   kubernetes.Interface
	metadata metadata.Interface
	mock     *tenant.Client
	id       string
	out      io.Writer

	pods     int
	networks []string
	released int
	leaked   int
}

func newPlay(ctx context.Context, cluster *devcluster.Cluster, out io.Writer) (*play, error) {
	p := &play{cluster: cluster, client: cluster.Client(), out: out}
	var err error
	if p.metadata, err = metadata.NewForConfig(cluster.AdminConfig()); err != nil {
		return p, err
	}
	if p.mock, err = tenant.New(tenant.Config{URL: cluster.MockURL()}); err != nil {
		return p, err
	}
	system, err := p.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return p, err
	}
	p.id = string(system.UID)
	return p, nil
}

func (p *play) sayf(format string, args ...any) { fmt.Fprintf(p.out, "\n# "+format+"\n", args...) }

// all plays the scenes in order.
func (p *play) all(ctx context.Context) error {
	for _, scene := range []func(context.Context) error{p.create, p.refuse, p.show, p.end, p.count} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *play) verdict() string {
	return fmt.Sprintf("demo: ok pods=%d networks=%d released=%d leaked=%d", p.pods, len(p.networks), p.released, p.leaked)
}

func (p *play) create(ctx context.Context) error {
	p.sayf("Namespace %s is labelled %s=%s. A tenant creates a Deployment of 3 pods with %s: \"1\", a Job of 2 pods\n"+
		"# with %s: \"2\", a pod with %s: \"1\", and a plain pod.", namespace, rdma.NamespaceLabel, rdma.NamespaceLabelValue,
		rdma.VFAnnotation, rdma.VFAnnotation, rdma.PFAnnotation)
	return p.cluster.Apply(ctx, []byte(workloads), func(object *unstructured.Unstructured) (bool, error) {
		fmt.Fprintf(p.out, "%s/%s created\n", strings.ToLower(object.GetKind()), object.GetName())
		return true, nil
	})
}

func (p *play) refuse(ctx context.Context) error {
	p.sayf("A count that is no whole number is refused where it enters:")
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(badPod), pod); err != nil {
		return err
	}
	_, err := p.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		return fmt.Errorf("the pod with rdma.vf: \"1.5\" was not refused: %w", err)
	}
	fmt.Fprintln(p.out, err)
	return nil
}

// show waits until all pods run and prints what they got.
func (p *play) show(ctx context.Context) error {
	p.sayf("What the webhook chose, where the scheduler placed it, and what the tenant-controller gave:")
	var list *corev1.PodList
	err := p.until(ctx, "all pods run", func(ctx context.Context) (bool, error) {
		var err error
		list, err = p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		running := err == nil && len(list.Items) == 7
		for i := range list.Items {
			running = running && list.Items[i].Status.Phase == corev1.PodRunning
		}
		return running, err
	})
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "POD\tPOOL\tNODE\tNETWORKS")
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for i := range list.Items {
		if err := p.row(table, &list.Items[i]); err != nil {
			return err
		}
	}
	return table.Flush()
}

// row prints one pod and notes its networks.
func (p *play) row(table io.Writer, pod *corev1.Pod) error {
	assignment, ours := rdma.Ours(pod)
	if !ours {
		if len(pod.Finalizers) > 0 || pod.Spec.SchedulerName != rdma.DefaultSchedulerName {
			return fmt.Errorf("the plain pod %s was touched", pod.Name)
		}
		fmt.Fprintf(table, "%s\t-\t%s\t- (untouched, placed by %s)\n", pod.Name, pod.Spec.NodeName, pod.Spec.SchedulerName)
		return nil
	}
	networks, err := rdma.ParseNetworks(pod.Annotations[rdma.NetworksAnnotation], pod.Namespace)
	if err != nil {
		return err
	}
	if int64(networks.Len()) != assignment.Devices() {
		return fmt.Errorf("pod %s has %d networks for %d devices", pod.Name, networks.Len(), assignment.Devices())
	}
	p.pods++
	for _, network := range networks.Elements() {
		p.networks = append(p.networks, network.Name)
	}
	fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", pod.Name, pod.Annotations[rdma.ResourcePoolAnnotation], pod.Spec.NodeName, networks)
	return nil
}

// end lets the Job finish and deletes everything.
func (p *play) end(ctx context.Context) error {
	p.sayf("The Job's pods finish: their networks go back at once, though nobody deletes them.")
	var left []tenant.Allocation
	err := p.until(ctx, "the Job is complete and its networks are released", func(ctx context.Context) (bool, error) {
		job, err := p.client.BatchV1().Jobs(namespace).Get(ctx, "train", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		left, err = p.mock.List(ctx, p.id)
		return job.Status.Succeeded == 2 && len(left) == 4, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "job/train has succeeded; allocations left: %d, of the Deployment and the pod\n", len(left))
	p.sayf("The tenant deletes the rest.")
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	if err := p.client.AppsV1().Deployments(namespace).Delete(ctx, "serve", options); err != nil {
		return err
	}
	if err := p.client.BatchV1().Jobs(namespace).Delete(ctx, "train", options); err != nil {
		return err
	}
	for _, name := range []string{"physical", "plain"} {
		if err := p.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return p.until(ctx, "all pods are gone", func(ctx context.Context) (bool, error) {
		list, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
}

// count looks for what was left behind, at the tenant-controller and in the cluster.
func (p *play) count(ctx context.Context) error {
	allocations, err := p.mock.List(ctx, p.id)
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, allocation := range allocations {
		for _, network := range allocation.Networks {
			left[network.Name] = true
		}
	}
	definitions, err := p.metadata.Resource(nads).List(ctx, metav1.ListOptions{LabelSelector: rdma.PodUIDLabel})
	if err != nil {
		return err
	}
	for _, definition := range definitions.Items {
		left[definition.Name] = true
	}
	p.leaked = len(left)
	for _, name := range p.networks {
		if !left[name] {
			p.released++
		}
	}
	p.sayf("Left at the tenant-controller: %d allocations. Left in the cluster: %d NetworkAttachmentDefinitions.", len(allocations), len(definitions.Items))
	if p.leaked > 0 {
		return fmt.Errorf("%d networks leaked", p.leaked)
	}
	return nil
}

// until waits for a condition.
func (p *play) until(ctx context.Context, what string, condition wait.ConditionWithContextFunc) error {
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, condition)
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}
