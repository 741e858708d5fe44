// Command controlplane is a whole Kubernetes control plane in one multi-call binary: the first argument names the
// program to be, and the program then runs exactly as its own main would run it.
//
// One binary instead of seven because they share nearly all their code: seven links of k8s.io/kubernetes cost minutes and
// half a gigabyte. Each program is still a process of its own, so that a test can kill one of them.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs name time zones; the host may have no zone files.

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl: kubeconfigs with auth plugins.
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client and work queue metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs are the names this binary answers to, as first argument or as the name of a link to it.
var programs = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 runKubectl,
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kwok":                    runKwok,
}

func main() {
	name, args := which(os.Args)
	run, ok := programs[name]
	if !ok {
		fmt.Fprintln(os.Stderr, usage(name))
		os.Exit(2)
	}
	// Every one of these programs reads os.Args by itself, cobra included, and some print its first element.
	os.Args = append([]string{name}, args...)
	os.Exit(run())
}

// which splits the command line into the program to be and its arguments. A link's name wins over the first argument:
// `kubectl etcd` is a kubectl with a strange argument.
func which(argv []string) (string, []string) {
	if len(argv) == 0 {
		return "", nil
	}
	if name := strings.TrimSuffix(filepath.Base(argv[0]), ".exe"); programs[name] != nil {
		return name, argv[1:]
	}
	if len(argv) == 1 {
		return "", nil
	}
	return argv[1], argv[2:]
}

func usage(name string) string {
	known := make([]string, 0, len(programs))
	for p := range programs {
		known = append(known, p)
	}
	slices.Sort(known)
	return fmt.Sprintf("controlplane: unknown program %q; usage: controlplane (%s) [arguments]", name, strings.Join(known, "|"))
}

func runEtcd() int {
	etcdmain.Main(os.Args) // exits by itself
	return 0
}

func runKubectl() int {
	// As upstream's main: commands are built, plugins looked up and .kuberc read before flags are parsed, so the
	// verbosity has to be known earlier. An unusable -v is reported by the flag parser later.
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints and exits
	}
	return 0
}
