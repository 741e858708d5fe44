package tenant

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Codes of the metric's label.
const (
	codeOK          = "ok"
	codeConflict    = "conflict"
	codeFinal       = "final"
	codeUnavailable = "unavailable"
	codeCanceled    = "canceled"
)

// measured is an API whose calls are timed.
type measured struct {
	api     API
	seconds *prometheus.HistogramVec
}

var _ API = &measured{}

// WithMetrics returns the API with the metric rdma_tenant_request_duration_seconds registered and observed: the time
// of a whole call with all its attempts, by operation (ensure, release, get, list, healthy) and code (ok, conflict,
// final, unavailable, canceled). A registry that has the metric already is shared.
func WithMetrics(api API, registerer prometheus.Registerer) (API, error) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "rdma_tenant_request_duration_seconds",
		Help:    "Time of a call to the tenant-controller with all its attempts, by operation and outcome.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2, 3.5, 5, 7.5, 10, 15},
	}, []string{"operation", "code"})
	if err := registerer.Register(seconds); err != nil {
		var already prometheus.AlreadyRegisteredError
		if !errors.As(err, &already) {
			return nil, fmt.Errorf("registering the tenant-controller metrics: %w", err)
		}
		existing, ok := already.ExistingCollector.(*prometheus.HistogramVec)
		if !ok {
			return nil, fmt.Errorf("registering the tenant-controller metrics: %w", err)
		}
		seconds = existing
	}
	return &measured{api: api, seconds: seconds}, nil
}

func (m *measured) observe(op string, start time.Time, err error) {
	m.seconds.WithLabelValues(op, code(err)).Observe(time.Since(start).Seconds())
}

func code(err error) string {
	switch {
	case err == nil:
		return codeOK
	case IsConflict(err):
		return codeConflict
	case IsFinal(err):
		return codeFinal
	case errors.Is(err, context.Canceled):
		return codeCanceled
	}
	return codeUnavailable
}

// Ensure implements API.
func (m *measured) Ensure(ctx context.Context, podUID types.UID, ask EnsureRequest) (*Allocation, error) {
	start := time.Now()
	allocation, err := m.api.Ensure(ctx, podUID, ask)
	m.observe(opEnsure, start, err)
	return allocation, err
}

// Release implements API.
func (m *measured) Release(ctx context.Context, cluster string, podUID types.UID, generation int64) error {
	start := time.Now()
	err := m.api.Release(ctx, cluster, podUID, generation)
	m.observe(opRelease, start, err)
	return err
}

// ReleaseUnused implements API.
func (m *measured) ReleaseUnused(ctx context.Context, cluster string, podUID types.UID, generation int64, minAge time.Duration) error {
	start := time.Now()
	err := m.api.ReleaseUnused(ctx, cluster, podUID, generation, minAge)
	m.observe(opRelease, start, err)
	return err
}

// Get implements API.
func (m *measured) Get(ctx context.Context, cluster string, podUID types.UID) (*Allocation, error) {
	start := time.Now()
	allocation, err := m.api.Get(ctx, cluster, podUID)
	m.observe(opGet, start, err)
	return allocation, err
}

// List implements API.
func (m *measured) List(ctx context.Context, cluster string) ([]Allocation, error) {
	start := time.Now()
	allocations, err := m.api.List(ctx, cluster)
	m.observe(opList, start, err)
	return allocations, err
}

// Healthy implements API.
func (m *measured) Healthy(ctx context.Context) error {
	start := time.Now()
	err := m.api.Healthy(ctx)
	m.observe(opHealthy, start, err)
	return err
}
