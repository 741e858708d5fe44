// Command pairs runs the scheduler benchmark in pairs, with our plugin and without, one after the other and in turn the
// one and the other first, and prints the median ratio of each case. Each run is a process of its own.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settings are the flags.
type settings struct {
	binary, controlplane, dir string
	cases, latencies, failing string
	pairs, divide             int
	gates                     string
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

// measured is one run.
type measured struct {
	// throughput is pods a second; bindings and patches are writes to pods in all.
	throughput        float64
	bindings, patches float64
}

func (s settings) runCase(ctx context.Context, name string, w workload, latency, errorsInHundred string) error {
	var ratios, ours, plain, writes []float64
	for i := range s.pairs {
		pair := map[string]measured{}
		order := []string{"ours", "default"}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, profile := range order {
			m, err := s.once(ctx, profile, name, w, latency, errorsInHundred)
			if err != nil {
				return err
			}
			pair[profile] = m
			fmt.Printf("run: case=%s latency=%sms errors=%s%% profile=%s throughput=%.1f bindings=%.0f patches=%.0f\n",
				name, latency, errorsInHundred, profile, m.throughput, m.bindings, m.patches)
		}
		ratios = append(ratios, pair["ours"].throughput/pair["default"].throughput)
		ours, plain = append(ours, pair["ours"].throughput), append(plain, pair["default"].throughput)
		writes = append(writes, (pair["ours"].bindings+pair["ours"].patches)/float64(w.placed+w.pods))
	}
	fmt.Printf("scheduler: case=%s latency=%sms errors=%s%% nodes=%d placed=%d pods=%d ours=%.1f default=%.1f ratio=%.2f spread=%.2f..%.2f writes_per_pod=%.3f pairs=%d\n",
		name, latency, errorsInHundred, w.nodes, w.placed, w.pods, median(ours), median(plain), median(ratios),
		slices.Min(ratios), slices.Max(ratios), median(writes), s.pairs)
	return nil
}

func median(values []float64) float64 {
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

var errNoFigures = errors.New("the run ended without them")

var (
	throughputOf = regexp.MustCompile(`([0-9.e+]+) SchedulingThroughput/Average`)
	writesOf     = regexp.MustCompile(`writes: bindings=([0-9]+) patches=([0-9]+)`)
)

// once runs one workload under one profile.
func (s settings) once(ctx context.Context, profile, name string, w workload, latency, errorsInHundred string) (measured, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	scratch, err := os.MkdirTemp("", "bench-scheduler-")
	if err != nil {
		return measured{}, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	binary, errBinary := filepath.Abs(s.binary)
	controlplane, errControlPlane := filepath.Abs(s.controlplane)
	if err := cmp.Or(errBinary, errControlPlane); err != nil {
		return measured{}, err
	}
	command := exec.CommandContext(ctx, binary, "-test.run=^$", "-test.bench=PerfScheduling", "-test.benchtime=1x", "-test.timeout=30m", "-data-items-dir="+scratch)
	command.Dir = s.dir
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	command.Env = append(os.Environ(), "KUBE_CACHE_MUTATION_DETECTOR=false", "ARTIFACTS="+scratch, "TMPDIR="+scratch,
		"PERF_CONTROLPLANE="+controlplane, "PERF_PROFILE="+profile, "PERF_CASE="+name, "PERF_GATES="+s.gates,
		"PERF_NODES="+strconv.Itoa(w.nodes), "PERF_DEVICES="+strconv.Itoa(w.devices), "PERF_PLACED="+strconv.Itoa(w.placed),
		"PERF_PODS="+strconv.Itoa(w.pods), "PERF_LATENCY="+latency, "PERF_ERRORS="+errorsInHundred)
	output, err := command.CombinedOutput()
	if s.verbose {
		fmt.Println(string(output))
	}
	found, writes := throughputOf.FindSubmatch(output), writesOf.FindSubmatch(output)
	if found == nil || writes == nil {
		return measured{}, fmt.Errorf("profile %s: no figures in the output: %w\n%s", profile, cmp.Or(err, errNoFigures), tail(output))
	}
	var m measured
	for _, field := range []struct {
		into *float64
		text []byte
	}{{&m.throughput, found[1]}, {&m.bindings, writes[1]}, {&m.patches, writes[2]}} {
		if *field.into, err = strconv.ParseFloat(string(field.text), 64); err != nil {
			return measured{}, err
		}
	}
	return m, nil
}

// tail is the end of a run's output, for the error.
func tail(output []byte) []byte {
	const most = 8 << 10
	return output[max(0, len(output)-most):]
}
