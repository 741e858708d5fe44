package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

var errSlow = errors.New("the plugin costs too much")

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
			fmt.Printf("run: case=%s latency=%sms errors=%s%% profile=%s throughput=%.1f bindings=%.0f patches=%.0f batched=%.0f %s\n",
				name, latency, errorsInHundred, profile, m.throughput, m.bindings, m.patches, m.batched, m.times)
		}
		ratios = append(ratios, pair["ours"].throughput/pair["default"].throughput)
		ours, plain = append(ours, pair["ours"].throughput), append(plain, pair["default"].throughput)
		writes = append(writes, (pair["ours"].bindings+pair["ours"].patches)/float64(w.placed+w.pods))
	}
	fmt.Printf("scheduler: case=%s latency=%sms errors=%s%% networks=%s batching=%t nodes=%d placed=%d pods=%d ours=%.1f default=%.1f ratio=%.2f spread=%.2f..%.2f writes_per_pod=%.3f pairs=%d\n",
		name, latency, errorsInHundred, s.networks, s.batching, w.nodes, w.placed, w.pods, median(ours), median(plain), median(ratios),
		slices.Min(ratios), slices.Max(ratios), median(writes), s.pairs)
	if ratio := median(ratios); ratio < s.atLeast {
		return fmt.Errorf("%w: %.2f is less than %.2f", errSlow, ratio, s.atLeast)
	}
	return nil
}

func median(values []float64) float64 {
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
