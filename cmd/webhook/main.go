// Command tenant-webhook admits RDMA pods, keeps the accounting of device pools, and gives networks back when pods end.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
)

// version is set by the linker.
var version = "unknown"

func main() {
	opts := newOptions()
	err := opts.parse(os.Args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		return // the flags are printed
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tenant-webhook:", err)
		os.Exit(2)
	}
	if err := run(ctrl.SetupSignalHandler(), opts); err != nil {
		fmt.Fprintln(os.Stderr, "tenant-webhook:", err)
		os.Exit(1)
	}
}
