package devcluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	schedulerConfigMap = "tenant-scheduler-config"
	schedulerConfigKey = "scheduler-config.yaml"
	featureGatesFlag   = "--feature-gates="
)

// skippedKinds make no sense without container images and a cluster network, or belong to tools that a development
// cluster has not.
var skippedKinds = []string{
	"Deployment", "DaemonSet", "Service", "PodDisruptionBudget", "NetworkPolicy",
	"Kustomization", "ServiceMonitor", "PodMonitor", "PrometheusRule",
}

// manifestSet is every object of the project's manifests, namespaces first.
type manifestSet []*unstructured.Unstructured

// loadManifests reads manifests/*.yaml and mock/*.yaml.
func loadManifests(files fs.FS) (manifestSet, error) {
	var set manifestSet
	for _, pattern := range []string{"manifests/*.yaml", "mock/*.yaml"} {
		names, err := fs.Glob(files, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			data, err := fs.ReadFile(files, name)
			if err != nil {
				return nil, fmt.Errorf("manifest %s: %w", name, err)
			}
			objects, err := decode(data)
			if err != nil {
				return nil, fmt.Errorf("manifest %s: %w", name, err)
			}
			set = append(set, objects...)
		}
	}
	if len(set) == 0 {
		return nil, errors.New("no manifests found")
	}
	slices.SortStableFunc(set, func(a, b *unstructured.Unstructured) int { return applyRank(a) - applyRank(b) })
	return set, nil
}

// applyRank puts first what others need: namespaces, then definitions.
func applyRank(object *unstructured.Unstructured) int {
	switch object.GetKind() {
	case "Namespace":
		return 0
	case "CustomResourceDefinition":
		return 1
	default:
		return 2
	}
}

func isWebhookConfiguration(object *unstructured.Unstructured) bool {
	return strings.HasSuffix(object.GetKind(), "WebhookConfiguration")
}

func notWebhookConfiguration(object *unstructured.Unstructured) bool {
	return !isWebhookConfiguration(object)
}

// applyManifests applies the objects that belong to this step.
func (c *Cluster) applyManifests(ctx context.Context, set manifestSet, belongs func(*unstructured.Unstructured) bool) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	for _, shipped := range set {
		if !belongs(shipped) || slices.Contains(skippedKinds, shipped.GetKind()) {
			continue
		}
		object := shipped.DeepCopy()
		if isWebhookConfiguration(object) {
			if err := c.redirect(object); err != nil {
				return fmt.Errorf("%s: %w", describe(object), err)
			}
		}
		if c.config.Transform != nil {
			keep, err := c.config.Transform(object)
			if err != nil {
				return fmt.Errorf("%s: %w", describe(object), err)
			}
			if !keep {
				continue
			}
		}
		if err := c.applyOne(ctx, object); err != nil {
			return fmt.Errorf("apply %s: %w", describe(object), err)
		}
	}
	return nil
}

// redirect points webhooks at the balancer. What is shipped calls a Service: that stays, at the balancer's port, and
// exposeBalancer makes a Service without a network. With certificates from files it is a URL, which their names fit. The
// path stays in any case.
func (c *Cluster) redirect(object *unstructured.Unstructured) error {
	webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, entry := range webhooks {
		webhook, ok := entry.(map[string]any)
		if !ok {
			return errors.New("a webhook is no object")
		}
		service, _, err := unstructured.NestedMap(webhook, "clientConfig", "service")
		if err != nil {
			return err
		}
		if !c.config.WebhookCertFiles {
			service["port"] = int64(c.port.balancer)
			webhook["clientConfig"] = map[string]any{"service": service}
			continue
		}
		servicePath, _, err := unstructured.NestedString(service, "path")
		if err != nil {
			return err
		}
		webhook["clientConfig"] = map[string]any{
			"url":      c.WebhookURL() + path.Join("/", servicePath),
			"caBundle": base64.StdEncoding.EncodeToString(c.ca.pem),
		}
	}
	return unstructured.SetNestedSlice(object.Object, webhooks, "webhooks")
}

// exposeBalancer makes the Service that webhooks call. The API server resolves one of type ExternalName by itself
// (k8s.io/apiserver/pkg/util/proxy, ResolveCluster), so it needs no network, and verifies the certificate by the
// Service's name as in any cluster.
func (c *Cluster) exposeBalancer(ctx context.Context) error {
	return c.applyOne(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"name": Webhook, "namespace": systemNamespace},
		"spec":     map[string]any{"type": "ExternalName", "externalName": "127.0.0.1"},
	}})
}

// writeSchedulerConfig writes the shipped scheduler configuration as a file that works outside of a Pod.
func (c *Cluster) writeSchedulerConfig(set manifestSet, file string) error {
	config, err := set.schedulerConfig()
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(config, c.kubeconfigOf(TenantScheduler), "clientConnection", "kubeconfig"); err != nil {
		return fmt.Errorf("scheduler configuration: %w", err)
	}
	if !c.config.LeaderElect {
		if err := unstructured.SetNestedField(config, false, "leaderElection", "leaderElect"); err != nil {
			return fmt.Errorf("scheduler configuration: %w", err)
		}
	}
	if c.config.SchedulerConfigPatch != nil {
		if err := c.config.SchedulerConfigPatch(config); err != nil {
			return fmt.Errorf("scheduler configuration: %w", err)
		}
	}
	data, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("scheduler configuration: %w", err)
	}
	return os.WriteFile(file, data, 0o644)
}

// schedulerConfig is the KubeSchedulerConfiguration in the shipped ConfigMap.
func (s manifestSet) schedulerConfig() (map[string]any, error) {
	for _, object := range s {
		if object.GetKind() != "ConfigMap" || object.GetName() != schedulerConfigMap {
			continue
		}
		text, _, err := unstructured.NestedString(object.Object, "data", schedulerConfigKey)
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %s: %w", schedulerConfigMap, err)
		}
		config := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
			return nil, fmt.Errorf("ConfigMap %s, %s: %w", schedulerConfigMap, schedulerConfigKey, err)
		}
		if len(config) == 0 {
			return nil, fmt.Errorf("ConfigMap %s has no %s", schedulerConfigMap, schedulerConfigKey)
		}
		return config, nil
	}
	return nil, fmt.Errorf("no ConfigMap %s in the manifests", schedulerConfigMap)
}

// schedulerFeatureGates are those that the shipped Deployment gives to the scheduler, as its flag has them: the gates
// that users get are the ones to develop with.
func (s manifestSet) schedulerFeatureGates() string {
	for _, object := range s {
		if object.GetKind() != "Deployment" || object.GetName() != TenantScheduler {
			continue
		}
		containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		for _, entry := range containers {
			container, ok := entry.(map[string]any)
			if !ok {
				continue
			}
			command, _, _ := unstructured.NestedStringSlice(container, "command")
			args, _, _ := unstructured.NestedStringSlice(container, "args")
			for _, arg := range append(command, args...) {
				if gates, ok := strings.CutPrefix(arg, featureGatesFlag); ok {
					return gates
				}
			}
		}
	}
	return ""
}
