// Package scheduler runs Kubernetes' own scheduler_perf suite with the configuration that is shipped, or with the same
// profile without our plugin. The settings come from the environment; the program in pairs sets them.
package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// pluginName is pkg/plugin's, which only the tests link.
const pluginName = "TenantNetwork"

// profileOurs is the profile that is shipped; any other name means the same profile without our plugin.
const profileOurs = "ours"

// profile returns the scheduler configuration from the manifest that is shipped, with or without our plugin.
func profile(manifest []byte, ours bool) ([]byte, error) {
	var configMap corev1.ConfigMap
	if err := yaml.UnmarshalStrict(manifest, &configMap); err != nil {
		return nil, fmt.Errorf("manifest of the scheduler configuration: %w", err)
	}
	text := []byte(configMap.Data["scheduler-config.yaml"])
	if ours {
		return text, nil
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("scheduler configuration: %w", err)
	}
	profiles, _ := config["profiles"].([]any)
	for _, p := range profiles {
		if entry, ok := p.(map[string]any); ok && entry["schedulerName"] == rdma.SchedulerName {
			withoutPlugin(entry)
		}
	}
	return yaml.Marshal(config)
}

// withProbe adds the plugin that takes the time of the bindings.
func withProbe(config []byte) ([]byte, error) {
	return eachProfile(config, func(profile map[string]any) error {
		points, ok := profile["plugins"].(map[string]any)
		if !ok {
			return fmt.Errorf("scheduler configuration: profile %v names no plugins", profile["schedulerName"])
		}
		points["postBind"] = map[string]any{"enabled": []any{map[string]any{"name": probeName}}}
		return nil
	})
}

// withBatching takes away what keeps pods from being placed in batches: PodTopologySpread's default constraints depend on
// where all other pods are.
func withBatching(config []byte) ([]byte, error) {
	return eachProfile(config, func(profile map[string]any) error {
		list, _ := profile["pluginConfig"].([]any)
		profile["pluginConfig"] = append(list, map[string]any{"name": "PodTopologySpread",
			"args": map[string]any{"defaultingType": "List", "defaultConstraints": []any{}}})
		return nil
	})
}

func eachProfile(config []byte, change func(profile map[string]any) error) ([]byte, error) {
	var parsed map[string]any
	if err := yaml.Unmarshal(config, &parsed); err != nil {
		return nil, fmt.Errorf("scheduler configuration: %w", err)
	}
	profiles, _ := parsed["profiles"].([]any)
	for _, p := range profiles {
		profile, ok := p.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("scheduler configuration: %v is no profile", p)
		}
		if err := change(profile); err != nil {
			return nil, err
		}
	}
	return yaml.Marshal(parsed)
}

// probeName is the name of the plugin that takes the time.
const probeName = "Probe"

// withoutPlugin takes our plugin out of every list, and DefaultBinder back to its place.
func withoutPlugin(profile map[string]any) {
	drop := func(owner map[string]any, key string) {
		list, _ := owner[key].([]any)
		owner[key] = slices.DeleteFunc(list, func(item any) bool {
			entry, ok := item.(map[string]any)
			return ok && entry["name"] == pluginName
		})
	}
	drop(profile, "pluginConfig")
	points, _ := profile["plugins"].(map[string]any)
	delete(points, "bind")
	for _, point := range points {
		if set, ok := point.(map[string]any); ok {
			drop(set, "enabled")
		}
	}
}
