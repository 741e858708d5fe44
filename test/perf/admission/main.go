// Command admission measures what a review of a pod costs, in process and over TLS, beside a webhook that does nothing,
// one that adds up all nodes and pods for each review, and one that reads from the API server for each. It prints one
// line a case.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"tenant.network/tenant-webhook/internal/devcluster"
)

func main() {
	nodes := flag.String("nodes", "100,1000,5000", "numbers of nodes")
	pods := flag.Int("pods", 50_000, "number of pods, of which nine in ten hold a device")
	duration := flag.Duration("duration", 7500*time.Millisecond, "time for each measurement, which is made in turns")
	bin := flag.String("bin", "", "directory with the binary controlplane; empty leaves out the baseline that reads from an API server")
	flag.Parse()
	if err := bench(*nodes, *pods, *duration, *bin); err != nil {
		fmt.Fprintln(os.Stderr, "admission:", err)
		os.Exit(1)
	}
}

func bench(nodesText string, pods int, duration time.Duration, bin string) error {
	// The product logs a line for each review; it is formatted here as well.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	ctrl.SetLogger(klog.Background())
	if pods < 1 || duration <= 0 {
		return fmt.Errorf("-pods %d and -duration %v must be positive", pods, duration)
	}
	var sizes []int
	for part := range strings.SplitSeq(nodesText, ",") {
		nodes, err := strconv.Atoi(part)
		if err != nil || nodes < 1 {
			return fmt.Errorf("-nodes: %q must be whole numbers of at least 1, separated by commas", nodesText)
		}
		sizes = append(sizes, nodes)
	}
	client, stop, err := apiServer(bin)
	if err != nil {
		return err
	}
	defer stop()
	for _, nodes := range sizes {
		for _, pinned := range []bool{false, true} {
			results, err := measure(nodes, pods, pinned, client, duration)
			if err != nil {
				return err
			}
			for _, r := range results {
				fmt.Println(r)
			}
		}
	}
	return nil
}

// apiServer starts etcd and an API server.
func apiServer(bin string) (kubernetes.Interface, func(), error) {
	if bin == "" {
		return nil, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "bench-admission-")
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cluster, err := devcluster.Start(ctx, devcluster.Config{Dir: dir, BinDir: bin, Nodes: []devcluster.Node{}, TenantNamespaces: []string{},
		Without: []string{devcluster.ControllerManager, devcluster.KubeScheduler, devcluster.Kwok}})
	if err != nil {
		return nil, nil, err
	}
	stop := func() {
		if err := cluster.Shutdown(); err != nil {
			fmt.Fprintln(os.Stderr, "admission:", err)
		}
		_ = os.RemoveAll(dir) // what is left there is the operating system's to remove
	}
	config := cluster.AdminConfig()
	config.QPS, config.Burst = -1, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return client, stop, nil
}
