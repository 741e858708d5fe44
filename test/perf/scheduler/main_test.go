package scheduler

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"k8s.io/component-base/metrics/legacyregistry"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"
	"k8s.io/kubernetes/test/utils/client-go/ktesting"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/pkg/plugin"
)

// The environment.
const (
	envControlPlane = "PERF_CONTROLPLANE" // path of the binary controlplane, which is etcd too
	envProfile      = "PERF_PROFILE"      // ours or default
	envCase         = "PERF_CASE"         // a name
	envGates        = "PERF_GATES"        // feature gates as name: bool, separated by commas
	envNodes        = "PERF_NODES"
	envDevices      = "PERF_DEVICES"  // devices a node
	envPlaced       = "PERF_PLACED"   // pods placed before the measurement
	envPods         = "PERF_PODS"     // pods placed in the measurement
	envLatency      = "PERF_LATENCY"  // of the tenant-controller, in milliseconds
	envNetworks     = "PERF_NETWORKS" // given or written
	envBatching     = "PERF_BATCHING" // true: without PodTopologySpread's default constraints
	envErrors       = "PERF_ERRORS"   // of a hundred calls of the tenant-controller so many fail
)

func TestMain(m *testing.M) {
	stop, err := etcdOnPath(os.Getenv(envControlPlane))
	if err == nil {
		err = perf.InitTests()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	stop()
	os.Exit(code)
}

// etcdOnPath lets the suite find an etcd: the multi-call binary answers to the name of a link.
func etcdOnPath(binary string) (func(), error) {
	if binary == "" {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "perf-etcd-")
	if err != nil {
		return nil, err
	}
	absolute, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(absolute, filepath.Join(dir, "etcd")); err != nil {
		return nil, err
	}
	return func() { _ = os.RemoveAll(dir) }, os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func BenchmarkPerfScheduling(b *testing.B) {
	if os.Getenv(envControlPlane) == "" {
		b.Fatalf("%s must name the binary controlplane; make bench-scheduler sets it", envControlPlane)
	}
	dir := b.TempDir()
	require.NoError(b, writeFiles(dir))
	world := &world{errorsInHundred: number(b, envErrors), latencyMillis: number(b, envLatency), written: os.Getenv(envNetworks) == "written"}
	probe := &probe{placed: number(b, envPlaced), pods: number(b, envPods)}
	perf.PluginNames = append(perf.PluginNames, plugin.Name)
	perf.RunBenchmarkPerfScheduling(b, filepath.Join(dir, "workload.yaml"), os.Getenv(envProfile),
		frameworkruntime.Registry{plugin.Name: world.newPlugin, probeName: probe.newPlugin},
		perf.WithPreRunFn(func(ktesting.TContext, *perf.Workload) (func(), error) { return world.close, nil }),
		perf.WithPrepareFn(func(tCtx ktesting.TContext) error {
			tCtx.Cleanup(func() { fmt.Printf("%s\n%s\n", probe, podWrites()) })
			return nil
		}))
}

// writeFiles fills in the templates.
func writeFiles(dir string) error {
	shipped, err := tenantwebhook.Manifests.ReadFile("manifests/scheduler-config.yaml")
	if err != nil {
		return err
	}
	config, err := profile(shipped, os.Getenv(envProfile) == profileOurs)
	if err != nil {
		return err
	}
	if os.Getenv(envBatching) == "true" {
		if config, err = withBatching(config); err != nil {
			return err
		}
	}
	if config, err = withProbe(config); err != nil {
		return err
	}
	files := map[string][]byte{"scheduler-config.yaml": config}
	replacer := strings.NewReplacer("DIR", dir, "CASE", os.Getenv(envCase), "GATES", os.Getenv(envGates), "NODES", os.Getenv(envNodes),
		"PLACED", os.Getenv(envPlaced), "PODS", os.Getenv(envPods), "DEVICES", os.Getenv(envDevices))
	for _, name := range []string{"node.yaml", "pod.yaml", "workload.yaml"} {
		template, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			return err
		}
		files[name] = []byte(replacer.Replace(string(template)))
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// podWrites tells what was written to pods through the API server, and how many pods were placed in batches; both run in
// this process.
func podWrites() string {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return "writes: " + err.Error()
	}
	sum := func(family string, labels map[string]string) float64 {
		var total float64
		for _, f := range families {
			if f.GetName() != family {
				continue
			}
			for _, metric := range f.GetMetric() {
				if matches(metric, labels) {
					total += metric.GetCounter().GetValue()
				}
			}
		}
		return total
	}
	const requests = "apiserver_request_total"
	return fmt.Sprintf("writes: bindings=%.0f patches=%.0f batched=%.0f",
		sum(requests, map[string]string{"resource": "pods", "subresource": "binding", "verb": "POST"}),
		sum(requests, map[string]string{"resource": "pods", "subresource": "status", "verb": "PATCH"}),
		sum("scheduler_batch_attempts_total", map[string]string{"result": "hint_used"}))
}

// matches reports whether a metric has all the labels.
func matches(metric *dto.Metric, labels map[string]string) bool {
	found := 0
	for _, label := range metric.GetLabel() {
		if want, ok := labels[label.GetName()]; ok && want == label.GetValue() {
			found++
		}
	}
	return found == len(labels)
}
