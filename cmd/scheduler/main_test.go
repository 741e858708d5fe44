package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"sigs.k8s.io/yaml"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/pkg/plugin"
	"tenant.network/tenant-webhook/pkg/rdma"
)

const poolsPath = "/api/v1/namespaces/webhook-system/configmaps/resource-pool-config"

func TestShippedConfigurationPutsThePluginWhereItMustBe(t *testing.T) {
	sched, err := setup(t, shippedConfig(t), newAPI(t))
	require.NoError(t, err)
	require.Contains(t, sched.Profiles, rdma.SchedulerName)
	require.Len(t, sched.Profiles, 1)
	plugins := sched.Profiles[rdma.SchedulerName].ListPlugins()

	require.Equal(t, []string{plugin.Name, "DefaultBinder"}, names(plugins.Bind))
	require.Equal(t, plugin.Name, names(plugins.Filter)[0])
	preBind := names(plugins.PreBind)
	require.Equal(t, plugin.Name, preBind[len(preBind)-1])
	for point, set := range map[string]config.PluginSet{
		"filter": plugins.Filter, "preBind": plugins.PreBind, "preFilter": plugins.PreFilter, "reserve": plugins.Reserve, "score": plugins.Score,
	} {
		found := names(set)
		require.Contains(t, found, plugin.Name, point)
		require.Greater(t, len(found), 1, "%s must keep kube-scheduler's own plugins", point)
	}
}

func TestSchedulerMustNotStart(t *testing.T) {
	for name, tc := range map[string]struct {
		// replace is done on the shipped configuration.
		old, new string
		missing  string
		want     string
	}{
		"with a misspelled argument":       {old: "scoringStrategy:", new: "scoringStrategie:", want: `"scoringStrategie"`},
		"with a value that is none":        {old: "scoringStrategy: Spread", new: "scoringStrategy: Random", want: `"Random"`},
		"without the pools' configuration": {missing: poolsPath, want: "resource-pool-config"},
		"without the cluster's identity":   {missing: "/api/v1/namespaces/kube-system", want: "kube-system"},
	} {
		t.Run(name, func(t *testing.T) {
			text := shippedConfig(t)
			require.Contains(t, text, tc.old)
			api := newAPI(t)
			delete(api, tc.missing)
			_, err := setup(t, strings.Replace(text, tc.old, tc.new, 1), api)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func names(set config.PluginSet) []string {
	all := make([]string, len(set.Enabled))
	for i, enabled := range set.Enabled {
		all[i] = enabled.Name
	}
	return all
}

// shippedConfig is the KubeSchedulerConfiguration that users apply.
func shippedConfig(t *testing.T) string {
	t.Helper()
	configMap := manifest[corev1.ConfigMap](t, "manifests/scheduler-config.yaml")
	require.Len(t, configMap.Data, 1)
	return configMap.Data["scheduler-config.yaml"]
}

func manifest[T any](t *testing.T, path string) *T {
	t.Helper()
	text, err := tenantwebhook.Manifests.ReadFile(path)
	require.NoError(t, err)
	object := new(T)
	documents := bytes.Split(text, []byte("\n---\n")) // the last one is the one that the file is named after
	require.NoError(t, yaml.UnmarshalStrict(documents[len(documents)-1], object))
	return object
}

// api is as much of an API server as the scheduler reads before it starts: objects by their path.
type api map[string]any

func newAPI(t *testing.T) api {
	t.Helper()
	return api{
		"/api/v1/namespaces/kube-system": &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "cluster-uid"}},
		poolsPath: manifest[corev1.ConfigMap](t, "manifests/resource-pool-config.yaml"),
	}
}

func (a api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	object, ok := a[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		object = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: r.URL.Path + " not found"}
	}
	_ = json.NewEncoder(w).Encode(object) // the client went away
}

// setup makes the scheduler as the command does, and does not run it.
func setup(t *testing.T, configuration string, api api) (*scheduler.Scheduler, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	t.Cleanup(cancel)
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "scheduler-config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(configuration), 0o600))

	opts := options.NewOptions()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	opts.SecureServing.Listener = listener
	flags := pflag.NewFlagSet("tenant-scheduler", pflag.ContinueOnError)
	for _, set := range opts.Flags.FlagSets {
		flags.AddFlagSet(set)
	}
	require.NoError(t, flags.Parse([]string{"--config=" + file, "--master=" + server.URL}))
	_, sched, err := app.Setup(ctx, opts, app.WithPlugin(plugin.Name, plugin.New))
	return sched, err
}
