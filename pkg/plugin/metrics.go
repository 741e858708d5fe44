package plugin

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// metricSet has what the framework does not measure itself.
type metricSet struct {
	inFlight    *metrics.Gauge
	notInjected *metrics.Counter
	preBind     *metrics.Histogram
	breakers    *metrics.GaugeVec
}

// sharedMetrics registers the metrics once; the plugin's factory runs once a profile.
var sharedMetrics = sync.OnceValue(func() *metricSet {
	m := &metricSet{
		inFlight: metrics.NewGauge(&metrics.GaugeOpts{Name: "rdma_scheduler_in_flight_pods",
			Help: "RDMA pods between Reserve and the end of their binding.", StabilityLevel: metrics.ALPHA}),
		notInjected: metrics.NewCounter(&metrics.CounterOpts{Name: "rdma_scheduler_not_injected_total",
			Help: "Pods that ask for RDMA devices and were bound as plain pods, because they did not go through tenant-webhook.", StabilityLevel: metrics.ALPHA}),
		preBind: metrics.NewHistogram(&metrics.HistogramOpts{Name: "rdma_scheduler_prebind_duration_seconds",
			Help: "Time to get one pod's networks, in seconds, without the wait for its turn, successes only.", Buckets: metrics.ExponentialBuckets(0.001, 2, 15), StabilityLevel: metrics.ALPHA}),
		breakers: metrics.NewGaugeVec(&metrics.GaugeOpts{Name: "rdma_scheduler_open_breakers",
			Help: "Circuit breakers that are not closed, by scope: tenant or all.", StabilityLevel: metrics.ALPHA}, []string{"scope"}),
	}
	legacyregistry.MustRegister(m.inFlight, m.notInjected, m.preBind, m.breakers)
	return m
})
