package tenant

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// answering is an API that always fails in the same way.
type answering struct{ err error }

func (a answering) Ensure(context.Context, types.UID, EnsureRequest) (*Allocation, error) {
	return nil, a.err
}
func (a answering) Release(context.Context, string, types.UID, int64) error { return a.err }
func (a answering) ReleaseUnused(context.Context, string, types.UID, int64, time.Duration) error {
	return a.err
}
func (a answering) Get(context.Context, string, types.UID) (*Allocation, error) {
	return nil, a.err
}
func (a answering) List(context.Context, string) ([]Allocation, error) { return nil, a.err }
func (a answering) Healthy(context.Context) error                      { return a.err }

func TestMetricsCountEachOutcomeOnce(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	tests := map[string]error{
		codeOK:          nil,
		codeConflict:    &Error{Status: 409},
		codeFinal:       &Error{Status: 422},
		codeUnavailable: &Error{Status: 503},
		codeCanceled:    &Error{cause: context.Canceled},
	}
	for want, err := range tests {
		api, registerErr := WithMetrics(answering{err: err}, registry) // shares the metric from the second time on
		require.NoError(t, registerErr)
		_, got := api.Ensure(t.Context(), testUID, testAsk)
		assert.Equal(t, err, got, want)
		_, _ = api.Get(t.Context(), "c", testUID)
		_, _ = api.List(t.Context(), "c")
		_ = api.Release(t.Context(), "c", testUID, 0)
		_ = api.Healthy(t.Context())
	}
	count, err := testutil.GatherAndCount(registry, "rdma_tenant_request_duration_seconds")
	require.NoError(t, err)
	assert.Equal(t, 5*len(tests), count)
	assert.Equal(t, codeUnavailable, code(errors.New("not ours")), "the label's values are a closed set")
}
