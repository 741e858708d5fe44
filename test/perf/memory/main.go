// Command memory measures what tenant-webhook keeps of a large cluster, and how long it takes until the accounting has
// seen everything: the cache, the ledger and its feed as cmd/webhook connects them, over a stand-in for the API server
// that makes up its objects as it sends them and keeps none.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/pools/feed"
	"tenant.network/tenant-webhook/test/perf/fixture"
)

func main() {
	nodes := flag.Int("nodes", 5000, "number of nodes")
	pods := flag.Int("pods", 100_000, "number of pods")
	share := flag.Int("share", 5, "of a hundred pods so many hold a device")
	flag.Parse()
	result, err := measure(context.Background(), *nodes, *pods, *share)
	if err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
	fmt.Println(result)
}

// result is the line of the output.
type result struct {
	nodes, pods, holders int
	heap                 uint64
	ready                time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("memory: nodes=%d pods=%d holders=%d heap_mib=%.1f ready_s=%.1f peak_rss_mib=%s",
		r.nodes, r.pods, r.holders, float64(r.heap)/(1<<20), r.ready.Seconds(), peakRSS())
}

func measure(ctx context.Context, nodes, pods, share int) (result, error) {
	if nodes < 1 || pods < 0 || share < 0 || share > 100 {
		return result{}, fmt.Errorf("-nodes %d, -pods %d and -share %d must be at least 1, at least 0, and from 0 to 100", nodes, pods, share)
	}
	ctrl.SetLogger(klog.Background())
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	standIn := &apiServer{nodes: nodes, pods: pods, share: share}
	server := httptest.NewServer(standIn)
	defer server.CloseClientConnections()
	began := time.Now()
	objects, ledger, synced, err := start(ctx, &rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		return result{}, err
	}
	if err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) { return synced(), nil }); err != nil {
		return result{}, fmt.Errorf("waiting until everything was seen: %w", err)
	}
	r := result{nodes: nodes, pods: pods, holders: standIn.holders(), ready: time.Since(began)}
	if usage := ledger.UsageOf(fixture.FirstPool); usage.Requested != int64(r.holders) {
		return result{}, fmt.Errorf("the ledger counts %d devices, %d are held", usage.Requested, r.holders)
	}
	runtime.GC()
	runtime.GC() // what the first one finalizes
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	r.heap = stats.HeapAlloc
	runtime.KeepAlive(objects)
	runtime.KeepAlive(ledger)
	return r, nil
}

// start connects cache, ledger and feed as cmd/webhook does.
func start(ctx context.Context, config *rest.Config) (cache.Cache, *pools.Ledger, func() bool, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	objects, err := cache.New(config, cache.Options{Scheme: clientgoscheme.Scheme, Mapper: mapper, NewInformer: feed.NewInformer,
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: feed.TrimPod}, &corev1.Node{}: {Transform: feed.TrimNode}}})
	if err != nil {
		return nil, nil, nil, err
	}
	ledger := pools.NewLedger(nil)
	pool := fixture.Config()
	source, err := feed.New(ctx, feed.Config{Cache: objects, Ledger: ledger, Pools: func() *pools.Config { return pool }})
	if err != nil {
		return nil, nil, nil, err
	}
	go func() {
		if err := objects.Start(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "cache ended")
		}
	}()
	return objects, ledger, source.Synced, nil
}

// peakRSS is the process's largest resident size so far in MiB, as Linux tells it. The stand-in is part of the process.
func peakRSS() string {
	status, err := os.ReadFile("/proc/self/status")
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if err != nil || found == nil {
		return "unknown"
	}
	var kib int
	if _, err := fmt.Sscan(string(found[1]), &kib); err != nil {
		return "unknown"
	}
	return strconv.Itoa(kib / 1024)
}
