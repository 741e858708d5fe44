// Command cluster is `make cluster`: a development cluster in the foreground until Ctrl-C.
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
	"syscall"
	"time"

	"tenant.network/tenant-webhook/internal/devcluster"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("cluster", flag.ExitOnError)
	dir := flags.String("dir", ".devcluster", "directory for kubeconfig, kubectl, logs, pids and data")
	bin := flags.String("bin", "bin", "directory of the binaries")
	nodes := flags.Int("nodes", 4, "number of nodes, each with both pools")
	audit := flags.Bool("audit", false, "write logs/audit.log")
	bare := flags.String("bare", "", "install nothing, but run the project's programs once they are installed; the value is the\nkustomization to install them with, deploy/overlays/devcluster")
	verbose := flags.Bool("v", false, "list every component's process and log once the cluster is ready")
	if err := flags.Parse(args); err != nil {
		return err
	}

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()

	begun := time.Now()
	config := devcluster.Config{Dir: *dir, BinDir: *bin, Nodes: devcluster.DefaultNodes(*nodes), AuditLog: *audit, Log: out}
	if *bare == "" {
		config.Manifests = shipped
	} else {
		config.FollowDeployments, config.LeaderElect = true, true
	}
	cluster, err := devcluster.Start(ctx, config)
	if err != nil {
		return err
	}
	next := advice(cluster)
	if *bare != "" {
		overlay, err := cluster.WriteOverlay(*bare)
		if err != nil {
			return errors.Join(err, cluster.Shutdown())
		}
		next = bareAdvice(cluster, overlay)
	}
	fmt.Fprintf(out, "devcluster: ready after %.1fs\n", time.Since(begun).Seconds())
	if *verbose {
		for _, name := range cluster.Components() {
			fmt.Fprintf(out, "  %-24s pid %-8d %s\n", name, cluster.PID(name), cluster.LogPath(name))
		}
	}
	fmt.Fprintln(out, next)

	<-ctx.Done()
	cancel() // a second Ctrl-C ends us at once
	fmt.Fprintln(out, "\ndevcluster: stopping")
	if err := cluster.Shutdown(); err != nil {
		return fmt.Errorf("devcluster: %w", err)
	}
	fmt.Fprintln(out, "devcluster: stopped")
	return nil
}

// advice is what to try next, to be copied as it stands.
func advice(cluster *devcluster.Cluster) string {
	kubectl := fmt.Sprintf("%s --kubeconfig %s", relative(cluster.KubectlPath()), relative(cluster.KubeconfigPath()))
	return fmt.Sprintf(`devcluster: try next, in another terminal:
  %[1]s get nodes
  %[1]s -n tenant-a run demo --image=train --annotations=rdma.vf=2
  %[1]s -n tenant-a get pod demo -o yaml
  %[1]s -n tenant-a delete pod demo
  logs are in %[2]s, Ctrl-C stops everything`, kubectl, relative(filepath.Dir(cluster.LogPath(""))))
}

func bareAdvice(cluster *devcluster.Cluster, overlay string) string {
	return fmt.Sprintf(`devcluster: try next, in another terminal:
  export KUBECONFIG=%s KUBECTL=%s
  scripts/deploy.sh %[3]s
  scripts/self-test.sh %[3]s
  scripts/deploy.sh --uninstall %[3]s
  logs are in %[4]s, Ctrl-C stops everything`, cluster.KubeconfigPath(), cluster.KubectlPath(), relative(overlay), relative(filepath.Dir(cluster.LogPath(""))))
}

func relative(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if short, err := filepath.Rel(wd, path); err == nil && filepath.IsLocal(short) {
		return short
	}
	return path
}
