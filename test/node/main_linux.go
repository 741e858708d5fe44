// Command node is `make node-e2e`: a development cluster with one real node, on which pods get their devices from a real
// kubelet and their interfaces from the real Multus, through our webhook, scheduler and release controller. Beside the
// scenarios an observer looks at every pod, and at the container runtime all the time: what a pod's process finds must be
// what was asked for, and no network may be given back while a container of its pod runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/internal/devnode"
)

// notPossible is the exit code where this machine cannot run a node.
const notPossible = 2

// sharedPool is one whose devices are tokens.
const sharedPool = "rdma/hca_shared_devices_a"

// pools of the node, as the scenarios find them.
var pools = map[string]int{devcluster.DefaultVFResource: 4, devcluster.DefaultPFResource: 2, sharedPool: 8}

type options struct {
	dir, bin, only, wrong string
	keep                  bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var o options
	flag.StringVar(&o.dir, "dir", ".node-e2e", "directory of the cluster and its node")
	flag.StringVar(&o.bin, "bin", "bin", "directory of the binaries")
	flag.StringVar(&o.only, "only", "", "run only the scenarios whose name contains this")
	flag.BoolVar(&o.keep, "keep-logs", false, "leave the logs also after success")
	flag.StringVar(&o.wrong, "wrong", "", "play a wrong implementation, which must make the run fail: "+
		"ignore-terminating places pods on devices that terminating pods still hold, release-at-delete gives networks back when deletion begins")
	flag.Parse()
	err := run(ctx, o, os.Stdout)
	stop()
	impossible := (*devnode.NotPossibleError)(nil)
	switch {
	case err == nil:
	case errors.As(err, &impossible):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(notPossible)
	default:
		fmt.Fprintln(os.Stderr, "node: FAILED:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	if err := devnode.Check(ctx, o.bin); err != nil {
		return err
	}
	wrong, err := wrongOf(o.wrong)
	if err != nil {
		return err
	}
	if o.only == "" && wrong == nil {
		if err := leavesNothing(ctx, o, out); err != nil {
			return err
		}
	}
	klog.LogToStderr(false) // client-go's complaints about what is killed on purpose
	klog.SetOutput(io.Discard)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	gate := &bindingGate{}
	cluster, err := devcluster.Start(ctx, devcluster.Config{
		Dir: o.dir, BinDir: o.bin, Nodes: []devcluster.Node{}, Without: []string{devcluster.Kwok},
		TenantNamespaces: []string{tenantA, tenantB}, Manifests: tenantwebhook.Manifests, AuditLog: true, Wiretap: gate,
		// A lost node is to be noticed within a test's patience.
		ControllerManagerArgs: []string{"--node-monitor-period=1s", "--node-monitor-grace-period=10s"},
		WebhookArgs:           []string{"--refresh-interval=2s", "--sweep-period=5s", "--sweep-grace=20s"},
		SchedulerConfigPatch:  bindPatiently,
	})
	if err != nil {
		return err
	}
	err = runOn(ctx, cluster, gate, o, wrong, out)
	if err = errors.Join(err, cluster.Shutdown(), devnode.Clean(nodeDir(o.dir))); err != nil {
		return fmt.Errorf("%w (logs are in %s)", err, filepath.Join(o.dir, "logs"))
	}
	if o.keep {
		return nil
	}
	return os.RemoveAll(o.dir)
}

func nodeDir(dir string) string { return filepath.Join(dir, "node") }

func runOn(ctx context.Context, cluster *devcluster.Cluster, gate *bindingGate, o options, wrong wrongPart, out io.Writer) error {
	node, err := devnode.Start(ctx, cluster, devnode.Config{Dir: nodeDir(o.dir), BinDir: o.bin, Pools: pools})
	if err != nil {
		return err
	}
	w, err := newWorld(ctx, cluster, node, gate)
	if err != nil {
		return err
	}
	observing, stop := context.WithCancel(ctx)
	defer stop()
	if err := w.observe(observing); err != nil {
		return err
	}
	if wrong != nil {
		if err := wrong(observing, w); err != nil {
			return err
		}
	}
	begun := time.Now()
	failures := w.runScenarios(ctx, o, out)
	w.inspections.Wait()
	left := w.leftovers(ctx)
	for _, text := range append(left, w.seen.violations()...) {
		fmt.Fprintln(out, "node: ", text)
	}
	fmt.Fprintf(out, "node: %d pods in %s, %d refused on purpose\n", w.seen.pods(), time.Since(begun).Round(time.Second), w.seen.provoked())
	verdict := w.seen.verdict(len(left))
	if verdict.good() && failures == 0 {
		fmt.Fprintln(out, "node: ok", verdict)
		return nil
	}
	fmt.Fprintln(out, "node: failed", verdict)
	return fmt.Errorf("%d scenarios failed, %d observations and %d things left over (see above)", failures, verdict.differing, verdict.leaked)
}

// runScenarios runs them one after the other; each leaves nothing for the next.
func (w *world) runScenarios(ctx context.Context, o options, out io.Writer) (failures int) {
	for _, s := range scenarios() {
		if !strings.Contains(s.name, o.only) {
			continue
		}
		if ctx.Err() != nil {
			fmt.Fprintln(out, "node: interrupted")
			return failures + 1
		}
		begun := time.Now()
		err := s.run(ctx, w)
		if err == nil {
			err = w.allGone(ctx)
		}
		if err != nil {
			failures++
			fmt.Fprintf(out, "node: ✗ %s (%.0fs): %v\n", s.name, time.Since(begun).Seconds(), err)
			if clearErr := w.clear(ctx); clearErr != nil {
				fmt.Fprintln(out, "node: clearing:", clearErr)
			}
			continue
		}
		fmt.Fprintf(out, "node: ✓ %s (%.0fs)\n", s.name, time.Since(begun).Seconds())
	}
	return failures
}
