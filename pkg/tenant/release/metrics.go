package release

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Kinds of bound pods whose allocation is wrong, as the metric has them. The first two are mended at once; a pod uses the
// networks that it was started with until it is recreated.
const (
	kindMissing   = "missing"
	kindElsewhere = "other_node"
	kindNetworks  = "networks"
)

type sweepMetrics struct {
	orphans, blocked, lastSuccess prometheus.Gauge
	released, failures            prometheus.Counter
	wrong                         *prometheus.GaugeVec
}

func newSweepMetrics(registerer prometheus.Registerer) (*sweepMetrics, error) {
	m := &sweepMetrics{
		orphans: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rdma_sweep_orphans",
			Help: "Allocations without a live pod that the last sweep found."}),
		blocked: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rdma_sweep_blocked",
			Help: "1 while the sweep found so many allocations without a live pod that it waits for --sweep-confirm."}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rdma_sweep_last_success_timestamp_seconds",
			Help: "When the last sweep came to its end, in seconds since 1970."}),
		released: prometheus.NewCounter(prometheus.CounterOpts{Name: "rdma_sweep_released_total",
			Help: "Allocations that the sweep gave back."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "rdma_sweep_failures_total",
			Help: "Sweeps that did not come to their end."}),
		wrong: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rdma_sweep_wrong_allocations",
			Help: "Bound pods that the last sweep found wrong: their allocation was missing, named an other_node, or has other networks than the pod was started with."}, []string{"kind"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.orphans, m.blocked, m.lastSuccess, m.released, m.failures, m.wrong} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("registering metrics of the sweep: %w", err)
		}
	}
	return m, nil
}
