// Command release measures how long it takes until the pods of a large tenant and of a small one, all deleted at once,
// have given their networks back: on a development cluster, with a tenant-controller that takes its time. It prints one
// line.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
)

// settings are the flags.
type settings struct {
	bin           string
	pods, small   int
	latencyMillis int
	// check fails the run on what does not depend on the machine's speed.
	check bool
}

// devices is how many a node has; a node holds 250 pods.
const devices = 100

// limit bounds the whole run.
const limit = 20 * time.Minute

func main() {
	var s settings
	flag.StringVar(&s.bin, "bin", "bin", "directory of the binaries (make build)")
	flag.IntVar(&s.pods, "pods", 2000, "number of pods in all")
	flag.IntVar(&s.small, "small", 20, "how many of them are the small tenant's, which is deleted last")
	flag.IntVar(&s.latencyMillis, "latency", 50, "milliseconds that the tenant-controller takes for a release")
	flag.BoolVar(&s.check, "check", false, "fail if a pod cost more than 1.5 calls, or one was held back by the client")
	flag.Parse()
	if err := s.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (s settings) validate() error {
	var errs []error
	if s.small < 1 || s.pods <= s.small {
		errs = append(errs, fmt.Errorf("-small %d must be at least 1 and less than -pods %d", s.small, s.pods))
	}
	if s.latencyMillis < 1 {
		errs = append(errs, fmt.Errorf("-latency %d must be at least 1", s.latencyMillis))
	}
	return errors.Join(errs...)
}

// run starts the cluster, measures, and stops it.
func (s settings) run(out io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.validate(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	nodes := devcluster.DefaultNodes((s.pods + devices - 1) / devices)
	for i := range nodes {
		nodes[i].Extended = map[string]string{devcluster.DefaultVFResource: strconv.Itoa(devices)}
	}
	cluster, err := devcluster.Start(ctx, devcluster.Config{Dir: filepath.Join(dir, "cluster"), BinDir: s.bin, Nodes: nodes,
		Manifests: tenantwebhook.Manifests, TenantNamespaces: []string{large, small}, AuditLog: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Shutdown()) }()
	r, err := s.measure(ctx, cluster)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, r)
	if s.check {
		return r.verify()
	}
	return nil
}

// slowReleases has the mock tenant-controller take its time.
func slowReleases(ctx context.Context, url string, millis int) error {
	rules, err := json.Marshal([]map[string]any{{"operation": "release", "latencyMillis": millis}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"/mock/faults", bytes.NewReader(rules))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the mock answers %s to its faults", response.Status)
	}
	return nil
}
