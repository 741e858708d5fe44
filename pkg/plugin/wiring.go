package plugin

import (
	"errors"
	"fmt"

	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// checkWiring makes sure that the profile runs this plugin where it must run. It can only be called when the framework
// is complete, not in New. What is wrong here would bind pods without their networks: a Bind plugin that is enabled
// through multiPoint alone comes after DefaultBinder and never runs.
func checkWiring(handle fwk.Handle) error {
	plugins, err := enabled(handle)
	if err != nil {
		return err
	}
	if bind := plugins.Bind.Enabled; len(bind) == 0 || bind[0].Name != Name {
		return fmt.Errorf("plugin %s must be the first at bind, but the profile %q runs %v: disable DefaultBinder at bind and enable [%s, DefaultBinder]",
			Name, handle.ProfileName(), names(bind), Name)
	}
	if preBind := plugins.PreBind.Enabled; len(preBind) == 0 || preBind[len(preBind)-1].Name != Name {
		return fmt.Errorf("plugin %s must be the last at preBind, but the profile %q runs %v", Name, handle.ProfileName(), names(preBind))
	}
	for _, extender := range handle.Extenders() {
		if extender.IsBinder() {
			return fmt.Errorf("extender %s binds pods itself, which would leave the networks out; remove its bindVerb", extender.Name())
		}
	}
	return nil
}

// mayNarrow reports whether the profile allows to name candidates. Where another plugin comes first at postFilter, it could
// preempt a pod although a node that was left out has room; and a profile that says how many nodes to score means it.
func mayNarrow(logger klog.Logger, handle fwk.Handle) bool {
	profile, ok := handle.(interface{ PercentageOfNodesToScore() *int32 })
	if !ok || profile.PercentageOfNodesToScore() != nil {
		return false
	}
	plugins, err := enabled(handle)
	if err != nil {
		return false
	}
	if postFilter := plugins.PostFilter.Enabled; len(postFilter) == 0 || postFilter[0].Name != Name {
		logger.Info("All nodes are looked at for each pod, which takes longer: the plugin is not the first at postFilter", "plugin", Name,
			"profile", handle.ProfileName(), "postFilter", names(postFilter))
		return false
	}
	return true
}

// enabled returns the plugins that the profile runs, by extension point and in their order.
func enabled(handle fwk.Handle) (*config.Plugins, error) {
	lister, ok := handle.(interface{ ListPlugins() *config.Plugins })
	if !ok {
		return nil, errors.New("the scheduler framework does not tell which plugins it runs")
	}
	return lister.ListPlugins(), nil
}

func names(plugins []config.Plugin) []string {
	all := make([]string, len(plugins))
	for i, plugin := range plugins {
		all[i] = plugin.Name
	}
	return all
}
