// Command tenant-scheduler is kube-scheduler with the plugin TenantNetwork linked in.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version's metric
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"tenant.network/tenant-webhook/pkg/plugin"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(plugin.Name, plugin.New))))
}
