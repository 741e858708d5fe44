// Command pairs runs the scheduler benchmark in pairs, with our plugin and without, one after the other and in turn the
// one and the other first, and prints the median ratio of each case. Each run is a process of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
)

// settings are the flags.
type settings struct {
	binary, controlplane, dir string
	cases, latencies, failing string
	pairs, divide             int
	gates, networks           string
	batching                  bool
	atLeast                   float64
	verbose                   bool
}

func main() {
	var s settings
	flag.StringVar(&s.binary, "binary", "bin/bench-scheduler.test", "compiled test binary of test/perf/scheduler")
	flag.StringVar(&s.controlplane, "controlplane", "bin/controlplane", "the binary controlplane, which is etcd too")
	flag.StringVar(&s.dir, "dir", "test/perf/scheduler", "directory of the benchmark's package")
	flag.StringVar(&s.cases, "cases", "free-500,half-full-5000,nearly-full-5000", "cases, separated by commas")
	flag.StringVar(&s.latencies, "latencies", "0", "latencies of the tenant-controller in milliseconds, separated by commas")
	flag.StringVar(&s.failing, "errors", "0", "failing calls of the tenant-controller in a hundred, separated by commas")
	flag.IntVar(&s.pairs, "pairs", 5, "number of pairs a case")
	flag.IntVar(&s.divide, "divide", 1, "divide all sizes by this")
	flag.StringVar(&s.gates, "gates", "NominatedNodeNameForExpectation: false", "feature gates of both, as name: bool, separated by commas; the default is what is shipped")
	flag.StringVar(&s.networks, "networks", "given", "given: the tenant-controller's networks cost this machine no write; written: it writes them through the same API server on the same cores")
	flag.BoolVar(&s.batching, "batching", false, "take PodTopologySpread's default constraints out of both profiles, without which no pod is placed in a batch")
	flag.Float64Var(&s.atLeast, "at-least", 0, "fail if a case's median ratio is less")
	flag.BoolVar(&s.verbose, "v", false, "print every metric of every run")
	flag.Parse()
	if err := s.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "pairs:", err)
		os.Exit(1)
	}
}

// workload is the size of a case.
type workload struct{ nodes, devices, placed, pods int }

var workloads = map[string]workload{
	"free-500":         {500, 8, 500, 2000},
	"half-full-5000":   {5000, 1, 2500, 1000},
	"nearly-full-5000": {5000, 1, 3500, 1400},
}

func (s settings) run(ctx context.Context) error {
	if s.pairs < 1 || s.divide < 1 {
		return fmt.Errorf("-pairs %d and -divide %d must be at least 1", s.pairs, s.divide)
	}
	if err := s.printDifference(ctx); err != nil {
		return err
	}
	// The first run after a pause is slower, whichever it is.
	if _, err := s.once(ctx, "default", "warm-up", workload{100, 8, 100, 500}, "0", "0"); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	for name := range strings.SplitSeq(s.cases, ",") {
		w, ok := workloads[name]
		if !ok {
			return fmt.Errorf("-cases: %q is not known", name)
		}
		w = workload{w.nodes / s.divide, w.devices, w.placed / s.divide, w.pods / s.divide}
		for latency := range strings.SplitSeq(s.latencies, ",") {
			for errorsInHundred := range strings.SplitSeq(s.failing, ",") {
				if err := s.runCase(ctx, name, w, latency, errorsInHundred); err != nil {
					return fmt.Errorf("case %s, latency %s ms, %s %% errors: %w", name, latency, errorsInHundred, err)
				}
			}
		}
	}
	return nil
}
