package scheduler

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/pkg/plugin"
)

// effective is a profile with the scheduler's own defaults.
func effective(t *testing.T, ours bool) config.KubeSchedulerProfile {
	t.Helper()
	manifest, err := tenantwebhook.Manifests.ReadFile("manifests/scheduler-config.yaml")
	require.NoError(t, err)
	text, err := profile(manifest, ours)
	require.NoError(t, err)
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	require.NoError(t, err)
	decoded, ok := object.(*config.KubeSchedulerConfiguration)
	require.True(t, ok)
	require.Len(t, decoded.Profiles, 1)
	return decoded.Profiles[0]
}

// TestTheProfilesDifferInOurPluginAlone prints the difference, so that a figure can be judged.
func TestTheProfilesDifferInOurPluginAlone(t *testing.T) {
	require.Equal(t, plugin.Name, pluginName)
	with, without := effective(t, true), effective(t, false)
	fmt.Println("The profile that is shipped (+) beside the same without the plugin (-):\n" + cmp.Diff(without, with))

	bind := with.Plugins.Bind
	require.Equal(t, pluginName, bind.Enabled[0].Name)
	with.Plugins.Bind, without.Plugins.Bind = config.PluginSet{}, config.PluginSet{}
	for _, set := range []*config.PluginSet{&with.Plugins.MultiPoint, &with.Plugins.Filter, &with.Plugins.PostFilter} {
		var kept []config.Plugin
		for _, p := range set.Enabled {
			if p.Name != pluginName {
				kept = append(kept, p)
			}
		}
		set.Enabled = kept
	}
	var kept []config.PluginConfig
	for _, c := range with.PluginConfig {
		if c.Name != pluginName {
			kept = append(kept, c)
		}
	}
	with.PluginConfig = kept
	assert.Empty(t, cmp.Diff(without.PluginConfig, with.PluginConfig))
	assert.ElementsMatch(t, without.Plugins.MultiPoint.Enabled, with.Plugins.MultiPoint.Enabled)
	assert.ElementsMatch(t, without.Plugins.Filter.Enabled, with.Plugins.Filter.Enabled)
	assert.ElementsMatch(t, without.Plugins.PostFilter.Enabled, with.Plugins.PostFilter.Enabled)
	assert.Equal(t, without.SchedulerName, with.SchedulerName)
	assert.Equal(t, without.PercentageOfNodesToScore, with.PercentageOfNodesToScore)
}
