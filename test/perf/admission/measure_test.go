package main

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

// TestAReviewCostsFarLessThanAScan has wide margins: the machine may be busy with other things.
func TestAReviewCostsFarLessThanAScan(t *testing.T) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	for _, pinned := range []bool{false, true} {
		results, err := measure(300, 20_000, pinned, nil, 200*time.Millisecond)
		require.NoError(t, err)
		for _, r := range results {
			t.Log(r)
			assert.Greater(t, r.ours.rps, 5*r.scan, "%v: hardly better than a scan", r)
		}
		assert.Greater(t, results[1].ours.rps, 0.3*results[1].empty, "%v: much slower than an empty webhook", results[1])
	}
}

func TestSizesMustBePositive(t *testing.T) {
	for text, err := range map[string]error{
		"-nodes": bench("10,x", 10, time.Millisecond, ""),
		"-pods":  bench("10", 0, time.Millisecond, ""),
	} {
		assert.ErrorContains(t, err, text)
	}
}
