package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPlainPodsAreNotKept compares two sizes in one process: the difference is what the pods cost.
func TestPlainPodsAreNotKept(t *testing.T) {
	few, err := measure(t.Context(), 50, 100, 5)
	require.NoError(t, err)
	many, err := measure(t.Context(), 50, 10_100, 0)
	require.NoError(t, err)
	t.Log(few, many)
	perPod := (int64(many.heap) - int64(few.heap)) / 10_000
	assert.Less(t, perPod, int64(200), "bytes for each plain pod")
}

func TestSizesMustMakeSense(t *testing.T) {
	_, err := measure(t.Context(), 0, 1, 5)
	assert.ErrorContains(t, err, "-nodes 0")
	_, err = measure(t.Context(), 1, 1, 101)
	assert.ErrorContains(t, err, "-share 101")
}
