// Command run is `make conformance`: it puts the tenant-controller at a URL through the contract's suite.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	netclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tenant.network/tenant-webhook/test/conformance"
)

// errBroken is the outcome that the output has told already.
var errBroken = errors.New("a clause is broken")

func main() {
	err := runUntilSignal(os.Args[1:])
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	if !errors.Is(err, errBroken) {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}

func runUntilSignal(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, args, os.Stdout)
}

// limit bounds the whole run; against the mock it takes a few seconds.
const limit = 10 * time.Minute

func run(ctx context.Context, args []string, out io.Writer) error {
	config, err := parse(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	result, err := conformance.Run(ctx, config, out)
	if err == nil && len(result.Failed) > 0 {
		err = errBroken
	}
	return err
}

func parse(args []string) (conformance.Config, error) {
	var c conformance.Config
	var auth rest.Config
	var kubeconfig string
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.StringVar(&c.URL, "url", "", "base URL of the tenant-controller")
	flags.StringVar(&c.Namespace, "namespace", "conformance", "namespace of the pods; it must exist where networks are made in Kubernetes")
	flags.StringVar(&c.Tenant, "tenant", "", "tenant of the networks; empty: the namespace")
	flags.StringVar(&c.VFPool, "vf-pool", "nvidia.com/rdma-vf", "pool of virtual functions; empty: ask for none")
	flags.StringVar(&c.PFPool, "pf-pool", "nvidia.com/rdma-pf", "pool of physical functions; empty: ask for none")
	flags.StringVar(&c.Node, "node", "", "node of the pods; empty: one that does not exist")
	flags.StringVar(&c.OtherNode, "other-node", "", "node that pods move to; empty: one that does not exist")
	flags.StringVar(&auth.BearerTokenFile, "token-file", "", "file with a bearer token")
	flags.StringVar(&auth.CAFile, "ca-file", "", "file with the CA certificates that the server is verified by")
	flags.StringVar(&auth.CertFile, "cert-file", "", "file with the client's certificate")
	flags.StringVar(&auth.KeyFile, "key-file", "", "file with the client's key")
	flags.DurationVar(&c.Timeout, "timeout", 2*time.Second, "time that one attempt may take; the scheduler's is 2s")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "cluster where the networks are made; empty: do not look at them")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var err error
	if c.HTTP, err = authenticated(auth); err != nil {
		return c, err
	}
	if kubeconfig != "" {
		if c.Networks, err = networks(kubeconfig); err != nil {
			return c, fmt.Errorf("-kubeconfig %q: %w", kubeconfig, err)
		}
	}
	return c, nil
}

// authenticated uses what client-go has for the same files; there is nothing of Kubernetes in it.
func authenticated(auth rest.Config) (*http.Client, error) {
	transport, err := rest.TransportFor(&auth)
	if err != nil {
		return nil, fmt.Errorf("authentication: %w", err)
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

func networks(kubeconfig string) (netclient.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return netclient.NewForConfig(config)
}
