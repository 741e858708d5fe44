// Command tenant-scheduler is kube-scheduler with the plugin TenantNetwork linked in.
package main

import (
	"context"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version's metric
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"tenant.network/tenant-webhook/pkg/plugin"
)

// version is set by the linker. --version tells kube-scheduler's.
var version = "unknown"

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(plugin.Name, newPlugin))))
}

func newPlugin(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	klog.FromContext(ctx).Info("tenant-scheduler starts", "version", version, "plugin", plugin.Name)
	return plugin.New(ctx, args, handle)
}
