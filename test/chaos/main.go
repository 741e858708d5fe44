// Command chaos is `make chaos`: it starts a development cluster, has a seeded random mix of pods, workloads and nodes come
// and go while everything is broken now and then, waits for calm, and checks what must hold whatever failed: networks
// exactly once. The same seed and number of events ask for the same things in the same order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
)

func main() {
	o, err := parse(os.Args[1:], os.Getenv)
	if err == nil {
		err = run(o, os.Stdout)
	}
	if err != nil && !errors.Is(err, errFailed) {
		fmt.Fprintln(os.Stderr, "chaos: FAILED:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	settings
	dir, bin    string
	webhookArgs string
	leakLimit   time.Duration
}

func parse(args []string, getenv func(string) string) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("chaos", flag.ContinueOnError)
	fs.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixMilli()%1_000_000_000), "what all decisions depend on (environment: SEED)")
	fs.IntVar(&o.events, "events", 300, "number of events (environment: EVENTS)")
	fs.StringVar(&o.dir, "dir", ".devcluster/chaos", "directory of the cluster; its logs stay there")
	fs.StringVar(&o.bin, "bin", "bin", "directory of the binaries")
	fs.DurationVar(&o.pace, "pace", 100*time.Millisecond, "time from one event to the next")
	fs.StringVar(&o.webhookArgs, "webhook-args", "", "more flags for tenant-webhook, separated by spaces")
	fs.DurationVar(&o.leakLimit, "leak-limit", 45*time.Second, "how long after calm networks may be left over: the time of a sweep")
	fs.BoolVar(&o.quickRejoin, "quick-rejoin", false, "a deleted node comes back while its pods still run")
	for name, variable := range map[string]string{"seed": "SEED", "events": "EVENTS"} {
		if text := getenv(variable); text != "" {
			if err := fs.Set(name, text); err != nil {
				return nil, fmt.Errorf("environment variable %s: %w", variable, err)
			}
		}
	}
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if o.events < 1 || o.pace <= 0 {
		return nil, errors.New("-events and -pace must be positive")
	}
	return o, nil
}

// errFailed is for the exit code alone: what failed has been printed, and the verdict is the last line.
var errFailed = errors.New("the run failed")

func run(o *options, out io.Writer) error {
	fmt.Fprintf(out, "chaos: seed=%d events=%d; the same again: make chaos SEED=%d EVENTS=%d\n", o.seed, o.events, o.seed, o.events)
	klog.LogToStderr(false) // client-go's complaints about the outages that are wanted
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute+time.Duration(o.events)*(o.pace+200*time.Millisecond))
	defer cancel()
	cluster, err := devcluster.Start(ctx, devcluster.Config{
		Dir: o.dir, BinDir: o.bin, Manifests: tenantwebhook.Manifests, AuditLog: true, Log: out, TenantNamespaces: namespaces,
		Nodes: clusterNodes(), WebhookArgs: append([]string{"--refresh-interval=2s", "--sweep-period=5s", "--sweep-grace=20s"}, strings.Fields(o.webhookArgs)...),
		// To be killed is as well here, and an API server that takes its time to stop would use up an outage's.
		StopGrace: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	err = runOn(ctx, cluster, o, out)
	if stopErr := cluster.Shutdown(); stopErr != nil {
		fmt.Fprintln(out, "chaos: stopping the cluster:", stopErr) // what a fault left behind is no verdict
	}
	return err
}

func runOn(ctx context.Context, cluster *devcluster.Cluster, o *options, out io.Writer) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	w, err := newWorld(watching, cluster)
	if err != nil {
		return err
	}
	d := newDriver(w, o.settings, out)
	begun := time.Now()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	r := &result{settings: o.settings}
	if err := d.run(ctx, o.events); err != nil {
		return r.broken(out, err)
	}
	fmt.Fprintf(out, "chaos: %d events in %s, calm begins\n", o.events, time.Since(begun).Round(time.Second))
	if err := d.calm(ctx); err != nil {
		return r.broken(out, err)
	}
	fmt.Fprintf(out, "chaos: everything is restored after %s\n", time.Since(begun).Round(time.Second))
	r.violations = d.settle(ctx, o.leakLimit)
	history, err := readHistory(w)
	if err != nil {
		return r.broken(out, err)
	}
	d.faults.applied(history)
	r.judge(history, d)
	fmt.Fprintf(out, "chaos: faults that happened:\n%s", d.faults.String())
	fmt.Fprintf(out, "chaos: %d actions were given up, %s in all\n", d.failed.Load(), time.Since(begun).Round(time.Second))
	return r.print(out, history, cluster.AuditLogPath())
}

// prepare makes a namespace another tenant's, and waits until the ledgers know the nodes.
func (d *driver) prepare(ctx context.Context) error {
	for namespace, tenantName := range tenantOf {
		if tenantName == namespace {
			continue
		}
		err := d.insist(ctx, func(ctx context.Context) error {
			return d.labelNamespace(ctx, namespace, map[string]any{rdma.TenantLabel: tenantName})
		})
		if err != nil {
			return err
		}
	}
	d.setPools(ctx, poolOrders[0])
	d.pending.Wait()
	return nil
}

// readHistory puts everything that was written down together.
func readHistory(w *world) ([]event, error) {
	history := w.all()
	for path, parse := range map[string]func([]byte) ([]event, error){
		w.AuditLogPath(): parseAudit, w.MockRequestLogPath(): parseMock,
	} {
		events, err := readLog(path, parse)
		if err != nil {
			return nil, err
		}
		history = append(history, once(events)...)
	}
	return history, nil
}

// settings of the run as they stand in the last line.
func (s settings) String() string {
	return "seed=" + strconv.FormatUint(s.seed, 10) + " events=" + strconv.Itoa(s.events)
}
