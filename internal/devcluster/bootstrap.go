package devcluster

import (
	"context"
	_ "embed"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
)

//go:embed crds/network-attachment-definitions.yaml
var nadCRD []byte

// connect makes the clients, and gives kwok its permissions before it asks for them.
func (c *Cluster) connect(ctx context.Context) error {
	var err error
	if c.client, err = kubernetes.NewForConfig(c.admin); err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfig(c.admin); err != nil {
		return err
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
	return c.Apply(ctx, kwokRBAC, nil)
}

// bootstrap makes what the cluster starts with besides the project's manifests.
func (c *Cluster) bootstrap(ctx context.Context) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if err := c.Apply(ctx, nadCRD, nil); err != nil {
		return err
	}
	for _, name := range c.config.TenantNamespaces {
		if err := c.createNamespace(ctx, name); err != nil {
			return err
		}
	}
	for _, node := range c.config.Nodes {
		if err := c.CreateNode(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.config.StartTimeout, fmt.Errorf("gave up after %s", c.config.StartTimeout))
}

func (c *Cluster) createNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{tenantLabel: tenantLabelVPC},
	}}
	_, err := c.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// CreateNode adds a node, as a kubelet does when it registers; kwok makes it Ready a moment later.
func (c *Cluster) CreateNode(ctx context.Context, node Node) error {
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("512Gi"),
		corev1.ResourcePods:   resource.MustParse("250"),
	}
	for name, text := range node.Extended {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return fmt.Errorf("node %s: %s %q: %w", node.Name, name, text, err)
		}
		resources[corev1.ResourceName(name)] = quantity
	}
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, Annotations: node.Annotations,
			Labels: map[string]string{corev1.LabelHostname: node.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"},
		},
		Spec:   corev1.NodeSpec{Taints: node.Taints},
		Status: corev1.NodeStatus{Capacity: resources, Allocatable: resources.DeepCopy()},
	}
	maps.Copy(object.Labels, node.Labels)
	if _, err := c.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create node %s: %w", node.Name, err)
	}
	return nil
}

// awaitReady waits for what follows from what was created: nodes that take pods, and the service accounts without which
// no pod is admitted.
func (c *Cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if c.config.with(Kwok) && c.config.with(ControllerManager) {
		for _, node := range c.config.Nodes {
			if err := eventually(ctx, "node "+node.Name+" to be ready", c.nodeReady(node)); err != nil {
				return err
			}
		}
	}
	if !c.config.with(ControllerManager) {
		return nil
	}
	for _, namespace := range append([]string{metav1.NamespaceDefault}, c.config.TenantNamespaces...) {
		err := eventually(ctx, "the service account of namespace "+namespace, func(ctx context.Context) (bool, error) {
			_, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
			return err == nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// nodeReady is when pods go there: besides the condition, the controller manager must have taken its not-ready taint off.
func (c *Cluster) nodeReady(want Node) func(context.Context) (bool, error) {
	_, unready := want.Annotations["devcluster/not-ready"]
	return func(ctx context.Context) (bool, error) {
		node, err := c.client.CoreV1().Nodes().Get(ctx, want.Name, metav1.GetOptions{})
		if err != nil || unready {
			return err == nil, err
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == corev1.TaintNodeNotReady {
				return false, nil
			}
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				return condition.Status == corev1.ConditionTrue, nil
			}
		}
		return false, nil
	}
}
