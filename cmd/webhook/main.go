// Command tenant-webhook admits RDMA pods, keeps the accounting of device pools, and gives networks back when pods end.
package main

import (
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	opts := newOptions()
	if err := opts.parse(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tenant-webhook:", err)
		os.Exit(2)
	}
	if err := run(ctrl.SetupSignalHandler(), opts); err != nil {
		fmt.Fprintln(os.Stderr, "tenant-webhook:", err)
		os.Exit(1)
	}
}
