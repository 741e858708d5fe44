// Command node is `make node`: a development cluster with one real node in the foreground until Ctrl-C. It shows by a pod
// of its own that the networks are there. With -clean it removes what a killed one left.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/internal/devnode"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// notPossible is the exit code where this machine cannot run a node.
const notPossible = 2

const (
	namespace    = "tenant-a"
	proofTimeout = time.Minute
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	cancel()
	code := 0
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if impossible := (*devnode.NotPossibleError)(nil); errors.As(err, &impossible) {
		code = notPossible
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("node", flag.ContinueOnError)
	dir := flags.String("dir", ".devnode", "directory of the cluster and its node")
	bin := flags.String("bin", "bin", "directory of the binaries")
	clean := flags.Bool("clean", false, "remove what a killed run left in -dir and in the kernel, and end")
	once := flags.Bool("once", false, "end after the proof instead of waiting for Ctrl-C")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *clean {
		return removeLeftovers(*dir)
	}
	if err := devnode.Check(ctx, *bin); err != nil {
		return err
	}
	cluster, err := devcluster.Start(ctx, devcluster.Config{
		Dir: *dir, BinDir: *bin, Nodes: []devcluster.Node{}, Without: []string{devcluster.Kwok},
		Manifests: tenantwebhook.Manifests, Log: out,
	})
	if err != nil {
		return err
	}
	err = serve(ctx, cluster, devnode.Config{Dir: filepath.Join(*dir, "node"), BinDir: *bin,
		Pools: map[string]int{devcluster.DefaultVFResource: 4, devcluster.DefaultPFResource: 2}}, *once, out)
	fmt.Fprintln(out, "devnode: stopping")
	if err = errors.Join(err, cluster.Shutdown()); err != nil {
		return fmt.Errorf("%w (logs are left in %s, make node-clean removes them)", err, filepath.Join(*dir, "logs"))
	}
	return removeLeftovers(*dir)
}

// removeLeftovers leaves neither files nor cgroups.
func removeLeftovers(dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // only locked
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("a cluster runs in %s: stop it first", dir)
	}
	if err := devnode.Clean(filepath.Join(dir, "node")); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func serve(ctx context.Context, cluster *devcluster.Cluster, config devnode.Config, once bool, out io.Writer) (err error) {
	node, err := devnode.Start(ctx, cluster, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Stop()) }()
	if err := prove(ctx, cluster, out); err != nil {
		return err
	}
	if once {
		return nil
	}
	fmt.Fprintf(out, `devnode: try next, in another terminal (images: only %[3]s):
  %[1]s -n %[2]s run demo --image=%[3]s --annotations=rdma.vf=1
  %[1]s -n %[2]s get pod demo -o yaml
  cat %[4]s/%[2]s_demo_*/demo/0.log
  Ctrl-C stops everything
`, cluster.KubectlPath()+" --kubeconfig "+cluster.KubeconfigPath(), namespace, devnode.Image, node.PodLogs())
	<-ctx.Done()
	return nil
}

// prove runs a pod that asks for two virtual functions and prints which interfaces its own process has found.
func prove(ctx context.Context, cluster *devcluster.Cluster, out io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, proofTimeout, fmt.Errorf("no proof within %s", proofTimeout))
	defer cancel()
	pods := cluster.Client().CoreV1().Pods(namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "proof", Annotations: map[string]string{rdma.VFAnnotation: "2"}},
		Spec: corev1.PodSpec{
			Containers:    []corev1.Container{{Name: "main", Image: devnode.Image, Args: []string{"-run", "1s"}}},
			RestartPolicy: corev1.RestartPolicyNever,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "devnode: created pod %s/%s with annotation rdma.vf=2\n", pod.Namespace, pod.Name)
	for {
		if pod, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
		if pod.Status.Phase == corev1.PodSucceeded {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the pod is %s: %v", context.Cause(ctx), pod.Status.Phase, pod.Status.Conditions)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return show(pod, out)
}

// show prints what the pod said about itself when it began, and fails if that is not what was asked for.
func show(pod *corev1.Pod, out io.Writer) error {
	var message struct {
		Interfaces []string
		Devices    map[string][]string
	}
	text := pod.Status.ContainerStatuses[0].State.Terminated.Message
	if err := json.NewDecoder(bytes.NewBufferString(text)).Decode(&message); err != nil {
		return fmt.Errorf("what the pod left: %q: %w", text, err)
	}
	fmt.Fprintf(out, "devnode: its process found the devices %v and the interfaces %v\n", message.Devices, message.Interfaces)
	fmt.Fprintf(out, "devnode: the scheduler wrote  %s\n", pod.Annotations[rdma.NetworksAnnotation])
	if len(message.Interfaces) != 3 {
		return fmt.Errorf("expected eth0 and two more interfaces, not %v", message.Interfaces)
	}
	fmt.Fprintln(out, "devnode: proof: eth0 and 2 more interfaces")
	return nil
}
