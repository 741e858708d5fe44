// Command mock is a tenant-controller for tests and demonstrations. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	netclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/mock/nad"
)

func main() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	if err := runUntilSignal(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error("tenant-controller ends", "err", err)
		os.Exit(1)
	}
}

func runUntilSignal(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return run(ctx, args, func(address net.Addr) { slog.Info("serving", "address", address.String()) })
}

// options are the command line.
type options struct {
	listen     string
	kubeconfig string
	noCluster  bool
	requestLog string
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("tenant-controller", flag.ContinueOnError)
	flags.StringVar(&o.listen, "listen", ":8088", "address to serve on")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: the one this runs in, if any")
	flags.BoolVar(&o.noCluster, "no-cluster", false, "create no NetworkAttachmentDefinitions, remember nothing")
	flags.StringVar(&o.requestLog, "request-log", "", `file to append each request to as a JSON line; "-" is standard output`)
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.noCluster && o.kubeconfig != "" {
		return o, fmt.Errorf("-no-cluster and -kubeconfig %q exclude each other", o.kubeconfig)
	}
	return o, nil
}

// run serves until the context ends, and says where.
func run(ctx context.Context, args []string, serving func(net.Addr)) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	var settings engine.Options
	if o.requestLog != "" {
		out, err := openLog(o.requestLog)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
		settings.RequestLog = engine.NewRequestLog(out)
	}
	e, err := newEngine(ctx, o, settings)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	serving(listener.Addr())
	return serve(ctx, listener, e)
}

func openLog(path string) (io.WriteCloser, error) {
	if path == "-" {
		return os.Stdout, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("-request-log: %w", err)
	}
	return file, nil
}

// newEngine connects to the cluster, if there is one, and restores what an earlier life left there.
func newEngine(ctx context.Context, o options, settings engine.Options) (*engine.Engine, error) {
	config, err := clusterConfig(o)
	if err != nil {
		return nil, err
	}
	if config == nil {
		slog.Info("running without a cluster")
		return engine.New(settings), nil
	}
	config.QPS, config.Burst = 200, 400 // a burst of pods means several requests for each
	client, err := netclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	store := nad.New(client)
	allocations, err := store.Allocations(ctx)
	if err != nil {
		return nil, err
	}
	settings.Networks = store
	// Released allocations leave no trace, so the count goes on from the clock: it never gains a thousand a second.
	settings.Generation = time.Now().UnixMilli()
	e := engine.New(settings)
	e.Restore(allocations)
	slog.Info("running with a cluster", "host", config.Host, "allocations", len(allocations))
	return e, nil
}

// clusterConfig returns nil if there is no cluster.
func clusterConfig(o options) (*rest.Config, error) {
	switch {
	case o.noCluster:
		return nil, nil
	case o.kubeconfig != "":
		config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("-kubeconfig %q: %w", o.kubeconfig, err)
		}
		return config, nil
	case os.Getenv("KUBERNETES_SERVICE_HOST") != "":
		return rest.InClusterConfig()
	}
	return nil, nil
}

// patience is for requests that a fault holds or slows down. net/http cancels a request when ReadTimeout passes while
// it is served, so both directions need it.
const patience = 5 * time.Minute

func serve(ctx context.Context, listener net.Listener, e *engine.Engine) error {
	server := &http.Server{
		Handler:           e.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       patience,
		WriteTimeout:      patience,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	slog.Info("stopping")
	if err := e.SetFaults(nil); err != nil { // held requests would outlast the grace period
		return err
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return errors.Join(fmt.Errorf("stopping: %w", err), server.Close())
	}
	return nil
}
