package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// times are what the suite says of an attempt and of its parts, in milliseconds.
type times struct {
	// attempt is from the queue to the binding, of the pods that were placed.
	attempt map[string]float64
	// points are the means of the extension points.
	points map[string]float64
}

// extensionPoints are those that are printed, in the order in which a pod passes them.
var extensionPoints = []string{"PreFilter", "Filter", "PreScore", "Score", "Reserve", "PreBind", "Bind"}

func (t times) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "attempt_p50=%.1fms attempt_p90=%.1fms attempt_p99=%.1fms", t.attempt["Perc50"], t.attempt["Perc90"], t.attempt["Perc99"])
	for _, point := range extensionPoints {
		fmt.Fprintf(&b, " %s=%.3fms", point, t.points[point])
	}
	return b.String()
}

var errNoTimes = errors.New("the run wrote no times")

// readTimes reads the suite's own file of results (k8s.io/kubernetes v1.37.2, test/integration/scheduler_perf/util.go).
func readTimes(dir string) (times, error) {
	files, err := filepath.Glob(filepath.Join(dir, "BenchmarkPerfScheduling*.json"))
	if err != nil {
		return times{}, err
	}
	if len(files) != 1 {
		return times{}, fmt.Errorf("%w: %d files of results", errNoTimes, len(files))
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return times{}, err
	}
	var results struct {
		DataItems []struct {
			Data   map[string]float64
			Labels map[string]string
		}
	}
	if err := json.Unmarshal(text, &results); err != nil {
		return times{}, fmt.Errorf("%s: %w", files[0], err)
	}
	t := times{points: map[string]float64{}}
	for _, item := range results.DataItems {
		switch {
		case item.Labels["Metric"] == "scheduler_framework_extension_point_duration_seconds":
			t.points[item.Labels["extension_point"]] = item.Data["Average"]
		case item.Labels["Metric"] == "scheduler_scheduling_attempt_duration_seconds" && item.Labels["result"] == "scheduled":
			t.attempt = item.Data
		}
	}
	if t.attempt == nil {
		return times{}, errNoTimes
	}
	return t, nil
}
