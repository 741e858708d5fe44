package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// measured is one run.
type measured struct {
	// throughput is pods a second; bindings and patches are writes to pods in all.
	throughput        float64
	bindings, patches float64
	// batched is how many pods went where the attempt before them had pointed.
	batched float64
	times   times
}

var errNoFigures = errors.New("the run ended without them")

var (
	throughputOf = regexp.MustCompile(`probe: throughput=([0-9.]+)`)
	writesOf     = regexp.MustCompile(`writes: bindings=([0-9]+) patches=([0-9]+) batched=([0-9]+)`)
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
		"PERF_PODS="+strconv.Itoa(w.pods), "PERF_LATENCY="+latency, "PERF_NETWORKS="+s.networks, "PERF_BATCHING="+strconv.FormatBool(s.batching), "PERF_ERRORS="+errorsInHundred)
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
	}{{&m.throughput, found[1]}, {&m.bindings, writes[1]}, {&m.patches, writes[2]}, {&m.batched, writes[3]}} {
		if *field.into, err = strconv.ParseFloat(string(field.text), 64); err != nil {
			return measured{}, err
		}
	}
	m.times, err = readTimes(scratch)
	return m, err
}

// printDifference prints what the two profiles differ in.
func (s settings) printDifference(ctx context.Context) error {
	binary, err := filepath.Abs(s.binary)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, binary, "-test.run=^TestTheProfilesDifferInOurPluginAlone$", "-test.count=1")
	command.Dir = s.dir
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	return command.Run()
}

// tail is the end of a run's output, for the error.
func tail(output []byte) []byte {
	const most = 8 << 10
	return output[max(0, len(output)-most):]
}
