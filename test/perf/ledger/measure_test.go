package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAnEventAndAChoiceCostTheSameInALargeCluster allows for a machine that is busy with other things: what would
// depend on the number of pods is a hundred times larger here.
func TestAnEventAndAChoiceCostTheSameInALargeCluster(t *testing.T) {
	const margin = 8
	small, large := byOp(t, 50, 300), byOp(t, 1000, 30_000)
	for _, op := range []string{opEvent, opChoice} {
		assert.Less(t, large[op].ns, margin*small[op].ns, "%v against %v", large[op], small[op])
		assert.Less(t, margin*large[op].ns, large[op].baseline, "%v: no better than a scan", large[op])
	}
	assert.LessOrEqual(t, large[opEvent].allocs, int64(2))
}

func byOp(t *testing.T, nodes, pods int) map[string]result {
	t.Helper()
	results := map[string]result{}
	for _, r := range measure(nodes, pods) {
		t.Log(r)
		results[r.op] = r
	}
	require.Len(t, results, 3)
	return results
}

func TestNumbersMustBePositive(t *testing.T) {
	for _, text := range []string{"", "0", "-1", "1,,2", "1 000"} {
		_, err := numbers("-pods", text)
		assert.ErrorContains(t, err, "-pods", text)
	}
	got, err := numbers("-pods", "1,20")
	require.NoError(t, err)
	assert.Equal(t, []int{1, 20}, got)
}
