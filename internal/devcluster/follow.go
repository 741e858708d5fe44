package devcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const followInterval = 200 * time.Millisecond

// containers of the shipped Deployments, by name, and what runs in them.
var containers = map[string]string{"webhook": Webhook, "scheduler": TenantScheduler, "tenant-controller": Mock}

// program is one of the project's programs as the cluster wants it.
type program struct {
	account    string // service account
	generation int64  // of the Deployment: another one is another rollout
}

// follower runs the project's programs while the cluster has Deployments of them: the fake nodes run no containers, and
// whoever installs the project on this cluster shall find it at work.
type follower struct {
	cluster *Cluster
	running map[string]program
	told    string // the last trouble, which is not told twice
}

// follow starts the follower, if it is asked for.
func (c *Cluster) follow(ctx context.Context) error {
	if !c.config.FollowDeployments {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	c.stopFollowing = func() { cancel(); <-done }
	f := &follower{cluster: c, running: map[string]program{}}
	go func() {
		defer close(done)
		for {
			if err := f.reconcile(ctx); ctx.Err() == nil {
				f.tell(err)
			}
			select {
			case <-time.After(followInterval):
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

func (f *follower) tell(err error) {
	if err == nil {
		f.told = ""
	} else if text := err.Error(); text != f.told {
		f.told = text
		f.cluster.progressf("%s", text)
	}
}

// reconcile stops what is no longer wanted, and then starts what is missing or was changed. A program that does not
// start is tried again the next time.
func (f *follower) reconcile(ctx context.Context) error {
	// Before the Deployments are: a pod that is seen here is of no later generation than those.
	pods, err := f.cluster.client.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	deployments, err := f.cluster.client.AppsV1().Deployments(systemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Deployments: %w", err)
	}
	wanted := wantedPrograms(deployments.Items)
	var errs []error
	for name, running := range f.running {
		if wanted[name] != running {
			f.cluster.progressf("stopping %s", name)
			errs = append(errs, f.cluster.remove(name))
			delete(f.running, name)
		}
	}
	// The mock first: the others ask it.
	for _, name := range []string{Mock, Webhook, TenantScheduler} {
		want, isWanted := wanted[name]
		if _, isRunning := f.running[name]; !isWanted || isRunning {
			continue
		}
		if err := f.start(ctx, name, want); err != nil {
			errs = append(errs, err, f.cluster.remove(name))
			continue
		}
		f.running[name] = want
	}
	if len(errs) > 0 || len(f.running) < len(wanted) {
		return errors.Join(errs...)
	}
	return f.letRun(ctx, pods.Items)
}

// letRun tells kwok that what the pods stand for has started.
func (f *follower) letRun(ctx context.Context, pods []corev1.Pod) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, startedAnnotation)
	var errs []error
	for i := range pods {
		if _, told := pods[i].Annotations[startedAnnotation]; told {
			continue
		}
		_, err := f.cluster.client.CoreV1().Pods(systemNamespace).Patch(ctx, pods[i].Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("pod %s: %w", pods[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

func wantedPrograms(deployments []appsv1.Deployment) map[string]program {
	wanted := map[string]program{}
	for i := range deployments {
		deployment := &deployments[i]
		if deployment.DeletionTimestamp != nil || deployment.Spec.Replicas != nil && *deployment.Spec.Replicas == 0 {
			continue
		}
		pod := deployment.Spec.Template.Spec
		for j := range pod.Containers {
			if name, ours := containers[pod.Containers[j].Name]; ours {
				wanted[name] = program{account: pod.ServiceAccountName, generation: deployment.Generation}
			}
		}
	}
	return wanted
}

func (f *follower) start(ctx context.Context, name string, want program) error {
	c := f.cluster
	if err := c.writeTokenKubeconfig(ctx, name, want.account); err != nil {
		return err
	}
	switch name {
	case Mock:
		return c.run(ctx, c.mock())
	case Webhook:
		replicas, err := c.webhooks() //nolint:contextcheck // the balancer lives as long as the cluster
		if err != nil {
			return err
		}
		return c.run(ctx, replicas...)
	default:
		set, err := c.installedScheduler(ctx)
		if err != nil {
			return err
		}
		return c.startTenantScheduler(ctx, set)
	}
}

// installedScheduler is what tenant-scheduler finds in the cluster where otherwise the shipped manifests say it.
func (c *Cluster) installedScheduler(ctx context.Context) (manifestSet, error) {
	config, err := c.client.CoreV1().ConfigMaps(systemNamespace).Get(ctx, schedulerConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("tenant-scheduler's configuration: %w", err)
	}
	deployment, err := c.client.AppsV1().Deployments(systemNamespace).Get(ctx, TenantScheduler, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("tenant-scheduler's Deployment: %w", err)
	}
	var set manifestSet
	for kind, object := range map[string]any{"ConfigMap": config, "Deployment": deployment} {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetKind(kind)
		set = append(set, u)
	}
	return set, nil
}

// remove stops a component, all replicas of the webhook if it is that, and forgets it.
func (c *Cluster) remove(name string) error {
	names := []string{name}
	if name == Webhook {
		for i := range c.port.webhooks {
			names = append(names, WebhookReplica(i))
		}
	}
	c.mu.Lock()
	var gone []*process
	c.processes = slices.DeleteFunc(c.processes, func(p *process) bool {
		if slices.Contains(names, p.name) {
			gone = append(gone, p)
			return true
		}
		return false
	})
	c.mu.Unlock()
	var errs []error
	for _, p := range gone {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}
