// Command demo is `make demo`: it starts a development cluster, plays the main job on it and shows what happens.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
)

// limit bounds the whole demonstration; it takes well under a minute.
const limit = 3 * time.Minute

func main() {
	dir := flag.String("dir", ".devcluster/demo", "directory of the cluster")
	bin := flag.String("bin", "bin", "directory of the binaries")
	flag.Parse()
	if err := run(*dir, *bin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo: failed:", err)
		os.Exit(1)
	}
}

func run(dir, bin string, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cluster, err := devcluster.Start(ctx, devcluster.Config{Dir: dir, BinDir: bin, Manifests: tenantwebhook.Manifests, Log: out})
	if err != nil {
		return err
	}
	p, err := newPlay(ctx, cluster, out)
	if err == nil {
		err = p.all(ctx)
	}
	if err = errors.Join(err, cluster.Shutdown()); err != nil {
		return err
	}
	fmt.Fprintln(out, p.verdict())
	return nil
}
